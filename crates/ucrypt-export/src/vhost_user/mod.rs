//! vhost-user-blk: a volume as the disk of a virtual machine, without a copy of the data.
//!
//! The front end (QEMU, or another monitor) connects to a Unix socket and hands over the guest's
//! memory and its virtqueues; from then on the guest's requests come directly from there. Each
//! virtqueue has one thread with one engine queue. Bytes flow through these files, in order:
//! `server` accepts front ends, `device` answers their messages, and `rings` starts and stops the
//! threads of `ring`. There `split` takes requests from the virtqueue, `request` parses them, the
//! engine carries them out on the guest's `memory`, and the answers go back. `inflight` records the
//! requests in flight in memory that outlives the process; `event` prevents the front end's events
//! from blocking us.
//!
//! The server trusts nothing from the guest or the front end: it reads each value once, checks it,
//! and then uses it. The worst that a guest can do is spoil its own data and stop its own rings.

mod config;
mod device;
mod event;
mod inflight;
mod memory;
mod request;
mod ring;
mod ring_control;
mod rings;
mod server;
mod split;

pub use crate::visits::{Admitted, Report};
pub use server::{Server, ServerConfig, ServerError};
