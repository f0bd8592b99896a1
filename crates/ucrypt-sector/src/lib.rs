//! Disk-sector encryption as Linux's dm-crypt does it: a block cipher, a mode, an IV rule and a
//! sector size, applied to many sectors per call.
//!
//! The crate is pure: it opens no file, starts no thread, reads no clock and draws no random
//! number, so that it can be fuzzed, proved and simulated. All inputs are arguments.
//!
//! ```
//! use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};
//!
//! let spec: CipherSpec = "aes-xts-plain64".parse()?;
//! let options = SectorOptions { sector_size: 4096, ..SectorOptions::default() };
//! let cipher = SectorCipher::new(&spec, &[7; 64], options)?;
//!
//! let mut run = vec![0; 2 * 4096]; // two sectors, the first at byte 8 * 512 of the segment
//! cipher.encrypt_in_place(8, &mut run)?;
//! cipher.decrypt_in_place(8, &mut run)?;
//! assert!(run.iter().all(|byte| *byte == 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Rules that are not obvious follow the kernel: `drivers/md/dm-crypt.c` and
//! `Documentation/admin-guide/device-mapper/dm-crypt.rst`.

mod aes;
#[cfg(target_arch = "aarch64")]
mod arm;
mod block;
#[cfg(target_arch = "x86_64")]
mod camellia;
mod error;
mod hash;
mod iv;
mod key_sizes;
mod keyed;
mod mode;
mod names;
mod options;
mod sector;
#[cfg(target_arch = "x86_64")]
mod serpent;
mod spec;
mod stack;
mod twofish;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod vector;
#[cfg(test)]
mod vectors;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
use arm as arch;
#[cfg(target_arch = "x86_64")]
use x86 as arch;

pub use aes::Kernel;
pub use error::{KeyError, RunError, SpecError};
pub use hash::Hash;
pub use key_sizes::KeySizes;
pub use names::{Cipher, EssivHash, IvMode, Mode};
pub use options::SectorOptions;
pub use sector::SectorCipher;
pub use spec::CipherSpec;
pub use stack::{scrub_registers, scrub_stack};
