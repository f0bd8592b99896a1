//! A volume without its key: no request begins, and the ciphers are wiped, until the key comes back.

use std::sync::atomic::Ordering;

use ucrypt_sector::SectorCipher;

use super::{Volume, VolumeError};

impl Volume {
    /// Lets no request begin from now on that touches data: it waits for [`Volume::resume`].
    /// Requests under way are not affected. Flushes go on: they need no key.
    pub fn halt(&self) {
        self.locks.halt();
    }

    /// Takes [`Volume::halt`] back.
    pub fn unhalt(&self) {
        self.locks.unhalt();
    }

    /// Whether the volume is halted: [`Volume::halt`] was called, or it has no key.
    pub fn is_halted(&self) -> bool {
        self.locks.is_halted()
    }

    /// Whether the volume is halted and has requests that are not answered. More of them may wait
    /// where they come from.
    pub fn has_waiting(&self) -> bool {
        self.is_halted() && self.busy.load(Ordering::SeqCst) > 0
    }

    /// Whether a request for data is under way: it has begun and is not finished. One that waits to begin
    /// does not count, nor does a flush, nor an answer that nobody takes.
    pub fn is_at_work(&self) -> bool {
        !self.locks.is_quiet()
    }

    /// Wipes all ciphers of a halted volume. Returns false, and does nothing, while a request that
    /// began before is under way.
    pub fn suspend(&self) -> bool {
        let is_quiet = self.locks.is_quiet();
        if is_quiet {
            self.segments.forget_keys();
        }
        is_quiet
    }

    /// Gives a suspended volume its ciphers again, by segment, and lets its requests go on.
    ///
    /// # Errors
    /// [`VolumeError::OtherCiphers`] if they do not go with the segments. The caller makes sure that
    /// they have the same key.
    pub fn resume(&self, ciphers: Vec<Option<SectorCipher>>) -> Result<(), VolumeError> {
        if !self.segments.accept(&ciphers) {
            return Err(VolumeError::OtherCiphers);
        }
        self.segments.set_keys(ciphers);
        self.abandoned.store(false, Ordering::SeqCst);
        self.locks.unhalt();
        Ok(())
    }

    /// Has the requests that wait for [`Volume::resume`] fail, and all later ones: the volume ends
    /// without its key.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.locks.wake_all();
    }

    /// Takes [`Volume::abandon`] back: what comes from now on waits for [`Volume::resume`].
    pub fn unabandon(&self) {
        self.abandoned.store(false, Ordering::SeqCst);
    }

    /// Whether [`Volume::abandon`] was called.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Counts a write that failed by [`Volume::abandon`].
    pub(crate) fn count_unwritten(&self, bytes: u64) {
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        self.unwritten_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The writes and discards that failed by [`Volume::abandon`]: how many, and their bytes.
    pub fn unwritten(&self) -> (u64, u64) {
        (self.unwritten.load(Ordering::Relaxed), self.unwritten_bytes.load(Ordering::Relaxed))
    }
}
