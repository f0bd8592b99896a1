//! MD5 and SHA-1 side by side, as TLS 1.1 signed them. OpenSSL calls that a hash of its own, so
//! cryptsetup takes it.

use digest::common::BlockSizeUser;
use digest::consts::{U36, U64};
use digest::{FixedOutput, HashMarker, Output, OutputSizeUser, Update};
use md5::Md5;
use sha1::Sha1;

const MD5_BYTES: usize = 16;

/// A digest that is being computed.
#[derive(Clone, Default)]
pub(super) struct Md5Sha1 {
    md5: Md5,
    sha1: Sha1,
}

impl HashMarker for Md5Sha1 {}

impl OutputSizeUser for Md5Sha1 {
    type OutputSize = U36;
}

/// Of both hashes.
impl BlockSizeUser for Md5Sha1 {
    type BlockSize = U64;
}

impl Update for Md5Sha1 {
    fn update(&mut self, bytes: &[u8]) {
        Update::update(&mut self.md5, bytes);
        Update::update(&mut self.sha1, bytes);
    }
}

impl FixedOutput for Md5Sha1 {
    fn finalize_into(self, out: &mut Output<Self>) {
        out[..MD5_BYTES].copy_from_slice(&self.md5.finalize_fixed());
        out[MD5_BYTES..].copy_from_slice(&self.sha1.finalize_fixed());
    }
}

#[cfg(test)]
mod tests {
    use crate::hash::Hash;
    use crate::hash::tests::assert_hex;

    /// Python's `hashlib` on OpenSSL 3: `new("md5-sha1", b"abc")`, and
    /// `pbkdf2_hmac("md5-sha1", b"password", b"salt", 1000, 40)`.
    #[test]
    fn digests_and_keys_are_those_of_openssl() {
        let digest = Hash::Md5Sha1.digest(&[b"a", b"bc"]);
        let expected = "900150983cd24fb0d6963f7d28e17f72a9993e364706816aba3e25717850c26c9cd0d89d";
        assert_hex(&digest, expected);
        let mut key = [0; 40];
        Hash::Md5Sha1.pbkdf2(b"password", b"salt", 1000, &mut key);
        let expected =
            "937d71c0c5aab164b4bac7f20e8936dfcc9e6f17f2386b0ad68378958277f7fe0e1555be30e9d949";
        assert_hex(&key, expected);
    }
}
