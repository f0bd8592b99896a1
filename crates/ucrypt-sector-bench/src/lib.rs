//! The references for the sector benchmark: AWS-LC, OpenSSL, the RustCrypto crates, and the limits
//! of the core.
//!
//! Everything is behind the feature `peers`, so that a build of the workspace does not compile it.
//! The benchmark is `benches/sectors.rs`; `docs/reports/` has its figures.

#![cfg(feature = "peers")]

mod buffer;
mod evp;
pub mod limit;
mod row;
pub mod rows;
mod rust_crypto;

pub use row::{Direction, Row, Work};

/// The versions of the compared libraries, for the head of a table.
pub fn versions() -> String {
    format!("{}; {}", evp::aws_lc::version(), evp::openssl::version())
}
