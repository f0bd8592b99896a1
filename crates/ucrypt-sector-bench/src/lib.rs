//! What sectors are measured against: AWS-LC, OpenSSL, the RustCrypto crates, and what the core
//! could do at best.
//!
//! Everything is behind the feature `peers`, so that a build of the workspace pays for none of it.
//! The benchmark is `benches/sectors.rs`; `docs/ciphers.md` has its figures.

#![cfg(feature = "peers")]

mod buffer;
mod evp;
pub mod limit;
mod row;
pub mod rows;
mod rust_crypto;

pub use row::{Direction, Row, Work};

/// The libraries that take part, for the head of a table.
pub fn versions() -> String {
    format!("{}; {}", evp::aws_lc::version(), evp::openssl::version())
}
