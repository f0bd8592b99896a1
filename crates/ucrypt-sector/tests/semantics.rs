//! dm-crypt's rules for sector numbers, IVs and buffers, through the public interface.

use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use ucrypt_sector::{CipherSpec, KeyError, RunError, SectorCipher, SectorOptions};

fn cipher(spec: &str, options: SectorOptions) -> SectorCipher {
    let spec: CipherSpec = spec.parse().unwrap();
    let key: Vec<u8> = (0..spec.key_sizes().iter().next_back().unwrap() as u8).collect();
    SectorCipher::new(&spec, &key, options).unwrap()
}

/// The first block of a zero sector under CBC with `iv`: the encryption of the IV.
fn first_block(iv: [u8; 16]) -> [u8; 16] {
    let key: Vec<u8> = (0..32).collect();
    let mut block = Array::from(iv);
    aes::Aes256::new_from_slice(&key).unwrap().encrypt_block(&mut block);
    block.into()
}

fn number_le(number: u64) -> [u8; 16] {
    u128::from(number).to_le_bytes()
}

/// Checks the IV numbers of four successive sectors that start at `sector`.
fn assert_iv_numbers(options: SectorOptions, sector: u64, numbers: [u64; 4]) {
    let size = options.sector_size as usize;
    let mut run = vec![0; 4 * size];
    cipher("aes-cbc-plain64", options).encrypt_in_place(sector, &mut run).unwrap();
    for (data, number) in run.chunks_exact(size).zip(numbers) {
        assert_eq!(data[..16], first_block(number_le(number)), "{options:?}, number {number}");
    }
}

#[test]
fn iv_numbers_count_512_byte_sectors_unless_they_are_large() {
    let options = SectorOptions { sector_size: 4096, ..SectorOptions::default() };
    assert_iv_numbers(options, 16, [16, 24, 32, 40]);
    let options = SectorOptions { iv_large_sectors: true, ..options };
    assert_iv_numbers(options, 16, [2, 3, 4, 5]);
}

#[test]
fn the_iv_offset_is_added_before_large_sectors_are_counted() {
    let options = SectorOptions { iv_offset: 64, ..SectorOptions::default() };
    assert_iv_numbers(options, 3, [67, 68, 69, 70]);
    let options = SectorOptions { sector_size: 4096, iv_large_sectors: true, ..options };
    assert_iv_numbers(options, 8, [9, 10, 11, 12]);
}

#[test]
fn sector_numbers_wrap_at_64_bits_as_in_the_kernel() {
    let options = SectorOptions { iv_offset: 2, ..SectorOptions::default() };
    assert_iv_numbers(options, u64::MAX - 2, [u64::MAX, 0, 1, 2]);
}

#[test]
fn each_iv_has_its_form() {
    let sector = 0x0123_4567_89ab_cdef_u64;
    let mut big_endian = [0; 16];
    big_endian[8..].copy_from_slice(&sector.to_be_bytes());
    for (iv, expected) in [
        ("null", [0; 16]),
        ("plain", number_le(0x89ab_cdef)),
        ("plain64", number_le(sector)),
        ("plain64be", big_endian),
    ] {
        let mut data = [0; 512];
        let cipher = cipher(&format!("aes-cbc-{iv}"), SectorOptions::default());
        cipher.encrypt_in_place(sector, &mut data).unwrap();
        assert_eq!(data[..16], first_block(expected), "{iv}");
    }
}

#[test]
fn the_null_cipher_changes_nothing_and_takes_any_key() {
    let spec: CipherSpec = "cipher_null-ecb".parse().unwrap();
    let src: Vec<u8> = (0..2048u32).map(|i| i as u8).collect();
    for len in [0, 16, 32, 64] {
        let cipher = SectorCipher::new(&spec, &vec![1; len], SectorOptions::default()).unwrap();
        let mut dst = vec![0; src.len()];
        cipher.encrypt(0, &src, &mut dst).unwrap();
        assert_eq!(src, dst);
        cipher.decrypt_in_place(0, &mut dst).unwrap();
        assert_eq!(src, dst);
    }
}

#[test]
fn keys_and_options_that_break_a_rule_are_refused_by_it() {
    let spec: CipherSpec = "aes-xts-plain64".parse().unwrap();
    let new = |len, options| SectorCipher::new(&spec, &vec![0; len], options).unwrap_err();
    let options = SectorOptions::default();
    let error = new(16, options);
    assert!(matches!(error, KeyError::Length { len: 16, .. }));
    assert_eq!(error.to_string(), "aes-xts-plain64 takes a key of 32, 48 or 64 bytes, not 16");
    for sector_size in [0, 256, 513, 768, 8192, u32::MAX] {
        let error = new(64, SectorOptions { sector_size, ..options });
        assert_eq!(error, KeyError::SectorSize { sector_size });
        let message = error.to_string();
        assert!(message.ends_with("is not possible: use 512, 1024, 2048 or 4096"), "{message}");
    }
    let error = new(64, SectorOptions { sector_size: 4096, iv_offset: 4, ..options });
    assert_eq!(error, KeyError::IvOffset { iv_offset: 4, sector_size: 4096 });
    assert!(error.to_string().ends_with("use a multiple of 8"), "{error}");
}

#[test]
fn lmk_and_tcw_have_512_byte_sectors_only() {
    for (spec, len) in [("aes:64-cbc-lmk", 1024), ("aes-cbc-tcw", 64)] {
        let spec: CipherSpec = spec.parse().unwrap();
        let options = SectorOptions { sector_size: 4096, ..SectorOptions::default() };
        let error = SectorCipher::new(&spec, &vec![0; len], options).unwrap_err();
        assert_eq!(error, KeyError::SectorSizeOfIv { iv: spec.iv(), sector_size: 4096 });
        let message = error.to_string();
        assert!(message.ends_with("is defined for 512-byte sectors, not for 4096"), "{message}");
        assert!(SectorCipher::new(&spec, &vec![0; len], SectorOptions::default()).is_ok());
    }
}

#[test]
fn a_buffer_that_is_no_run_of_sectors_is_a_typed_error() {
    let cipher =
        cipher("aes-xts-plain64", SectorOptions { sector_size: 1024, ..SectorOptions::default() });
    assert_eq!(
        cipher.encrypt_in_place(0, &mut [0; 1536]),
        Err(RunError::NotWholeSectors { len: 1536, sector_size: 1024 })
    );
    assert_eq!(
        cipher.decrypt_in_place(1, &mut [0; 1024]),
        Err(RunError::Unaligned { sector: 1, sector_size: 1024 })
    );
    assert_eq!(
        cipher.encrypt(0, &[0; 1024], &mut [0; 2048]),
        Err(RunError::LengthMismatch { src: 1024, dst: 2048 })
    );
    assert_eq!(cipher.encrypt_in_place(0, &mut []), Ok(()));
    for (error, words) in [
        (
            cipher.encrypt_in_place(0, &mut [0; 1]),
            "1 bytes are no whole number of 1024-byte sectors",
        ),
        (cipher.encrypt_in_place(3, &mut [0; 1024]), "start at a multiple of 2"),
        (cipher.decrypt(0, &[0; 1024], &mut [0; 0]), "give buffers of one length"),
    ] {
        let message = error.unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn debug_output_shows_no_key() {
    let text = format!("{:?}", cipher("aes-xts-plain64", SectorOptions::default()));
    assert!(text.starts_with("SectorCipher { spec: \"aes-xts-plain64\""), "{text}");
    assert!(!text.contains("key") && !text.contains("[0,"), "{text}");
}
