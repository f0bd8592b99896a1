//! The modes of operation over the blocks of a sector.
//!
//! Each mode is written once, for any block cipher. Its buffers are on the stack and as large as a
//! sector.

mod adiantum;
mod cbc;
mod ctr;
mod ecb;
mod hctr2;
mod lrw;
mod pcbc;
mod xts;

use cipher::InOutBuf;

pub(crate) use adiantum::Adiantum;
pub(crate) use cbc::Cbc;
pub(crate) use ctr::Ctr;
pub(crate) use ecb::{Ecb, Identity};
pub(crate) use hctr2::Hctr2;
pub(crate) use lrw::Lrw;
pub(crate) use pcbc::Pcbc;
pub(crate) use xts::Xts;

/// The largest sector in bytes.
pub(crate) const SECTOR_MAX: usize = 4096;

/// The largest block in bytes.
pub(crate) const BLOCK_MAX: usize = 16;

/// The tweak length of the wide-block modes in bytes.
pub(crate) const WIDE_TWEAK: usize = 32;

/// The most sectors in one call of a mode.
pub(crate) const SECTORS_MAX: usize = 64;

/// A keyed mode that handles several whole sectors per call.
///
/// `ivs` holds one IV of [`iv_len`](SectorMode::iv_len) bytes per sector and may be overwritten.
/// `data` holds 1 to [`SECTORS_MAX`] sectors of `sector_size` bytes each. Its source and
/// destination are the same memory or do not overlap.
pub(crate) trait SectorMode: Send + Sync {
    /// Length of a sector's IV in bytes; 0 if the mode takes none.
    fn iv_len(&self) -> usize;

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize);

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize);

    /// See [`SectorCipher::streams`](crate::SectorCipher::streams).
    fn streams(&self) -> bool {
        false
    }

    /// Bypasses the caches if the mode [`streams`](SectorMode::streams). `data` is never in place.
    fn encrypt_streaming(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.encrypt(ivs, data, sector_size);
    }
}

/// Applies `crypt` to the sectors between two XORs with a mask that `fill` makes from their IVs.
///
/// Small sectors are processed together, because some ciphers are fast only on many blocks.
fn whitened(
    ivs: &[u8],
    data: InOutBuf<'_, '_, u8>,
    sector_size: usize,
    fill: impl Fn([u8; 16], &mut [u8]),
    crypt: impl Fn(&mut [u8]),
) {
    let mut mask = [0; SECTOR_MAX];
    let batch = sectors_together(sector_size);
    let batches = data.into_out_with_copied_in().chunks_mut(batch * sector_size);
    for (ivs, sectors) in ivs.as_chunks::<16>().0.chunks(batch).zip(batches) {
        let mask = &mut mask[..sectors.len()];
        for (iv, mask) in ivs.iter().zip(mask.chunks_exact_mut(sector_size)) {
            fill(*iv, mask);
        }
        xor(sectors, mask);
        crypt(sectors);
        xor(sectors, mask);
    }
}

/// How many sectors a buffer of [`SECTOR_MAX`] bytes holds.
fn sectors_together(sector_size: usize) -> usize {
    (SECTOR_MAX / sector_size).max(1)
}

/// `out[i] ^= mask[i]`
#[inline]
pub(crate) fn xor(out: &mut [u8], mask: &[u8]) {
    for (byte, mask) in out.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}
