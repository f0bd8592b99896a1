//! The export of an open volume.

use std::path::Path;

use clap::ValueEnum;
use ucrypt_export::loop_device::LoopExport;
use ucrypt_export::nbd::Address;
use ucrypt_export::ublk::{OnDeath, Recover, UblkExport, UblkOptions};

use super::OpenArgs;
use super::link::{self, Link};
use crate::available;
use crate::failure::Failure;
use crate::runtime::RuntimePaths;
use crate::serve::{ExportArgs, Exports};
use crate::user;
use crate::volume::{MEMORY, Opened};

/// Bytes of buffer memory behind a loop device.
const LOOP_MEMORY: usize = 8 << 20;

/// How an open volume can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Served {
    /// A ublk device, linked as /dev/ucrypt/NAME; as root, where the kernel has ublk
    Ublk,
    /// A loop device, linked as /dev/ucrypt/NAME; as root
    Loop,
    /// A file, for every program; no root needed
    Fuse,
    /// A Unix socket, for QEMU and NBD clients
    Nbd,
}

impl Served {
    /// The export most like a disk that this user may have and, if it is not the usual one, why.
    pub(crate) fn best() -> (Self, Option<String>) {
        let mut why = Vec::new();
        let said = |why: Vec<String>| (!why.is_empty()).then(|| why.join("; "));
        if user::is_root() {
            match available::ublk_if_there() {
                Some(Ok(())) => return (Self::Ublk, None),
                Some(Err(no_ublk)) => why.push(no_ublk),
                // Few systems have it: a loop device is as usual.
                None => {}
            }
            match available::why_no_loop_device() {
                None => return (Self::Loop, said(why)),
                Some(no_loop) => why.push(no_loop),
            }
        }
        match available::why_no_fuse() {
            None => (Self::Fuse, said(why)),
            Some(no_fuse) => {
                why.push(no_fuse);
                (Self::Nbd, said(why))
            }
        }
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether it is a kernel device, which gets a link.
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Self::Ublk | Self::Loop)
    }

    /// Refuses an export that this system lacks or does not permit to this user.
    pub(super) fn check(self) -> Result<(), Failure> {
        match self {
            Self::Ublk => available::ublk(),
            Self::Loop => available::loop_device(),
            Self::Fuse => available::fuse(),
            Self::Nbd => Ok(()),
        }
    }

    /// Bytes of buffer memory, if the user names no size. A loop device's memory is locked.
    pub(super) fn memory(self) -> usize {
        match self {
            Self::Loop => LOOP_MEMORY,
            Self::Fuse | Self::Ublk | Self::Nbd => MEMORY,
        }
    }

    /// Whether the server can leave its user's mounts, because it mounts nothing there.
    pub(super) fn may_leave_mounts(self) -> bool {
        self != Self::Fuse
    }

    /// Starts serving. Also returns the link, and the path or URI by which users reach the volume.
    pub(super) fn start(
        self,
        opened: &Opened,
        paths: &RuntimePaths,
        args: &OpenArgs,
    ) -> Result<(Exports, Option<Link>, String), Failure> {
        let volume = &opened.volume;
        let path = |path: &Path| path.display().to_string();
        let mut wanted = ExportArgs::default();
        match self {
            Self::Fuse => wanted.fuse.push(paths.file()),
            Self::Nbd => wanted.nbd.push(Address::Unix(paths.nbd())),
            Self::Ublk | Self::Loop => {}
        }
        let mut exports = Exports::start(opened, &wanted)?;
        let mut made = None;
        let mut linked = |device: &Path, sequence: Option<u64>| -> Result<String, Failure> {
            let link = Link::make(paths.name(), device, sequence)?;
            let shown = path(link.path());
            made = Some(link);
            Ok(shown)
        };
        let device = match self {
            Self::Fuse => path(&paths.file()),
            Self::Nbd => exports.nbd[0].uri().to_owned(),
            Self::Ublk => {
                let options = UblkOptions {
                    number: None,
                    on_death: if args.ublk_wait { OnDeath::Wait } else { OnDeath::Fail },
                    recover: if opened.is_key_verified() {
                        Recover::IfWaiting
                    } else {
                        Recover::Refuse
                    },
                    identity: opened.facts.identity(),
                };
                let device = UblkExport::start(volume, &options)?;
                let shown = linked(device.path(), link::sequence_of(device.path()))?;
                exports.ublk = Some(device);
                shown
            }
            Self::Loop => {
                let label = link::label(paths.name());
                let mut device = LoopExport::start(volume, &label, args.partscan)?;
                let shown = linked(device.path(), device.sequence())?;
                // Not earlier: nobody would find the device of a server that is killed before.
                device.keep()?;
                exports.loop_device = Some(device);
                shown
            }
        };
        Ok((exports, made, device))
    }
}
