//! The NBD server over its sockets: judged by a client of our own that can misbehave, and by the
//! clients that others use.

mod client;
mod disconnects;
mod faults;
mod harness;
mod hostile;
mod judges;
mod options;
#[path = "../common/random.rs"]
mod random;
mod transmission;
