//! The errors, one enum per family of calls.

use crate::{IvMode, Kernel, KeySizes};

/// A cipher specification that is unknown or combines incompatible parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// An unknown name.
    #[error("unknown {kind} `{name}`: known are {known}")]
    Unknown {
        /// `cipher`, `mode`, `IV` or `hash`.
        kind: &'static str,
        /// The given text.
        name: String,
        /// The names that are accepted in its place.
        known: String,
    },
    /// The text does not have the form of a specification.
    #[error("`{spec}` is no cipher specification: {reason}; give one like aes-xts-plain64")]
    Form {
        /// The given text.
        spec: String,
        /// The rule that the text breaks.
        reason: &'static str,
    },
    /// Each part is known, but they cannot be combined.
    #[error("`{spec}` does not work: {rule}")]
    Combination {
        /// The given text.
        spec: String,
        /// The rule that forbids it, and what would be accepted.
        rule: String,
    },
}

/// A key or an option that the cipher specification does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has a length that the cipher does not take.
    #[error("{spec} takes a key of {accepted} bytes, not {len}")]
    Length {
        /// The specification.
        spec: String,
        /// Length of the given key, in bytes.
        len: usize,
        /// The lengths that are accepted.
        accepted: KeySizes,
    },
    /// A sector size that dm-crypt does not support.
    #[error("a sector size of {sector_size} bytes is not possible: use 512, 1024, 2048 or 4096")]
    SectorSize {
        /// The given sector size in bytes.
        sector_size: u32,
    },
    /// A sector size that the IV does not support.
    #[error("{iv} is defined for 512-byte sectors, not for {sector_size}")]
    SectorSizeOfIv {
        /// The IV: `lmk` or `tcw`.
        iv: IvMode,
        /// The given sector size in bytes.
        sector_size: u32,
    },
    /// An IV offset inside an encryption sector.
    #[error(
        "an IV offset of {iv_offset} sectors splits a {sector_size}-byte sector: use a multiple \
         of {}", sector_size / 512
    )]
    IvOffset {
        /// The given offset in 512-byte sectors.
        iv_offset: u64,
        /// The sector size in bytes.
        sector_size: u32,
    },
    /// A kernel whose instructions this processor lacks.
    #[error("this processor does not run the kernel {kernel}: use {}", Kernel::best())]
    Kernel {
        /// The requested kernel.
        kernel: Kernel,
    },
}

/// An invalid run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The buffer is not a whole number of sectors.
    #[error("{len} bytes are no whole number of {sector_size}-byte sectors")]
    NotWholeSectors {
        /// Length of the buffer in bytes.
        len: usize,
        /// The sector size in bytes.
        sector_size: u32,
    },
    /// The run starts inside an encryption sector.
    #[error(
        "sector {sector} lies inside a {sector_size}-byte sector: start at a multiple of {}",
        sector_size / 512
    )]
    Unaligned {
        /// Number of the first sector, in 512-byte units.
        sector: u64,
        /// The sector size in bytes.
        sector_size: u32,
    },
    /// Source and destination differ in length.
    #[error("{src} bytes do not fit a destination of {dst} bytes: give buffers of one length")]
    LengthMismatch {
        /// Length of the source in bytes.
        src: usize,
        /// Length of the destination in bytes.
        dst: usize,
    },
}
