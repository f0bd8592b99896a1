//! The IV of a sector, made from its number.
//!
//! A generator fills the IVs of many sectors at once, so that a generator with a cipher encrypts
//! them together. The IVs of loop-AES, TrueCrypt and `BitLocker` also change the data. They are
//! modes that wrap another mode and take the plain sector number as their IV.

mod elephant;
mod lmk;
mod tcw;

use cipher::InOutBuf;

use crate::{
    block::BlockCipher,
    mode::{BLOCK_MAX, SECTORS_MAX, SectorMode, WIDE_TWEAK},
};

pub(crate) use elephant::Elephant;
pub(crate) use lmk::Lmk;
pub(crate) use tcw::Tcw;

/// Bytes of the key that whiten a sector under `tcw`.
pub(crate) const TCW_WHITENING: usize = tcw::WHITENING;

/// Makes IVs. Numbers wrap at 2^64, as in the kernel.
pub(crate) enum IvGenerator {
    Null,
    Plain,
    Plain64,
    Plain64Be,
    /// Counts blocks, of which a sector of 512 bytes has `1 << shift`.
    Benbi {
        shift: u32,
    },
    Essiv(Box<dyn BlockCipher>),
    Eboiv(Eboiv),
}

impl IvGenerator {
    /// Whether it encrypts.
    pub(crate) fn has_key(&self) -> bool {
        matches!(self, Self::Essiv(_) | Self::Eboiv(_))
    }

    /// Fills `ivs`, which holds successive IVs of `len` bytes. The first has the number `first`;
    /// each further number is higher by `step`.
    #[inline]
    pub(crate) fn fill(&self, first: u64, step: u64, ivs: &mut [u8], len: usize) {
        match len {
            0 => {}
            8 => self.fill_fixed::<8>(first, step, ivs),
            16 => self.fill_fixed::<16>(first, step, ivs),
            _ => self.fill_fixed::<WIDE_TWEAK>(first, step, ivs),
        }
    }

    #[inline]
    fn fill_fixed<const LEN: usize>(&self, first: u64, step: u64, ivs: &mut [u8]) {
        match self {
            Self::Null => ivs.fill(0),
            Self::Plain => each::<LEN>(first, step, ivs, |number, iv| {
                iv[..4].copy_from_slice(&(number as u32).to_le_bytes());
            }),
            Self::Plain64 => each::<LEN>(first, step, ivs, |number, iv| {
                iv[..8].copy_from_slice(&number.to_le_bytes());
            }),
            Self::Plain64Be => each::<LEN>(first, step, ivs, |number, iv| {
                iv[LEN - 8..].copy_from_slice(&number.to_be_bytes());
            }),
            Self::Benbi { shift } => each::<LEN>(first, step, ivs, |number, iv| {
                let block = (number << shift).wrapping_add(1);
                iv[LEN - 8..].copy_from_slice(&block.to_be_bytes());
            }),
            Self::Essiv(salted) => {
                Self::Plain64.fill_fixed::<LEN>(first, step, ivs);
                salted.encrypt_blocks(ivs);
            }
            Self::Eboiv(eboiv) => {
                Self::Plain64.fill_fixed::<LEN>(first, step, ivs);
                eboiv.replace_numbers(ivs);
            }
        }
    }
}

#[inline]
fn each<const LEN: usize>(
    first: u64,
    step: u64,
    ivs: &mut [u8],
    write: impl Fn(u64, &mut [u8; LEN]),
) {
    let mut number = first;
    for iv in ivs.as_chunks_mut::<LEN>().0 {
        let mut bytes = [0; LEN];
        write(number, &mut bytes);
        *iv = bytes;
        number = number.wrapping_add(step);
    }
}

/// The number in a `plain64` IV.
fn number_of(iv: &[u8]) -> u64 {
    iv.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The encrypted byte offset of `BitLocker`: a block of zeros, encrypted under the data's cipher
/// and mode with the number times the sector size, little-endian, as the IV.
pub(crate) struct Eboiv {
    /// Must take sectors of one block.
    pub(crate) mode: Box<dyn SectorMode>,
    pub(crate) sector_size: u32,
}

impl Eboiv {
    /// Turns the numbers in `ivs`, as `plain64` writes them, into IVs.
    fn replace_numbers(&self, ivs: &mut [u8]) {
        let len = self.mode.iv_len();
        for iv in ivs.chunks_exact_mut(len) {
            let offset = number_of(iv).wrapping_mul(u64::from(self.sector_size));
            iv[..8].copy_from_slice(&offset.to_le_bytes());
        }
        let mut zeros = [0; SECTORS_MAX * BLOCK_MAX];
        let zeros = &mut zeros[..ivs.len()];
        self.mode.encrypt(ivs, InOutBuf::from(&mut *zeros), len);
        ivs.copy_from_slice(zeros);
    }
}
