//! The published experiments in virtual time, with the engine that ships.
//!
//! [`history`] repeats the published rows on presets of the published machines; [`drives`] has many
//! drives and cores.

pub mod drives;
pub mod history;
