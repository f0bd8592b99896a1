//! Volumes, and the queues that serve them.
//!
//! A [`Volume`] is what a client sees as a disk: segments of a backend, each with its cipher. Any
//! number of threads use it at once, each through a [`Queue`] of its own. Each thread drives its
//! queue itself: it does the work of its requests, except for the chunks that the policy offloads
//! to the volume's workers.
//!
//! - [`Volume`]: the state that all queues of a volume share;
//! - [`queue`]: requests in, answers out, at any byte offset and length;
//! - [`Executor`]: time and workers as queues see them, real or simulated;
//! - [`meters`]: what operators watch, counted by each queue;
//! - [`JobRings`]: where chunks wait for workers, which both have in common;
//! - `workers`: the threads that transform offloaded chunks;
//! - `residue`: what ciphers leave on the threads that run them;
//! - `cores`: the cores that queues leave to these threads;
//! - `range_lock`: excludes other requests from a sector during its read-modify-write.

#![forbid(unsafe_code)]

mod calibrate;
mod cores;
mod counters;
mod data;
mod executor;
mod jobs;
mod keys;
pub mod meters;
pub mod queue;
mod range_lock;
mod residue;
mod segments;
mod tuning;
mod volume;
mod waker;
mod workers;
mod zones;

pub use calibrate::Calibration;
pub use counters::{Decisions, Totals};
pub use executor::{Clock, Executor, WorkerPool};
pub use jobs::{JobRings, wakes_worker};
pub use queue::{Done, Io, Poll, Polled, Queue, QueueConfig, ReadTo, Rejected, WriteFrom};
pub use segments::{CipherModel, Segment};
pub use ucrypt_backend::{
    Access, Buf, Errno, Pool, SharedRing, WRITE_UNIT_MAX, Watch, Zone, ZoneAction, ZoneKind,
    ZoneLimits, count_cores, ring,
};
pub use ucrypt_dispatch::{
    Average, Explored, Fixed, Measured, OPERATION_NS, Policies, PolicyKind, Stats, Urgency,
};
pub use volume::{Volume, VolumeError, VolumeExtent, VolumeInfo, VolumeOptions};
pub use workers::{DoneJob, Job};
pub use zones::{VolumeZones, ZoneChange, ZonesError};
