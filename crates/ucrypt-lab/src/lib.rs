//! The lab: experiments on the parts that ship.
//!
//! - [`sim`]: the dispatch machine in virtual time, with any number of cores and seeded faults;
//! - [`grid`]: every policy in every cell of a grid of jobs, disks and machines.

#![forbid(unsafe_code)]

pub mod grid;
pub mod sim;
