//! One damaged LUKS2 copy is survived and can be repaired; everything else is refused, with what
//! is wrong and where.

mod common;

use common::{
    PASSPHRASE, Scratch, apply, cryptsetup_ok, edit_json, json_text, put_json, seal, small_luks1,
    small_luks2, text, with_tools,
};
use ucrypt_luks::luks2::Copy;
use ucrypt_luks::{Error, Flag, Header, luks2};

const COPY_BYTES: usize = 0x4000;

fn read(image: &[u8]) -> Result<(Header, Option<luks2::Damage>), Error> {
    Header::read(&image)
}

fn problem(image: &[u8]) -> String {
    read(image).unwrap_err().to_string()
}

fn open_problem(image: &[u8]) -> String {
    let (header, _) = read(image).unwrap();
    header.unlock(&image, PASSPHRASE, None).unwrap_err().to_string()
}

/// Damages `image`, opens it from the other copy, repairs it, and lets cryptsetup judge.
fn survives(copy: Copy, damage: impl FnOnce(&mut Vec<u8>), words: &str) {
    let mut image = small_luks2();
    damage(&mut image);
    let before = image.clone();
    let (header, found) = read(&image).unwrap();
    let found = found.expect("the damage was not seen");
    assert_eq!(found.copy, copy);
    assert!(found.to_string().contains(words), "{found}");
    assert!(header.unlock(&image, PASSPHRASE, None).is_ok());
    assert!(image == before, "reading has changed the image");

    let Header::Luks2(header) = header else { panic!("not LUKS2") };
    let repair = with_tools(20, |tools| header.repair(copy, tools.random)).unwrap();
    apply(&mut image, &[repair]);
    let (again, found) = read(&image).unwrap();
    assert!(found.is_none(), "{found:?}");
    assert!(again.unlock(&image, PASSPHRASE, None).is_ok());
    let scratch = Scratch::with(&image);
    let path = scratch.image();
    cryptsetup_ok(&["open", "--test-passphrase", "--key-file", "-", text(&path)], PASSPHRASE);
    assert!(scratch.bytes() == image, "cryptsetup found something to repair");
}

#[test]
fn a_damaged_primary_copy_is_replaced_by_the_secondary() {
    survives(Copy::Primary, |image| image[..4096].fill(0), "no LUKS header");
    survives(Copy::Primary, |image| image[..COPY_BYTES].fill(0xff), "no LUKS header");
    survives(Copy::Primary, |image| image[5000] ^= 1, "checksum is wrong");
    survives(Copy::Primary, |image| image[6..8].fill(9), "version 2313");
    survives(Copy::Primary, |image| image[72..75].fill(b'x'), "hash \"xxx256\"");
    let broken_json = |image: &mut Vec<u8>| {
        image[4096] = b'[';
        seal(&mut image[..COPY_BYTES]);
    };
    survives(Copy::Primary, broken_json, "curly bracket");
}

#[test]
fn a_damaged_secondary_copy_does_not_matter() {
    survives(Copy::Secondary, |image| image[COPY_BYTES..2 * COPY_BYTES].fill(0), "no LUKS header");
    survives(Copy::Secondary, |image| image[2 * COPY_BYTES - 1] = 1, "checksum is wrong");
}

#[test]
fn the_copy_with_the_higher_sequence_id_is_the_valid_one() {
    let raise = |from: usize| {
        move |image: &mut Vec<u8>| {
            let copy = &mut image[from..from + COPY_BYTES];
            copy[23] += 1;
            seal(copy);
        }
    };
    survives(Copy::Secondary, raise(0), "sequence id 1 instead of 2");
    survives(Copy::Primary, raise(COPY_BYTES), "sequence id 1 instead of 2");
}

#[test]
fn two_damaged_copies_are_refused() {
    let mut image = small_luks2();
    image[5000] ^= 1;
    image[COPY_BYTES + 5000] ^= 1;
    assert!(problem(&image).contains("primary LUKS2 header: its checksum is wrong"));
    image[..4096].fill(0);
    assert!(problem(&image).contains("secondary LUKS2 header: its checksum is wrong"));
    image[COPY_BYTES..COPY_BYTES + 4096].fill(0);
    assert!(matches!(read(&image), Err(Error::NotLuks { found: None })));
}

#[test]
fn another_owner_of_the_image_is_named_and_not_overridden() {
    let mut image = small_luks2();
    image[..4096].fill(0);
    image[0x438..0x43a].copy_from_slice(b"\x53\xef");
    assert!(problem(&image).contains("ext4"), "{}", problem(&image));
    let mut image = vec![0; 1 << 20];
    image[..4].copy_from_slice(b"QFI\xfb");
    assert!(problem(&image).contains("qcow2"));
    for length in [0, 1, 7, 8, 511, 4095, 4096, 16384] {
        assert!(matches!(read(&vec![0; length]), Err(Error::NotLuks { .. })), "{length}");
    }
}

#[test]
fn a_truncated_image_is_refused() {
    let luks1 = small_luks1();
    for length in [8, 591, 592, 4096, 500_000] {
        let error = read(&luks1[..length]).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{length}: {error}");
    }
    let luks2 = small_luks2();
    for length in [8, 4095, 4096, 16384, 32768, 300_000] {
        let error = read(&luks2[..length]).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{length}: {error}");
    }
    // The header is whole, the data is not there.
    let (header, _) = read(&luks2).unwrap();
    let unlocked = header.unlock(&luks2, PASSPHRASE, None).unwrap();
    assert!(matches!(unlocked.volume_len(512 << 10), Err(Error::LargerThanImage { .. })));
}

#[test]
fn json_that_breaks_a_rule_is_refused_with_its_path() {
    for (from, to, words) in [
        (r#""key_size":64,"af""#, r#""key_size":-1,"af""#, "JSON/keyslots/0/key_size: it is not"),
        (r#""key_size":64,"af""#, r#""key_size":0,"af""#, "key_size of 0"),
        (r#""key_size":64,"af""#, r#""key_size":4096,"af""#, "key_size of 4096"),
        (r#""key_size":64,"af""#, r#""key_size":66,"af""#, "too small"),
        (r#""stripes":4000"#, r#""stripes":4294967295"#, "too small"),
        (r#""offset":"32768""#, r#""offset":32768"#, "JSON/keyslots/0/area/offset: it is not a s"),
        (r#""offset":"32768""#, r#""offset":"0x8000""#, "decimal digits"),
        (r#""offset":"32768""#, r#""offset":"-1""#, "decimal digits"),
        (r#""offset":"32768""#, r#""offset":"""#, "decimal digits"),
        (r#""offset":"32768""#, r#""offset":"18446744073709551616""#, "decimal digits"),
        (r#""offset":"32768""#, r#""offset":"18446744073709551615""#, "not inside the keyslots"),
        (r#""offset":"32768""#, r#""offset":"28672""#, "not inside the keyslots area"),
        (r#""size":"258048""#, r#""size":"491521""#, "not inside the keyslots area"),
        (r#""size":"258048""#, r#""size":"0""#, "too small"),
        (r#""type":"raw","#, "", "JSON/keyslots/0/area: \"type\" is missing"),
        (r#""type":"luks2","#, "", "JSON/keyslots/0: \"type\" is missing"),
        (r#""tokens":{},"#, "", "JSON: \"tokens\" is missing"),
        (r#""tokens":{}"#, r#""tokens":[]"#, "JSON/tokens: it is not an object"),
        (r#""tokens":{}"#, r#""tokens":{"x":{}}"#, "JSON/tokens/x: not a number below 32"),
        (r#""tokens":{}"#, r#""tokens":{"32":{}}"#, "JSON/tokens/32: not a number below 32"),
        (r#""tokens":{}"#, r#""tokens":{"0":{"type":"a","keyslots":["1"]}}"#, "no keyslot 1"),
        (r#""keyslots":["0"]"#, r#""keyslots":["9"]"#, "JSON/digests/0/keyslots: there is no"),
        (r#""segments":["0"]"#, r#""segments":["3"]"#, "JSON/digests/0/segments: there is no"),
        (r#""segments":["0"]"#, r#""segments":[]"#, "JSON/segments/0: no digest belongs to it"),
        (r#""keyslots":["0"]"#, r#""keyslots":[0]"#, "it is not a string"),
        (r#""offset":"524288""#, r#""offset":"524289""#, "not a multiple of 512"),
        (r#""offset":"524288""#, r#""offset":"65536""#, "reach into the data"),
        (r#""dynamic""#, r#""0""#, "its size is not"),
        (r#""dynamic""#, r#""513""#, "its size is not"),
        (r#""dynamic""#, r#""18446744073709551104""#, "above 2^64"),
        (r#""dynamic""#, r#""Dynamic""#, "decimal digits"),
        (r#""sector_size":512"#, r#""sector_size":513"#, "its sector size is none of"),
        (r#""sector_size":512"#, r#""sector_size":8192"#, "its sector size is none of"),
        (r#""json_size":"12288""#, r#""json_size":"12287""#, "JSON/config/json_size"),
        (r#""keyslots_size":"491520""#, r#""keyslots_size":"491521""#, "4096-aligned"),
        (r#""keyslots_size":"491520""#, r#""keyslots_size":"1073741824""#, "128 MiB"),
        (r#""config":{"#, r#""config":{"flags":["a",1],"#, "JSON/config/flags/1"),
        (r#""config":{"#, r#""config":{"requirements":[],"#, "requirements: it is not an object"),
        (r#""type":"luks2","#, r#""type":"luks2","priority":3,"#, "none of 0, 1 and 2"),
        (r#""type":"luks2""#, r#""type":"lu\u001bks2""#, "control characters"),
    ] {
        let mut image = small_luks2();
        edit_json(&mut image, from, to);
        let error = read(&image).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{to}: {error:?}");
        assert!(error.to_string().contains(words), "{to}: {error}");
    }
}

#[test]
fn json_that_is_ambiguous_or_not_alone_is_refused() {
    let image = small_luks2();
    let json = String::from_utf8(json_text(&image)).unwrap();
    let deep = format!(r#"{{"x":{}{},"#, "[".repeat(40), "]".repeat(40));
    for (bad, words) in [
        (json.replacen('{', r#"{"tokens":{},"#, 1), "occurs twice"),
        (json.replacen('{', &deep, 1), "32 levels"),
        (format!(" {json}"), "curly bracket"),
        (format!("{json}x"), "trailing characters"),
        (format!("{json}\0x"), "bytes behind the text"),
        (json[..json.len() - 1].to_owned(), "EOF"),
        (format!("{json}{}", " ".repeat(0x3000)), "no zero byte"),
    ] {
        let mut image = image.clone();
        put_json(&mut image, bad.as_bytes());
        assert!(problem(&image).contains(words), "{words}: {}", problem(&image));
    }
}

#[test]
fn overlapping_areas_are_refused() {
    let mut image = small_luks2();
    let json = String::from_utf8(json_text(&image)).unwrap();
    let begin = json.find(r#"{"type":"luks2""#).unwrap();
    let end = json.find(r#"},"tokens""#).unwrap();
    let second = json[begin..end].replace("32768", "36864");
    let json = format!(r#"{},"1":{second}{}"#, &json[..end], &json[end..]);
    put_json(&mut image, json.as_bytes());
    assert!(problem(&image).contains("the areas of keyslots 0 and 1 overlap"));
}

#[test]
fn what_is_not_known_is_refused_by_its_name_when_it_is_needed() {
    for (from, to, words) in [
        (r#""type":"luks2""#, r#""type":"quantum""#, "keyslot type \"quantum\""),
        (r#""type":"raw""#, r#""type":"cooked""#, "keyslot area type \"cooked\""),
        (r#""type":"luks1""#, r#""type":"luks9""#, "anti-forensic splitter \"luks9\""),
        (r#""type":"argon2id""#, r#""type":"argon3""#, "function \"argon3\""),
        (r#""hash":"sha256"},"area""#, r#""hash":"md6"},"area""#, "hash \"md6\""),
        (r#""type":"crypt""#, r#""type":"linear""#, "segment type \"linear\""),
        (r#""type":"pbkdf2""#, r#""type":"sum""#, "digest type \"sum\""),
        (
            r#""config":{"#,
            r#""config":{"requirements":{"mandatory":["online-reencrypt-v2"]},"#,
            "requirement \"online-reencrypt-v2\"",
        ),
        (r#""iv_tweak""#, r#""flags":["backup-final"],"iv_tweak""#, "flag \"backup-final\""),
        (
            r#""iv_tweak""#,
            r#""integrity":{"type":"aead"},"iv_tweak""#,
            "integrity protection \"aead\"",
        ),
        (r#""encryption":"aes-xts-plain64""#, r#""encryption":"aes-xyz-plain64""#, "xyz"),
        (
            r#""encryption":"aes-xts-plain64""#,
            r#""encryption":"cipher_null-ecb""#,
            "keyslot cipher \"cipher_null-ecb\"",
        ),
    ] {
        let mut image = small_luks2();
        edit_json(&mut image, from, to);
        let (header, _) = read(&image).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert!(!header.dump("image").is_empty());
        let problem = open_problem(&image);
        assert!(problem.contains(words), "{to}: {problem}");
    }
}

#[test]
fn costs_beyond_the_limits_are_refused_before_memory_is_taken() {
    for (from, to, words) in [
        (r#""memory":32"#, r#""memory":4194305"#, "memory (KiB) of 4194305"),
        (r#""memory":32"#, r#""memory":15"#, "memory (KiB) of 15"),
        (r#""cpus":2"#, r#""cpus":5"#, "lane count of 5"),
        (r#""cpus":2"#, r#""cpus":0"#, "lane count of 0"),
        (r#""time":4"#, r#""time":0"#, "pass count of 0"),
    ] {
        let mut image = small_luks2();
        edit_json(&mut image, from, to);
        assert!(open_problem(&image).contains(words), "{to}: {}", open_problem(&image));
    }
    let mut image = small_luks2();
    edit_json(&mut image, r#""iterations":1000"#, r#""iterations":0"#);
    assert!(open_problem(&image).contains("iteration count of 0"));
}

#[test]
fn a_key_with_zeros_behind_it_is_not_the_key() {
    let image = small_luks2();
    let (header, _) = read(&image).unwrap();
    let key = header.unlock(&image, PASSPHRASE, None).unwrap().volume_key;
    assert!(header.unlock_with_volume_key(&key).is_ok());
    for length in [0, 63, 65, 128, 1 << 20] {
        let mut other = key.to_vec();
        other.resize(length, 0);
        let result = header.unlock_with_volume_key(&other);
        assert!(matches!(result, Err(Error::WrongVolumeKey)), "{length}");
    }
}

#[test]
fn priorities_and_unknown_keyslots_do_not_keep_others_from_opening() {
    let mut image = small_luks2();
    edit_json(&mut image, r#""type":"luks2","#, r#""type":"luks2","priority":0,"#);
    assert!(matches!(
        read(&image).unwrap().0.unlock(&image, PASSPHRASE, None),
        Err(Error::NoKeyslot)
    ));
    let (header, _) = read(&image).unwrap();
    assert_eq!(header.unlock(&image, PASSPHRASE, Some(0)).unwrap().keyslot, Some(0));
    assert!(matches!(header.unlock(&image, PASSPHRASE, Some(1)), Err(Error::InactiveKeyslot(1))));

    // Keyslot 1 is of an unknown type, preferred, and lies behind keyslot 0.
    let mut image = small_luks2();
    let unknown = r#"},"1":{"type":"future","key_size":64,"priority":2,"area":{"type":"raw","offset":"290816","size":"4096"}}},"tokens""#;
    edit_json(&mut image, r#"}},"tokens""#, unknown);
    edit_json(&mut image, r#""keyslots":["0"]"#, r#""keyslots":["1","0"]"#);
    let (header, _) = read(&image).unwrap();
    assert_eq!(header.unlock(&image, PASSPHRASE, None).unwrap().keyslot, Some(0));
    let wrong = header.unlock(&image, b"wrong", None).unwrap_err().to_string();
    assert!(wrong.contains("keyslot 1: keyslot type \"future\""), "{wrong}");
}

#[test]
fn unknown_members_survive_a_repair() {
    let mut image = small_luks2();
    edit_json(&mut image, r#""tokens":{}"#, r#""tokens":{},"future":{"b":[1,{"a":null}]}"#);
    edit_json(&mut image, r#""config":{"#, r#""config":{"new":true,"#);
    let json = json_text(&image);
    image[..COPY_BYTES].fill(0);
    let (header, _) = read(&image).unwrap();
    let Header::Luks2(header) = header else { panic!("not LUKS2") };
    let write = with_tools(21, |tools| header.repair(Copy::Primary, tools.random)).unwrap();
    apply(&mut image, &[write]);
    assert_eq!(json_text(&image), json);
}

#[test]
fn flags_and_several_segments_reach_the_volume() {
    let mut image = small_luks2();
    let flags = r#""config":{"flags":["allow-discards","no-write-workqueue","from-the-future"],"#;
    edit_json(&mut image, r#""config":{"#, flags);
    let second = r#""sector_size":512},"1":{"type":"crypt","offset":"528384","size":"dynamic","iv_tweak":"8","encryption":"aes-xts-plain64","sector_size":4096}"#;
    edit_json(&mut image, r#""sector_size":512}"#, second);
    edit_json(&mut image, r#""segments":["0"]"#, r#""segments":["0","1"]"#);
    assert!(open_problem(&image).contains("only the last segment"));
    edit_json(&mut image, r#""size":"dynamic""#, r#""size":"4096""#);
    let (header, _) = read(&image).unwrap();
    let unlocked = header.unlock(&image, PASSPHRASE, None).unwrap();
    assert_eq!(unlocked.segment_lengths(1 << 20).unwrap(), [4096, (512 << 10) - 4096]);
    assert_eq!((unlocked.segments[1].iv_tweak, unlocked.segments[1].sector_size), (8, 4096));
    assert!(unlocked.flags.iter().eq(&[Flag::AllowDiscards, Flag::NoWriteWorkqueue]));
}

#[test]
fn a_luks1_header_that_breaks_a_rule_is_refused_with_its_place() {
    let keyslot = |number: usize, field: usize| 208 + 48 * number + field;
    for (at, value, words) in [
        (108, 0_u32, "key bytes: 0 is not in"),
        (108, 1 << 30, "key bytes: 1073741824"),
        (104, 8, "reaches into the data at 4096"),
        (keyslot(0, 44), 3999, "keyslot 0: 3999 stripes"),
        (keyslot(7, 44), u32::MAX, "keyslot 7: 4294967295 stripes"),
        (keyslot(0, 40), 1, "keyslot 0: its key material at byte 512 lies in the header"),
        (keyslot(3, 40), 9, "their key material overlaps"),
        (keyslot(3, 40), u32::MAX, "reaches into the data"),
    ] {
        let mut image = small_luks1();
        image[at..at + 4].copy_from_slice(&value.to_be_bytes());
        assert!(problem(&image).contains(words), "{words}: {}", problem(&image));
    }
    let mut image = small_luks1();
    image[8..11].copy_from_slice(b"\x1b[2");
    assert!(problem(&image).contains("cipher name: it is not printable"));
    for (at, name, words) in
        [(8, b"xor\0", "xor"), (40, b"abc-", "abc"), (72, b"md4\0", "hash \"md4\"")]
    {
        let mut image = small_luks1();
        image[at..at + 4].copy_from_slice(name);
        assert!(open_problem(&image).contains(words), "{}", open_problem(&image));
    }
    let mut image = small_luks1();
    image[keyslot(0, 4)..keyslot(0, 8)].fill(0);
    assert!(open_problem(&image).contains("iteration count of 0"));
    image[keyslot(0, 0)] = 1;
    assert!(matches!(
        read(&image).unwrap().0.unlock(&image, PASSPHRASE, None),
        Err(Error::NoKeyslot)
    ));
}
