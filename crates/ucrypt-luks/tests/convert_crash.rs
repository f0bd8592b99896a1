//! Conversions between LUKS1 and LUKS2 are cut at every write and at every flush, with unflushed
//! sectors lost in any combination: every passphrase opens the volume afterwards, and the next
//! conversion comes to the end.

mod common;

use std::collections::HashSet;

use common::keys::one_of;
use common::recorder::Recorder;
use common::{apply, cheap_pbkdf2, edit_json, luks2_options, new_volume, with_tools};
use ucrypt_luks::{
    Conversion, Error, Format, Header, Kdf, NewKey, NewVolume, finish_conversion, luks1, luks2,
    signature, to_luks1, to_luks2, write_verified,
};

/// Eight areas for keys of 32 bytes and two LUKS2 headers.
const TIGHT: u64 = 32_768 + 8 * 131_072;

fn passphrase(keyslot: u32) -> Vec<u8> {
    format!("passphrase {keyslot}").into_bytes()
}

/// An image with these keyslots.
fn image(format: Format, data_offset: u64, keyslots: &[u32]) -> Vec<u8> {
    let volume = NewVolume {
        data_offset: Some(data_offset),
        keyslot: keyslots[0],
        ..new_volume("aes-xts-plain64", 32, cheap_pbkdf2())
    };
    let first = passphrase(keyslots[0]);
    let writes = with_tools(80, |tools| match format {
        Format::Luks1 => luks1::format(&volume, &first, tools).unwrap().1,
        _ => luks2::format(&volume, &luks2_options(), &first, tools).unwrap().1,
    });
    let mut image = vec![0x77; data_offset as usize + 8192];
    apply(&mut image, &writes);
    for number in &keyslots[1..] {
        let (header, _) = Header::read(&image).unwrap();
        let opened = header.unlock_with_volume_key(&volume.volume_key).unwrap();
        let passphrase = passphrase(*number);
        let new = NewKey { passphrase: &passphrase, pbkdf: cheap_pbkdf2(), area: None };
        let change = with_tools(81 + u64::from(*number), |tools| {
            header.add_key(None, &opened, Some(*number), &new, tools).unwrap()
        });
        apply(&mut image, &change.writes);
    }
    image
}

fn without(mut image: Vec<u8>, keyslot: u32) -> Vec<u8> {
    let (header, _) = Header::read(&image).unwrap();
    let change = with_tools(99, |tools| header.remove_key(None, keyslot, tools.random).unwrap());
    apply(&mut image, &change.writes);
    image
}

fn converted(image: &[u8], to: Format, seed: u64) -> Result<Option<Conversion>, Error> {
    let (header, damage) = Header::read(&image)?;
    with_tools(seed, |tools| match (&header, to) {
        (Header::Luks1(header), Format::Luks2) => to_luks2(header, &image, tools.random).map(Some),
        (Header::Luks2(header), Format::Luks1) => {
            to_luks1(header, damage.as_ref(), &image, tools.random).map(Some)
        }
        _ => Ok(None),
    })
}

fn assert_opens(what: &str, image: &[u8], keyslots: &[u32]) {
    let (header, _) = Header::read(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut keys = keyslots.iter().map(|number| {
        let opened = header.unlock(&image, &passphrase(*number), Some(*number));
        opened.unwrap_or_else(|error| panic!("{what}: keyslot {number}: {error}")).volume_key
    });
    let first = keys.next().unwrap();
    assert!(keys.all(|key| key == first), "{what}");
    assert_eq!(header.keyslots(), keyslots, "{what}");
}

/// All that a passphrase needs to open a keyslot.
#[derive(PartialEq)]
struct Secret<'a> {
    number: u32,
    iterations: u32,
    salt: Vec<u8>,
    material: &'a [u8],
}

fn secrets<'a>(header: &Header, image: &'a [u8]) -> Vec<Secret<'a>> {
    let material = |start: u64| &image[start as usize..][..128_000];
    match header {
        Header::Luks1(header) => {
            let active = header.active_keyslots().into_iter();
            active
                .map(|number| {
                    let keyslot = &header.keyslots[number as usize];
                    let (iterations, salt) = (keyslot.iterations, keyslot.salt.to_vec());
                    Secret {
                        number,
                        iterations,
                        salt,
                        material: material(keyslot.material_start()),
                    }
                })
                .collect()
        }
        Header::Luks2(header) => {
            let keyslots = header.metadata.keyslots.iter();
            keyslots
                .map(|(number, keyslot)| {
                    let luks2::KeyslotKind::Luks2 { kdf, salt, .. } = &keyslot.kind else {
                        panic!()
                    };
                    let Kdf::Pbkdf2 { iterations, .. } = *kdf else { panic!() };
                    let material = material(keyslot.area.offset);
                    Secret { number: *number, iterations, salt: salt.clone(), material }
                })
                .collect()
        }
    }
}

/// What finishes a conversion after the new header became valid.
fn finish(image: &[u8]) -> Option<Conversion> {
    let (header, damage) = Header::read(&image).unwrap();
    with_tools(9, |tools| finish_conversion(&header, damage.as_ref(), &image, tools.random))
        .unwrap()
}

/// One copy of each keyslot's material, nothing of a LUKS2 header beside LUKS1, and no mark.
fn assert_nothing_left(what: &str, image: &[u8], materials: &[&[u8]]) {
    let secret: HashSet<&[u8]> = materials.iter().flat_map(|area| area.chunks(512)).collect();
    let found = image.chunks(512).filter(|sector| secret.contains(sector)).count();
    assert_eq!(found, secret.len(), "{what}: sectors of key material");
    if let Header::Luks2(header) = Header::read(&image).unwrap().0 {
        assert!(header.metadata.tokens.is_empty(), "{what}");
        return;
    }
    for size in luks2::HEADER_SIZES {
        let secondary = image.get(usize::try_from(size).unwrap()..).unwrap_or_default();
        assert!(!secondary.starts_with(b"SKUL\xba\xbe"), "{what}: an old copy is left");
    }
    let metadata = image.windows(10).any(|bytes| bytes == b"\"segments\"");
    assert!(!metadata, "{what}: a part of an old copy is left");
}

/// Every image that a crash of the conversion leaves. Returns the image at the end.
fn survives(what: &str, image: &[u8], to: Format, keyslots: &[u32]) -> Vec<u8> {
    let data = Header::read(&image).unwrap().0.data_offset() as usize;
    let conversion = converted(image, to, 7).unwrap().unwrap();
    assert!(conversion.survives, "{what}");
    let medium = Recorder::new(image);
    write_verified(&medium, &conversion.writes).unwrap();
    let (mut count, mut finished) = (0, 0);
    let before = Header::read(&image).unwrap().0;
    let before = secrets(&before, image);
    let materials: Vec<&[u8]> = before.iter().map(|secret| secret.material).collect();
    medium.crashes(9, |crashed| {
        let (header, _) = Header::read(crashed).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(secrets(&header, crashed) == before, "{what}: a keyslot does not open any more");
        assert!(crashed[data..] == image[data..], "{what}: the data was touched");
        count += 1;
        let part = one_of(if header.format() == to { 7 } else { 23 });
        if count % part > 0 {
            return;
        }
        assert_opens(what, crashed, keyslots);
        let again = match converted(crashed, to, 8).unwrap() {
            Some(again) => Some(again),
            // The new header is there; something may be left of the old one.
            None => finish(crashed),
        };
        let Some(again) = again else { return assert_nothing_left(what, crashed, &materials) };
        finished += usize::from(header.format() == to);
        let mut end = crashed.clone();
        apply(&mut end, &again.writes);
        assert_opens(what, &end, keyslots);
        assert_eq!(Header::read(&end).unwrap().0.format(), to, "{what}");
        assert!(again.survives, "{what}");
        assert!(end[data..] == image[data..], "{what}: the data was touched");
        assert_nothing_left(what, &end, &materials);
        assert!(finish(&end).is_none(), "{what}: the mark is left");
    });
    assert!(count > 60 && finished > 0, "{what}: {count} crashes, {finished} finished");
    let end = medium.now.into_inner();
    assert_nothing_left(what, &end, &materials);
    assert!(finish(&end).is_none(), "{what}: the mark is left");
    assert_opens(what, &end, keyslots);
    let (header, damage) = Header::read(&end).unwrap();
    assert!(header.format() == to && damage.is_none(), "{what}: {damage:?}");
    end
}

fn area_offsets(image: &[u8]) -> Vec<u64> {
    match Header::read(&image).unwrap().0 {
        Header::Luks1(header) => {
            header.keyslots.iter().map(luks1::Keyslot::material_start).collect()
        }
        Header::Luks2(header) => {
            header.metadata.keyslots.values().map(|keyslot| keyslot.area.offset).collect()
        }
    }
}

#[test]
fn every_passphrase_survives_a_crash_of_a_conversion_and_both_ways_lead_back() {
    for data_offset in [TIGHT, 2 << 20] {
        for keyslots in [&[0][..], &[0, 3, 6], &[0, 1, 2, 3, 6, 7]] {
            let what = format!("data at {data_offset}, keyslots {keyslots:?}");
            let one = image(Format::Luks1, data_offset, keyslots);
            let two = survives(&what, &one, Format::Luks2, keyslots);
            let expected: Vec<u64> =
                keyslots.iter().map(|k| 32_768 + u64::from(*k) * 131_072).collect();
            assert_eq!(area_offsets(&two), expected, "{what}");
            let back = survives(&what, &two, Format::Luks1, keyslots);
            assert!(back[..592] == one[..592], "{what}: another LUKS1 header");
            assert_eq!(area_offsets(&back), area_offsets(&one), "{what}");
        }
    }
}

/// Keyslots of which none lies where the other header goes.
#[test]
fn keyslots_that_are_in_no_way_survive_too_and_nothing_of_the_old_header_comes_back() {
    let one = without(image(Format::Luks1, TIGHT, &[0, 5, 7]), 0);
    let two = survives("LUKS1 without keyslot 0", &one, Format::Luks2, &[5, 7]);
    let back = survives("LUKS2 without keyslot 0", &two, Format::Luks1, &[5, 7]);
    assert_ne!(back[0x4000..0x4006], *b"SKUL\xba\xbe");
    assert_ne!(back[4096], b'{');
}

#[test]
fn a_header_of_luks2_with_other_places_becomes_luks1() {
    // Keyslot 5 lies in front of keyslot 1, and there is much room behind them.
    let two = image(Format::Luks2, 4 << 20, &[5, 1, 6]);
    let one = survives("LUKS2 in another order", &two, Format::Luks1, &[1, 5, 6]);
    assert_eq!(area_offsets(&one)[5], 4096);
    let back = survives("back to LUKS2", &one, Format::Luks2, &[1, 5, 6]);
    assert_eq!(area_offsets(&back), area_offsets(&two));
}

/// What can be saved from a copy of a keyslot must not outlive the conversion.
#[test]
fn no_second_copy_of_key_material_is_left() {
    for data_offset in [TIGHT, 2 << 20] {
        let one = image(Format::Luks1, data_offset, &[0, 2]);
        let material = one[4096..4096 + 1024].to_vec();
        let mut now = one;
        for to in [Format::Luks2, Format::Luks1] {
            let conversion = converted(&now, to, 11).unwrap().unwrap();
            apply(&mut now, &conversion.writes);
            let copies = now.windows(1024).filter(|piece| *piece == material).count();
            assert_eq!(copies, 1, "{to:?}, data at {data_offset}");
        }
    }
}

#[test]
fn a_conversion_without_room_says_that_it_does_not_survive_a_crash() {
    let keyslots = [0, 1, 2, 3, 4, 5, 6, 7];
    for keyslots in [&keyslots[..], &[0, 1, 2, 3, 4, 5]] {
        let one = image(Format::Luks1, TIGHT, keyslots);
        let mut now = one.clone();
        for to in [Format::Luks2, Format::Luks1] {
            let conversion = converted(&now, to, 12).unwrap().unwrap();
            // Both offsets of an exchange have to lie in one sector of a LUKS1 header.
            assert!(!conversion.survives || to == Format::Luks1 && keyslots.len() < 8);
            apply(&mut now, &conversion.writes);
            assert_opens("at once", &now, keyslots);
            assert_eq!(Header::read(&now).unwrap().0.format(), to);
        }
        assert!(now[..592] == one[..592]);
    }
    // Behind the keyslots is room.
    let one = image(Format::Luks1, 2 << 20, &keyslots);
    let two = survives("eight keyslots with room", &one, Format::Luks2, &keyslots);
    survives("eight keyslots with room", &two, Format::Luks1, &keyslots);
}

#[test]
fn what_luks1_has_no_field_for_is_refused_by_name_and_nothing_is_written() {
    let roomy = || image(Format::Luks2, 2 << 20, &[0, 1]);
    for (from, to, words) in [
        ("\"sector_size\":512", "\"sector_size\":4096", "sector size is 4096"),
        ("\"iv_tweak\":\"0\"", "\"iv_tweak\":\"8\"", "sector 8"),
        ("\"size\":\"dynamic\"", "\"size\":\"4096\"", "fixed size"),
        (
            "\"tokens\":{}",
            "\"tokens\":{\"3\":{\"type\":\"x\",\"keyslots\":[]}}",
            "tokens (token 3 is a x)",
        ),
        (
            "\"sector_size\":512",
            "\"sector_size\":512,\"integrity\":{\"type\":\"hmac(sha256)\",\"journal_encryption\":\
             \"none\",\"journal_integrity\":\"none\"}",
            "integrity protection (hmac(sha256))",
        ),
        ("\"hash\":\"sha256\"", "\"hash\":\"sha512\"", "keyslot 0 uses the hash"),
        (
            "\"config\":{",
            "\"config\":{\"requirements\":{\"mandatory\":[\"later\"]},",
            "\"later\" is not supported",
        ),
    ] {
        let mut image = roomy();
        edit_json(&mut image, from, to);
        let error = converted(&image, Format::Luks1, 13).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    // Room for four keys.
    let small = image(Format::Luks2, 32_768 + 4 * 131_072, &[0]);
    let error = converted(&small, Format::Luks1, 14).unwrap_err().to_string();
    assert!(error.contains("no room for the eight keyslots"), "{error}");
    let late = image(Format::Luks2, 2 << 20, &[0, 9]);
    let error = converted(&late, Format::Luks1, 15).unwrap_err().to_string();
    assert!(error.contains("keyslot 9"), "{error}");
    // No room to move the areas of LUKS1.
    let near = image(Format::Luks1, TIGHT - 4096, &[0]);
    let error = converted(&near, Format::Luks2, 16).unwrap_err().to_string();
    assert!(error.contains("not enough space"), "{error}");
    // The last block of keyslot 7 holds data, too.
    let mut shared = image(Format::Luks1, 2 << 20, &[0]);
    let Header::Luks1(mut header) = Header::read(&shared).unwrap().0 else { panic!() };
    header.keyslots[7].material_offset = ((2 << 20) - 128_000) / 512;
    shared[..592].copy_from_slice(&header.to_bytes());
    let error = converted(&shared, Format::Luks2, 18).unwrap_err().to_string();
    assert!(error.contains("to themselves"), "{error}");
    let mut meta = image(Format::Luks1, 2 << 20, &[0]);
    meta[4096 + 8 * 131_072..][..8].copy_from_slice(b"LUKSMETA");
    let error = converted(&meta, Format::Luks2, 17).unwrap_err().to_string();
    assert!(error.contains("luksmeta"), "{error}");
}

#[test]
fn a_header_copy_that_is_out_of_date_does_not_come_back_as_luks2() {
    let mut image = image(Format::Luks2, 2 << 20, &[0, 1]);
    let (header, _) = Header::read(&image).unwrap();
    let change = with_tools(98, |tools| header.remove_key(None, 1, tools.random).unwrap());
    // Only one copy was written.
    apply(&mut image, &change.writes[..2]);
    assert!(Header::read(&image).unwrap().1.is_some());
    survives("one copy is older", &image, Format::Luks1, &[0]);
}

/// Signatures of earlier uses of the disk: at its end, and between header and keyslots of LUKS1.
#[test]
fn a_signature_that_was_left_behind_keeps_no_interrupted_conversion_from_its_end() {
    let mut image = image(Format::Luks1, 2 << 20, &[0, 3]);
    let end = (image.len() & !0xfff) - 0x2000;
    for (at, bytes) in
        [(end, &b"\xfc\x4e\x2b\xa9\x01\0\0\0"[..]), (0x438, b"\x53\xef"), (0xff6, b"SWAPSPACE2")]
    {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    for to in [Format::Luks2, Format::Luks1] {
        let conversion = converted(&image, to, 17).unwrap().unwrap();
        let mut torn = 0;
        for write in &conversion.writes {
            apply(&mut image, std::slice::from_ref(write));
            let (header, damage) = Header::read(&image).unwrap();
            torn += usize::from(damage.is_some_and(|damage| damage.kept().is_none()));
            if header.format() == Format::Luks2 {
                // Other programs see no more than there was before.
                let found = signature::find(&image).unwrap().into_iter();
                let foreign: Vec<_> = found.filter(|found| !found.is_luks()).collect();
                assert!(foreign.iter().all(|found| found.offset == end as u64), "{foreign:?}");
            }
            let mut again = image.clone();
            let rest = converted(&image, to, 18).unwrap().or_else(|| finish(&image));
            apply(&mut again, &rest.map_or(Vec::new(), |rest| rest.writes));
            assert_opens("run again", &again, &[0, 3]);
            let (header, damage) = Header::read(&again).unwrap();
            assert_eq!(header.format(), to);
            // The copy that was to lose its mark last is written by the next change.
            let kept = damage.as_ref().and_then(luks2::Damage::kept);
            assert!(damage.is_none() || matches!(kept, Some(luks2::Kept::Older)), "{damage:?}");
        }
        assert_eq!(torn, 1, "to {to:?}");
    }
}

/// An interrupted conversion leaves copies of key material that no keyslot names. What is done next
/// must not make anybody forget them.
#[test]
fn no_copy_of_key_material_outlives_an_erase_or_another_uuid_after_an_interrupted_conversion() {
    for (from, to) in [(Format::Luks2, Format::Luks1), (Format::Luks1, Format::Luks2)] {
        let before = image(from, 2 << 20, &[0, 3]);
        let header = Header::read(&before).unwrap().0;
        let data = header.data_offset() as usize;
        let secrets = secrets(&header, &before);
        let materials: Vec<&[u8]> = secrets.iter().map(|secret| secret.material).collect();
        let secret: HashSet<&[u8]> = materials.iter().flat_map(|area| area.chunks(512)).collect();
        let conversion = converted(&before, to, 19).unwrap().unwrap();
        let mut now = before.clone();
        for (number, write) in conversion.writes.iter().enumerate() {
            apply(&mut now, std::slice::from_ref(write));
            let what = format!("to {to:?}, after write {number}");
            let (header, damage) = Header::read(&now).unwrap();
            let mut renamed = now.clone();
            let change = with_tools(20, |tools| {
                header.change_uuid(damage.as_ref(), None, tools.random).unwrap()
            });
            apply(&mut renamed, &change.writes);
            for image in [&now, &renamed] {
                let (header, damage) = Header::read(&image).unwrap();
                let erase = with_tools(21, |tools| {
                    header.erase(image, damage.as_ref(), tools.random).unwrap()
                });
                let mut erased = image.clone();
                apply(&mut erased, &erase.writes);
                let left = erased.chunks(512).filter(|sector| secret.contains(sector)).count();
                assert_eq!(left, 0, "{what}: sectors of key material");
                assert!(erased[data..] == before[data..], "{what}: the data was touched");
                let mark = finish(&erased).filter(|_| header.format() == Format::Luks1);
                assert!(mark.is_none(), "{what}: the mark is left");
            }
            let rest = converted(&renamed, to, 22).unwrap().or_else(|| finish(&renamed));
            apply(&mut renamed, &rest.map_or(Vec::new(), |rest| rest.writes));
            assert_opens(&what, &renamed, &[0, 3]);
            assert_nothing_left(&what, &renamed, &materials);
        }
    }
}
