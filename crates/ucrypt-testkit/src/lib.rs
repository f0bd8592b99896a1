//! Tools that test whether ucrypt keeps its contracts.
//!
//! - [`model`]: the contents that a disk may hold, now and after a crash;
//! - [`operation`]: random operations, derived from a seed;
//! - [`client`]: submits them through [ports](port), checks every answer against the model, and
//!   reports what waits for what if answers stop coming;
//! - [`fault`]: a backend around a backend that injects faults;
//! - [`engine`], [`nbd`], [`disk`]: ports to the engine's queue, to an NBD connection, and to a
//!   file or block device of this machine;
//! - [`reports`]: what a server reports;
//! - [`foreign`]: the memory of a virtual machine;
//! - [`fork`]: a child that was forked;
//! - [`given`]: the seeds set in the environment.
//!
//! A failing run prints its seed. The same seed gives the same run wherever one thread does
//! everything (no workers, a backend in memory).

pub mod client;
pub mod disk;
pub mod engine;
pub mod fault;
pub mod foreign;
pub mod fork;
pub mod given;
pub mod model;
pub mod nbd;
pub mod operation;
pub mod port;
pub mod random;
pub mod reports;

pub use client::{Client, Failure, Plan, Report, Watchdog};
pub use fault::{FaultBackend, Faults};
pub use foreign::ForeignMemory;
pub use fork::in_child;
pub use model::{Initial, Whole};
pub use operation::Shape;
pub use port::{Completion, Port, Submitted};
pub use random::Random;
pub use reports::Reports;
