//! The loop driver's ioctls (`linux/loop.h`) and one ioctl of every block device (`linux/fs.h`),
//! each as a function with plain arguments.

#![expect(unsafe_code, reason = "ioctl(2) is typed by its number only")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;

const BLKZEROOUT: Opcode = 0x127F;

/// `LO_FLAGS_READ_ONLY`
pub(super) const READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`: the driver detaches the file when the last user closes the device.
pub(super) const AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_PARTSCAN`
pub(super) const PARTSCAN: u32 = 8;
/// `LO_FLAGS_DIRECT_IO`
pub(super) const DIRECT_IO: u32 = 16;

/// `LO_NAME_SIZE`
const NAME_SIZE: usize = 64;

/// `struct loop_info64`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub(super) flags: u32,
    file_name: [u8; NAME_SIZE],
    crypt_name: [u8; NAME_SIZE],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    /// Uses the whole backing file, with these flags. `losetup` shows `label` for a file without a
    /// path; the label is cut to 63 bytes.
    pub(super) fn new(flags: u32, label: &str) -> Self {
        let mut file_name = [0; NAME_SIZE];
        let len = label.len().min(NAME_SIZE - 1);
        file_name[..len].copy_from_slice(&label.as_bytes()[..len]);
        Self { flags, file_name, ..Self::zero() }
    }

    /// Whether the device was attached with this label.
    pub(super) fn has_label(&self, label: &str) -> bool {
        self.file_name == Self::new(0, label).file_name
    }

    const fn zero() -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; NAME_SIZE],
            crypt_name: [0; NAME_SIZE],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// `struct loop_config`
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// One call: the number, and what its pointer argument points to.
struct Call<'a, T> {
    opcode: Opcode,
    argument: Option<&'a mut T>,
}

// SAFETY: the functions below pair each number with the type that the kernel's headers give it, or
// with no argument; the driver keeps no pointer beyond the call.
unsafe impl<T> Ioctl for Call<'_, T> {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        self.argument
            .as_deref_mut()
            .map_or(std::ptr::null_mut(), |it| std::ptr::from_mut(it).cast())
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> Result<IoctlOutput, Errno> {
        Ok(output)
    }
}

fn call<T>(fd: impl AsFd, opcode: Opcode, argument: Option<&mut T>) -> Result<IoctlOutput, Errno> {
    // SAFETY: see the implementation of `Ioctl`; on a descriptor of anything else the numbers
    // are unknown and refused (`ENOTTY`).
    unsafe { ioctl(fd, Call { opcode, argument }) }
}

/// The number of a free device. Another process may take it at any moment.
pub(super) fn free_number(control: impl AsFd) -> Result<u32, Errno> {
    call::<()>(control, LOOP_CTL_GET_FREE, None).map(IoctlOutput::cast_unsigned)
}

/// Attaches `file` to a free device.
///
/// # Errors
/// `EBUSY` if it is not free any more, `EINVAL` and `ENOTTY` before Linux 5.8.
pub(super) fn configure(
    device: impl AsFd,
    file: impl AsFd,
    block_size: u32,
    info: Info,
) -> Result<(), Errno> {
    let fd = file.as_fd().as_raw_fd().cast_unsigned();
    let mut config = Config { fd, block_size, info, reserved: [0; 8] };
    call(device, LOOP_CONFIGURE, Some(&mut config)).map(drop)
}

/// Status of the attached file.
///
/// # Errors
/// `ENXIO` if nothing is attached, or if the device is about to be detached.
pub(super) fn status(device: impl AsFd) -> Result<Info, Errno> {
    let mut info = Info::zero();
    call(device, LOOP_GET_STATUS64, Some(&mut info)).map(|_| info)
}

/// Changes the flags that can be changed.
pub(super) fn set_status(device: impl AsFd, mut info: Info) -> Result<(), Errno> {
    call(device, LOOP_SET_STATUS64, Some(&mut info)).map(drop)
}

/// Detaches when the last user closes the device: at once if `device` is the only one.
pub(super) fn clear(device: impl AsFd) -> Result<(), Errno> {
    call::<()>(device, LOOP_CLR_FD, None).map(drop)
}

/// Adopts the backing file's present size.
pub(super) fn set_capacity(device: impl AsFd) -> Result<(), Errno> {
    call::<()>(device, LOOP_SET_CAPACITY, None).map(drop)
}

/// Zeroes `len` bytes at byte `offset`, with whatever request the device has for that.
pub(super) fn zero_out(device: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    call(device, BLKZEROOUT, Some(&mut [offset, len])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }

    #[test]
    fn a_label_is_cut_to_what_the_driver_keeps() {
        let long = "x".repeat(100);
        let info = Info::new(0, &long);
        assert_eq!(info.file_name[62..], [b'x', 0]);
        assert!(info.has_label(&long) && !info.has_label("x"));
    }
}
