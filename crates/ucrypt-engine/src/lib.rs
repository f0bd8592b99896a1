//! A volume and the loop that serves it.
//!
//! A [`Volume`] is what a client sees as a disk: segments of a backend, each with its cipher. Any
//! number of threads use it at once, each through a [`Queue`] of its own, and drive it themselves:
//! the thread that has a request
//! does the work, unless the policy hands a part of it to the volume's workers.
//!
//! - [`volume`]: what is shared, and what it is made of;
//! - [`queue`]: requests in, answers out, at any byte offset and length;
//! - [`executor`]: time and workers as queues see them, real or simulated;
//! - `workers`: threads that transform what queues offload;
//! - `range_lock`: keeps read-modify-write of part of a sector away from its neighbours.

#![forbid(unsafe_code)]

mod calibrate;
mod counters;
mod data;
pub mod executor;
pub mod queue;
mod range_lock;
mod segments;
pub mod volume;
mod workers;
mod zones;

pub use calibrate::Calibration;
pub use counters::{Decisions, Totals};
pub use executor::{Clock, Executor, WorkerPool};
pub use queue::{Done, Io, Queue, QueueConfig, ReadTo, Rejected, WriteFrom};
pub use segments::{CipherModel, Segment};
pub use ucrypt_backend::{
    Access, Buf, Errno, Guest, Pool, Watch, Zone, ZoneAction, ZoneKind, ZoneLimits, ring,
};
pub use ucrypt_dispatch::{Explored, Fixed, Measured, Policies, PolicyKind, Stats, Urgency};
pub use volume::{Volume, VolumeError, VolumeExtent, VolumeInfo, VolumeOptions};
pub use workers::{DoneJob, JOBS_MAX, Job};
pub use zones::{VolumeZones, ZonesError};
