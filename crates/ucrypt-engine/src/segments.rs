//! The segments of a volume and their ciphers: what the volume, its queues and its workers share.

use std::ops::Deref;
use std::time::{Duration, Instant};

use ucrypt_backend::{Buf, Errno};
use ucrypt_sector::SectorCipher;

/// A run of the volume that lies in one piece on the backend.
#[derive(Debug)]
pub struct Segment {
    /// Length in bytes, a multiple of the sector size.
    pub len: u64,
    /// Where it starts on the backend, in bytes; a multiple of 512.
    pub backend_offset: u64,
    /// How its sectors are encrypted; their numbers count from the segment's start. `None`: not at
    /// all.
    pub cipher: Option<SectorCipher>,
}

impl Segment {
    /// Bytes that are encrypted as one; 512 without encryption.
    pub(crate) fn sector_size(&self) -> u32 {
        self.cipher.as_ref().map_or(512, SectorCipher::sector_size)
    }
}

/// A cipher that is slower than the one at hand: an old core, or a hardware engine that takes its
/// time for each job. What the real one takes is part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CipherModel {
    /// Nanoseconds per byte.
    pub ns_per_byte: f64,
    /// Nanoseconds per call, whatever its length.
    pub ns_per_call: u64,
}

/// The segments end to end. A slice of [`Segment`]s with the work that is done on them.
#[derive(Debug)]
pub(crate) struct Segments {
    list: Vec<Segment>,
    model: Option<CipherModel>,
}

impl Deref for Segments {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.list
    }
}

impl Segments {
    pub(crate) fn new(list: Vec<Segment>, model: Option<CipherModel>) -> Self {
        Self { list, model }
    }

    /// Encrypts or decrypts adjacent sectors in place. `sector`: the first, in the segment.
    pub(crate) fn crypt(
        &self,
        segment: usize,
        mut sector: u64,
        bufs: &mut [Buf],
        encrypt: bool,
    ) -> Result<(), Errno> {
        let Some(cipher) = &self.list[segment].cipher else { return Ok(()) };
        let started = self.model.map(|_| Instant::now());
        let mut bytes = 0;
        for buf in bufs {
            if encrypt {
                cipher.encrypt_in_place(sector, buf)
            } else {
                cipher.decrypt_in_place(sector, buf)
            }
            .map_err(|_| Errno::IO)?;
            sector += buf.len() as u64 / 512;
            bytes += buf.len();
        }
        self.take_time(started, bytes);
        Ok(())
    }

    /// Encrypts out of memory that must not be changed. `None`: the segment has no cipher.
    pub(crate) fn encrypt_from(
        &self,
        segment: usize,
        sector: u64,
        plain: &[u8],
        buf: &mut [u8],
    ) -> Option<Result<(), Errno>> {
        let cipher = self.list[segment].cipher.as_ref()?;
        let started = self.model.map(|_| Instant::now());
        let result = cipher.encrypt(sector, plain, buf).map_err(|_| Errno::IO);
        self.take_time(started, plain.len());
        Some(result)
    }

    /// Spins until as much time has passed as the modelled cipher takes.
    fn take_time(&self, started: Option<Instant>, bytes: usize) {
        let (Some(model), Some(started)) = (self.model, started) else { return };
        let ns = bytes as f64 * model.ns_per_byte + model.ns_per_call as f64;
        let until = Duration::from_secs_f64(ns.max(0.0) / 1e9);
        while started.elapsed() < until {
            std::hint::spin_loop();
        }
    }
}
