//! What happens to a disk request, and when.
//!
//! Requests become **chunks**; a chunk is encrypted or decrypted (*crypt*) and goes to or comes
//! from the backend (*store*). A large request is cut into several chunks; small neighbours that
//! wait together become one. This crate decides into how many, in which order and where, and keeps
//! the books until the requests are finished. It does no I/O, starts no thread and reads no clock:
//! the engine carries its outputs out, on real devices or in virtual time.
//!
//! ```text
//! inputs    request · plan · cancel(request) · crypted(chunk, result) · stored(chunk, result)
//! outputs   Crypt(chunk, target) · Store(chunk) · Drop(chunk) · Finish(request, result)
//! ```
//!
//! - [`machine`]: the state machine and its contract;
//! - [`policy`]: the decisions, from numbers only;
//! - [`learn`]: the numbers that are measured while it runs.

#![forbid(unsafe_code)]

mod adaptive;
mod around;
mod chunk;
mod explorer;
pub mod learn;
mod line;
pub mod machine;
pub mod policy;
mod request;
mod slab;

pub use around::{Device, Limits, Surroundings, ZEROES_UNIT_SECTORS};
pub use chunk::{ChunkId, PARTS_MAX, Part, RequestId};
pub use learn::{Learned, Measured};
pub use machine::{Machine, Output};
pub use policy::{Policies, Policy, Tally, Target};
pub use request::{Op, Request, StoreKind, Urgency};
