//! The modes: what joins the blocks of a sector.
//!
//! Each mode is written once, over any block cipher; its buffers are the size of a sector and live
//! on the stack.

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

/// The tweak of the wide-block modes in bytes.
pub(crate) const WIDE_TWEAK: usize = 32;

/// The most sectors that one call of a mode is given.
pub(crate) const SECTORS_MAX: usize = 64;

/// A keyed mode that handles several whole sectors per call.
///
/// `ivs` holds one IV of [`iv_len`](SectorMode::iv_len) bytes per sector and may be overwritten;
/// `data` holds 1 to [`SECTORS_MAX`] sectors of `sector_size` bytes each, source and destination
/// being the same memory or not overlapping.
pub(crate) trait SectorMode: Send + Sync {
    /// Length of a sector's IV in bytes; 0 if the mode takes none.
    fn iv_len(&self) -> usize;

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize);

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize);
}

/// Applies `crypt` to each sector between two XORs with a mask that `fill` makes from its IV.
fn whitened(
    ivs: &[u8],
    data: InOutBuf<'_, '_, u8>,
    sector_size: usize,
    fill: impl Fn([u8; 16], &mut [u8]),
    crypt: impl Fn(&mut [u8]),
) {
    let mut mask = [0; SECTOR_MAX];
    let mask = &mut mask[..sector_size];
    let sectors = data.into_out_with_copied_in().chunks_exact_mut(sector_size);
    for (iv, sector) in ivs.as_chunks::<16>().0.iter().zip(sectors) {
        fill(*iv, mask);
        xor(sector, mask);
        crypt(sector);
        xor(sector, mask);
    }
}

/// `out[i] ^= mask[i]`
pub(crate) fn xor(out: &mut [u8], mask: &[u8]) {
    for (byte, mask) in out.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}
