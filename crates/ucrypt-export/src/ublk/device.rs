//! One device of the kernel: added or taken over, started, stopped, deleted.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::abi::{
    ANY_DEVICE, Control as Command, DeviceInfo, Parameters, STATE_DEAD, STATE_LIVE, STATE_QUIESCED,
    attribute, feature,
};
use super::control::Control;
use super::error::failed;
use super::{OnDeath, Recover, UblkError, UblkOptions};

/// How long the kernel may take to clean up after a dead server, and a device manager to give a new
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
    /// Depth of each queue.
    pub(super) depth: u16,
    /// Largest request, in bytes.
    pub(super) io_bytes_max: u32,
}

/// A device that the kernel knows. Dropping it deletes the device, unless it is left for another
/// server.
pub(super) struct Device {
    control: Control,
    info: DeviceInfo,
    is_recovery: bool,
    /// Whether to stop and delete the device at the end. One that was taken over is not before [`Device::own`].
    is_ours: bool,
    /// The file of the queues. While it is open, the number is no other device's, whoever has stopped and deleted this
    /// one meanwhile.
    file: Option<Arc<File>>,
}

/// Whether root made the device, and not a user.
fn is_privileged(info: &DeviceInfo) -> bool {
    info.features & feature::UNPRIVILEGED == 0
}

impl Device {
    /// Adds a device, or finds the one to take over.
    pub(super) fn new(
        options: &UblkOptions,
        bounds: impl Fn(bool) -> Bounds,
        parameters: impl Fn(u32, bool) -> Parameters,
    ) -> Result<Self, UblkError> {
        let mut control = Control::open()?;
        let wanted = parameters(bounds(true).io_bytes_max, true);
        let is_zoned = wanted.zoned.is_some();
        if features(&mut control)? & feature::ZONED == 0 && is_zoned {
            return Err(UblkError::NoZones);
        }
        if is_zoned && options.on_death == OnDeath::Wait {
            return Err(UblkError::ZonedRecovery);
        }
        let recovered = match options.recover {
            Recover::No => None,
            Recover::Device(number) => Some(number),
            Recover::IfWaiting | Recover::Refuse => find_waiting(&mut control, options.identity),
        };
        if let Some(number) = recovered {
            let is_named = matches!(options.recover, Recover::Device(_));
            let may_share = !is_named && wanted.attributes & attribute::READ_ONLY != 0;
            match Self::find(control, number, options, &parameters) {
                // It is another server's of the same image: several may read one. If it can be written, its
                // server has died, and its device waits for this one.
                Err(UblkError::Served { .. }) if may_share => control = Control::open()?,
                Ok(_) if options.recover == Recover::Refuse => {
                    return Err(UblkError::Waits { device: number });
                }
                found => return found,
            }
        }
        delete_leftovers(&mut control, options.identity);
        Self::add(control, options, is_zoned, bounds, parameters)
    }

    fn add(
        mut control: Control,
        options: &UblkOptions,
        is_zoned: bool,
        bounds: impl Fn(bool) -> Bounds,
        parameters: impl Fn(u32, bool) -> Parameters,
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
        let mut device = Self { control, info, is_recovery: false, is_ours: true, file: None };
        // The commands that follow name the node; the kernel allows them to whoever may use it.
        drop(device.open()?);
        device
            .control
            .set_parameters(&info, parameters(info.io_bytes_max, is_privileged(&info)))
            .map_err(failed("set the parameters of the ublk device"))?;
        Ok(device)
    }

    /// Finds a device whose server died.
    fn find(
        mut control: Control,
        device: u32,
        options: &UblkOptions,
        parameters: impl Fn(u32, bool) -> Parameters,
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
            // A server that was just killed counts as alive until the kernel has cleaned up.
            if Instant::now() >= until {
                return Err(UblkError::Served { device, pid: info.server_pid });
            }
            std::thread::sleep(PAUSE);
        };
        let found = control.parameters(&info).map_err(failed("ask for its parameters"))?;
        if found != parameters(info.io_bytes_max, is_privileged(&info))
            || info.server_data != options.identity
        {
            return Err(UblkError::OtherVolume { device });
        }
        Ok(Self { control, info, is_recovery: true, is_ours: false, file: None })
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.info.features & feature != 0
    }

    /// Path of the block device.
    pub(super) fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.info.device).into()
    }

    /// Opens the character device, to attach queues to it. In a recovery, first makes the kernel
    /// forget the dead server.
    pub(super) fn open_for_queues(&mut self) -> Result<Arc<File>, UblkError> {
        if self.is_recovery {
            let until = Instant::now() + PATIENCE;
            loop {
                let device = self.info.device;
                match self.control.tell(Command::StartUserRecovery, device) {
                    // The device cannot return to its previous state.
                    Ok(()) => break self.is_ours = true,
                    // The dead server's files are not closed yet.
                    Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(PAUSE),
                    Err(error) => return Err(failed("take the ublk device over")(error)),
                }
            }
        }
        let file = Arc::new(self.open()?);
        self.file = Some(file.clone());
        Ok(file)
    }

    /// Opens the character device. It may take a moment to appear and to belong to its owner.
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

    /// Makes the block device appear, or go on. The queues must be attached.
    pub(super) fn start(&mut self) -> Result<(), UblkError> {
        let command =
            if self.is_recovery { Command::EndUserRecovery } else { Command::StartDevice };
        self.control
            .tell_server(command, self.info.device)
            .map_err(failed("start the ublk device"))?;
        self.is_ours = !self.is_recovery;
        Ok(())
    }

    /// From now on the device ends with this, also one that was taken over.
    pub(super) fn own(&mut self) {
        self.is_ours = true;
    }

    /// Whether it has queues and is left to the next server. It waits for that once this process, whose threads serve
    /// it until then, has ended.
    pub(super) fn is_left(&self) -> bool {
        self.file.is_some() && !self.is_ours
    }

    /// Closes the file early. Requests that a broken queue has taken fail only when all its files are closed, and
    /// [`Device::stop`] waits for them.
    pub(super) fn close_file(&mut self) {
        self.file = None;
    }

    /// Stops the block device: requests in flight are finished, later ones get errors, and the
    /// queues end. One that was to be taken over, and was not, still waits for a server, or has one.
    pub(super) fn stop(&mut self) {
        if !self.is_ours {
            return;
        }
        // Ignore a failure: somebody else may have deleted the device.
        let _ = self.control.tell(Command::StopDevice, self.info.device);
    }

    /// Opens the block device exclusively; `None` if a file system or another device uses it. As
    /// long as the descriptor is kept, none can start to use it. This does not notice programs that
    /// merely have the device open.
    pub(super) fn claim(&self) -> Option<rustix::fd::OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(self.path(), flags, Mode::empty()).ok()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = self.control.delete(self.info.device, self.file.take());
        }
    }
}

/// Checks that the driver can be used, as far as that takes no device.
pub(super) fn check() -> Result<(), UblkError> {
    features(&mut Control::open()?).map(drop)
}

/// The driver's features, if it has what every device needs.
fn features(control: &mut Control) -> Result<u64, UblkError> {
    let needed = feature::USER_COPY | feature::IOCTL_ENCODING | feature::UNPRIVILEGED;
    match control.features() {
        Ok(features) if features & needed == needed => Ok(features),
        Ok(_) | Err(Errno::OPNOTSUPP | Errno::INVAL) => Err(UblkError::TooOld),
        Err(error) => Err(failed("ask for the driver's features")(error)),
    }
}

/// The devices of a volume, found by the identity that the kernel keeps for each device.
fn devices_of(control: &mut Control, identity: u64) -> Vec<DeviceInfo> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().filter_map(Result::ok);
    let numbers =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok());
    numbers.filter_map(|number| device_of(control, number, identity)).collect()
}

/// The device of this number, if it is the volume's.
fn device_of(control: &mut Control, number: u32, identity: u64) -> Option<DeviceInfo> {
    // The kernel does not tell about the devices of other users, which are not ours anyway.
    control.info(number).ok().filter(|info| info.server_data == identity)
}

/// Deletes what dead servers of the volume left behind: devices that have ended but still take a
/// number.
fn delete_leftovers(control: &mut Control, identity: u64) {
    /// The server's PID for a device that has ended; before the start it is 0.
    const ENDED: i32 = -1;
    let is_left = |info: &DeviceInfo| info.state == STATE_DEAD && info.server_pid == ENDED;
    for DeviceInfo { device, .. } in devices_of(control, identity).into_iter().filter(is_left) {
        // While its file is open, the number is no other device's. If there is still a server, or no permission, the
        // device stays.
        let Ok(file) = File::options().read(true).write(true).open(character_path(device)) else {
            continue;
        };
        if device_of(control, device, identity).as_ref().is_some_and(is_left) {
            let _ = control.delete(device, Some(Arc::new(file)));
        }
    }
}

/// The volume's device that waits for a server, or will wait once the kernel has cleaned up after
/// the last server.
fn find_waiting(control: &mut Control, identity: u64) -> Option<u32> {
    let found = devices_of(control, identity).into_iter();
    let recoverable = found
        .filter(|info| info.features & feature::USER_RECOVERY != 0 && info.state != STATE_DEAD);
    // One that has a server is none, if another one waits.
    recoverable.max_by_key(|info| info.state == STATE_QUIESCED).map(|info| info.device)
}
