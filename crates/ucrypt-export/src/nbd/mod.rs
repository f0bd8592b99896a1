//! NBD: a volume on a Unix or TCP socket, for QEMU, the kernel's client and every tool that
//! speaks the protocol.
//!
//! A connection is one thread with one engine queue. Bytes flow through these files, in order:
//! `server` accepts, `negotiate` runs a [`handshake`] on the socket, `inbox` cuts what comes into
//! requests, [`request`] decides what is refused, `connection` drives the queue, `outbox` sends
//! the replies. What is pure (`protocol`, `handshake`, `options`, `request`) knows no socket.
//!
//! There is no TLS, so TCP is served on loopback addresses only, and there to the server's user and to
//! root only ([`ServerConfig::any_user`], `peer`). `guests` bounds how many clients there are.

#![forbid(unsafe_code)]

mod address;
mod connection;
mod extents;
mod guests;
pub mod handshake;
mod inbox;
mod negotiate;
mod options;
mod outbox;
mod peer;
mod pending;
pub mod protocol;
pub mod request;
mod server;

pub use address::{Address, AddressError};
pub use server::{Report, Server, ServerConfig, ServerError};
