//! What happens to a disk request, and when.
//!
//! A request becomes **chunks**; a chunk is encrypted or decrypted (*crypt*) and goes to or comes
//! from the backend (*store*). This crate decides into how many chunks, in which order and where,
//! and keeps the books until the request is finished. It does no I/O, starts no thread and reads
//! no clock: the engine carries its outputs out on real devices, a simulator can do the same in
//! virtual time.
//!
//! ```text
//! inputs    request · crypted(chunk, result) · stored(chunk, result)
//! outputs   Crypt(chunk, place) · Store(chunk) · Finish(request, result)
//! ```
//!
//! [`machine`] is the state machine and its contract, [`policy`] the decisions.

#![forbid(unsafe_code)]

pub mod machine;
pub mod policy;
mod slab;

pub use machine::{ChunkId, Limits, Machine, Op, Output, Request, RequestId, Span, StoreKind};
pub use policy::{Place, Policy};
