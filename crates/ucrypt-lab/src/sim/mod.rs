//! The dispatch machine in virtual time.
//!
//! The same [`ucrypt_dispatch::Machine`] that ships drives every queue; what it asks for is carried
//! out on simulated cores and a simulated disk. There is no thread and no clock: time is a number
//! of nanoseconds, and everything random comes from one seed, so that a run can be repeated to the
//! event.
//!
//! # What is modelled
//! - Cores run one thread at a time: queues (bound to cores), workers of the pool, and one worker
//!   per queue on its own core. Sleeping threads take time to wake; changing threads costs time;
//!   a thread keeps its core for a slice while others wait; a queue that is woken preempts a
//!   worker.
//! - A queue carries out what its machine asks for, one thing after the other, and takes new requests
//!   when nothing is left to do. Operations are staged, and reach the disk together, as through a
//!   ring: then, or before a long crypt. So are answers taken.
//! - Clients take no time to think and no core.
//! - The cipher costs time per call and per byte; caches, memory bandwidth, hyperthreads and
//!   frequency changes are not modelled.
//!
//! # Fault model
//! - The disk may fail any operation. Of a failed write, any subset of its sectors may have been
//!   written. It may answer any operation late, so that others overtake it, and read what was there
//!   when the read was submitted or when it was answered.
//! - The disk has a volatile cache: a write is durable once it was answered and a flush that was
//!   submitted later was answered, or when it was written with FUA. When the power fails, at any
//!   event, each sector keeps its durable version or any one written later, whether that write was
//!   answered or not. A sector is never torn itself, and the medium does not rot.
//! - A client may cancel a request at any step: it then ends with success or without, and of a write
//!   any subset of its sectors may have been written.
//! - A core may be taken away from its thread at any step, for a bounded time.
//! - The cipher does not fail, messages between threads are neither lost nor doubled, and memory is
//!   kept until the power fails.
//!
//! # What is judged
//! Every request ends once, and with success only if all of it was stored and crypted. No plaintext
//! reaches the disk. Writes leave in the order in which they came where the policy keeps it. Where
//! [`Experiment::verify`] says so, every sector that is read, and every sector that survives a power
//! failure, is what a legal order of the writes allows.

mod client;
mod content;
mod cores;
mod device;
mod disk;
mod experiment;
mod judge;
mod queue;
mod random;
mod report;
mod steps;
mod world;

pub(crate) use client::Client;
pub(crate) use cores::{Core, Role, State};
pub use device::DeviceModel;
pub use experiment::{Cipher, Costs, Experiment, Faults, Job, Pattern};
pub use report::{Latency, Report};
