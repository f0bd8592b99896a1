//! NBD: a volume on a Unix or TCP socket, for QEMU, the kernel's client and every tool that
//! speaks the protocol.
//!
//! A connection has one thread with one engine queue. Bytes flow through these files, in order:
//! `server` accepts, `negotiate` runs a `handshake` on the socket, `inbox` cuts the input into
//! requests, `request` decides what is refused, `connection` drives the queue, `outbox` sends
//! the replies. The pure modules (`protocol`, `handshake`, `options`, `request`) know no socket.
//!
//! There is no TLS, so the server listens for TCP on loopback addresses only, and serves only its own
//! user and root there ([`ServerConfig::any_user`], `peer`). `clients` bounds the number of clients.

#![forbid(unsafe_code)]

mod address;
mod clients;
mod connection;
mod extents;
mod handshake;
mod inbox;
mod negotiate;
mod options;
mod outbox;
mod peer;
pub mod protocol;
mod request;
mod server;

pub use crate::visits::{Admitted, Report};
pub use address::{Address, AddressError};
pub use server::{Server, ServerConfig, ServerError};
