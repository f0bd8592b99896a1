//! Every kind of volume, both ways.

use std::fs::File;

use ucrypt_lib::{Format, FormatError, FormatOptions, Key, OpenError, OpenOptions, Plain, inspect};

use crate::images::{Image, KEY, PASSPHRASE, passes, quick, random, tool};

const MIB: usize = 1 << 20;
const XTS: &str = "aes-xts-plain64";

#[test]
fn what_is_written_to_a_volume_of_cryptsetup_is_there_for_others() {
    let kinds: [(&[&str], Format, u64, u32, &str); 3] = [
        (&["--type", "luks1", "--key-size", "512"], Format::Luks1, 2 << 20, 512, XTS),
        (&["--type", "luks2", "--sector-size", "4096"], Format::Luks2, 16 << 20, 4096, XTS),
        (
            &["--type", "luks2", "--cipher", "aes-cbc-essiv:sha256", "--key-size", "256"],
            Format::Luks2,
            16 << 20,
            512,
            "aes-cbc-essiv:sha256",
        ),
    ];
    for (options, format, offset, sector, cipher) in kinds {
        let image = Image::by_cryptsetup(2 << 20, options);
        let volume = image.open();
        let facts = volume.facts().clone();
        assert_eq!((facts.format, facts.data_offset), (format, offset), "{options:?}");
        assert_eq!(facts.cipher, cipher);
        assert_eq!((volume.sector_size(), facts.keyslot), (facts.sector_size, Some(0)));
        let data = random(offset, MIB + 1234);
        volume.write_at(77, &data).expect("written");
        volume.close().expect("flushed");
        let seen = image.decrypted(cipher, offset, facts.sector_size.max(sector.min(512)));
        assert_eq!(seen[77..][..data.len()], data, "{options:?}");
        let told = inspect(&image.path).expect("a header");
        assert_eq!((Some(told.uuid), told.cipher), (facts.uuid, Some(cipher.into())));
        assert_eq!(told.sector_size, facts.sector_size);
    }
}

#[test]
fn a_volume_that_was_made_here_is_cryptsetups() {
    for version in [Format::Luks1, Format::Luks2] {
        let image = Image::blank(1 << 20);
        let uuid = "6a4f1c1e-8f3d-4b0c-9d54-1f0a2a5d3c77";
        let made = quick().version(version).uuid(uuid).format(&image.path, KEY).expect("made");
        assert_eq!(made.uuid, uuid);
        let key = image.file("key", PASSPHRASE);
        let mut test = tool("cryptsetup", "cryptsetup-bin");
        test.args(["open", "--test-passphrase", "--type", version.name(), "--key-file"]);
        passes(test.arg(key).arg(&image.path));
        let said = passes(tool("cryptsetup", "cryptsetup-bin").arg("luksUUID").arg(&image.path));
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), uuid);
        let volume = image.open();
        volume.write_at(0, b"written here").expect("written");
        volume.close().expect("flushed");
        let sector = if version == Format::Luks1 { 512 } else { 4096 };
        assert!(image.decrypted(XTS, made.data_offset, sector).starts_with(b"written here"));
    }
}

#[test]
fn a_label_that_a_header_does_not_hold_is_refused_and_not_cut() {
    let image = Image::blank(1 << 20);
    let before = std::fs::read(&image.path).expect("read");
    let header = image.dir.path().join("header");
    let long = "x".repeat(48);
    let refused = quick().label(&long).header(&header).format(&image.path, KEY).unwrap_err();
    let why = refused.to_string();
    assert!(matches!(refused, FormatError::Refused(OpenError::Options(_))), "{why}");
    assert!(why.contains("at most 47 bytes, not 48"), "{why}");
    assert!(!header.exists() && std::fs::read(&image.path).expect("read") == before);
    quick().label(&long[1..]).format(&image.path, KEY).expect("made");
    assert_eq!(inspect(&image.path).expect("a header").label.as_deref(), Some(&long[1..]));
}

#[test]
fn a_volume_does_not_overwrite_the_key_file_that_is_to_open_it() {
    let image = Image::blank(1 << 20);
    let before = std::fs::read(&image.path).expect("read");
    let key = image.file("a key", PASSPHRASE);
    let link = image.dir.path().join("link");
    std::fs::hard_link(&key, &link).expect("a link");
    let header = image.dir.path().join("header");
    for (header, key) in [(&key, &key), (&link, &key), (&header, &image.path)] {
        let refused = quick().header(header).format(&image.path, Key::File(key)).unwrap_err();
        let why = refused.to_string();
        assert!(matches!(refused, FormatError::Refused(OpenError::Options(_))), "{why}");
        assert!(why.contains("would be overwritten"), "{why}");
    }
    assert!(std::fs::read(&key).expect("read") == PASSPHRASE);
    assert!(!header.exists() && std::fs::read(&image.path).expect("read") == before);
    quick().header(&header).format(&image.path, Key::File(&key)).expect("made");
}

#[test]
fn a_volume_opens_by_each_kind_of_key_and_no_other() {
    let image = Image::by_cryptsetup(1 << 20, &["--type", "luks2"]);
    let (key, volume_key) = (image.file("a key", PASSPHRASE), image.volume_key());
    let volume_key = std::fs::read(volume_key).expect("the volume key");
    let options = OpenOptions::new().read_only(true);
    for key in [KEY, Key::File(&key), Key::VolumeKey(&volume_key)] {
        let volume = options.open(&image.path, key).expect("it opens");
        assert_eq!(volume.size(), 1 << 20, "{key:?}");
    }
    let wrong = [0; 64];
    for key in [Key::Passphrase(b"wrong"), Key::VolumeKey(&wrong)] {
        let error = options.open(&image.path, key).unwrap_err();
        assert!(matches!(error, OpenError::WrongKey(_)), "{error:?}");
    }
    let missing = image.dir.path().join("missing");
    let error = options.open(&image.path, Key::File(&missing)).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    let error = options.clone().keyslot(3).open(&image.path, KEY).unwrap_err();
    assert!(matches!(error, OpenError::Options(_)), "{error:?}");
    let error = options.format(Format::Luks1).open(&image.path, KEY).unwrap_err();
    assert!(matches!(error, OpenError::Options(_)), "{error:?}");
}

#[test]
fn a_detached_header_and_its_digest() {
    let image = Image::blank(0);
    let header = image.dir.path().join("header");
    let made = quick().header(&header).format(&image.path, KEY).expect("made");
    assert_eq!(made.data_offset, 0);
    assert!(matches!(inspect(&image.path), Err(OpenError::Header(_))));
    let options = OpenOptions::new().header(&header).strict(true);
    let volume = options.open(&image.path, KEY).expect("it opens");
    assert_eq!(volume.size(), 16 << 20);
    drop(volume);
    let none = format!("sha256:{}", "0".repeat(64));
    let error = options.header_digest(&none).open(&image.path, KEY).unwrap_err();
    assert!(matches!(error, OpenError::Options(_)), "{error:?}");
    let alone = OpenOptions::new().open(&header, KEY).unwrap_err();
    assert!(matches!(alone, OpenError::Options(_)), "{alone:?}");
}

#[test]
fn a_plain_volume_is_cryptsetups_with_the_same_options() {
    let image = Image::blank(0);
    let (key, data) = (image.file("key", &random(5, 32)), random(6, 4096));
    let options = OpenOptions::new().plain(Plain::new().offset(8).size(64));
    let volume = options.open(&image.path, Key::File(&key)).expect("it opens");
    assert_eq!((volume.size(), volume.facts().format), (64 * 512, Format::Plain));
    volume.write_at(0, &data).expect("written");
    volume.close().expect("flushed");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../ucrypt/tests/command/scripts/decrypt.py");
    let mut python = tool("/usr/bin/python3", "python3 python3-cryptography");
    python.arg(script).arg(&image.path).arg(&key).args([XTS, "4096", "512"]);
    assert!(passes(&mut python).stdout.starts_with(&data));
    for bad in [
        Plain::new().cipher("none-such-mode"),
        Plain::new().key_bits(100),
        Plain::new().hash("none-such-hash"),
        Plain::new().sector_size(100),
        Plain::new().offset(u64::MAX),
        Plain::new().size(3).sector_size(4096),
    ] {
        let error = OpenOptions::new().plain(bad.clone()).open(&image.path, KEY).unwrap_err();
        assert!(matches!(error, OpenError::Options(_)), "{bad:?}: {error:?}");
    }
}

/// dm-crypt does not activate a volume of a part of a sector, and `tcw` has sectors of 512 bytes only.
#[test]
fn a_sector_size_that_the_length_or_the_cipher_does_not_take_is_refused() {
    let image = Image::blank(512);
    let header = image.dir.path().join("header");
    for options in [quick(), quick().header(&header)] {
        let error = options.sector_size(4096).format(&image.path, KEY).unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, FormatError::Refused(OpenError::Options(_))), "{error:?}");
        assert!(told.contains("not aligned to requested sector size"), "{told}");
        assert!(!header.exists());
    }
    let image = Image::blank(1 << 20);
    let error = quick().hash("none-such-hash").format(&image.path, KEY).unwrap_err();
    assert!(matches!(error, FormatError::Refused(OpenError::Options(_))), "{error:?}");
    let tcw = || quick().cipher("aes-cbc-tcw").key_bits(448);
    let error = tcw().sector_size(4096).format(&image.path, KEY).unwrap_err();
    assert!(matches!(error, FormatError::Refused(OpenError::Options(_))), "{error:?}");
    tcw().format(&image.path, KEY).expect("made");
    assert_eq!(image.open().sector_size(), 512);
}

#[test]
fn nothing_that_is_there_is_overwritten_unasked() {
    let image = Image::new(1 << 20);
    let before = inspect(&image.path).expect("a header");
    let error = quick().format(&image.path, KEY).unwrap_err();
    assert!(matches!(&error, FormatError::NotEmpty { .. }), "{error:?}");
    let bad = [
        quick().overwrite(true).cipher("nothing"),
        quick().overwrite(true).hash("nothing"),
        quick().overwrite(true).sector_size(100),
        quick().overwrite(true).data_offset(5),
        quick().overwrite(true).volume_key(&[1; 3]),
        quick().overwrite(true).version(Format::Plain),
        quick().overwrite(true).version(Format::Luks1).label("x"),
    ];
    for options in bad {
        let error = options.format(&image.path, KEY).unwrap_err();
        assert!(matches!(error, FormatError::Refused(_)), "{options:?}: {error:?}");
        assert_eq!(inspect(&image.path).expect("a header"), before);
    }
    let made = quick().overwrite(true).format(&image.path, KEY).expect("made");
    assert_ne!(made.uuid, before.uuid);
}

#[test]
fn an_image_that_is_too_short_is_refused_with_its_size() {
    let image = Image::blank(0);
    let file = File::options().write(true).open(&image.path).expect("the image");
    file.set_len(1 << 20).expect("shorter");
    let error = quick().format(&image.path, KEY).unwrap_err();
    assert!(error.to_string().contains("1048576 bytes"), "{error}");
    let missing = image.dir.path().join("missing");
    let error = FormatOptions::new().format(&missing, KEY).unwrap_err();
    assert!(matches!(error, FormatError::Refused(OpenError::System(_))), "{error:?}");
}
