//! Serves a volume to other programs.
//!
//! - [`mod@fuse`]: as a file, for every program and without root;
//! - [`loop_device`]: as a loop device of the kernel, for root;
//! - [`nbd`]: on a socket, for QEMU, the kernel's client and the NBD tools;
//! - [`vhost_user`]: as the disk of a virtual machine, directly in the guest's memory;
//! - [`ublk`]: as a block device of the kernel, where the kernel has ublk.

mod backlog;
mod creatable;
mod ending;
pub mod fuse;
pub mod loop_device;
mod memory;
pub mod nbd;
mod seldom;
mod stop;
mod table;
pub mod ublk;
mod unix_socket;
pub mod vhost_user;
mod visits;
mod waiter;

pub use unix_socket::{SocketError, UnixSocket};
