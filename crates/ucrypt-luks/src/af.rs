//! The anti-forensic splitter of LUKS (on-disk format 1.2.3, section 2.4).
//!
//! Splitting expands a key to `stripes` times its size, so that losing any part of it on the
//! medium (to remapped sectors, to a partial wipe) loses the key. All stripes but the last are
//! random. Splitting and merging both diffuse the running XOR after each of these.

use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::medium::{Random, fill_random, zeroed};

/// Expands `key` to `stripes` times its length.
pub(crate) fn split(
    key: &[u8],
    stripes: u32,
    hash: Hash,
    random: Random<'_>,
) -> Result<Zeroizing<Vec<u8>>> {
    let length = key.len() as u64 * u64::from(stripes);
    let mut split = Zeroizing::new(zeroed(length)?);
    let (diffused, last) = split.split_at_mut(key.len() * (stripes as usize - 1));
    fill_random(random, diffused)?;
    let state = run(diffused, key.len(), hash);
    for ((out, key), state) in last.iter_mut().zip(key).zip(state.iter()) {
        *out = key ^ state;
    }
    Ok(split)
}

/// Recovers the key of `key_len` bytes from its stripes. `split` must hold a whole number of
/// stripes, at least one.
pub(crate) fn merge(split: &[u8], key_len: usize, hash: Hash) -> Result<Zeroizing<Vec<u8>>> {
    let whole = key_len > 0 && !split.is_empty() && split.len().is_multiple_of(key_len);
    if !whole {
        return Err(Error::damaged("keyslot area", "it is not a whole number of stripes"));
    }
    let (diffused, last) = split.split_at(split.len() - key_len);
    let mut key = run(diffused, key_len, hash);
    for (key, last) in key.iter_mut().zip(last) {
        *key ^= last;
    }
    Ok(key)
}

/// The running XOR of all `stripes`, diffused after each.
fn run(stripes: &[u8], key_len: usize, hash: Hash) -> Zeroizing<Vec<u8>> {
    let mut state = Zeroizing::new(vec![0; key_len]);
    let mut scratch = Zeroizing::new(vec![0; key_len]);
    for stripe in stripes.chunks_exact(key_len) {
        for (state, byte) in state.iter_mut().zip(stripe) {
            *state ^= byte;
        }
        diffuse(&state, &mut scratch, hash);
        std::mem::swap(&mut state, &mut scratch);
    }
    state
}

/// Hashes the number and the bytes of each digest-sized block of `src` into `dst`. The last block
/// may be shorter; its digest is truncated to the same length.
fn diffuse(src: &[u8], dst: &mut [u8], hash: Hash) {
    let size = hash.size();
    for (number, (src, dst)) in (0_u32..).zip(src.chunks(size).zip(dst.chunks_mut(size))) {
        hash.digest_into(&[&number.to_be_bytes(), src], dst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_what_was_split_gives_the_key_for_every_hash() {
        for hash in Hash::ALL {
            for key_len in [16_u8, 32, 33, 64, 100] {
                let key: Vec<u8> = (0..key_len).map(|i| i ^ 0x5a).collect();
                let mut noise = fastrand::Rng::with_seed(1);
                let mut random = |buf: &mut [u8]| {
                    noise.fill(buf);
                    Ok(())
                };
                let split = split(&key, 7, *hash, &mut random).unwrap();
                assert_eq!(split.len(), 7 * key.len());
                assert_eq!(*merge(&split, key.len(), *hash).unwrap(), key, "{hash:?}");
            }
        }
    }

    #[test]
    fn a_length_that_is_no_whole_number_of_stripes_is_refused() {
        assert!(merge(&[0; 63], 32, Hash::Sha256).is_err());
        assert!(merge(&[], 32, Hash::Sha256).is_err());
        assert!(merge(&[0; 64], 0, Hash::Sha256).is_err());
    }
}
