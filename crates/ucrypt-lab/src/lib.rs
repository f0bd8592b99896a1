//! The lab: experiments on the parts that ship.
//!
//! - [`world`]: the engine in virtual time, on any number of cores;
//! - [`experiment`]: one run there, with clients that keep a number of requests in flight;
//! - [`grid`]: every policy in every cell of a grid of jobs, disks and machines;
//! - [`real`]: the same cells in real time;
//! - [`options`]: how the programs that print them are told what to do.

#![forbid(unsafe_code)]

mod client;
pub mod experiment;
pub mod grid;
pub mod options;
pub mod real;
mod report;
pub mod world;

pub use client::{Job, Pattern};
pub use experiment::Experiment;
pub use report::{Latency, Report};
