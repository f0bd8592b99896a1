//! When a disk answers, and what the machine is told about it: the device models of
//! [`ucrypt_backend::model`].

use std::fmt;

use ucrypt_backend::model::{Device, DeviceOp, Kind, Profile};
use ucrypt_dispatch::StoreKind;

/// One of the device models, by reference: `model:NAME` of the command line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DeviceModel(&'static Profile);

impl fmt::Debug for DeviceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceModel({})", self.name())
    }
}

impl DeviceModel {
    /// Every model there is.
    pub fn all() -> impl Iterator<Item = Self> {
        Profile::names().filter_map(Self::by_name)
    }

    /// The model of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Profile::by_name(name).map(Self)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether order matters to it.
    pub fn is_rotational(self) -> bool {
        self.0.limits(0).rotational
    }

    /// What the machine is told about it; the same as the engine tells it.
    pub(crate) fn about(self) -> ucrypt_dispatch::Device {
        let limits = self.0.limits(0);
        ucrypt_dispatch::Device {
            synchronous: limits.synchronous,
            copies: limits.copies,
            in_place: false,
            request_ns: limits.request_ns,
            rotational: limits.rotational,
            depth_max: limits.depth_max,
        }
    }

    pub(crate) fn open(self, seed: u64) -> Device {
        Device::new(self.0, seed)
    }
}

/// When the operation that is submitted now will be answered; `None` if it is refused. Offset and
/// length in bytes.
pub(crate) fn answer_ns(
    device: &mut Device,
    now_ns: u64,
    kind: StoreKind,
    (offset, len): (u64, u64),
) -> Option<u64> {
    let kind = match kind {
        StoreKind::Read => Kind::Read,
        StoreKind::Write { fua } => Kind::Write { fua },
        StoreKind::Flush => Kind::Flush,
        StoreKind::Discard => Kind::Discard,
        StoreKind::Zeroes => Kind::WriteZeroes,
    };
    device.submit(now_ns, DeviceOp { kind, offset, len }).ok()
}
