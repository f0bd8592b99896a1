//! The backend: memory, and the timing of one device that all queues share.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::device::{Counts, Device};
use super::profile::Profile;
use super::queue::ModelQueue;
use crate::file::FileBackend;
use crate::{Backend, Extent, Limits, Map, Queue, Zones, memory};

/// Why a model backend could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No profile has that name.
    #[error("there is no device model `{name}`; known are: {}", known())]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The memory behind the model could not be reserved.
    #[error("the memory of the device model could not be reserved: {0}")]
    Memory(#[from] io::Error),
}

fn known() -> String {
    Profile::names().collect::<Vec<_>>().join(", ")
}

/// `model:NAME,SIZE`: memory with the timing of a device.
///
/// All queues share the device's time. An operation that the device refuses (a write that is not at
/// its zone's write pointer) or that reaches beyond the end is answered with `EIO` at once; no part
/// of it is done.
pub struct ModelBackend {
    memory: FileBackend,
    device: Arc<Mutex<Device>>,
    limits: Limits,
    name: &'static str,
}

/// Fixed, so that runs do not differ by chance.
const SEED: u64 = 1;

impl ModelBackend {
    /// A device of `len` bytes with the profile of that name.
    pub fn new(name: &str, len: u64) -> Result<Self, ModelError> {
        let profile =
            Profile::by_name(name).ok_or_else(|| ModelError::Unknown { name: name.to_owned() })?;
        Ok(Self::with_profile(profile, len, SEED)?)
    }

    /// A device of `len` bytes with that profile; `seed` as for [`Device::new`].
    pub fn with_profile(profile: &Profile, len: u64, seed: u64) -> io::Result<Self> {
        Ok(Self {
            memory: memory(len)?,
            device: Arc::new(Mutex::new(Device::new(profile, seed))),
            limits: profile.limits(len),
            name: profile.name,
        })
    }

    /// Counts of the device so far, over all queues.
    pub fn counts(&self) -> Counts {
        self.device.lock().unwrap_or_else(PoisonError::into_inner).counts()
    }
}

impl Backend for ModelBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn use_until(&self, _end: u64) {}

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let (device, memory) = (self.device.clone(), self.memory.queue(1)?);
        let timed = !self.limits.synchronous;
        Ok(Box::new(ModelQueue::new(device, memory, self.limits.len, depth, timed)?))
    }

    fn len_now(&self) -> io::Result<u64> {
        Ok(self.limits.len)
    }

    /// None: the data would be available before the device's time is over.
    fn map(&self) -> Option<Arc<dyn Map>> {
        None
    }

    fn zones(&self) -> Option<&dyn Zones> {
        None
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.memory.extents(offset, len, max)
    }

    fn describe(&self) -> String {
        format!("model:{},{}", self.name, self.limits.len)
    }
}
