//! The segments of a volume and their ciphers, shared by the volume, its queues and its workers.

use std::ops::Deref;
use std::sync::Arc;

use ucrypt_backend::{Buf, Errno, Map, copy_streaming};
use ucrypt_sector::SectorCipher;

use crate::executor::Clock;
use crate::keys::Keys;

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

/// What is known of a segment without its key.
#[derive(Debug)]
pub(crate) struct SegmentInfo {
    /// Start on the backend, in bytes.
    pub(crate) backend_offset: u64,
    /// Bytes that are encrypted as a unit; 512 without encryption.
    pub(crate) sector_size: u32,
    pub(crate) is_encrypted: bool,
    /// Whether the segment may be encrypted directly to where the backend keeps it.
    streams: bool,
}

impl SegmentInfo {
    fn of(segment: &Segment) -> Self {
        Self {
            backend_offset: segment.backend_offset,
            sector_size: segment.sector_size(),
            is_encrypted: segment.cipher.is_some(),
            streams: segment.cipher.as_ref().is_none_or(SectorCipher::streams),
        }
    }
}

impl Segment {
    /// Bytes that are encrypted as a unit; 512 without encryption.
    pub(crate) fn sector_size(&self) -> u32 {
        self.cipher.as_ref().map_or(512, SectorCipher::sector_size)
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
    list: Vec<SegmentInfo>,
    keys: Keys,
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
    type Target = [SegmentInfo];

    fn deref(&self) -> &[SegmentInfo] {
        &self.list
    }
}

impl Segments {
    pub(crate) fn new(
        segments: Vec<Segment>,
        model: Option<CipherModel>,
        mapping: Option<Arc<dyn Map>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let list = segments.iter().map(SegmentInfo::of).collect();
        let keys = Keys::new(segments.into_iter().map(|segment| segment.cipher).collect());
        Self { list, keys, model, mapping, clock }
    }

    /// Takes the ciphers away and wipes them: every transform fails from now on.
    pub(crate) fn forget_keys(&self) {
        self.keys.replace(None);
    }

    /// Whether these ciphers, by segment, encrypt in the same units as those at the start.
    pub(crate) fn accept(&self, ciphers: &[Option<SectorCipher>]) -> bool {
        let same = |(part, cipher): (&SegmentInfo, &Option<SectorCipher>)| match cipher {
            None => !part.is_encrypted,
            Some(cipher) => part.is_encrypted && part.sector_size == cipher.sector_size(),
        };
        ciphers.len() == self.list.len() && self.list.iter().zip(ciphers).all(same)
    }

    pub(crate) fn set_keys(&self, ciphers: Vec<Option<SectorCipher>>) {
        self.keys.replace(Some(ciphers));
    }

    /// Calls `with` with the cipher of an encrypted segment.
    fn with_cipher(
        &self,
        segment: usize,
        with: impl FnOnce(&SectorCipher) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.keys.with(segment, with).unwrap_or(Err(Errno::IO))
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
        if !self.list[segment].is_encrypted {
            return Ok(());
        }
        let started = self.model.map(|_| self.clock.now_ns());
        let mut bytes = 0;
        self.with_cipher(segment, |cipher| {
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
            Ok(())
        })?;
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
        let SegmentInfo { backend_offset, is_encrypted, .. } = self.list[segment];
        for buf in bufs {
            let started = self.model.map(|_| self.clock.now_ns());
            let (offset, len) = (backend_offset + sector * 512, buf.len());
            let done = mapping.read(offset, len, &mut |range, stored| {
                let sector = sector + range.start as u64 / 512;
                if !is_encrypted {
                    buf[range].copy_from_slice(stored);
                    return Ok(());
                }
                self.with_cipher(segment, |cipher| {
                    cipher.decrypt(sector, stored, &mut buf[range]).map_err(|_| Errno::IO)
                })
            });
            if let Some(done) = done {
                done?;
            } else {
                mapping.read_exact(offset, buf)?;
                if is_encrypted {
                    self.with_cipher(segment, |cipher| {
                        cipher.decrypt_in_place(sector, buf).map_err(|_| Errno::IO)
                    })?;
                }
            }
            if is_encrypted {
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
        if !self.list[segment].is_encrypted {
            return None;
        }
        let started = self.model.map(|_| self.clock.now_ns());
        let result = self.with_cipher(segment, |cipher| {
            cipher.encrypt(sector, plain, buf).map_err(|_| Errno::IO)
        });
        self.take_time(started, plain.len());
        Some(result)
    }

    /// Whether every segment may be written by [`Segments::encrypt_mapped`].
    pub(crate) fn are_mapped(&self) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| mapping.is_writable())
            && self.list.iter().all(|part| part.streams)
    }

    /// Whether [`Segments::encrypt_mapped`] of these sectors is possible now: it saves the write.
    pub(crate) fn is_mapped(&self, segment: usize, sector: u64, bytes: usize) -> bool {
        let Some(mapping) = &self.mapping else { return false };
        let offset = self.list[segment].backend_offset + sector * 512;
        mapping.is_writable() && self.list[segment].streams && mapping.at_hand(offset, bytes)
    }

    /// Encrypts to where the backend keeps the sectors. `None`: the data may not have arrived.
    pub(crate) fn encrypt_mapped(
        &self,
        segment: usize,
        sector: u64,
        plain: &[u8],
    ) -> Option<Result<(), Errno>> {
        let mapping = self.mapping.as_ref()?;
        let SegmentInfo { backend_offset, is_encrypted, .. } = self.list[segment];
        let started = self.model.filter(|_| is_encrypted).map(|_| self.clock.now_ns());
        let offset = backend_offset + sector * 512;
        let written = mapping.write(offset, plain.len(), &mut |range, kept| {
            let sector = sector + range.start as u64 / 512;
            if !is_encrypted {
                copy_streaming(kept, &plain[range]);
                return Ok(());
            }
            self.with_cipher(segment, |cipher| {
                cipher.encrypt_streaming(sector, &plain[range], kept).map_err(|_| Errno::IO)
            })
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
