//! Compares every kernel with the portable one, and checks that none writes beyond its buffers.

use proptest::{collection::vec, prelude::*, sample::select};
use ucrypt_sector::{CipherSpec, Kernel, KeyError, SectorCipher, SectorOptions};

fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.iter().copied().filter(|kernel| kernel.is_available())
}

/// A source or destination, surrounded by bytes that must stay unchanged.
fn surrounded(content: &[u8], before: usize) -> Vec<u8> {
    [&vec![0xa5; before][..], content, &[0x5a; 64]].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_kernel_does_what_the_portable_one_does(
        spec in select(&[
            "aes-xts-plain64", "aes-xts-essiv:sha256", "aes-cbc-plain64", "aes-cbc-essiv:sha256",
            "aes-ecb", "serpent-xts-plain64", "serpent-cbc-plain64", "serpent-ecb",
            "camellia-xts-plain64", "camellia-cbc-plain64", "camellia-ecb",
            "twofish-xts-plain64", "twofish-cbc-plain64", "twofish-ecb",
        ][..]),
        key in vec(any::<u8>(), 64),
        key_size in 0..3usize,
        shift in 0..4u32,
        iv_large_sectors in any::<bool>(),
        sectors in 1..=150u64,
        start in 0..1u64 << 50,
        (before_src, before_dst) in (0..64usize, 0..64usize),
        seed in any::<u8>(),
    ) {
        let spec: CipherSpec = spec.parse().unwrap();
        let sector_size = 512 << shift;
        let options = SectorOptions { sector_size, iv_offset: 0, iv_large_sectors };
        let key = &key[..spec.key_sizes().iter().nth(key_size).unwrap()];
        let (start, len) = (start << shift, sectors as usize * sector_size as usize);
        let plain: Vec<u8> =
            (0..len).map(|i| ((i * i) >> 7) as u8 ^ i as u8 ^ seed).collect();
        let with = |kernel| SectorCipher::with_kernel(&spec, key, options, kernel).unwrap();

        let mut expected = plain.clone();
        with(Kernel::Portable).encrypt_in_place(start, &mut expected).unwrap();
        for kernel in kernels() {
            let cipher = with(kernel);
            let src = surrounded(&plain, before_src);
            let mut dst = surrounded(&vec![0; len], before_dst);
            cipher.encrypt(start, &src[before_src..][..len], &mut dst[before_dst..][..len])
                .unwrap();
            prop_assert!(dst == surrounded(&expected, before_dst), "{kernel}: encryption");
            let mut in_place = src;
            cipher.encrypt_in_place(start, &mut in_place[before_src..][..len]).unwrap();
            prop_assert!(
                in_place == surrounded(&expected, before_src), "{kernel}: encryption in place"
            );

            cipher.decrypt_in_place(start, &mut in_place[before_src..][..len]).unwrap();
            prop_assert!(
                in_place == surrounded(&plain, before_src), "{kernel}: decryption in place"
            );
            let src = surrounded(&expected, before_src);
            cipher.decrypt(start, &src[before_src..][..len], &mut dst[before_dst..][..len])
                .unwrap();
            prop_assert!(dst == surrounded(&plain, before_dst), "{kernel}: decryption");
        }
    }
}

#[test]
fn a_kernel_that_the_processor_lacks_is_refused_by_name() {
    let spec: CipherSpec = "aes-xts-plain64".parse().unwrap();
    for kernel in Kernel::ALL.iter().copied() {
        let new = SectorCipher::with_kernel(&spec, &[0; 64], SectorOptions::default(), kernel);
        if kernel.is_available() {
            assert!(new.is_ok(), "{kernel}");
        } else {
            assert_eq!(new.unwrap_err(), KeyError::Kernel { kernel });
        }
    }
    assert!(Kernel::Portable.is_available() && Kernel::best().is_available());
}
