//! Models of devices: memory with the timing of a disk, an SSD, a network volume.
//!
//! The value of a dispatch policy depends on the device, and the devices of the published dm-crypt
//! measurements are not available. A model gives every run the same device, on any machine. The raw
//! run of a comparison goes through the same model as the encrypted one.
//!
//! - A [`Profile`] is a set of numbers that describes one device. Each number has its source beside
//!   it.
//! - A [`Device`] is only the timing of one device: given when an operation arrives, it returns
//!   when the operation is complete. It has no clock, thread, data or I/O, so a simulator can drive
//!   it in virtual time. The same profile, seed and calls give the same times.
//! - A [`ModelBackend`] is a backend in memory that answers when its `Device` says.
//!
//! `docs/models.md` lists what the models leave out.

mod backend;
mod bus;
mod device;
mod disk;
#[cfg(test)]
mod fit;
mod flash;
mod profile;
mod queue;
mod table;
#[cfg(test)]
mod tests;
mod timer;
mod zones;

pub use backend::{ModelBackend, ModelError};
pub use device::{Counts, Device, DeviceOp, Kind, Outcome};
pub use profile::{DiskProfile, FlashProfile, Media, Profile, Rate, ZoneLayout};
pub use zones::Refusal;
