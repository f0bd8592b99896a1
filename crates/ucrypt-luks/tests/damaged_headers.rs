//! A header with one damaged LUKS2 copy still opens, and the copy can be repaired. All other damage
//! is refused, with the problem and its place.

mod common;

use std::io;

use common::{
    PASSPHRASE, Scratch, apply, cryptsetup_ok, edit_json, json_text, put_json, seal, small_luks1,
    small_luks2, text, with_tools,
};
use ucrypt_luks::luks2::Copy;
use ucrypt_luks::{Error, Flag, Header, ReadAt, luks2};

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

/// Damages a small image and checks that it still opens. Returns the image, its header and the
/// damage.
fn opens(copy: Copy, words: &str, damage: impl FnOnce(&mut Vec<u8>)) -> Damaged {
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
    (image, *header, found)
}

type Damaged = (Vec<u8>, luks2::Header, luks2::Damage);

/// Checks that the damaged copy is repaired, and that cryptsetup finds nothing left to repair.
fn is_repaired((mut image, header, damage): Damaged) {
    assert!(damage.kept().is_none(), "{damage}: {:?}", damage.kept());
    let repair = with_tools(20, |tools| header.repair(&damage, tools.random)).unwrap();
    apply(&mut image, &[repair]);
    let (again, found) = read(&image).unwrap();
    assert!(found.is_none(), "{found:?}");
    assert!(again.unlock(&image, PASSPHRASE, None).is_ok());
    let scratch = Scratch::with(&image);
    let path = scratch.image();
    cryptsetup_ok(&["open", "--test-passphrase", "--key-file", "-", text(&path)], PASSPHRASE);
    assert!(scratch.bytes() == image, "cryptsetup found something to repair");
}

/// Checks that the copy is not repaired, for the reason in `words`.
fn is_kept((_, header, damage): Damaged, words: &str) {
    let kept = damage.kept().unwrap_or_else(|| panic!("{damage} would be written over"));
    assert!(kept.to_string().contains(words), "{kept}");
    let refused = with_tools(20, |tools| header.repair(&damage, tools.random));
    assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
}

/// Makes the copy that begins at byte `from` newer, with a correct checksum.
fn renew(image: &mut [u8], from: usize) {
    let copy = &mut image[from..from + COPY_BYTES];
    copy[23] += 1;
    seal(copy);
}

#[test]
fn a_copy_with_a_wrong_checksum_is_written_again() {
    let words = "checksum is wrong";
    is_repaired(opens(Copy::Primary, words, |image| image[5000] ^= 1));
    is_repaired(opens(Copy::Primary, words, |image| image[448..COPY_BYTES].fill(0)));
    is_repaired(opens(Copy::Primary, words, |image| image[4096..COPY_BYTES].fill(0xff)));
    is_repaired(opens(Copy::Secondary, words, |image| image[COPY_BYTES + 5000] ^= 1));
    is_repaired(opens(Copy::Secondary, words, |image| image[2 * COPY_BYTES - 1] = 1));
}

#[test]
fn what_is_not_marked_as_luks_is_not_written_over() {
    let words = "nothing says that what is there is LUKS";
    let no_header = "there is none in its place";
    is_kept(opens(Copy::Primary, no_header, |image| image[..4096].fill(0)), words);
    is_kept(opens(Copy::Primary, no_header, |image| image[..COPY_BYTES].fill(0xff)), words);
    let wiped = |image: &mut Vec<u8>| image[COPY_BYTES..2 * COPY_BYTES].fill(0);
    is_kept(opens(Copy::Secondary, no_header, wiped), words);
}

#[test]
fn a_copy_that_a_newer_program_may_have_made_is_not_written_over() {
    let words = "a newer program may have made it";
    let hash = |image: &mut Vec<u8>| image[72..75].fill(b'x');
    is_kept(opens(Copy::Primary, "hash \"xxx256\"", hash), words);
    is_kept(opens(Copy::Primary, "size of", |image| image[8] = 1), words);
    let version = |image: &mut Vec<u8>| image[COPY_BYTES + 7] = 3;
    is_kept(opens(Copy::Secondary, "version 3", version), words);
}

/// As in cryptsetup: the other copy opens the volume.
#[test]
fn a_copy_of_version_0_is_damaged_and_made_by_no_newer_program() {
    for copy in [Copy::Primary, Copy::Secondary] {
        let from = if copy == Copy::Primary { 0 } else { COPY_BYTES };
        is_repaired(opens(copy, "its version is 0", |image| image[from + 7] = 0));
    }
    let mut image = small_luks2();
    for from in [0, COPY_BYTES] {
        image[from + 7] = 0;
    }
    let error = read(&image).unwrap_err().to_string();
    assert!(error.contains("its version is 0"), "{error}");
}

#[test]
fn an_unknown_version_is_refused_whatever_lies_behind_it() {
    for version in [3, 0x909_u16] {
        let mut image = small_luks2();
        image[6..8].copy_from_slice(&version.to_be_bytes());
        let error = read(&image).unwrap_err();
        assert!(matches!(error, Error::UnknownVersion(found) if found == version), "{error}");
    }
}

#[test]
fn a_copy_with_a_right_checksum_is_never_written_over() {
    let broken_json = |image: &mut Vec<u8>| {
        image[4096] = b'[';
        seal(&mut image[..COPY_BYTES]);
    };
    is_kept(opens(Copy::Primary, "curly bracket", broken_json), "its checksum is right");
    let moved = |image: &mut Vec<u8>| {
        image[256] = 1;
        seal(&mut image[..COPY_BYTES]);
    };
    is_kept(opens(Copy::Primary, "made for", moved), "its checksum is right");
}

#[test]
fn the_copy_with_the_higher_sequence_id_is_the_valid_one() {
    let (words, kept) = ("sequence id 1 instead of 2", "its checksum is right");
    is_kept(opens(Copy::Secondary, words, |image| renew(image, 0)), kept);
    is_kept(opens(Copy::Primary, words, |image| renew(image, COPY_BYTES)), kept);
}

#[test]
fn a_newer_copy_that_breaks_a_rule_is_not_rolled_back() {
    for from in [0, COPY_BYTES] {
        let mut image = small_luks2();
        let json = String::from_utf8(json_text(&image)).unwrap();
        let json = json.replacen(r#""tokens":{}"#, r#""tokens":[]"#, 1);
        image[from + 4096..][..json.len()].copy_from_slice(json.as_bytes());
        renew(&mut image, from);
        let error = read(&image).unwrap_err();
        let newer = matches!(&error, Error::NewerUnusable { sequence_id: 2, older: 1, .. });
        assert!(newer, "{error}");
        assert!(error.to_string().contains("JSON/tokens: it is not an object"), "{error}");
    }
}

#[test]
fn labels_and_uuids_of_any_bytes_are_read_and_not_rolled_back() {
    // A label cut inside a character, Latin-1, a tab; all in the newer copy.
    for (at, bytes, shown) in [
        (24, &b"\xc3\xa4\xc3"[..], "\u{e4}\\xc3"),
        (24, b"gr\xfcn", "gr\\xfcn"),
        (208, b"a\tb", "a\\x09b"),
        (168, b"\xff\x1b[2J", "\\xff\\x1b[2J"),
    ] {
        let mut image = small_luks2();
        image[at..at + 40].fill(0);
        image[at..at + bytes.len()].copy_from_slice(bytes);
        renew(&mut image, 0);
        let (header, damage) = read(&image).unwrap();
        let Header::Luks2(header) = header else { panic!("not LUKS2") };
        assert_eq!(damage.expect("the other copy is older").copy, Copy::Secondary);
        assert_eq!(header.binary.sequence_id, 2);
        let binary = &header.binary;
        let texts = [&binary.label, &binary.subsystem, &binary.uuid];
        assert!(texts.iter().any(|text| text.as_bytes() == bytes), "{texts:?}");
        let dump = Header::Luks2(header).dump("image");
        assert!(dump.contains(&format!("\t{shown}\n")), "{dump}");
    }
    let mut image = small_luks1();
    image[168..208].fill(0xe9);
    let (header, _) = read(&image).unwrap();
    assert_eq!(header.uuid().as_bytes(), [0xe9; 39]);
    assert!(header.unlock(&image, PASSPHRASE, None).is_ok());
}

#[test]
fn a_repair_copies_the_other_copy_byte_by_byte() {
    let mut image = small_luks2();
    // A number too large for any type, unusual formatting, and non-zero padding.
    edit_json(
        &mut image,
        r#""tokens":{}"#,
        r#""tokens":{}, "future" : [123456789012345678901234567890,1.50]"#,
    );
    for copy in image[..2 * COPY_BYTES].chunks_mut(COPY_BYTES) {
        copy[300] = 7;
        seal(copy);
    }
    let sound = image.clone();
    image[5000] ^= 1;
    let (header, damage) = read(&image).unwrap();
    let Header::Luks2(header) = header else { panic!("not LUKS2") };
    let write = with_tools(21, |tools| header.repair(&damage.unwrap(), tools.random)).unwrap();
    apply(&mut image, &[write]);
    // The repaired copy has its own salt and checksum.
    let mut expected = sound.clone();
    expected[104..168].copy_from_slice(&image[104..168]);
    seal(&mut expected[..COPY_BYTES]);
    assert!(image == expected);
    assert!(image[104..168] != sound[COPY_BYTES + 104..COPY_BYTES + 168], "the same salt");
}

/// Puts `bytes` at `offset`, which counts from the end if it is negative.
fn put(image: &mut [u8], offset: isize, bytes: &[u8]) {
    let from = if offset < 0 { image.len() } else { 0 };
    let at = from.wrapping_add_signed(offset);
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn beside_a_signature_of_somebody_else_a_damaged_header_is_refused() {
    let md = b"\xfc\x4e\x2b\xa9\x01\0\0\0";
    for (offset, magic, name) in [
        (0, &b"bluestore block device"[..], "ceph_bluestore"),
        (0x200, b"EFI PART", "gpt"),
        (0x438, b"\x53\xef", "ext4"),
        (0x1000, md, "linux_raid_member"),
        (-0x2000, md, "linux_raid_member"),
        (-512, b"EFI PART", "gpt"),
        (-4096, b"EFI PART", "gpt"),
    ] {
        // The LUKS magic is still there, or it was overwritten as well.
        for whole_magic in [true, false] {
            let mut image = small_luks2();
            image[5000] ^= 1;
            if !whole_magic {
                image[0] = 0;
            }
            put(&mut image, offset, magic);
            if offset < 0 && name == "gpt" {
                // The backup of a GPT counts only with a protective MBR.
                assert!(read(&image).unwrap().1.is_some());
                put(&mut image, 446, &[0, 0, 0, 0, 0xee]);
                put(&mut image, 510, b"\x55\xaa");
            }
            let error = read(&image).unwrap_err();
            assert!(matches!(error, Error::Ambiguous { .. }), "{name}: {error}");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("ambiguous signatures"), "{text}");
            assert!(text.contains("ucrypt repair"), "{text}");
            // Only who asks for it writes over the copy.
            let (header, damage) = Header::read_beside_foreign(&image).unwrap();
            let (Header::Luks2(header), Some(damage)) = (header, damage) else { panic!() };
            assert_eq!(damage.foreign().map(|found| found.name), Some(name));
            let refused = with_tools(20, |tools| header.repair(&damage, tools.random));
            assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
            assert!(matches!(header.change(Some(&damage)), Err(Error::Unchangeable(_))));
            let write = with_tools(20, |tools| header.repair_by_request(&damage, tools.random));
            apply(&mut image, &[write.unwrap()]);
            let (header, damage) = read(&image).unwrap();
            assert!(damage.is_none(), "{name}: {damage:?}");
            assert!(header.unlock(&image, PASSPHRASE, None).is_ok());
        }
    }
    // With two valid copies, a signature in the ciphertext does not matter.
    let mut image = small_luks2();
    put(&mut image, -0x2000, md);
    assert!(read(&image).unwrap().1.is_none());
}

/// An interrupted change leaves two whole copies: there is no doubt whose image it is.
#[test]
fn after_an_interrupted_change_a_signature_that_was_left_behind_does_not_matter() {
    for (copy, from) in [(Copy::Secondary, 0), (Copy::Primary, COPY_BYTES)] {
        let damaged = opens(copy, "sequence id 1 instead of 2", |image| {
            renew(image, from);
            put(image, -0x2000, b"\xfc\x4e\x2b\xa9\x01\0\0\0");
            put(image, -512, b"EFI PART");
        });
        let (mut image, header, damage) = damaged;
        let change = header.change(Some(&damage)).unwrap();
        let (_, writes) = with_tools(22, |tools| change.finish(tools.random)).unwrap();
        apply(&mut image, &writes);
        let (header, damage) = read(&image).unwrap();
        assert!(damage.is_none(), "{damage:?}");
        assert!(header.unlock(&image, PASSPHRASE, None).is_ok());
    }
}

/// An image with bytes that cannot be read.
struct BadSectors(Vec<u8>, std::ops::Range<u64>);

impl ReadAt for BadSectors {
    fn len(&self) -> u64 {
        ReadAt::len(&self.0)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        if offset < self.1.end && self.1.start < end {
            return Err(io::Error::other("bad sector"));
        }
        self.0.read_exact_at(offset, buf)
    }
}

#[test]
fn what_cannot_be_read_is_not_written_over() {
    let copy = COPY_BYTES as u64;
    for (bad, damaged) in [
        (0..512, Copy::Primary),
        (4096..8192, Copy::Primary),
        (copy..copy + 512, Copy::Secondary),
        (2 * copy - 512..2 * copy, Copy::Secondary),
    ] {
        let image = BadSectors(small_luks2(), bad.clone());
        let (header, damage) = Header::read(&image).unwrap();
        let damage = damage.expect("the damage was not seen");
        assert_eq!(damage.copy, damaged, "{bad:?}");
        assert!(damage.to_string().contains("bad sector"), "{damage}");
        assert!(header.unlock(&image, PASSPHRASE, None).is_ok());
        let Header::Luks2(header) = header else { panic!("not LUKS2") };
        is_kept((Vec::new(), *header, damage), "");
    }
    // A damaged copy, on an image whose unreadable end may hold a foreign signature.
    let mut image = small_luks2();
    image[5000] ^= 1;
    let end = ReadAt::len(&image);
    let image = BadSectors(image, end - 512..end);
    let (header, damage) = Header::read(&image).unwrap();
    let Header::Luks2(header) = header else { panic!("not LUKS2") };
    is_kept((Vec::new(), *header, damage.unwrap()), "foreign signatures cannot be ruled out");
    // If there is no other copy, the read error is reported, not a missing header.
    for image in [small_luks1(), vec![0; 1 << 20]] {
        let error = Header::read(&BadSectors(image, 0..512)).unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
    }
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
fn what_an_image_holds_instead_is_named() {
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
    // The header is whole, but the data is missing.
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
        (
            r#""tokens":{}"#,
            r#""tokens":{"00":{"type":"a","keyslots":[]}}"#,
            "JSON/tokens/00: not a",
        ),
        (r#""tokens":{}"#, r#""tokens":{"0":{"type":"","keyslots":[]}}"#, "type: it is empty"),
        (r#""keyslots":["0"]"#, r#""keyslots":["00"]"#, "\"00\" is no number"),
        (r#""keyslots":["0"]"#, r#""keyslots":[]"#, "0 digests belong to it instead of one"),
        (
            r#""digests":{"0""#,
            r#""digests":{"1":{"type":"x","keyslots":["0"],"segments":[]},"0""#,
            "2 digests belong to it instead of one",
        ),
        (r#""encryption":"aes-xts-plain64","sec"#, r#""encryption":"","sec"#, "it is empty"),
        (r#""encryption":"aes-xts-plain64","key"#, r#""encryption":"","key"#, "it is empty"),
        (r#""type":"crypt""#, r#""type":"""#, "JSON/segments/0/type: it is empty"),
        (r#""iv_tweak""#, r#""flags":["backup-x"],"iv_tweak""#, "the volume has no segment"),
        (r#""segments":{"0""#, r#""segments":{"1""#, "there is no segment 0"),
        (r#""segments":["0"]"#, r#""segments":["3"]"#, "JSON/digests/0/segments: there is no"),
        (r#""segments":["0"]"#, r#""segments":[]"#, "JSON/segments/0: no digest belongs to it"),
        (r#""keyslots":["0"]"#, r#""keyslots":[0]"#, "it is not a string"),
        (r#""offset":"524288""#, r#""offset":"524289""#, "not a multiple of 512"),
        (r#""offset":"524288""#, r#""offset":"65536""#, "reach into the data"),
        (
            r#""type":"crypt","offset":"524288""#,
            r#""type":"linear","offset":"65536""#,
            "reach into the data",
        ),
        (
            r#""sector_size":512}"#,
            r#""sector_size":512,"integrity":{"type":"","journal_encryption":"none","journal_integrity":"none"}}"#,
            "JSON/segments/0/integrity/type: it is empty",
        ),
        (
            r#""sector_size":512}"#,
            r#""sector_size":512,"integrity":{"type":"x","journal_encryption":"","journal_integrity":"none"}}"#,
            "JSON/segments/0/integrity/journal_encryption: it is empty",
        ),
        (r#""dynamic""#, r#""0""#, "its size is not"),
        (r#""dynamic""#, r#""513""#, "its size is not"),
        (r#""dynamic""#, r#""18446744073709551615""#, "its size is not"),
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
        (format!("{json}x"), "something follows the value"),
        (format!("{json}\0x"), "bytes behind the text"),
        (json[..json.len() - 1].to_owned(), "no ','"),
        (format!("{json}{}", " ".repeat(0x3000)), "no zero byte"),
    ] {
        let mut image = image.clone();
        put_json(&mut image, bad.as_bytes());
        assert!(problem(&image).contains(words), "{words}: {}", problem(&image));
    }
}

#[test]
fn no_key_of_a_header_controls_the_terminal_or_adds_a_line_to_a_message() {
    for object in ["tokens", "keyslots", "segments", "digests"] {
        let mut image = small_luks2();
        let comma = if object == "tokens" { "" } else { "," };
        let from = format!(r#""{object}":{{"#);
        let to = format!(r#"{from}"\u001b[2J\nall is well":{{}}{comma}"#);
        edit_json(&mut image, &from, &to);
        let problem = problem(&image);
        assert!(problem.contains("not a number below"), "{problem}");
        assert!(!problem.chars().any(char::is_control), "{problem:?}");
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
fn a_keyslot_that_is_not_what_its_type_says_is_damage() {
    for (from, to, words) in [
        (r#""type":"raw""#, r#""type":"cooked""#, "area is of the type \"cooked\""),
        (r#""type":"luks1""#, r#""type":"luks9""#, "af is of the type \"luks9\""),
    ] {
        let mut image = small_luks2();
        edit_json(&mut image, from, to);
        assert!(problem(&image).contains(words), "{}", problem(&image));
    }
}

#[test]
fn what_is_not_known_is_refused_by_its_name_when_it_is_needed() {
    for (from, to, words) in [
        (r#""type":"luks2""#, r#""type":"quantum""#, "keyslot type \"quantum\""),
        (r#""type":"argon2id""#, r#""type":"argon3""#, "function \"argon3\""),
        (r#""hash":"sha256"},"area""#, r#""hash":"md6"},"area""#, "hash \"md6\""),
        (r#""type":"crypt""#, r#""type":"linear""#, "segment type \"linear\""),
        (r#""type":"pbkdf2""#, r#""type":"sum""#, "digest type \"sum\""),
        (
            r#""config":{"#,
            r#""config":{"requirements":{"mandatory":["online-reencrypt-v4"]},"#,
            "requirement \"online-reencrypt-v4\"",
        ),
        (
            r#""iv_tweak""#,
            r#""flags":["future","in-reencryption"],"iv_tweak""#,
            "flag \"in-reencryption\"",
        ),
        (
            r#""iv_tweak""#,
            r#""integrity":{"type":"aead","journal_encryption":"none","journal_integrity":"none"},"iv_tweak""#,
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
        (r#""cpus":2"#, r#""cpus":16777216"#, "lane count of 16777216"),
        (r#""cpus":2"#, r#""cpus":5"#, "memory (KiB) of 32"),
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
    let refused = open_problem(&image);
    assert!(refused.contains("0 has the priority ignore; name the keyslot"), "{refused}");
    let (header, _) = read(&image).unwrap();
    assert_eq!(header.unlock(&image, PASSPHRASE, Some(0)).unwrap().keyslot, Some(0));
    assert!(matches!(header.unlock(&image, PASSPHRASE, Some(1)), Err(Error::InactiveKeyslot(1))));

    // Keyslot 1 has an unknown type and is preferred; its area follows that of keyslot 0.
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
fn flags_and_several_segments_reach_the_volume() {
    let mut image = small_luks2();
    let flags = r#""config":{"flags":["allow-discards","no-write-workqueue","from-the-future"],"#;
    edit_json(&mut image, r#""config":{"#, flags);
    let second = r#""sector_size":512},"1":{"type":"crypt","offset":"528384","size":"dynamic","iv_tweak":"8","encryption":"aes-xts-plain64","sector_size":4096}"#;
    edit_json(&mut image, r#""sector_size":512}"#, second);
    edit_json(&mut image, r#""segments":["0"]"#, r#""segments":["0","1"]"#);
    assert!(problem(&image).contains("only the last segment may have no size"));
    edit_json(&mut image, r#""size":"dynamic""#, r#""size":"4096""#);
    let (header, _) = read(&image).unwrap();
    let unlocked = header.unlock(&image, PASSPHRASE, None).unwrap();
    assert_eq!(unlocked.segment_lengths(1 << 20).unwrap(), [4096, (512 << 10) - 4096]);
    assert_eq!((unlocked.segments[1].iv_tweak, unlocked.segments[1].sector_size), (8, 4096));
    assert!(unlocked.flags.iter().eq(&[Flag::AllowDiscards, Flag::NoWriteWorkqueue]));
}

/// A small volume of several segments: offset, size and flags of each.
fn with_segments(segments: &[(u64, &str, &str)]) -> Vec<u8> {
    let mut image = small_luks2();
    let json = String::from_utf8(json_text(&image)).unwrap();
    let begin = json.find(r#""segments":{"#).unwrap() + r#""segments":"#.len();
    let end = json.find(r#","digests""#).unwrap();
    let segment = |(number, (offset, size, flags)): (usize, &(u64, &str, &str))| {
        format!(
            r#""{number}":{{"type":"crypt","offset":"{offset}","size":"{size}","flags":[{flags}],"iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":512}}"#
        )
    };
    let all: Vec<String> = segments.iter().enumerate().map(segment).collect();
    let numbers: Vec<String> = (0..all.len()).map(|number| format!("\"{number}\"")).collect();
    let json = format!("{}{{{}}}{}", &json[..begin], all.join(","), &json[end..]);
    let digest = format!(r#""segments":[{}]"#, numbers.join(","));
    put_json(&mut image, json.replacen(r#""segments":["0"]"#, &digest, 1).as_bytes());
    image
}

#[test]
fn no_byte_of_the_image_belongs_to_two_segments() {
    let overlap = "segments 0 and 1 overlap";
    let reversed = "segments 1 and 0 overlap";
    let at = 524_288;
    for (segments, words) in [
        (&[(at, "8192", ""), (at + 4096, "dynamic", "")][..], overlap),
        (&[(at, "4096", ""), (at, "4096", "")], overlap),
        (&[(at + 8192, "4096", ""), (at, "dynamic", "")], reversed),
        (&[(at, "18446744073709551104", ""), (at + 4096, "4096", "")], "it ends beyond 2^64 bytes"),
        (&[(at, "dynamic", ""), (at + 4096, "4096", "")], "only the last segment may have no size"),
        (&[(at, "4096", ""), (at << 3, "18446744073709551104", "")], "it ends beyond 2^64 bytes"),
        (&[(at, "4096", r#""backup-final""#), (at, "4096", "")], "the volume has no segment"),
        (
            &[(at, "4096", ""), (at, "4096", r#""backup-x""#), (at + 4096, "4096", "")],
            "JSON/segments/2: it lies behind a backup",
        ),
    ] {
        let image = with_segments(segments);
        assert!(problem(&image).contains(words), "{segments:?}: {}", problem(&image));
        let scratch = Scratch::with(&image);
        let theirs = common::cryptsetup(&["luksDump", text(&scratch.image())], b"");
        assert!(!theirs.status.success(), "cryptsetup takes {segments:?}");
    }
    let mut gap = with_segments(&[(at, "4096", ""), (at + 4096, "4096", "")]);
    edit_json(&mut gap, r#""1":{"type":"crypt""#, r#""2":{"type":"crypt""#);
    edit_json(&mut gap, r#""segments":["0","1"]"#, r#""segments":["0","2"]"#);
    assert!(problem(&gap).contains("segments/2: there is no segment 1"), "{}", problem(&gap));
    let scratch = Scratch::with(&gap);
    let theirs = common::cryptsetup(&["luksDump", text(&scratch.image())], b"");
    assert!(!theirs.status.success(), "cryptsetup takes a gap");
    // Adjacent segments, any order, a hole, the largest possible size.
    for segments in [
        &[(at, "4096", ""), (at + 4096, "dynamic", "")][..],
        &[(at + 8192, "4096", ""), (at, "4096", "")],
        &[(at, "18446744073709551104", "")],
        &[(at, "4096", r#""from-the-future""#)],
    ] {
        let image = with_segments(segments);
        let (header, _) = read(&image).unwrap();
        let unlocked = header.unlock(&image, PASSPHRASE, None).unwrap();
        assert_eq!(unlocked.segments.len(), segments.len());
        let scratch = Scratch::with(&image);
        let args = ["open", "--test-passphrase", "--key-file", "-"];
        cryptsetup_ok(&[&args[..], &[text(&scratch.image())]].concat(), PASSPHRASE);
    }
    let largest = with_segments(&[(at, "18446744073709551104", "")]);
    let unlocked = read(&largest).unwrap().0.unlock(&largest, PASSPHRASE, None).unwrap();
    assert!(matches!(unlocked.volume_len(1 << 20), Err(Error::LargerThanImage { .. })));
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
    let mut image = small_luks1();
    image[72..76].copy_from_slice(b"md4\0");
    assert!(problem(&image).contains("hash \"md4\""), "{}", problem(&image));
    for (at, name, words) in [(8, b"xor\0", "xor"), (40, b"abc-", "abc")] {
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
