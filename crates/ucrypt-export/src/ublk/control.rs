//! `/dev/ublk-control`: adds, starts, stops and deletes devices.
//!
//! A command is one entry of a ring of our own, and the caller waits for its completion. Until then
//! the payload belongs to the kernel; if the ring breaks before, the payload is leaked.

#![expect(unsafe_code, reason = "the kernel reads and writes payloads by address")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use super::UblkError;
use super::abi::{ANY_DEVICE, Control as Command, DeviceInfo, Header, Parameters, feature};
use super::device::character_path;

const PATH: &str = "/dev/ublk-control";

/// An open `/dev/ublk-control`, with the ring for its commands.
pub(super) struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    pub(super) fn open() -> Result<Self, UblkError> {
        let opened = File::options().read(true).write(true).open(PATH);
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            // A node without a driver behind it opens as "no such device".
            Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => UblkError::Missing,
            Some(Errno::ACCESS | Errno::PERM) => UblkError::Denied,
            _ => UblkError::Control { what: "open /dev/ublk-control", error },
        })?;
        let ring = IoUring::builder().build(2).map_err(|error| UblkError::NoRing { error })?;
        Ok(Self { file, ring })
    }

    /// The driver's features. Fails if the driver is too old to report them.
    pub(super) fn features(&mut self) -> Result<u64, Errno> {
        let header = Header { device: ANY_DEVICE, len: 8, address: 0, data: 0, path_len: 0 };
        let payload = self.run(Command::GetFeatures, header, vec![0; 8])?;
        Ok(u64::from_ne_bytes(payload.try_into().map_err(|_| Errno::INVAL)?))
    }

    /// Adds a device. Returns its properties as the kernel has set them.
    pub(super) fn add(&mut self, info: DeviceInfo) -> Result<DeviceInfo, Errno> {
        let len = DeviceInfo::LEN as u16;
        let header = Header { device: info.device, len, address: 0, data: 0, path_len: 0 };
        let payload = self.run(Command::AddDevice, header, info.to_bytes().to_vec())?;
        Ok(DeviceInfo::from_bytes(&payload.try_into().map_err(|_| Errno::INVAL)?))
    }

    pub(super) fn info(&mut self, device: u32) -> Result<DeviceInfo, Errno> {
        let answer = self.at(Command::GetDeviceInfo2, device, 0, &[0; DeviceInfo::LEN], true)?;
        Ok(DeviceInfo::from_bytes(&answer.try_into().map_err(|_| Errno::INVAL)?))
    }

    pub(super) fn parameters(&mut self, of: &DeviceInfo) -> Result<Parameters, Errno> {
        let wanted = Parameters::default().to_bytes();
        let by_path = of.features & feature::UNPRIVILEGED != 0;
        let answer = self.at(Command::GetParameters, of.device, 0, &wanted, by_path)?;
        Ok(Parameters::from_bytes(&answer.try_into().map_err(|_| Errno::INVAL)?))
    }

    pub(super) fn set_parameters(&mut self, of: &DeviceInfo, to: Parameters) -> Result<(), Errno> {
        let by_path = of.features & feature::UNPRIVILEGED != 0;
        self.at(Command::SetParameters, of.device, 0, &to.to_bytes(), by_path).map(drop)
    }

    /// Runs a command without a payload.
    pub(super) fn tell(&mut self, command: Command, device: u32) -> Result<(), Errno> {
        self.at(command, device, 0, &[], true).map(drop)
    }

    /// Deletes a device, and closes its file. Its number is free once the last user has closed the device; only older
    /// kernels wait for that here.
    pub(super) fn delete(&mut self, device: u32, file: Option<Arc<File>>) -> Result<(), Errno> {
        let told = self.tell(Command::DeleteDeviceAsync, device);
        // Not before: the number could be another device's. Nor later: an older kernel would wait for it.
        drop(file);
        match told {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => self.tell(Command::DeleteDevice, device),
            told => told,
        }
    }

    /// As [`Control::tell`], for commands that name this process as the server.
    pub(super) fn tell_server(&mut self, command: Command, device: u32) -> Result<(), Errno> {
        self.at(command, device, u64::from(std::process::id()), &[], true).map(drop)
    }

    /// Runs a command. Returns its payload.
    ///
    /// With `by_path`, the device's path precedes the payload, so that the kernel can check who may
    /// control the device. For a device of root's, a command with a payload has no path, except for
    /// `GetDeviceInfo2`.
    fn at(
        &mut self,
        command: Command,
        device: u32,
        data: u64,
        payload: &[u8],
        by_path: bool,
    ) -> Result<Vec<u8>, Errno> {
        let path = if by_path { character_path(device) } else { String::new() };
        let whole = [path.as_bytes(), payload].concat();
        let (len, path_len) = (whole.len() as u16, path.len() as u16);
        let header = Header { device, len, address: 0, data, path_len };
        let mut answer = self.run(command, header, whole)?;
        answer.drain(..path.len());
        Ok(answer)
    }

    /// Runs one command and waits for its completion. Returns the payload as the kernel left it.
    fn run(
        &mut self,
        command: Command,
        mut header: Header,
        mut payload: Vec<u8>,
    ) -> Result<Vec<u8>, Errno> {
        if !payload.is_empty() {
            header.address = payload.as_mut_ptr() as u64;
        }
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command as u32).cmd(header.to_bytes()).build();
        // SAFETY: the file is ours, and the payload lives until the completion was taken.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno::BUSY)?;
        loop {
            let waited = self.ring.submit_and_wait(1);
            if let Some(completion) = self.ring.completion().next() {
                return match completion.result() {
                    result if result < 0 => Err(Errno::from_raw_os_error(-result)),
                    _ => Ok(payload),
                };
            }
            match waited.map_err(|error| Errno::from_io_error(&error)) {
                Ok(_) | Err(Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)) => {}
                Err(error) => {
                    // The kernel may still write to the payload.
                    std::mem::forget(payload);
                    return Err(error.unwrap_or(Errno::IO));
                }
            }
        }
    }
}
