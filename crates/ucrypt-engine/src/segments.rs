//! The segments of a volume and their ciphers: what the volume, its queues and its workers share.

use std::ops::Deref;
use std::sync::Arc;

use ucrypt_backend::{Buf, Errno, Map, copy_streaming};
use ucrypt_sector::SectorCipher;

use crate::executor::Clock;

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

    /// Whether it may be encrypted to where it is kept.
    fn streams(&self) -> bool {
        self.cipher.as_ref().is_none_or(SectorCipher::streams)
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
pub(crate) struct Segments {
    list: Vec<Segment>,
    model: Option<CipherModel>,
    /// The backend's bytes in place.
    mapping: Option<Arc<dyn Map>>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What is done to adjacent sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CipherOp {
    /// In place.
    Encrypt,
    /// In place.
    Decrypt,
    /// Out of the backend's mapping.
    DecryptMapped,
}

impl Deref for Segments {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.list
    }
}

impl Segments {
    pub(crate) fn new(
        list: Vec<Segment>,
        model: Option<CipherModel>,
        mapping: Option<Arc<dyn Map>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { list, model, mapping, clock }
    }

    /// Whether [`CipherOp::DecryptMapped`] of these bytes saves a read. `offset`: on the backend.
    pub(crate) fn at_hand(&self, offset: u64, bytes: usize) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| mapping.at_hand(offset, bytes))
    }

    /// Encrypts or decrypts adjacent sectors. `sector`: the first, in the segment.
    pub(crate) fn transform(
        &self,
        segment: usize,
        mut sector: u64,
        bufs: &mut [Buf],
        op: CipherOp,
    ) -> Result<(), Errno> {
        if op == CipherOp::DecryptMapped {
            return self.decrypt_mapped(segment, sector, bufs);
        }
        let Some(cipher) = &self.list[segment].cipher else { return Ok(()) };
        let started = self.model.map(|_| self.clock.now_ns());
        let mut bytes = 0;
        for buf in bufs {
            if op == CipherOp::Encrypt {
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

    /// Decrypts out of the mapping; where that broke meanwhile, out of the file.
    fn decrypt_mapped(
        &self,
        segment: usize,
        mut sector: u64,
        bufs: &mut [Buf],
    ) -> Result<(), Errno> {
        let mapping = self.mapping.as_ref().ok_or(Errno::IO)?;
        let Segment { backend_offset, cipher, .. } = &self.list[segment];
        for buf in bufs {
            let started = self.model.map(|_| self.clock.now_ns());
            let (offset, len) = (backend_offset + sector * 512, buf.len());
            let done = mapping.read(offset, len, &mut |place, stored| {
                let sector = sector + place.start as u64 / 512;
                let Some(cipher) = cipher else {
                    buf[place].copy_from_slice(stored);
                    return Ok(());
                };
                cipher.decrypt(sector, stored, &mut buf[place]).map_err(|_| Errno::IO)
            });
            match (done, cipher) {
                (Some(done), _) => done?,
                (None, cipher) => {
                    mapping.read_exact(offset, buf)?;
                    if let Some(cipher) = cipher {
                        cipher.decrypt_in_place(sector, buf).map_err(|_| Errno::IO)?;
                    }
                }
            }
            if cipher.is_some() {
                self.take_time(started, len);
            }
            sector += len as u64 / 512;
        }
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
        let started = self.model.map(|_| self.clock.now_ns());
        let result = cipher.encrypt(sector, plain, buf).map_err(|_| Errno::IO);
        self.take_time(started, plain.len());
        Some(result)
    }

    /// Whether every segment may be written by [`Segments::encrypt_mapped`].
    pub(crate) fn are_mapped(&self) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| mapping.is_writable())
            && self.list.iter().all(Segment::streams)
    }

    /// Whether adjacent sectors can be encrypted to the backend's mapping now, which saves the write:
    /// [`Segments::encrypt_mapped`].
    pub(crate) fn is_mapped(&self, segment: usize, sector: u64, bytes: usize) -> bool {
        let Some(mapping) = &self.mapping else { return false };
        let offset = self.list[segment].backend_offset + sector * 512;
        mapping.is_writable() && self.list[segment].streams() && mapping.at_hand(offset, bytes)
    }

    /// Encrypts to where the sectors are kept. `None`: it may not have arrived there.
    pub(crate) fn encrypt_mapped(
        &self,
        segment: usize,
        sector: u64,
        plain: &[u8],
    ) -> Option<Result<(), Errno>> {
        let mapping = self.mapping.as_ref()?;
        let Segment { backend_offset, cipher, .. } = &self.list[segment];
        let started = self.model.filter(|_| cipher.is_some()).map(|_| self.clock.now_ns());
        let offset = backend_offset + sector * 512;
        let written = mapping.write(offset, plain.len(), &mut |place, kept| {
            let sector = sector + place.start as u64 / 512;
            let Some(cipher) = cipher else {
                copy_streaming(kept, &plain[place]);
                return Ok(());
            };
            cipher.encrypt_streaming(sector, &plain[place], kept).map_err(|_| Errno::IO)
        });
        self.take_time(started, plain.len());
        written
    }

    /// Spins until as much time has passed as the modelled cipher takes.
    fn take_time(&self, started_ns: Option<u64>, bytes: usize) {
        let (Some(model), Some(started_ns)) = (self.model, started_ns) else { return };
        let ns = bytes as f64 * model.ns_per_byte.max(0.0) + model.ns_per_call as f64;
        #[expect(clippy::cast_sign_loss, reason = "a positive time")]
        let ns = ns as u64;
        self.clock.spin_until(started_ns.saturating_add(ns));
    }
}
