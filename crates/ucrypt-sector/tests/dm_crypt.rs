//! Byte for byte what the dm-crypt of a real kernel does: `vectors/dm-crypt.txt` was made by
//! `vectors/guest/make.sh` for every cipher, mode, IV and sector size that its kernel accepts.

use sha2::{Digest, Sha256};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

const VECTORS: &str = include_str!("vectors/dm-crypt.txt");

/// The plaintext of every vector.
fn pattern() -> Vec<u8> {
    (0..8192usize).map(|i| (131 * i + (i >> 8)) as u8).collect()
}

fn key(len: usize) -> Vec<u8> {
    (0..len).map(|i| (7 * i + 13) as u8).collect()
}

fn digest(data: &[u8]) -> String {
    let first_half =
        Sha256::digest(data)[..16].iter().fold(0, |n, byte| n << 8 | u128::from(*byte));
    format!("{first_half:032x}")
}

#[test]
fn every_vector_of_the_kernel_is_met_in_both_directions() {
    let plain = pattern();
    let mut count = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [spec, key_len, sector_size, numbering, iv_offset, expected] = fields[..] else {
            panic!("{line}")
        };
        let spec: CipherSpec = spec.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        let options = SectorOptions {
            sector_size: sector_size.parse().unwrap(),
            iv_offset: iv_offset.parse().unwrap(),
            iv_large_sectors: numbering == "iv_large_sectors",
        };
        let cipher = SectorCipher::new(&spec, &key(key_len.parse().unwrap()), options)
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut data = vec![0; plain.len()];
        cipher.encrypt(0, &plain, &mut data).unwrap();
        assert_eq!(digest(&data), expected, "{line}");
        cipher.decrypt_in_place(0, &mut data).unwrap();
        assert!(data == plain, "{line}: decryption");
        count += 1;
    }
    assert!(count > 2000);
}
