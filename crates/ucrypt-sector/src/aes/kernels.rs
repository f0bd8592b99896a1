//! AES kernels for x86-64 and `AArch64`.
//!
//! The `unsafe` code in this file and its submodules relies on two promises: [`Features`] exists
//! only for a kernel whose instructions the processor has, and a [`Run`] comes from buffers of its
//! length.

#![allow(unsafe_code, reason = "vector instructions and unchecked pointers are the point of it")]
#![allow(clippy::wildcard_imports, reason = "the names of instructions are unmistakable")]
#![allow(clippy::needless_range_loop, reason = "one index runs through several arrays")]
#![allow(clippy::inline_always, reason = "the drivers must merge with the enabling function")]

mod cbc;
mod ecb;
mod tweaks;
mod xts;

use cipher::InOutBuf;

#[cfg(target_arch = "x86_64")]
use self::xts::{ByProducts, ByShifts};
use self::xts::{Cached, InRegisters, LINE, Streamed, xts};
use super::schedule::Schedule;
#[cfg(target_arch = "x86_64")]
use crate::arch::{Width, Ymm, Zmm};
use crate::{
    arch::{Features, OneBlock, fence_streams, kernel},
    block::BlockCipher,
    mode::SectorMode,
    vector::{Decrypt, Encrypt},
};

/// The bytes of one call, in place or from a source to a destination.
///
/// `src` is valid for reads and `dst` for writes of `len` bytes; they are equal or do not overlap.
#[derive(Clone, Copy)]
struct Run {
    src: *const u8,
    dst: *mut u8,
    len: usize,
    sector_size: usize,
}

impl Run {
    /// `data` must outlive the run.
    fn new(data: &mut InOutBuf<'_, '_, u8>, sector_size: usize) -> Self {
        let len = data.len();
        let (src, dst) = data.reborrow().into_raw();
        Self { src, dst, len, sector_size }
    }

    /// The IVs of the run's sectors, one each.
    ///
    /// # Panics
    ///
    /// If there is not exactly one IV per sector, if there is none, or if the sector size is not a
    /// multiple of the largest group: the drivers rely on all of this.
    fn checked_ivs(self, ivs: &[u8]) -> &[[u8; 16]] {
        let (ivs, rest) = ivs.as_chunks::<16>();
        assert!(rest.is_empty() && self.sector_size > 0 && self.sector_size.is_multiple_of(512));
        assert!(!ivs.is_empty() && ivs.len() * self.sector_size == self.len);
        ivs
    }
}

kernel!(fn xts_encrypt(keys: &Schedule, tweaks: &[[u8; 16]], run: Run):
    xts::<Zmm, Encrypt, InRegisters, Cached>, xts::<Ymm, Encrypt, ByShifts, Cached>,
    xts::<OneBlock, Encrypt, InRegisters, Cached>);
kernel!(fn xts_decrypt(keys: &Schedule, tweaks: &[[u8; 16]], run: Run):
    xts::<Zmm, Decrypt, InRegisters, Cached>, xts::<Ymm, Decrypt, ByShifts, Cached>,
    xts::<OneBlock, Decrypt, InRegisters, Cached>);
kernel!(fn xts_encrypt_by_products(keys: &Schedule, tweaks: &[[u8; 16]], run: Run):
    xts::<Zmm, Encrypt, ByProducts, Cached>, xts::<Ymm, Encrypt, ByProducts, Cached>,
    xts::<OneBlock, Encrypt, InRegisters, Cached>);
kernel!(fn xts_decrypt_by_products(keys: &Schedule, tweaks: &[[u8; 16]], run: Run):
    xts::<Zmm, Decrypt, ByProducts, Cached>, xts::<Ymm, Decrypt, ByProducts, Cached>,
    xts::<OneBlock, Decrypt, InRegisters, Cached>);
kernel!(fn xts_stream(keys: &Schedule, tweaks: &[[u8; 16]], run: Run):
    xts::<Zmm, Encrypt, InRegisters, Streamed>, xts::<Ymm, Encrypt, ByShifts, Streamed>,
    xts::<OneBlock, Encrypt, InRegisters, Streamed>);
kernel!(fn xts_stream_by_products(keys: &Schedule, tweaks: &[[u8; 16]], run: Run):
    xts::<Zmm, Encrypt, ByProducts, Streamed>, xts::<Ymm, Encrypt, ByProducts, Streamed>,
    xts::<OneBlock, Encrypt, InRegisters, Streamed>);
kernel!(fn cbc_encrypt(keys: &Schedule, ivs: &[[u8; 16]], run: Run):
    cbc::encrypt::<Zmm>, cbc::encrypt::<Ymm>, cbc::encrypt::<OneBlock>);
kernel!(fn cbc_decrypt(keys: &Schedule, ivs: &[[u8; 16]], run: Run):
    cbc::decrypt::<Zmm, 2>, cbc::decrypt::<Ymm, 1>, cbc::decrypt::<OneBlock, 1>);
kernel!(fn ecb_encrypt(keys: &Schedule, run: Run):
    ecb::ecb::<Zmm, Encrypt>, ecb::ecb::<Ymm, Encrypt>, ecb::ecb::<OneBlock, Encrypt>);
kernel!(fn ecb_decrypt(keys: &Schedule, run: Run):
    ecb::ecb::<Zmm, Decrypt>, ecb::ecb::<Ymm, Decrypt>, ecb::ecb::<OneBlock, Decrypt>);

/// AES on independent blocks.
pub(super) struct Ecb {
    features: Features,
    encryption: Box<Schedule>,
    decryption: Box<Schedule>,
}

impl Ecb {
    /// `None` if AES takes no key of that length.
    pub(super) fn new(features: Features, key: &[u8]) -> Option<Self> {
        let encryption = Schedule::encryption(key)?;
        let decryption = encryption.decryption();
        Some(Self { features, encryption, decryption })
    }
}

impl BlockCipher for Ecb {
    fn block_len(&self) -> usize {
        16
    }

    fn encrypt_blocks(&self, data: &mut [u8]) {
        ecb_encrypt(self.features, &self.encryption, Run::new(&mut data.into(), 16));
    }

    fn decrypt_blocks(&self, data: &mut [u8]) {
        ecb_decrypt(self.features, &self.decryption, Run::new(&mut data.into(), 16));
    }
}

/// AES-CBC.
pub(super) struct Cbc(Ecb);

impl Cbc {
    /// `None` if AES takes no key of that length.
    pub(super) fn new(features: Features, key: &[u8]) -> Option<Self> {
        Some(Self(Ecb::new(features, key)?))
    }
}

impl SectorMode for Cbc {
    fn iv_len(&self) -> usize {
        16
    }

    fn encrypt(&self, ivs: &mut [u8], mut data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let run = Run::new(&mut data, sector_size);
        cbc_encrypt(self.0.features, &self.0.encryption, run.checked_ivs(ivs), run);
    }

    fn decrypt(&self, ivs: &mut [u8], mut data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let run = Run::new(&mut data, sector_size);
        cbc_decrypt(self.0.features, &self.0.decryption, run.checked_ivs(ivs), run);
    }
}

/// AES-XTS.
pub(super) struct Xts {
    data: Ecb,
    tweak: Box<Schedule>,
}

impl Xts {
    /// `None` if AES takes no keys of these lengths.
    pub(super) fn new(features: Features, data: &[u8], tweak: &[u8]) -> Option<Self> {
        Some(Self { data: Ecb::new(features, data)?, tweak: Schedule::encryption(tweak)? })
    }

    fn encrypt_tweaks(&self, ivs: &mut [u8]) {
        ecb_encrypt(self.data.features, &self.tweak, Run::new(&mut ivs.into(), 16));
    }
}

impl SectorMode for Xts {
    fn iv_len(&self) -> usize {
        16
    }

    fn encrypt(&self, ivs: &mut [u8], mut data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.encrypt_tweaks(ivs);
        let run = Run::new(&mut data, sector_size);
        let features = self.data.features;
        let encrypt =
            if features.products_are_free() { xts_encrypt_by_products } else { xts_encrypt };
        encrypt(features, &self.data.encryption, run.checked_ivs(ivs), run);
    }

    fn streams(&self) -> bool {
        true
    }

    fn encrypt_streaming(
        &self,
        ivs: &mut [u8],
        mut data: InOutBuf<'_, '_, u8>,
        sector_size: usize,
    ) {
        let run = Run::new(&mut data, sector_size);
        if !run.dst.addr().is_multiple_of(LINE) {
            return self.encrypt(ivs, data, sector_size);
        }
        self.encrypt_tweaks(ivs);
        let features = self.data.features;
        let encrypt =
            if features.products_are_free() { xts_stream_by_products } else { xts_stream };
        encrypt(features, &self.data.encryption, run.checked_ivs(ivs), run);
        fence_streams();
    }

    fn decrypt(&self, ivs: &mut [u8], mut data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.encrypt_tweaks(ivs);
        let run = Run::new(&mut data, sector_size);
        let features = self.data.features;
        let decrypt =
            if features.products_are_free() { xts_decrypt_by_products } else { xts_decrypt };
        decrypt(features, &self.data.decryption, run.checked_ivs(ivs), run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;

    /// The way depends on the processor's vendor, so tests of whole kernels cover only one of them.
    #[test]
    fn xts_is_the_same_whatever_the_tweaks_are_made_by() {
        let (keys, ivs): ([u8; 64], [u8; 5 * 16]) =
            (std::array::from_fn(|i| i as u8), std::array::from_fn(|i| (i * 37) as u8 ^ 0x80));
        let plain: Vec<u8> = (0..5 * 4096_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let (data, tweak) = keys.split_at(32);
        let portable = Kernel::Portable.xts(data, tweak).unwrap();
        for features in Kernel::ALL.iter().filter_map(|&kernel| Features::detect(kernel)) {
            for by_products in [false, true] {
                let xts = Xts::new(features.with_free_products(by_products), data, tweak).unwrap();
                for (sector_size, sectors) in [(512, 1), (512, 5), (1024, 3), (2048, 2), (4096, 5)]
                {
                    let (ivs, plain) = (&ivs[..sectors * 16], &plain[..sectors * sector_size]);
                    let (mut expected, mut sealed) = (plain.to_vec(), plain.to_vec());
                    portable.encrypt(&mut ivs.to_vec(), (&mut expected[..]).into(), sector_size);
                    xts.encrypt(&mut ivs.to_vec(), (&mut sealed[..]).into(), sector_size);
                    assert!(sealed == expected, "{sectors} x {sector_size}, {by_products}");
                    // Both ways: aligned to a cache line and not.
                    let mut room = vec![0; plain.len() + 65];
                    for start in [room.as_ptr().align_offset(64), 1] {
                        let streamed = &mut room[start..start + plain.len()];
                        let run = InOutBuf::new(plain, &mut *streamed).unwrap();
                        xts.encrypt_streaming(&mut ivs.to_vec(), run, sector_size);
                        assert!(*streamed == expected, "{sectors} x {sector_size}, {by_products}");
                        streamed.fill(0);
                    }
                    assert!(room.iter().all(|&byte| byte == 0), "beyond its end");
                    xts.decrypt(&mut ivs.to_vec(), (&mut sealed[..]).into(), sector_size);
                    assert!(sealed == plain, "{sectors} x {sector_size}, {by_products}");
                }
            }
        }
    }
}
