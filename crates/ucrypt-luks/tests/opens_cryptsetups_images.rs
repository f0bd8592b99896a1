//! This crate opens the images that cryptsetup makes, and finds the same volume keys and segments.

mod common;

use std::process::Command;

use common::{
    CHEAP_ARGON2I, CHEAP_ARGON2ID, CHEAP_PBKDF2, PASSPHRASE, Scratch, cryptsetup_ok, text,
};
use ucrypt_luks::{Error, Format, Header};

/// Formats with cryptsetup and compares the results of both programs.
fn check(args: &[&str], format: Format, cipher: &str, sector_size: u32) {
    let scratch = Scratch::formatted(args);
    let image = scratch.bytes();
    let (header, damage) = Header::read(&image).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    assert!(damage.is_none(), "{args:?}: {damage:?}");
    assert_eq!(header.format(), format);

    let unlocked = header.unlock(&image, PASSPHRASE, None);
    let unlocked = unlocked.unwrap_or_else(|error| panic!("{args:?}: {error}"));
    assert_eq!(*unlocked.volume_key, scratch.volume_key(), "{args:?}");
    assert_eq!(unlocked.keyslot, Some(0));
    assert_eq!(unlocked.segments.len(), 1);
    let segment = &unlocked.segments[0];
    assert_eq!(segment.cipher.to_string(), cipher, "{args:?}");
    assert_eq!((segment.sector_size, segment.iv_tweak), (sector_size, 0), "{args:?}");

    let uuid = cryptsetup_ok(&["luksUUID", text(&scratch.image())], b"");
    assert_eq!(header.uuid().to_string(), uuid.trim());
    let again = header.unlock_with_volume_key(&unlocked.volume_key).unwrap();
    assert_eq!(again.keyslot, None);

    let wrong = header.unlock(&image, b"wrong", None);
    assert!(matches!(wrong, Err(Error::WrongPassphrase { .. })), "{args:?}: {wrong:?}");
}

#[test]
fn luks1_with_every_cipher_and_key_size() {
    for (cipher, bits) in [
        ("aes-xts-plain64", "512"),
        ("aes-xts-plain64", "256"),
        ("aes-cbc-essiv:sha256", "256"),
        ("aes-cbc-essiv:sha256", "128"),
        ("aes-cbc-plain", "256"),
    ] {
        let mut args = vec!["--type", "luks1", "--cipher", cipher, "--key-size", bits];
        args.extend(CHEAP_PBKDF2);
        check(&args, Format::Luks1, cipher, 512);
    }
}

#[test]
fn luks2_with_every_pbkdf_cipher_and_sector_size() {
    for pbkdf in [CHEAP_PBKDF2, CHEAP_ARGON2I, CHEAP_ARGON2ID] {
        for (cipher, bits) in [("aes-xts-plain64", "512"), ("aes-cbc-essiv:sha256", "256")] {
            for (sector_size, bytes) in [("512", 512), ("4096", 4096)] {
                let mut args = vec!["--type", "luks2", "--cipher", cipher, "--key-size", bits];
                args.extend(["--sector-size", sector_size]);
                args.extend(pbkdf);
                check(&args, Format::Luks2, cipher, bytes);
            }
        }
    }
}

#[test]
fn every_hash_that_cryptsetup_has() {
    for hash in [
        "sha1",
        "sha224",
        "sha256",
        "sha384",
        "sha512",
        "sha3-224",
        "sha3-256",
        "sha3-384",
        "sha3-512",
        "ripemd160",
        "whirlpool",
        "blake2b-512",
        "blake2s-256",
        "sm3",
        "md4",
        "md5",
        "sha512-224",
        "sha512-256",
        // Names that OpenSSL has besides.
        "sha-1",
        "ssl3-sha1",
        "sha-224",
        "sha2-256",
        "SHA2-384",
        "sha-512",
        "sha-512/224",
        "sha2-512/256",
        "ripemd",
        "ripemd-160",
        "rmd160",
        "blake2b512",
        "blake2s256",
        "ssl3-md5",
        "md5-sha1",
    ] {
        for kind in [("luks1", Format::Luks1), ("luks2", Format::Luks2)] {
            // LUKS1 takes no digest below 20 bytes.
            if kind.1 == Format::Luks1 && ["md4", "md5", "ssl3-md5"].contains(&hash) {
                continue;
            }
            let mut args = vec!["--type", kind.0, "--hash", hash];
            if kind.1 == Format::Luks2 {
                args.extend(["--sector-size", "512"]);
            }
            args.extend(CHEAP_PBKDF2);
            check(&args, kind.1, "aes-xts-plain64", 512);
        }
    }
}

#[test]
fn a_luks1_image_that_qemu_made() {
    for (cipher, mode, ivgen, bits) in
        [("aes-256", "xts", "plain64", 512), ("aes-256", "cbc", "essiv", 256)]
    {
        let scratch = Scratch::new(0);
        let path = scratch.image();
        let hash = if ivgen == "essiv" { ",ivgen-hash-alg=sha256" } else { "" };
        qemu_img_create(
            text(&path),
            &format!(
                "key-secret=s,iter-time=10,cipher-alg={cipher},cipher-mode={mode},\
                 ivgen-alg={ivgen}{hash}"
            ),
        );
        let image = scratch.bytes();
        let (header, _) = Header::read(&image).unwrap();
        let unlocked = header.unlock(&image, PASSPHRASE, None).unwrap();
        assert_eq!(8 * unlocked.volume_key.len(), bits);
        assert_eq!(unlocked.volume_len(image.len() as u64).unwrap(), 1 << 20);
        assert_eq!(*unlocked.volume_key, scratch.volume_key());
    }
}

/// Makes a LUKS1 image of 1 MiB. qemu-img measures its key derivation and gives up if the CPU time
/// clock is too coarse. That says nothing about the image, so qemu-img runs again.
fn qemu_img_create(path: &str, options: &str) {
    let secret = format!("secret,id=s,data={}", str::from_utf8(PASSPHRASE).unwrap());
    let mut problem = String::new();
    for _ in 0..50 {
        let output = Command::new("qemu-img")
            .args(["create", "-q", "-f", "luks", "--object", &secret, "-o", options, path, "1M"])
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("qemu-img cannot be run ({error}): apt-get install qemu-utils")
        });
        if output.status.success() {
            return;
        }
        problem = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(problem.contains("Unable to get accurate CPU usage"), "{problem}");
    }
    panic!("qemu-img gave up 50 times: {problem}");
}
