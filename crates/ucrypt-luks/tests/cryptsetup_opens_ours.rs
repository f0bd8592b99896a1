//! cryptsetup opens the volumes that this crate makes, and finds the same volume key in them.

mod common;

use common::{
    PASSPHRASE, Scratch, apply, cheap_argon2, cheap_pbkdf2, cryptsetup, cryptsetup_ok,
    luks2_options, new_volume, text, with_tools,
};
use ucrypt_luks::{Error, Hash, Header, NewVolume, PbkdfKind, Write, luks1, luks2};

const IMAGE_LEN: usize = 18 << 20;

fn luks1_image(volume: &NewVolume) -> Vec<u8> {
    let (_, writes) = with_tools(1, |tools| luks1::format(volume, PASSPHRASE, tools)).unwrap();
    let mut image = vec![0xee; IMAGE_LEN];
    apply(&mut image, &writes);
    image
}

fn luks2_writes(
    volume: &NewVolume,
    options: &luks2::Options,
) -> ucrypt_luks::Result<(luks2::Header, Vec<Write>)> {
    with_tools(2, |tools| luks2::format(volume, options, PASSPHRASE, tools))
}

fn luks2_image(volume: &NewVolume, options: &luks2::Options) -> Vec<u8> {
    let (_, writes) = luks2_writes(volume, options).unwrap();
    let mut image = vec![0xee; IMAGE_LEN];
    apply(&mut image, &writes);
    image
}

/// Checks that cryptsetup and this crate open the image, dump it and find the same key.
fn tool(image: &[u8], volume: &NewVolume) -> String {
    let scratch = Scratch::with(image);
    let path = scratch.image();
    let path = text(&path);
    let open = ["open", "--test-passphrase", "--key-file", "-", path];
    cryptsetup_ok(&open, PASSPHRASE);
    assert!(!cryptsetup(&open, b"wrong").status.success());
    assert_eq!(scratch.volume_key(), *volume.volume_key);
    assert_eq!(scratch.bytes(), image, "cryptsetup found something to repair");

    let image = image.to_vec();
    let (header, damage) = Header::read(&image).unwrap();
    assert!(damage.is_none(), "{damage:?}");
    let unlocked = header.unlock(&image, PASSPHRASE, None).unwrap();
    assert_eq!(unlocked.volume_key, volume.volume_key);
    assert_eq!(unlocked.segments[0].cipher, volume.cipher);
    cryptsetup_ok(&["luksDump", path], b"")
}

#[test]
fn luks1_with_every_cipher_and_key_size() {
    for (cipher, key_len) in [
        ("aes-xts-plain64", 64),
        ("aes-xts-plain64", 32),
        ("aes-cbc-essiv:sha256", 32),
        ("aes-cbc-essiv:sha256", 16),
    ] {
        let volume = new_volume(cipher, key_len, cheap_pbkdf2());
        tool(&luks1_image(&volume), &volume);
    }
}

#[test]
fn luks2_with_every_pbkdf_cipher_and_sector_size() {
    let (argon2i, argon2id) = (PbkdfKind::Argon2i, PbkdfKind::Argon2id);
    for pbkdf in [cheap_pbkdf2(), cheap_argon2(argon2i), cheap_argon2(argon2id)] {
        for (cipher, key_len) in [("aes-xts-plain64", 64), ("aes-cbc-essiv:sha256", 32)] {
            for sector_size in [512, 1024, 2048, 4096] {
                let volume = new_volume(cipher, key_len, pbkdf);
                let options = luks2::Options { sector_size, ..luks2_options() };
                let dump = tool(&luks2_image(&volume, &options), &volume);
                assert!(dump.contains(&format!("sector: {sector_size} [bytes]")), "{dump}");
            }
        }
    }
}

#[test]
fn both_versions_with_other_hashes_and_keyslots() {
    for hash in [Hash::Sha1, Hash::Sha512, Hash::Ripemd160, Hash::Whirlpool, Hash::Blake2s256] {
        let pbkdf = ucrypt_luks::Pbkdf { hash, ..cheap_pbkdf2() };
        let volume = NewVolume { hash, keyslot: 5, ..new_volume("aes-xts-plain64", 64, pbkdf) };
        let dump = tool(&luks1_image(&volume), &volume);
        assert!(dump.contains("Key Slot 5: ENABLED"), "{dump}");
        let dump = tool(&luks2_image(&volume, &luks2_options()), &volume);
        assert!(dump.contains(&format!("AF hash:    {}", hash.name())), "{dump}");
    }
}

#[test]
fn luks2_with_labels_sizes_and_offsets() {
    let options = luks2::Options {
        label: "a label".to_owned(),
        subsystem: "a subsystem".to_owned(),
        metadata_size: Some(0x1_0000),
        keyslots_size: Some(1 << 20),
        ..luks2_options()
    };
    let uuid = "01234567-89AB-cdef-0123-456789abcdef";
    let volume = NewVolume {
        uuid: Some(uuid.to_owned()),
        data_offset: Some(4 << 20),
        ..new_volume("aes-xts-plain64", 64, cheap_pbkdf2())
    };
    let dump = tool(&luks2_image(&volume, &options), &volume);
    for line in [
        "Metadata area: \t65536 [bytes]",
        "Keyslots area: \t1048576 [bytes]",
        "UUID:          \t01234567-89ab-cdef-0123-456789abcdef",
        "Label:         \ta label",
        "Subsystem:     \ta subsystem",
        "\toffset: 4194304 [bytes]",
    ] {
        assert!(dump.contains(line), "{line} is missing in\n{dump}");
    }
}

#[test]
fn luks1_with_an_offset_keeps_clear_of_the_data() {
    let volume = NewVolume {
        data_offset: Some(4 << 20),
        ..new_volume("aes-xts-plain64", 64, cheap_pbkdf2())
    };
    let image = luks1_image(&volume);
    let dump = tool(&image, &volume);
    assert!(dump.contains("Payload offset:\t8192"), "{dump}");
    assert!(image[4 << 20..].iter().all(|byte| *byte == 0xee));
    assert!(image[(2 << 20) + 4096..4 << 20].iter().all(|byte| *byte == 0), "not wiped");
}

#[test]
fn a_detached_header_has_its_data_at_byte_0() {
    let volume = NewVolume { detached: true, ..new_volume("aes-xts-plain64", 64, cheap_pbkdf2()) };
    let data = Scratch::new(1 << 20);
    for header in [luks1_image(&volume), luks2_image(&volume, &luks2_options())] {
        let scratch = Scratch::with(&header);
        let path = scratch.image();
        let data = data.image();
        let args = ["open", "--test-passphrase", "--key-file", "-", "--header", text(&path)];
        cryptsetup_ok(&[&args[..], &[text(&data)]].concat(), PASSPHRASE);
        let (header, _) = Header::read(&scratch.bytes()).unwrap();
        assert_eq!(header.data_offset(), 0);
        let unlocked = header.unlock(&scratch.bytes(), PASSPHRASE, None).unwrap();
        assert_eq!(unlocked.volume_len(1 << 20).unwrap(), 1 << 20);
    }
}

#[test]
fn a_detached_header_may_say_where_the_data_begins() {
    let detached = |data_offset| NewVolume {
        detached: true,
        data_offset: Some(data_offset),
        ..new_volume("aes-xts-plain64", 64, cheap_pbkdf2())
    };
    for image in
        [luks1_image(&detached(4 << 20)), luks2_image(&detached(4 << 20), &luks2_options())]
    {
        let scratch = Scratch::with(&image);
        let path = scratch.image();
        let data = Scratch::new(8 << 20);
        let data = data.image();
        let args = ["open", "--test-passphrase", "--key-file", "-", "--header", text(&path)];
        cryptsetup_ok(&[&args[..], &[text(&data)]].concat(), PASSPHRASE);
        let (header, _) = Header::read(&image).unwrap();
        assert_eq!(header.data_offset(), 4 << 20);
    }
    // Neither version can express that the data begins within the length of the header.
    let luks1 = with_tools(7, |tools| luks1::format(&detached(4096), PASSPHRASE, tools));
    assert!(matches!(luks1, Err(Error::Request(_))), "{luks1:?}");
    let luks2 = luks2_writes(&detached(4096), &luks2_options());
    assert!(matches!(luks2, Err(Error::Request(_))), "{luks2:?}");
}

#[test]
fn the_null_cipher_is_protected_by_a_real_one_in_luks2_only() {
    let volume = new_volume("cipher_null-ecb", 32, cheap_pbkdf2());
    let dump = tool(&luks2_image(&volume, &luks2_options()), &volume);
    assert!(dump.contains("Cipher:     aes-xts-plain64"), "{dump}");
    let refused = with_tools(3, |tools| luks1::format(&volume, PASSPHRASE, tools));
    assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");

    let (header, writes) = with_tools(3, |tools| luks1::format(&volume, b"", tools)).unwrap();
    let mut image = vec![0; IMAGE_LEN];
    apply(&mut image, &writes);
    assert!(header.unlock(&image, b"", None).is_ok());
    assert!(matches!(header.unlock(&image, b"x", None), Err(Error::WrongPassphrase { .. })));
}

#[test]
fn the_same_randomness_makes_the_same_header() {
    let volume = new_volume("aes-xts-plain64", 64, cheap_pbkdf2());
    assert!(luks1_image(&volume) == luks1_image(&volume));
    let options = luks2_options();
    assert!(luks2_image(&volume, &options) == luks2_image(&volume, &options));
}

#[test]
fn an_interrupted_format_leaves_no_header_or_a_whole_one() {
    let volume = new_volume("aes-xts-plain64", 64, cheap_pbkdf2());
    let options = luks2_options();
    let (_, writes) = luks2_writes(&volume, &options).unwrap();
    let (last, before) = (writes.len() - 1, luks1_image(&volume));
    for done in 1..=writes.len() {
        let mut image = before.clone();
        apply(&mut image, &writes[..done]);
        let read = Header::read(&image);
        if done < last {
            assert!(matches!(read, Err(Error::NotLuks { .. })), "{done}: {read:?}");
        } else {
            let (header, damage) = read.unwrap();
            assert_eq!(damage.is_some(), done == last);
            assert!(header.unlock(&image, PASSPHRASE, None).is_ok());
        }
    }
}

#[test]
fn parameters_that_break_a_rule_are_refused() {
    let good = || new_volume("aes-xts-plain64", 64, cheap_pbkdf2());
    for (what, volume) in [
        ("key", new_volume("aes-xts-plain64", 33, cheap_pbkdf2())),
        ("names no mode", new_volume("aes", 32, cheap_pbkdf2())),
        ("hash", NewVolume { hash: Hash::Blake2s128, ..good() }),
        ("keyslot", NewVolume { keyslot: 32, ..good() }),
        ("multiple of 4096", NewVolume { data_offset: Some(512), ..good() }),
        ("inside the header", NewVolume { data_offset: Some(4096), ..good() }),
        ("UUID", NewVolume { uuid: Some("x".to_owned()), ..good() }),
    ] {
        let options = luks2_options();
        let error = luks2_writes(&volume, &options).unwrap_err();
        assert!(matches!(&error, Error::Request(text) if text.contains(what)), "{error}");
    }
    let defaults = luks2_options;
    for (what, options) in [
        ("label", luks2::Options { label: "x\n".into(), ..defaults() }),
        ("subsystem", luks2::Options { subsystem: "a\nb".to_owned(), ..defaults() }),
        ("sector size", luks2::Options { sector_size: 8192, ..defaults() }),
        ("metadata size", luks2::Options { metadata_size: Some(4096), ..defaults() }),
        ("keyslots size", luks2::Options { keyslots_size: Some(4097), ..defaults() }),
        ("inside the header", luks2::Options { keyslots_size: Some(4096), ..defaults() }),
    ] {
        let volume = good();
        let error = luks2_writes(&volume, &options).unwrap_err();
        assert!(matches!(&error, Error::Request(text) if text.contains(what)), "{error}");
    }
}

/// A header that is whole and opens nothing would be found out only when the data is wanted.
#[test]
fn no_header_is_made_whose_cipher_cannot_be_keyed() {
    let options = |sector_size| luks2::Options { sector_size, ..luks2_options() };
    let opens = |image: &[u8], key_len: usize| {
        let image = image.to_vec();
        let (header, _) = Header::read(&image).unwrap();
        let unlocked = header.unlock(&image, PASSPHRASE, None).unwrap();
        assert_eq!(unlocked.volume_key.len(), key_len);
        unlocked.segments[0].cipher(&unlocked.volume_key).unwrap();
    };
    for (cipher, key_len) in [("aes-cbc-tcw", 56), ("aes:64-cbc-lmk", 1024)] {
        let volume = new_volume(cipher, key_len, cheap_pbkdf2());
        for sector_size in [1024, 2048, 4096] {
            let error = luks2_writes(&volume, &options(sector_size)).unwrap_err();
            assert!(
                matches!(&error, Error::Request(text) if text.contains("512-byte sectors")),
                "{error}"
            );
        }
        opens(&luks2_image(&volume, &options(512)), key_len);
        opens(&luks1_image(&volume), key_len);
    }
    for key_len in [1, 512, 513, 1024] {
        let volume = new_volume("cipher_null-ecb", key_len, cheap_pbkdf2());
        let image = luks2_image(&volume, &options(4096));
        tool(&image, &volume);
        opens(&image, key_len);
    }
    for (cipher, key_len) in [("cipher_null-ecb", 1025), ("cipher_null:2-ecb", 33)] {
        let volume = new_volume(cipher, key_len, cheap_pbkdf2());
        let error = luks2_writes(&volume, &options(512)).unwrap_err();
        assert!(matches!(error, Error::Request(_)), "{cipher}: {error}");
    }
}
