//! vhost-user-blk: a volume as the disk of a virtual machine, without a copy of the data.
//!
//! The front end (QEMU, or another monitor) connects to a Unix socket and hands over the guest's
//! memory and its virtqueues; from then on the guest's requests come straight from there. Each
//! virtqueue is one thread with one engine queue. Bytes flow through these files, in order:
//! `server` accepts front ends, `device` answers their messages, `rings` starts and stops what
//! `ring` does in its thread: [`split`](self) takes requests from the virtqueue, `request` reads
//! them, the engine carries them out on the guest's `memory`, and the answers go back. `inflight`
//! keeps what is under way in memory that outlives the process; `event` keeps events of the front
//! end's from blocking us.
//!
//! Nothing that the guest or the front end says is trusted: it is read once, checked, and then
//! used. The worst that a guest can do is spoil its own data and stop its own rings.

mod config;
mod device;
mod event;
mod inflight;
mod memory;
mod request;
mod ring;
mod rings;
mod server;
mod shared;
mod split;

pub use server::{Report, Server, ServerConfig, ServerError};
