//! Why a volume could not be served as a ublk device.

use std::io;

/// Why a volume could not be served as a ublk device.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// There is no `/dev/ublk-control`.
    #[error(
        "this kernel has no ublk (/dev/ublk-control is missing); load it (modprobe ublk_drv, in \
         Linux 6.5 or newer), or use a loop device (--as loop)"
    )]
    Missing,
    /// The user may not use `/dev/ublk-control`.
    #[error(
        "no permission to use /dev/ublk-control; be root, or use a file, which needs none (--as \
         fuse)"
    )]
    Denied,
    /// The kernel refused a device to a user without privileges.
    #[error(
        "the kernel makes no ublk device for this user: {error}; be root, or use a file, which \
         needs no permission (--as fuse)"
    )]
    NotForUsers {
        /// The system's error.
        error: io::Error,
    },
    /// The driver is too old.
    #[error(
        "this kernel's ublk cannot copy data at a server's request (Linux 6.5 or newer can); use a \
         loop device (--as loop)"
    )]
    TooOld,
    /// The image is zoned, and the volume does not follow its zones.
    #[error(transparent)]
    Zones(#[from] ucrypt_engine::ZonesError),
    /// The driver does not support zones.
    #[error(
        "the image is a zoned device, and this kernel's ublk knows none (Linux 6.6 or newer does, \
         with CONFIG_BLK_DEV_ZONED); serve it over NBD (--as nbd) and write it in order"
    )]
    NoZones,
    /// A zoned device was to outlive its server.
    #[error(
        "a zoned device cannot wait for another server, because writes that were under way cannot \
         be done again; leave --ublk-wait out"
    )]
    ZonedRecovery,
    /// The system has no `io_uring` for us, without which there is no ublk.
    #[error(
        "io_uring is not available: {error}; allow it (sysctl kernel.io_uring_disabled=0), or use a \
         loop device (--as loop)"
    )]
    NoRing {
        /// The system's error.
        error: io::Error,
    },
    /// A device of that number is there already.
    #[error(
        "/dev/ublkb{device} exists already; name another number, or none (or --ublk-recover={device} \
         if its server died)"
    )]
    Exists {
        /// The number.
        device: u32,
    },
    /// There is no device to be taken over.
    #[error("there is no /dev/ublkb{device} to be taken over; start it anew, without recovery")]
    Gone {
        /// The number.
        device: u32,
    },
    /// The device to be taken over has a server that lives.
    #[error("/dev/ublkb{device} is served already, by process {pid}; end that first")]
    Served {
        /// The number.
        device: u32,
        /// The process.
        pid: i32,
    },
    /// The device to be taken over was not made to outlive its server.
    #[error(
        "/dev/ublkb{device} was not opened for recovery, and ended with its server; start it anew"
    )]
    NotRecoverable {
        /// The number.
        device: u32,
    },
    /// The device to be taken over is another volume's.
    #[error(
        "/dev/ublkb{device} belongs to another volume, or to this one with other options; name its \
         image and options as they were"
    )]
    OtherVolume {
        /// The number.
        device: u32,
    },
    /// A device of the volume waits for a server, which only a named take-over may be.
    #[error(
        "/dev/ublkb{device} waits for a server of this volume, and without a header nothing tells whether this key is \
         the one that its waiting writes need; if it is, ucrypt serve --ublk-recover={device} takes the device over"
    )]
    Waits {
        /// The number.
        device: u32,
    },
    /// A queue broke, which ended the device.
    #[error(
        "a queue of {device} broke: {error}; programs that used it got errors: open the volume again"
    )]
    Broken {
        /// The device.
        device: std::path::PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A step of the set-up failed.
    #[error("cannot {what}: {error}; use a loop device (--as loop)")]
    Control {
        /// The step.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// The error of a step of the set-up.
pub(super) fn failed<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> UblkError {
    move |error| UblkError::Control { what, error: error.into() }
}
