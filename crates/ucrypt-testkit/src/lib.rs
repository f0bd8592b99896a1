//! What holds ucrypt to its promises.
//!
//! - [`model`]: what a disk may hold, now and after a crash;
//! - [`operation`]: operations chosen at random, from a seed;
//! - [`client`]: submits them through [ports](port), holds every answer to the model, and reports
//!   what waits for what when nothing is answered any more;
//! - [`fault`]: a backend around a backend that does what disks do on bad days;
//! - [`engine`], [`nbd`], [`disk`]: the engine's queue, an NBD connection, and a file or block device
//!   of this machine as ports;
//! - [`given`]: the seeds that the environment asks for.
//!
//! A run that fails prints its seed; the same seed gives the same run wherever one thread does all
//! (no workers, a backend of memory).

#![forbid(unsafe_code)]

pub mod client;
pub mod disk;
pub mod engine;
pub mod fault;
pub mod given;
pub mod model;
pub mod nbd;
pub mod operation;
pub mod port;
pub mod random;

pub use client::{Client, Failure, Plan, Report, Watchdog};
pub use fault::{FaultBackend, Faults};
pub use model::{Initial, Whole};
pub use operation::Shape;
pub use port::{Completion, Port, Submitted};
pub use random::Random;
