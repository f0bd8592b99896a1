//! A keyed cipher for the sectors of one segment: the interface for the layers above.

use std::fmt;

use cipher::InOutBuf;

use crate::{
    CipherSpec, Kernel, KeyError, RunError, SectorOptions,
    keyed::{Keyed, keys},
    mode::{BLOCK_MAX, SECTORS_MAX, WIDE_TWEAK},
    stack::scrub_stack,
};

/// Bytes of stack, at most, that a run takes.
const RUN_STACK_BYTES: usize = 16 << 10;

/// Bytes of stack, at most, that setting a key takes.
const SETUP_STACK_BYTES: usize = 32 << 10;

/// Encrypts and decrypts runs of sectors under one key.
///
/// Cheap to share between threads. Encryption and decryption do not allocate. The key schedules are
/// wiped on drop.
pub struct SectorCipher {
    spec: CipherSpec,
    options: SectorOptions,
    /// One key, or a power of two of them that the sectors use in turn.
    keys: Vec<Keyed>,
    stack_bytes: usize,
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    EncryptStreaming,
    Decrypt,
}

impl SectorCipher {
    /// Sets the key. `key` is the volume key in dm-crypt's format: for XTS, the data key followed
    /// by the tweak key. `cipher_null` takes any key and ignores it.
    pub fn new(spec: &CipherSpec, key: &[u8], options: SectorOptions) -> Result<Self, KeyError> {
        Self::with_kernel(spec, key, options, Kernel::best())
    }

    /// As [`new`](Self::new), but with a given kernel instead of the fastest one, for tests and
    /// measurements.
    pub fn with_kernel(
        spec: &CipherSpec,
        key: &[u8],
        options: SectorOptions,
        kernel: Kernel,
    ) -> Result<Self, KeyError> {
        options.check()?;
        if !kernel.is_available() {
            return Err(KeyError::Kernel { kernel });
        }
        if options.sector_size != 512 && !spec.takes_large_sectors() {
            return Err(KeyError::SectorSizeOfIv {
                iv: spec.iv(),
                sector_size: options.sector_size,
            });
        }
        let fits = spec.key_sizes().contains(key.len());
        let keys = fits.then(|| keys(spec, kernel, key, options.sector_size)).flatten();
        scrub_stack::<SETUP_STACK_BYTES>();
        let keys = keys.ok_or_else(|| KeyError::Length {
            spec: spec.to_string(),
            len: key.len(),
            accepted: spec.key_sizes(),
        })?;
        let only_xts = keys.iter().all(|key| key.mode.streams() && !key.iv.has_key());
        let stack_bytes = if only_xts { 0 } else { RUN_STACK_BYTES };
        Ok(Self { spec: spec.clone(), options, keys, stack_bytes })
    }

    /// Bytes that are encrypted as one unit.
    pub fn sector_size(&self) -> u32 {
        self.options.sector_size
    }

    /// Encrypts the run of sectors in `data`.
    ///
    /// `sector` is the number of the first sector, in 512-byte units from the start of the segment.
    /// It must be a multiple of the sector size. `data` must be a whole number of sectors.
    pub fn encrypt_in_place(&self, sector: u64, data: &mut [u8]) -> Result<(), RunError> {
        self.crypt(Direction::Encrypt, sector, data.into())
    }

    /// Decrypts the run of sectors in `data`; the rules are those of
    /// [`encrypt_in_place`](Self::encrypt_in_place).
    pub fn decrypt_in_place(&self, sector: u64, data: &mut [u8]) -> Result<(), RunError> {
        self.crypt(Direction::Decrypt, sector, data.into())
    }

    /// Encrypts the run of sectors in `src` into `dst`, which must have the same length; the rules
    /// are those of [`encrypt_in_place`](Self::encrypt_in_place).
    pub fn encrypt(&self, sector: u64, src: &[u8], dst: &mut [u8]) -> Result<(), RunError> {
        self.crypt(Direction::Encrypt, sector, pair(src, dst)?)
    }

    /// Whether [`encrypt_streaming`](Self::encrypt_streaming) bypasses the caches and writes only
    /// ciphertext to the output: each block is written once, does not depend on the one before, and
    /// the output never holds plaintext. A run may then be encrypted directly into its final place,
    /// even if others read it meanwhile or the process ends.
    pub fn streams(&self) -> bool {
        self.keys.iter().all(|key| key.mode.streams())
    }

    /// Bytes of the stack below its caller on which a run may leave parts of the key schedule, such as round
    /// keys that did not fit into registers, and what it made from them. 0 for the kernels of AES-XTS, which leave
    /// nothing but encrypted sector numbers.
    pub fn stack_bytes(&self) -> usize {
        self.stack_bytes
    }

    /// As [`encrypt`](Self::encrypt), for an output that is not read soon. If the cipher
    /// [`streams`](Self::streams) and `dst` is aligned to 64 bytes, memory outside the caches is as
    /// fast as cached memory.
    pub fn encrypt_streaming(
        &self,
        sector: u64,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), RunError> {
        self.crypt(Direction::EncryptStreaming, sector, pair(src, dst)?)
    }

    /// Decrypts the run of sectors in `src` into `dst`, which must have the same length; the rules
    /// are those of [`encrypt_in_place`](Self::encrypt_in_place).
    pub fn decrypt(&self, sector: u64, src: &[u8], dst: &mut [u8]) -> Result<(), RunError> {
        self.crypt(Direction::Decrypt, sector, pair(src, dst)?)
    }

    fn crypt(
        &self,
        direction: Direction,
        sector: u64,
        data: InOutBuf<'_, '_, u8>,
    ) -> Result<(), RunError> {
        let sector_size = self.options.sector_size;
        // Masks and shifts work here and below because a sector size is a power of two.
        if data.len() & (sector_size as usize - 1) != 0 {
            return Err(RunError::NotWholeSectors { len: data.len(), sector_size });
        }
        if sector & (self.options.step() - 1) != 0 {
            return Err(RunError::Unaligned { sector, sector_size });
        }
        if let [key] = &self.keys[..] {
            self.crypt_under(key, direction, sector, data);
        } else {
            self.crypt_by_turns(direction, sector, data);
        }
        Ok(())
    }

    /// Handles each sector under the key whose turn it is.
    fn crypt_by_turns(&self, direction: Direction, mut sector: u64, mut run: InOutBuf<'_, '_, u8>) {
        while !run.is_empty() {
            let (data, rest) = run.split_at(self.options.sector_size as usize);
            run = rest;
            let turn = sector.wrapping_add(self.options.iv_offset) % self.keys.len() as u64;
            self.crypt_under(&self.keys[turn as usize], direction, sector, data);
            sector = sector.wrapping_add(self.options.step());
        }
    }

    #[inline]
    fn crypt_under(
        &self,
        key: &Keyed,
        direction: Direction,
        sector: u64,
        data: InOutBuf<'_, '_, u8>,
    ) {
        // Small requests use a small IV buffer, so that they need not clear a large one.
        if data.len() <= 4 * self.options.sector_size as usize {
            self.crypt_batches::<{ 4 * BLOCK_MAX }>(key, direction, sector, data);
        } else {
            self.crypt_batches::<{ SECTORS_MAX * BLOCK_MAX }>(key, direction, sector, data);
        }
    }

    /// The IV number of the encryption sector that starts at `sector`, and the step to the next
    /// IV number.
    fn iv_numbers(&self, sector: u64) -> (u64, u64) {
        let number = sector.wrapping_add(self.options.iv_offset);
        let step = self.options.step();
        if self.options.iv_large_sectors { (number >> step.ilog2(), 1) } else { (number, step) }
    }

    /// Passes the run to the mode in batches whose IVs fit into `IV_BYTES`.
    fn crypt_batches<const IV_BYTES: usize>(
        &self,
        key: &Keyed,
        direction: Direction,
        sector: u64,
        mut data: InOutBuf<'_, '_, u8>,
    ) {
        let (mut number, step) = self.iv_numbers(sector);
        let sector_size = self.options.sector_size as usize;
        let iv_len = key.mode.iv_len();
        let batch_sectors =
            if iv_len > BLOCK_MAX { IV_BYTES / WIDE_TWEAK } else { IV_BYTES / BLOCK_MAX };
        let mut ivs = [0; IV_BYTES];
        while !data.is_empty() {
            let sectors = (data.len() >> sector_size.trailing_zeros()).min(batch_sectors);
            let (batch, rest) = data.split_at(sectors * sector_size);
            data = rest;
            let ivs = &mut ivs[..sectors * iv_len];
            key.iv.fill(number, step, ivs, iv_len);
            match direction {
                Direction::Encrypt => key.mode.encrypt(ivs, batch, sector_size),
                Direction::EncryptStreaming => {
                    key.mode.encrypt_streaming(ivs, batch, sector_size);
                }
                Direction::Decrypt => key.mode.decrypt(ivs, batch, sector_size),
            }
            number = number.wrapping_add(step.wrapping_mul(sectors as u64));
        }
    }
}

impl fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SectorCipher")
            .field("spec", &self.spec.to_string())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn pair<'src, 'dst>(
    src: &'src [u8],
    dst: &'dst mut [u8],
) -> Result<InOutBuf<'src, 'dst, u8>, RunError> {
    let error = RunError::LengthMismatch { src: src.len(), dst: dst.len() };
    InOutBuf::new(src, dst).map_err(|_| error)
}
