//! The lab: experiments with the shipped engine.
//!
//! - [`world`]: the engine in virtual time, on any number of cores;
//! - [`experiment`]: one run in virtual time, with clients that keep a number of requests in
//!   flight;
//! - [`grid`]: every policy in every cell of a grid of jobs, disks and machines;
//! - [`real`]: the same cells in real time;
//! - [`options`]: command-line options of the programs that print the results.

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
