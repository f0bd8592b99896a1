//! Properties of every cipher, mode, IV, sector size and run.

use proptest::prelude::*;
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

const SPECS: &[&str] = &[
    "aes-xts-plain64",
    "aes-xts-plain",
    "aes-xts-essiv:sha256",
    "aes-cbc-plain64be",
    "aes-cbc-essiv:sha256",
    "aes-cbc-null",
    "aes-ecb",
    "aes-ctr-plain64",
    "aes-lrw-benbi",
    "aes-pcbc-plain64",
    "aes-cbc-eboiv",
    "aes-cbc-elephant",
    "aes:4-cbc-plain64",
    "aes-hctr2-plain64",
    "xchacha12,aes-adiantum-plain64",
    "xchacha20,aes-adiantum-benbi",
    "serpent-xts-plain64",
    "serpent-cbc-essiv:sha1",
    "twofish-lrw-benbi",
    "camellia-xts-eboiv",
    "camellia-hctr2-plain64",
    "cast5-cbc-benbi",
    "cast6-xts-plain64",
    "blowfish-cbc-essiv:sha384",
    "des3_ede-pcbc-plain64be",
    "des3_ede-cbc-eboiv",
    "aria-ctr-benbi",
    "sm4-cbc-essiv:md5",
    "cipher_null-ecb",
];

/// Specifications that are defined only for 512-byte sectors.
const SPECS_512: &[&str] =
    &["aes:64-cbc-lmk", "serpent:2-cbc-lmk", "aes-cbc-tcw", "blowfish-cbc-tcw", "serpent-xts-tcw"];

/// A keyed cipher with its options, and the number of sectors in a run.
fn arb_cipher() -> impl Strategy<Value = (SectorCipher, SectorOptions, usize)> {
    let options = (0..4u32, 0..1u64 << 40, any::<bool>()).prop_map(|(shift, offset, large)| {
        let sector_size = 512 << shift;
        let iv_offset = offset << shift;
        SectorOptions { sector_size, iv_offset, iv_large_sectors: large }
    });
    let key = proptest::collection::vec(any::<u8>(), 2080);
    let specs = prop::sample::select([SPECS, SPECS_512].concat());
    (specs, any::<prop::sample::Index>(), key, options, 1..200usize).prop_map(
        |(spec, size, key, options, sectors)| {
            let only_512 = SPECS_512.contains(&spec);
            let options =
                if only_512 { SectorOptions { sector_size: 512, ..options } } else { options };
            let spec: CipherSpec = spec.parse().unwrap();
            let sizes: Vec<usize> = spec.key_sizes().iter().collect();
            let cipher = SectorCipher::new(&spec, &key[..*size.get(&sizes)], options).unwrap();
            (cipher, options, sectors)
        },
    )
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut pattern = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut pattern);
    pattern
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_run_is_its_sectors_and_in_place_is_out_of_place(
        (cipher, options, sectors) in arb_cipher(),
        start in any::<u64>(),
        seed in any::<u64>(),
    ) {
        let size = options.sector_size as usize;
        let step = (size / 512) as u64;
        let start = start / 2 / step * step;
        let src = pattern(sectors * size, seed);

        let mut run = vec![0; src.len()];
        cipher.encrypt(start, &src, &mut run).unwrap();
        let mut in_place = src.clone();
        cipher.encrypt_in_place(start, &mut in_place).unwrap();
        prop_assert_eq!(&run, &in_place);

        // At any alignment to a cache line.
        let mut streamed = vec![0; src.len() + 64];
        let streamed = &mut streamed[seed as usize % 64..][..src.len()];
        cipher.encrypt_streaming(start, &src, streamed).unwrap();
        prop_assert_eq!(&run, streamed);

        let mut one_by_one = vec![0; src.len()];
        for (index, (src, dst)) in
            src.chunks(size).zip(one_by_one.chunks_mut(size)).enumerate()
        {
            cipher.encrypt(start + index as u64 * step, src, dst).unwrap();
        }
        prop_assert_eq!(&run, &one_by_one);

        let mut plain = vec![0; src.len()];
        cipher.decrypt(start, &run, &mut plain).unwrap();
        prop_assert_eq!(&plain, &src);
        cipher.decrypt_in_place(start, &mut in_place).unwrap();
        prop_assert_eq!(&in_place, &src);
    }
}
