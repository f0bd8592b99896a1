//! One device, from the kernel's view: made or taken over, started, stopped, deleted.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::abi::{
    ANY_DEVICE, Control as Command, DeviceInfo, Parameters, STATE_DEAD, STATE_LIVE, STATE_QUIESCED,
    feature,
};
use super::control::Control;
use super::{OnDeath, Recover, UblkError, UblkOptions};

/// How long the kernel may take to end what a dead server had, and a device manager to hand a new
/// device to its owner.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

pub(super) fn character_path(device: u32) -> String {
    format!("/dev/ublkc{device}")
}

/// Bounds of a device's queues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Most queues.
    pub(super) queues: u16,
    /// Requests of one queue.
    pub(super) depth: u16,
    /// Largest request, in bytes.
    pub(super) io_bytes_max: u32,
}

/// A device that the kernel knows. Dropping it deletes it, unless it was left for a next server.
pub(super) struct Device {
    control: Control,
    info: DeviceInfo,
    is_recovery: bool,
    /// It goes with us.
    is_ours: bool,
}

impl Device {
    /// Makes a device, or finds the one to be taken over.
    pub(super) fn new(
        options: &UblkOptions,
        bounds: impl Fn(bool) -> Bounds,
        parameters: impl Fn(u32) -> Parameters,
    ) -> Result<Self, UblkError> {
        let mut control = Control::open()?;
        let needed = feature::USER_COPY | feature::IOCTL_ENCODING | feature::UNPRIVILEGED;
        let is_zoned = parameters(bounds(true).io_bytes_max).zoned.is_some();
        match control.features() {
            Ok(features) if features & needed == needed => {
                if is_zoned && features & feature::ZONED == 0 {
                    return Err(UblkError::NoZones);
                }
            }
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::INVAL) => return Err(UblkError::TooOld),
            Err(error) => return Err(failed("ask for the driver's features")(error)),
        }
        if is_zoned && options.on_death == OnDeath::Wait {
            return Err(UblkError::ZonedRecovery);
        }
        let recovered = match options.recover {
            Recover::No => None,
            Recover::Device(number) => Some(number),
            Recover::IfWaiting => find_waiting(&mut control, options.identity),
        };
        if let Some(number) = recovered {
            return Self::find(control, number, options, parameters);
        }
        delete_leftovers(&mut control, options.identity);
        Self::add(control, options, is_zoned, bounds, parameters)
    }

    fn add(
        mut control: Control,
        options: &UblkOptions,
        is_zoned: bool,
        bounds: impl Fn(bool) -> Bounds,
        parameters: impl Fn(u32) -> Parameters,
    ) -> Result<Self, UblkError> {
        let wanted = |privileged| {
            let Bounds { queues, depth, io_bytes_max } = bounds(privileged);
            let mut features = feature::IOCTL_ENCODING;
            features |= if privileged { feature::USER_COPY } else { feature::UNPRIVILEGED };
            if is_zoned {
                features |= feature::ZONED;
            }
            if options.on_death == OnDeath::Wait {
                features |= feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
            }
            let device = options.number.unwrap_or(ANY_DEVICE);
            let server_data = options.identity;
            DeviceInfo {
                queues,
                depth,
                io_bytes_max,
                device,
                features,
                server_data,
                ..Default::default()
            }
        };
        let mut added = control.add(wanted(true));
        if added == Err(Errno::PERM) {
            let lacking = match (options.on_death, is_zoned) {
                (OnDeath::Wait, _) => Some("devices of users are not recoverable"),
                (OnDeath::Fail, true) => Some("devices of users have no zones"),
                (OnDeath::Fail, false) => None,
            };
            if let Some(lacking) = lacking {
                return Err(UblkError::NotForUsers { error: io::Error::other(lacking) });
            }
            added = control.add(wanted(false));
        }
        let info = added.map_err(|error| match error {
            Errno::EXIST => UblkError::Exists { device: options.number.unwrap_or_default() },
            Errno::PERM | Errno::ACCESS => UblkError::NotForUsers { error: error.into() },
            error => failed("add a ublk device")(error),
        })?;
        let mut device = Self { control, info, is_recovery: false, is_ours: true };
        // The commands that follow name the node, and are allowed to who may use it.
        drop(device.open()?);
        device
            .control
            .set_parameters(&info, parameters(info.io_bytes_max))
            .map_err(failed("set the parameters of the ublk device"))?;
        Ok(device)
    }

    /// Looks for a device whose server died.
    fn find(
        mut control: Control,
        device: u32,
        options: &UblkOptions,
        parameters: impl Fn(u32) -> Parameters,
    ) -> Result<Self, UblkError> {
        let until = Instant::now() + PATIENCE;
        let info = loop {
            let info = control.info(device).map_err(|error| match error {
                Errno::NODEV => UblkError::Gone { device },
                Errno::PERM | Errno::ACCESS => UblkError::Denied,
                error => failed("ask for the state of the ublk device")(error),
            })?;
            if info.state == STATE_QUIESCED {
                break info;
            }
            if info.features & feature::USER_RECOVERY == 0 {
                return Err(UblkError::NotRecoverable { device });
            }
            if info.state != STATE_LIVE {
                return Err(UblkError::Gone { device });
            }
            // A server that was just killed counts as alive until the kernel has buried it.
            if Instant::now() >= until {
                return Err(UblkError::Served { device, pid: info.server_pid });
            }
            std::thread::sleep(PAUSE);
        };
        let found = control.parameters(&info).map_err(failed("ask for its parameters"))?;
        if found != parameters(info.io_bytes_max) || info.server_data != options.identity {
            return Err(UblkError::OtherVolume { device });
        }
        Ok(Self { control, info, is_recovery: true, is_ours: false })
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.info.features & feature != 0
    }

    /// The block device.
    pub(super) fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.info.device).into()
    }

    /// Opens the character device for queues to be attached to it. Of a device whose server died
    /// this makes the kernel forget that one.
    pub(super) fn open_for_queues(&mut self) -> Result<File, UblkError> {
        if self.is_recovery {
            let until = Instant::now() + PATIENCE;
            loop {
                let device = self.info.device;
                match self.control.tell(Command::StartUserRecovery, device) {
                    // It cannot go back to its state before.
                    Ok(()) => break self.is_ours = true,
                    // The dead server's files are not closed yet.
                    Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(PAUSE),
                    Err(error) => return Err(failed("take the ublk device over")(error)),
                }
            }
        }
        self.open()
    }

    /// Opens the character device, which may need a moment to be there and to be its owner's.
    fn open(&self) -> Result<File, UblkError> {
        let path = character_path(self.info.device);
        let until = Instant::now() + PATIENCE;
        loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => return Ok(file),
                Err(error)
                    if Instant::now() < until
                        && matches!(
                            Errno::from_io_error(&error),
                            Some(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::BUSY)
                        ) =>
                {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    return Err(match Errno::from_io_error(&error) {
                        Some(Errno::ACCESS | Errno::PERM) => UblkError::NotForUsers { error },
                        _ => UblkError::Control { what: "open the ublk device", error },
                    });
                }
            }
        }
    }

    /// Makes the block device appear, or go on. The queues are attached.
    pub(super) fn start(&mut self) -> Result<(), UblkError> {
        let command =
            if self.is_recovery { Command::EndUserRecovery } else { Command::StartDevice };
        self.control
            .tell_server(command, self.info.device)
            .map_err(failed("start the ublk device"))?;
        self.is_ours = true;
        Ok(())
    }

    /// Ends the block device: requests in flight are finished, later ones get errors, and the
    /// queues end.
    pub(super) fn stop(&mut self) {
        // Nothing to be done about a failure: somebody else may have deleted it.
        let _ = self.control.tell(Command::StopDevice, self.info.device);
    }

    /// Whether no file system and no other device uses the block device: nobody can begin to while
    /// the file is kept. Programs that merely have it open are not seen.
    pub(super) fn claim(&self) -> Option<rustix::fd::OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(self.path(), flags, Mode::empty()).ok()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = self.control.delete(self.info.device);
        }
    }
}

/// The devices of a volume, by what the kernel says of them.
fn devices_of(control: &mut Control, identity: u64) -> Vec<DeviceInfo> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().filter_map(Result::ok);
    let numbers =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok());
    // Those of other users cannot be asked, and are not ours.
    let all = numbers.filter_map(|number| control.info(number).ok());
    all.filter(|info| info.server_data == identity).collect()
}

/// Deletes what dead servers of the volume left behind: devices that have ended, whose number is
/// still taken.
fn delete_leftovers(control: &mut Control, identity: u64) {
    /// Of a device that has ended; one that has not begun has 0.
    const ENDED: i32 = -1;
    for info in devices_of(control, identity) {
        if info.state == STATE_DEAD && info.server_pid == ENDED {
            // If it cannot be deleted, it stays.
            let _ = control.delete(info.device);
        }
    }
}

/// The device of the volume that waits for a server, or will, once the kernel has buried its last.
fn find_waiting(control: &mut Control, identity: u64) -> Option<u32> {
    let found = devices_of(control, identity);
    let recoverable = |info: &&DeviceInfo| {
        info.features & feature::USER_RECOVERY != 0 && info.state != STATE_DEAD
    };
    found.iter().find(recoverable).map(|info| info.device)
}

fn failed(what: &'static str) -> impl Fn(Errno) -> UblkError {
    move |error| UblkError::Control { what, error: error.into() }
}
