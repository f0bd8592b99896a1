//! A passphrase in the kernel's keyring.

use linux_keyutils::{Key, KeyRing, KeyRingIdentifier};

/// A key of the type "user" in the session keyring, which the programs of this test inherit. It
/// ends with the test.
pub(crate) struct UserKey {
    pub(crate) description: String,
    ring: KeyRing,
    key: Key,
}

impl UserKey {
    pub(crate) fn new(payload: &[u8]) -> Self {
        let unique = format!("{}-{:x}", std::process::id(), fastrand::u64(..));
        let description = format!("ucrypt test {unique}");
        let ring = KeyRing::from_special_id(KeyRingIdentifier::Session, false).unwrap();
        let key = ring.add_key(&description, payload).unwrap();
        Self { description, ring, key }
    }

    /// Whoever asks for the key is told that it is not to be had any more.
    #[allow(dead_code, reason = "not each test program uses it")]
    pub(crate) fn revoke(&self) {
        self.key.revoke().unwrap();
    }
}

impl Drop for UserKey {
    fn drop(&mut self) {
        // One that is invalidated is still found, as a revoked one, until the kernel has collected it.
        let _ = self.ring.unlink_key(self.key);
    }
}
