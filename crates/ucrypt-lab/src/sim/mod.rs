//! The published experiments in virtual time, with the engine that ships.
//!
//! [`history`] repeats the published rows on presets of the published machines; [`preset`] carries out experiments of
//! `lab run` on these; [`drives`] has many drives and cores; [`calibrate`] measures the costs of this machine for all.

pub mod calibrate;
pub mod drives;
pub mod history;
pub mod preset;

/// What makes the load of what is simulated.
pub(crate) const VIRTUAL_TIME: &str = "virtual time";
