//! Decides what happens to a disk request, and when.
//!
//! Requests become **chunks**. A chunk is encrypted or decrypted (*transform*) and written to or
//! read from the backend (*I/O*). A large request is split into several chunks; small adjacent
//! requests that wait together are joined into one. This crate decides the number of chunks, their
//! order and where each is transformed, and tracks them until the requests finish. It does no I/O,
//! starts no thread and reads no clock: the engine carries out its outputs, on real devices or in
//! virtual time.
//!
//! ```text
//! inputs    request · plan · cancel(request)
//!           offloaded(chunk) · cipher_done(chunk) · mapped_done(chunk) · io_done(chunk) · io_mapped(chunk)
//! outputs   Transform(chunk, target) · DecryptMapped(chunk, target) · EncryptMapped(chunk)
//!           SubmitIo(chunk, kind) · Drop(chunk) · Finish(request, result)
//! ```
//!
//! - [`machine`]: what may happen: the state machine and its contract;
//! - [`policy`]: what should happen: the trait;
//! - [`fixed`]: dm-crypt's policies, and rules that other systems set by hand;
//! - [`Configured`]: the policy of a queue: a fixed one, or a cost model (`cost_model`) based on
//!   measured [`Estimates`] and trials (`explorer`, `trials`); its constants are in `tuning`;
//! - [`Policies`]: which policy a queue gets;
//! - [`Slab`]: the table of fixed size for requests and chunks, here and in the engine. Its entries
//!   keep their lists; where entries come and go as a whole, the crates around this one use the
//!   `slab` library.

#![forbid(unsafe_code)]

mod adaptive;
mod chunk;
mod config;
mod cost_model;
mod environment;
mod estimates;
mod explorer;
pub mod fixed;
pub mod machine;
pub mod policy;
mod ready;
mod request;
mod slab;
mod trials;
mod tuning;
mod writers;

pub use adaptive::{Configured, Explored};
pub use chunk::{ChunkId, PARTS_MAX, Part, RequestId};
pub use config::{Policies, PolicyKind};
pub use environment::{BackendTraits, Bounds, Environment};
pub use estimates::{Average, Estimates, Measured};
pub use fixed::Fixed;
pub use machine::{Machine, Output, Stats};
pub use policy::{Policy, Target};
pub use request::{IoKind, Op, Request, Urgency};
pub use slab::Slab;
pub use tuning::{OPERATION_NS, ZEROES_UNIT_SECTORS};
