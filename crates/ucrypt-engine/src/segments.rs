//! The segments of a volume and their ciphers, shared by the volume, its queues and its workers.

use std::ops::Deref;
use std::sync::Arc;

use ucrypt_backend::{Buf, Errno, Map, copy_streaming};
use ucrypt_sector::SectorCipher;

use crate::executor::Clock;

/// A contiguous part of the volume that is also contiguous on the backend.
#[derive(Debug)]
pub struct Segment {
    /// Length in bytes, a multiple of the sector size.
    pub len: u64,
    /// Start on the backend, in bytes; a multiple of 512.
    pub backend_offset: u64,
    /// The cipher; its sector numbers count from the segment's start. `None`: not encrypted.
    pub cipher: Option<SectorCipher>,
}

impl Segment {
    /// Bytes that are encrypted as a unit; 512 without encryption.
    pub(crate) fn sector_size(&self) -> u32 {
        self.cipher.as_ref().map_or(512, SectorCipher::sector_size)
    }

    /// Whether the segment may be encrypted directly to where the backend keeps it.
    fn streams(&self) -> bool {
        self.cipher.as_ref().is_none_or(SectorCipher::streams)
    }
}

/// Models a cipher that is slower than the real one: an old core, or a hardware engine with a
/// latency per job. The time of the real cipher counts towards the modelled time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CipherModel {
    /// Nanoseconds per byte.
    pub ns_per_byte: f64,
    /// Nanoseconds per call, whatever its length.
    pub ns_per_call: u64,
}

/// The segments of a volume, end to end, and the transforms of their sectors.
pub(crate) struct Segments {
    list: Vec<Segment>,
    model: Option<CipherModel>,
    /// The backend's bytes in place, if it has them.
    mapping: Option<Arc<dyn Map>>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A transform of adjacent sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CipherOp {
    /// Encrypt the buffers in place.
    Encrypt,
    /// Decrypt the buffers in place.
    Decrypt,
    /// Decrypt from the backend's mapping into the buffers.
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

    /// Encrypts or decrypts adjacent sectors. `sector`: the first, counted in the segment.
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

    /// Decrypts from the mapping; reads the file instead if the mapping broke meanwhile.
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

    /// Encrypts memory that must not be changed into `buf`. `None`: the segment has no cipher.
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

    /// Whether [`Segments::encrypt_mapped`] of these sectors is possible now: it saves the write.
    pub(crate) fn is_mapped(&self, segment: usize, sector: u64, bytes: usize) -> bool {
        let Some(mapping) = &self.mapping else { return false };
        let offset = self.list[segment].backend_offset + sector * 512;
        mapping.is_writable() && self.list[segment].streams() && mapping.at_hand(offset, bytes)
    }

    /// Encrypts to where the backend keeps the sectors. `None`: the data may not have arrived.
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

    /// Spins until the time that the modelled cipher takes has passed.
    fn take_time(&self, started_ns: Option<u64>, bytes: usize) {
        let (Some(model), Some(started_ns)) = (self.model, started_ns) else { return };
        let ns = bytes as f64 * model.ns_per_byte.max(0.0) + model.ns_per_call as f64;
        #[expect(clippy::cast_sign_loss, reason = "a positive time")]
        let ns = ns as u64;
        self.clock.spin_until(started_ns.saturating_add(ns));
    }
}
