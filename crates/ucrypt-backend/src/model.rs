//! Devices that are not there: memory with the timing of a disk, an SSD, a network volume.
//!
//! Why: what a dispatch policy is worth depends on the device under it, and the devices of the
//! published dm-crypt measurements are not at hand. A model gives every run the same device, on any
//! machine, and the raw run of a comparison goes through the same model as the encrypted one.
//!
//! - A [`Profile`] is a row of numbers: one device. Each number stands beside its source.
//! - A [`Device`] is the timing of one, and only that: it is told when an operation arrives and says
//!   when it is complete. It has no clock, thread, data or I/O, so a simulator can drive it in
//!   virtual time. The same profile, seed and calls give the same times.
//! - A [`ModelBackend`] is a backend in memory whose answers come when its `Device` says.
//!
//! What the models leave out is told in `docs/models.md`.

mod backend;
mod bus;
mod device;
mod disk;
#[cfg(test)]
mod fit;
mod flash;
mod profile;
mod queue;
mod random;
mod table;
#[cfg(test)]
mod tests;
mod timer;
mod zones;

pub use backend::{ModelBackend, ModelError};
pub use device::{Counts, Device, DeviceOp, Kind, Outcome};
pub use profile::{DiskProfile, FlashProfile, Media, Profile, Rate, ZoneLayout};
pub use zones::Refusal;
