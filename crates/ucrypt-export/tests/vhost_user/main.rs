//! The vhost-user-blk server over its socket, tested by a front end and a driver of our own, which
//! can misbehave in every way that others hopefully do not.

mod cache;
mod connection;
mod driver;
mod front_end;
mod fuzz;
mod harness;
mod hostile;
mod memory;
mod random_client;
mod requests;
mod resume;
mod rings;
mod shutdown;
mod urgency;
