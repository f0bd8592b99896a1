//! The lab: published measurements of dm-crypt, repeated with the engine that ships.
//!
//! On a user's own machine:
//!
//! - [`catalogue`]: the experiments, their cells and the [`published`] figures beside them;
//! - [`target`], [`contender`]: what they run on, and who is compared;
//! - [`load`], [`fio`], [`dd`]: what makes the load; `window`: the time that counts; `bounded`: devices that
//!   never answer;
//! - `bench`, `served`, `mounted`, `tree`: contenders in this process, those that are processes, files
//!   on a file system, file systems;
//! - [`advise`]: what one volume loses, and what to change;
//! - [`packages`]: where the programs of others come from;
//! - [`sample`], [`pressure`]: a measurement, and what the machine did meanwhile;
//! - [`runner`], [`store`], `room`: interleaved rounds, their results in a directory, and the room that
//!   they take;
//! - [`analysis`], [`short`], [`certainty`], [`modes`]: medians, spreads and verdicts, where we fall
//!   short, which of that is more than chance, and whether a speed jumps between two;
//! - [`beside`], [`text`], [`markdown`], [`page`]: what was published beside them, tables, and the page.
//!
//! In virtual time:
//!
//! - [`world`]: the engine on any number of cores;
//! - [`experiment`]: one run, with clients that keep a number of requests in flight;
//! - [`sim`]: the published experiments on presets of the published machines;
//! - [`grid`]: every policy in every cell of a grid of jobs, disks and machines;
//! - [`real`]: the cells of the grid in real time;
//! - [`options`]: command-line options of the programs that print grids.

#![forbid(unsafe_code)]

pub mod advise;
pub mod analysis;
pub mod bench;
pub mod beside;
mod bounded;
pub mod catalogue;
pub mod certainty;
mod client;
mod columns;
pub mod contender;
pub mod copy_server;
mod counting;
pub mod dd;
pub mod experiment;
pub mod fio;
pub mod grid;
pub mod held;
pub mod load;
pub mod markdown;
pub mod modes;
mod mounted;
pub mod nbd_client;
pub mod options;
pub mod ours;
pub mod packages;
pub mod page;
pub mod pressure;
mod process;
pub mod published;
pub mod real;
mod report;
mod room;
pub mod runner;
pub mod sample;
pub mod served;
pub mod shell;
pub mod short;
pub mod sim;
pub mod store;
pub mod target;
pub mod text;
mod tree;
mod verdict;
mod window;
pub mod world;

pub use client::{Job, Pattern};
pub use experiment::{CalibrationKind, Experiment};
pub use report::{Latency, Report};
