//! The lab: experiments on the parts that ship.
//!
//! - [`sim`]: the dispatch machine in virtual time, with any number of cores and seeded faults;
//! - [`world`]: the engine itself in virtual time;
//! - [`grid`]: every policy in every cell of a grid of jobs, disks and machines;
//! - [`real`]: the same cells in real time, on the engine;
//! - [`options`]: how the programs that print them are told what to do.

#![forbid(unsafe_code)]

pub mod grid;
pub mod options;
pub mod real;
pub mod sim;
pub mod world;
