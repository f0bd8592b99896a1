//! Whirlpool as libgcrypt computed it before version 1.6.0, for headers from that time. cryptsetup
//! calls it `whirlpool_gcryptbug`.
//!
//! The message length, which Whirlpool hashes last, lacks every write that went completely into a
//! block that was begun. So the digest depends on how the message was cut into writes: here, into
//! the parts of [`Hash::digest_into`](super::Hash::digest_into), which are cryptsetup's. PBKDF2 is
//! not concerned: cryptsetup takes the right Whirlpool for it.

use digest::block_api::{Block, UpdateCore};
use digest::common::hazmat::SerializableState;
use digest::consts::U64;
use digest::{FixedOutput, HashMarker, Output, OutputSizeUser, Update};
use whirlpool::block_api::WhirlpoolCore;
use zeroize::Zeroize;

const BLOCK_BYTES: usize = 64;

/// Bytes of the message length at the end of the last block.
const LENGTH_BYTES: usize = 32;

/// A digest that is being computed.
pub(super) struct GcryptWhirlpool {
    core: WhirlpoolCore,
    /// The block that was begun.
    block: [u8; BLOCK_BYTES],
    /// Its bytes so far; fewer than [`BLOCK_BYTES`].
    filled: usize,
    /// The bytes that were counted.
    counted: u64,
}

impl GcryptWhirlpool {
    /// Puts bytes into the block, as many as it takes. Returns the others.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
        self.block[self.filled..][..now.len()].copy_from_slice(now);
        self.filled += now.len();
        if self.filled == BLOCK_BYTES {
            self.core.update_blocks(&[Block::<WhirlpoolCore>::from(self.block)]);
            self.filled = 0;
        }
        later
    }
}

impl Default for GcryptWhirlpool {
    fn default() -> Self {
        Self { core: WhirlpoolCore::default(), block: [0; BLOCK_BYTES], filled: 0, counted: 0 }
    }
}

impl HashMarker for GcryptWhirlpool {}

impl OutputSizeUser for GcryptWhirlpool {
    type OutputSize = U64;
}

impl Update for GcryptWhirlpool {
    fn update(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        if self.filled > 0 {
            left = self.fill(left);
            if left.is_empty() {
                // The bug.
                return;
            }
        }
        while !left.is_empty() {
            left = self.fill(left);
        }
        self.counted += bytes.len() as u64;
    }
}

impl FixedOutput for GcryptWhirlpool {
    fn finalize_into(mut self, out: &mut Output<Self>) {
        let mut length = [0; LENGTH_BYTES];
        length[LENGTH_BYTES - 8..].copy_from_slice(&(8 * self.counted).to_be_bytes());
        self.fill(&[0x80]);
        while self.filled != BLOCK_BYTES - LENGTH_BYTES {
            self.fill(&[0]);
        }
        self.fill(&length);
        out.copy_from_slice(&self.core.serialize()[..BLOCK_BYTES]);
    }
}

impl Drop for GcryptWhirlpool {
    fn drop(&mut self) {
        self.block.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use crate::hash::Hash;
    use crate::hash::tests::assert_hex;

    /// Digests that libgcrypt 1.10.1 computes with `GCRY_MD_FLAG_BUGEMU1`, one `gcry_md_write` for
    /// each part.
    #[test]
    fn digests_are_those_of_libgcrypt_with_its_bug() {
        for (parts, expected) in [
            (
                &[&b"abc"[..]][..],
                "4e2448a4c6f486bb16b6562c73b4020bf3043e3a731bce721ae1b303d97e6d4c\
                 7181eebdb6c57e277d0e34957114cbd6c797fc9d95d8b582d225292076d4eef5",
            ),
            (
                &[&b"a"[..], b"bc"],
                "55273315b69667b8d66108dd47316e978edaa9a4ca5be80817e3ba1a764dd201\
                 34d130f19be6d433eaeb7082632ebac0e92e00c278ca0c86369ed267d28b1a7f",
            ),
            (
                &[&[0; 4][..], &[b'x'; 64]],
                "cf0df846f7c153c302741dc7d1835ed7e184e29259058b1ba33f3f5d2c81bbd9\
                 c6436a092616d4524d1ccfc0b10497311a73fe96009d13d506b0cad913a8ae47",
            ),
            (
                &[&[0, 0, 0, 1][..], &[b'y'; 32]],
                "c1cdb8f064675e3fa4b7482570721052762019651c2c01b3be42dcbef96b1f9e\
                 f6cf430b41c920a2259563241e2f50ab0e84edf48d15fada339a0dfd2e96c35a",
            ),
            (
                &[&[0, 0, 0, 1][..], &[b'y'; 60]],
                "97bd6a8caff24e4f38d813ccbfea773d71ba111255d7c7058c88995ef106e555\
                 0762e144bf4f53c90bac9909ace6b46886813025557d97b38538a08e6d84b317",
            ),
            (
                &[&[b'q'; 40][..], &[b'r'; 24], &[b's'; 2]],
                "fd37bf3cff1c7c786919310885298dc5b93c5d2e347b29232283bc8531a25a2f\
                 82b4cdff9fe0f20a1913aa55256f82bbca3155e166d610d11f00cfc75798ad41",
            ),
        ] {
            assert_hex(&Hash::GcryptWhirlpool.digest(parts), expected);
        }
    }

    #[test]
    fn keys_are_derived_by_the_right_whirlpool() {
        let [mut one, mut other] = [[0; 64]; 2];
        Hash::GcryptWhirlpool.pbkdf2(b"password", b"salt", 1000, &mut one);
        Hash::Whirlpool.pbkdf2(b"password", b"salt", 1000, &mut other);
        assert_eq!(one, other);
    }
}
