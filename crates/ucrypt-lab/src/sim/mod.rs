//! The published experiments in virtual time, with the engine that ships.
//!
//! [`history`] repeats the published rows on presets of the published machines; [`drives`] has many
//! drives and cores; [`calibrate`] measures the costs of this machine for both.

pub mod calibrate;
pub mod drives;
pub mod history;
