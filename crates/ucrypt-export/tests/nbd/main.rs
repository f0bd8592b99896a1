//! The NBD server over its sockets, tested by a client of our own that can misbehave, and by widely
//! used clients.

mod client;
mod disconnects;
mod faults;
mod harness;
mod hostile;
mod options;
mod tools;
mod transmission;
