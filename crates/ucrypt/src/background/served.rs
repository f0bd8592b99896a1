//! What an open volume is served as.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use ucrypt_engine::Volume;
use ucrypt_export::loop_device::LoopExport;
use ucrypt_export::nbd::Address;

use super::link;
use crate::failure::Failure;
use crate::runtime::Places;
use crate::serve::{ExportArgs, Exports};

/// The ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Served {
    /// A loop device, linked as /dev/ucrypt/NAME; as root
    Loop,
    /// A file, for every program; no root needed
    Fuse,
    /// A Unix socket, for QEMU and NBD clients
    Nbd,
}

impl Default for Served {
    /// What is most like a disk among what this user may have.
    fn default() -> Self {
        if rustix::process::geteuid().is_root() { Self::Loop } else { Self::Fuse }
    }
}

impl Served {
    /// Whether it is a device of the kernel, with a link.
    pub(super) fn is_device(self) -> bool {
        self == Self::Loop
    }

    /// Whether the server needs nothing of its user's mounts: as root, and if it mounts nothing
    /// there.
    pub(super) fn may_leave_mounts(self) -> bool {
        self != Self::Fuse && rustix::process::geteuid().is_root()
    }

    /// Starts serving. Returns also what a user gets at it by: a path or a URI.
    pub(super) fn start(
        self,
        volume: &Arc<Volume>,
        places: &Places,
        partitions: bool,
    ) -> Result<(Exports, String), Failure> {
        let path = |path: &Path| path.display().to_string();
        let mut wanted = ExportArgs::default();
        match self {
            Self::Fuse => wanted.fuse.push(places.file()),
            Self::Nbd => wanted.nbd.push(Address::Unix(places.nbd())),
            Self::Loop => {}
        }
        let mut exports = Exports::start(volume, &wanted)?;
        let device = match self {
            Self::Fuse => path(&places.file()),
            Self::Nbd => exports.nbd[0].uri().to_owned(),
            Self::Loop => {
                let label = link::label(places.name());
                let device = LoopExport::start(volume, &label, partitions)?;
                let link = link::make(places.name(), device.path())?;
                exports.loop_device = Some(device);
                path(&link)
            }
        };
        Ok((exports, device))
    }
}
