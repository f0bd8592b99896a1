//! Pinned headers: whoever controls the image may answer every read in another way.

mod common;

use std::cell::RefCell;
use std::io;

use common::{
    PASSPHRASE, Scratch, cheap_pbkdf2, cryptsetup_ok, json_text, luks2_options, new_volume,
    put_json, roomy_luks2, small_luks1, text, with_tools,
};
use serde_json::{Value, json};
use ucrypt_luks::{
    DataPlace, Error, Hash, Header, HeaderCopy, HeaderDigest, NewVolume, ReadAt, luks2,
};

/// An image that counts how often each byte was read, and from the second time on answers with
/// another header.
struct Changing {
    first: Vec<u8>,
    later: Vec<u8>,
    reads: RefCell<Vec<u8>>,
}

impl ReadAt for Changing {
    fn len(&self) -> u64 {
        self.first.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let mut reads = self.reads.borrow_mut();
        for (at, byte) in (start..).zip(buf) {
            *byte = if reads[at] == 0 { self.first[at] } else { self.later[at] };
            reads[at] += 1;
        }
        Ok(())
    }
}

/// The same volume with another data offset and cipher, or with what is left of it.
fn tampered(image: &[u8]) -> Vec<u8> {
    image.iter().map(|byte| byte ^ 0x55).collect()
}

#[test]
fn nothing_of_a_pinned_header_is_read_twice() {
    for image in [small_luks1(), roomy_luks2()] {
        let reads = RefCell::new(vec![0; image.len()]);
        let changing = Changing { later: tampered(&image), first: image.clone(), reads };
        let copy = HeaderCopy::read(&changing).unwrap();
        let after = changing.reads.borrow().clone();
        assert_eq!(after.iter().max(), Some(&1), "a byte was read twice");
        let (header, damage) = Header::read(&copy).unwrap();
        assert!(damage.is_none());
        let opened = header.unlock(&copy, PASSPHRASE, None).unwrap();
        header.check_strictly(None, Some(place(&image))).unwrap();
        assert_eq!(*changing.reads.borrow(), after, "the image was read again");
        let honest = Header::read(&image).unwrap().0.unlock(&image, PASSPHRASE, None).unwrap();
        assert_eq!((opened.volume_key, opened.segments), (honest.volume_key, honest.segments));
        // Every byte of the header was read, and so counts in the digest.
        let len = usize::try_from(copy.len()).unwrap();
        assert!(after[..len].iter().all(|reads| *reads == 1));
        assert_eq!(copy.digest().to_string(), sha256(&image[..len]));
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Hash::Sha256.digest(&[bytes]);
    let hex = digest.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    format!("sha256:{hex}")
}

#[test]
fn every_bit_of_a_header_counts() {
    for image in [small_luks1(), roomy_luks2()] {
        let copy = HeaderCopy::read(&image).unwrap();
        let pinned = copy.digest();
        copy.check(pinned).unwrap();
        let len = usize::try_from(copy.len()).unwrap();
        let mut random = fastrand::Rng::with_seed(91);
        for _ in 0..200 {
            let at = random.usize(..len);
            let mut changed = image.clone();
            changed[at] ^= 1 << random.u32(..8);
            // Most changes break the header; none passes for the pinned one.
            let Ok(copy) = HeaderCopy::read(&changed) else { continue };
            let refused = copy.check(pinned);
            assert!(matches!(refused, Err(Error::OtherHeader { .. })), "byte {at}");
        }
        let mut data = image.clone();
        *data.last_mut().unwrap() ^= 1;
        HeaderCopy::read(&data).unwrap().check(pinned).unwrap();
    }
}

#[test]
fn digests_are_written_in_one_way() {
    let text = format!("sha256:{}", "0aF5".repeat(16));
    let digest: HeaderDigest = text.parse().unwrap();
    assert_eq!(digest.to_string(), text.to_lowercase());
    let lost = &text[..text.len() - 1];
    for bad in ["", "sha256:", lost, "sha1:00", &format!("{text}0"), &text.replace("0a", "+a")] {
        assert!(bad.parse::<HeaderDigest>().is_err(), "{bad}");
    }
}

#[test]
fn a_header_with_a_damaged_copy_has_no_digest() {
    let mut image = roomy_luks2();
    let Header::Luks2(header) = Header::read(&image).unwrap().0 else { panic!() };
    let secondary = usize::try_from(header.binary.header_size).unwrap();
    image[secondary + 5000] ^= 1;
    let refused = HeaderCopy::read(&image).unwrap_err();
    assert!(matches!(refused, Error::Strict(_)), "{refused}");
}

/// An image that holds its header and its data.
fn place(image: &[u8]) -> DataPlace {
    DataPlace { detached: false, image_len: image.len() as u64 }
}

/// Why a strict look refuses an image whose header can be read.
fn strictly(what: &str, image: &[u8]) -> String {
    let (header, damage) = Header::read(&image)
        .unwrap_or_else(|error| panic!("{what}: it is refused anyway: {error}"));
    let refused = header.check_strictly(damage.as_ref(), Some(place(image)));
    refused.expect_err(what).to_string()
}

/// A change of the metadata, and why a strict look refuses it.
type Edit = (fn(&mut Value), &'static str);

/// What breaks each rule alone.
const EDITS: &[Edit] = &[
    (
        |all| {
            let segment = all["segments"]["0"].clone();
            all["segments"]["0"]["size"] = json!("4096");
            let begin: u64 = segment["offset"].as_str().unwrap().parse().unwrap();
            all["segments"]["1"] = segment;
            all["segments"]["1"]["offset"] = json!((begin + 4096).to_string());
            all["digests"]["0"]["segments"] = json!(["0", "1"]);
        },
        "the volume has 2 segments",
    ),
    (
        |all| {
            let offset = all["segments"]["0"]["offset"].clone();
            all["segments"]["0"] = json!({ "type": "linear", "offset": offset, "size": "dynamic" });
            all["digests"]["0"]["segments"] = json!([]);
        },
        "segment 0 is of the type linear",
    ),
    (|all| all["segments"]["0"]["size"] = json!("4096"), "segment 0 has a fixed size, 4096"),
    (|all| all["segments"]["0"]["flags"] = json!(["x"]), "segment 0 has the flag \"x\""),
    (|all| all["segments"]["0"]["iv_tweak"] = json!("8"), "segment 0 has an IV offset, 8"),
    (
        |all| {
            let integrity = json!({
                "type": "hmac(sha256)", "journal_encryption": "none", "journal_integrity": "none",
            });
            all["segments"]["0"]["integrity"] = integrity;
        },
        "segment 0 has integrity protection",
    ),
    (
        |all| all["segments"]["0"]["encryption"] = json!("cipher_null-ecb"),
        "segment 0 has the null cipher",
    ),
    (|all| all["keyslots"]["0"]["type"] = json!("later"), "keyslot 0 is of the type later"),
    (
        |all| all["keyslots"]["0"]["area"]["encryption"] = json!("cipher_null-ecb"),
        "keyslot 0 has the null cipher",
    ),
    (
        |all| all["keyslots"]["0"]["kdf"]["iterations"] = json!(999),
        "keyslot 0 costs only 999 iterations",
    ),
    (|all| set_argon2(all, 3, 65536), "keyslot 0 costs only 3 passes over 65536 KiB"),
    (|all| set_argon2(all, 4, 31), "keyslot 0 costs only 4 passes over 31 KiB"),
    (|all| all["digests"]["0"]["iterations"] = json!(999), "digest 0 costs only 999 iterations"),
    (|all| all["digests"]["0"]["type"] = json!("later"), "digest 0 is of the type later"),
    (
        |all| all["config"]["requirements"] = json!({ "mandatory": ["later"] }),
        "the header has the requirement \"later\"",
    ),
    (
        |all| all["config"]["flags"] = json!(["allow-discards", "later"]),
        "the header has the unknown flag \"later\"",
    ),
    (
        |all| all["segments"]["0"]["offset"] = json!(((1 << 20) + 512).to_string()),
        "segment 0 begins at byte 1049088, no multiple of 4096",
    ),
    (
        |all| all["segments"]["0"]["offset"] = json!("0"),
        "the data begins at byte 0, inside the header, which ends at byte 1048576",
    ),
    (
        |all| all["segments"]["0"]["offset"] = json!((16 << 20).to_string()),
        "the data begins at byte 16777216, behind the end of its image of 1114112 bytes",
    ),
    (
        |all| {
            all["digests"]["1"] = all["digests"]["0"].clone();
            all["digests"]["1"]["keyslots"] = json!([]);
        },
        "segment 0 has 2 digests",
    ),
    (
        |all| all["keyslots"]["0"]["key_size"] = json!(20),
        "the key in keyslot 0: aes-xts-plain64 takes keys of",
    ),
    (
        |all| all["keyslots"]["0"]["area"]["key_size"] = json!(20),
        "the area of keyslot 0: aes-xts-plain64 takes keys of",
    ),
    (
        |all| all["keyslots"]["0"]["af"]["stripes"] = json!(1),
        "keyslot 0 has 1 stripes instead of 4000",
    ),
    (
        |all| all["keyslots"]["0"]["area"]["size"] = json!("135168"),
        "the area of keyslot 0 has 135168 bytes instead of 131072",
    ),
    (
        |all| all["keyslots"]["0"]["kdf"]["salt"] = json!("AAAA"),
        "keyslot 0 has a salt of 3 bytes instead of 32",
    ),
    (
        |all| all["digests"]["0"]["salt"] = json!("AAAA"),
        "digest 0 has a salt of 3 bytes instead of 32",
    ),
    (
        |all| all["digests"]["0"]["digest"] = json!("AAAA"),
        "digest 0 has 3 bytes; sha256 makes 32, and LUKS1 stores 20",
    ),
    (|all| all["digests"]["0"]["hash"] = json!("later"), "later"),
];

/// Each rule of its own: the header is sound but for one thing.
#[test]
fn every_rule_of_a_strict_look_refuses_what_breaks_it_alone() {
    let sound = roomy_luks2();
    let metadata: Value = serde_json::from_slice(&json_text(&sound)).unwrap();
    for (edit, why) in EDITS {
        let (mut image, mut metadata) = (sound.clone(), metadata.clone());
        edit(&mut metadata);
        put_json(&mut image, metadata.to_string().as_bytes());
        let refused = strictly(why, &image);
        assert!(refused.contains(why), "{why}: {refused}");
    }
    // What luksFormat and config make passes.
    for edit in [
        |_: &mut Value| {},
        |all: &mut Value| set_argon2(all, 4, 32),
        |all: &mut Value| {
            all["config"]["flags"] = json!(["allow-discards"]);
        },
        |all: &mut Value| {
            all["tokens"]["0"] = json!({ "type": "of-somebody-else", "keyslots": ["0"] });
        },
        |all: &mut Value| {
            all["digests"]["0"]["digest"] = json!("AAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        },
    ] {
        let (mut image, mut metadata) = (sound.clone(), metadata.clone());
        edit(&mut metadata);
        put_json(&mut image, metadata.to_string().as_bytes());
        let (header, damage) = Header::read(&image).unwrap();
        header.check_strictly(damage.as_ref(), Some(place(&image))).unwrap();
    }
    let mut image = sound.clone();
    image[0x4000 + 5000] ^= 1;
    let refused = strictly("a damaged copy", &image);
    assert!(refused.contains("the secondary LUKS2 header copy is unusable"), "{refused}");
}

fn set_argon2(metadata: &mut Value, time: u32, memory: u32) {
    let salt = metadata["keyslots"]["0"]["kdf"]["salt"].clone();
    metadata["keyslots"]["0"]["kdf"] =
        json!({ "type": "argon2id", "time": time, "memory": memory, "cpus": 1, "salt": salt });
}

#[test]
fn every_rule_of_a_strict_look_at_luks1_refuses_what_breaks_it_alone() {
    // LUKS on-disk format 1.2.3, table 3: where each field begins.
    const CIPHER: usize = 8;
    const MODE: usize = 40;
    const PAYLOAD_OFFSET: usize = 104;
    const KEY_BYTES: usize = 108;
    const DIGEST_ITERATIONS: usize = 164;
    const KEYSLOT: usize = 208;
    const ITERATIONS: usize = KEYSLOT + 4;
    let sound = small_luks1();
    Header::read(&sound).unwrap().0.check_strictly(None, Some(place(&sound))).unwrap();
    let few = 999_u32.to_be_bytes();
    for (fields, why) in [
        (&[(CIPHER, &b"cipher_null\0"[..]), (MODE, b"ecb\0")][..], "the null cipher"),
        (&[(KEYSLOT + 3 * 48, &[1, 2, 3, 4])], "keyslot 3"),
        (&[(ITERATIONS, &few)], "keyslot 0 costs only 999 iterations"),
        (&[(DIGEST_ITERATIONS, &few)], "the digest costs only 999 iterations"),
        (&[(PAYLOAD_OFFSET, &[0; 4])], "the data begins at byte 0, inside the header"),
        (&[(PAYLOAD_OFFSET, &[0, 1, 0, 0])], "the data begins at byte 33554432, behind the end"),
        (&[(KEY_BYTES, &[0, 0, 0, 31])], "the volume: aes-xts-plain64 takes keys of"),
    ] {
        let mut image = sound.clone();
        for (at, bytes) in fields {
            image[*at..].iter_mut().zip(*bytes).for_each(|(to, from)| *to = *from);
        }
        let refused = strictly(why, &image);
        assert!(refused.contains(why), "{why}: {refused}");
    }
}

/// Headers with all that the options of `luksFormat` can ask for, made by cryptsetup.
#[test]
fn a_strict_look_takes_every_header_that_luks_format_makes() {
    const IMAGE: u64 = 20 << 20;
    let options: [&[&str]; 23] = [
        &[],
        &["--type", "luks1"],
        &["--type", "luks1", "--hash", "sha512", "--key-size", "512"],
        &["--type", "luks1", "--cipher", "aes-cbc-essiv:sha256", "--key-size", "128"],
        &["--type", "luks1", "--align-payload", "8"],
        &["--type", "luks1", "--offset", "8192", "--hash", "ripemd160"],
        &["--cipher", "aes-cbc-essiv:sha256", "--key-size", "256"],
        &["--cipher", "camellia-cbc-plain64", "--key-size", "256"],
        &["--cipher", "aes-xts-plain", "--key-size", "256"],
        &["--sector-size", "512"],
        &["--sector-size", "1024"],
        &["--sector-size", "2048"],
        &["--sector-size", "4096"],
        &["--hash", "sha1"],
        &["--hash", "whirlpool"],
        &["--luks2-metadata-size", "64k", "--luks2-keyslots-size", "512k"],
        &["--luks2-metadata-size", "4m", "--luks2-keyslots-size", "4m"],
        &["--offset", "32776"],
        &["--align-payload", "8", "--luks2-keyslots-size", "256k"],
        &["--keyslot-cipher", "aes-cbc-plain64", "--keyslot-key-size", "128"],
        &["--label", "label", "--subsystem", "subsystem", "-S", "7"],
        &["--pbkdf", "argon2i", "--pbkdf-memory", "32", "--pbkdf-parallel", "1"],
        &["--pbkdf", "argon2id", "--pbkdf-memory", "64", "--pbkdf-parallel", "4"],
    ];
    for options in options {
        let iterations = if options.contains(&"--pbkdf") { "4" } else { "1000" };
        let mut line = vec!["luksFormat", "-q", "--pbkdf-force-iterations", iterations];
        if !options.contains(&"--pbkdf") && !options.contains(&"luks1") {
            line.extend(["--pbkdf", "pbkdf2"]);
        }
        line.extend(options);
        for detached in [false, true] {
            if detached && options.contains(&"--align-payload") {
                continue;
            }
            let scratch = Scratch::new(IMAGE);
            let (image, header) = (scratch.image(), scratch.path("header"));
            let at = if detached { vec!["--header", text(&header)] } else { Vec::new() };
            cryptsetup_ok(&[&line[..], &at, &[text(&image)]].concat(), PASSPHRASE);
            let bytes = if detached { std::fs::read(&header).unwrap() } else { scratch.bytes() };
            let (header, damage) = Header::read(&bytes).unwrap();
            let place = DataPlace { detached, image_len: IMAGE };
            let checked = header.check_strictly(damage.as_ref(), Some(place));
            checked.unwrap_or_else(|error| panic!("{options:?}, detached {detached}: {error}"));
        }
    }
    // cryptsetup needs device mapper for these.
    for (cipher, len) in [
        ("serpent-xts-plain64", 64),
        ("twofish-xts-plain64", 32),
        ("xchacha12,aes-adiantum-plain64", 32),
        ("xchacha20,aes-adiantum-plain64", 32),
    ] {
        let volume =
            NewVolume { data_offset: Some(1 << 20), ..new_volume(cipher, len, cheap_pbkdf2()) };
        let options = luks2_options();
        let (header, _) =
            with_tools(7, |tools| luks2::format(&volume, &options, PASSPHRASE, tools))
                .unwrap_or_else(|error| panic!("{cipher}: {error}"));
        let place = DataPlace { detached: false, image_len: IMAGE };
        let checked = Header::Luks2(Box::new(header)).check_strictly(None, Some(place));
        checked.unwrap_or_else(|error| panic!("{cipher}: {error}"));
    }
}
