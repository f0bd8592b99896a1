//! Headers are written so that a crash at any moment leaves a whole volume or none: never a header
//! whose keyslots are gone, never two damaged copies.
//!
//! A medium records its writes and flushes. A crash keeps everything up to one of the flushes, and
//! any combination of sectors from the writes after it.

mod common;

use std::cell::RefCell;
use std::io;

use common::recorder::Recorder;
use common::{
    PASSPHRASE, cheap_pbkdf2, luks2_options, new_volume, seal, small_luks1, small_luks2, with_tools,
};
use ucrypt_luks::{
    Header, Medium, NewVolume, ReadAt, Write, luks1, luks2, overwrite, signature, write_durably,
};

const NEW_PASSPHRASE: &[u8] = b"the new one";
fn new_header(luks1: bool, metadata_size: Option<u64>) -> (Header, Vec<Write>) {
    let volume = NewVolume {
        data_offset: Some(512 << 10).filter(|_| !luks1),
        ..new_volume("aes-xts-plain64", 32, cheap_pbkdf2())
    };
    let options = luks2::Options { metadata_size, ..luks2_options() };
    with_tools(40, |tools| {
        if luks1 {
            let (header, writes) = luks1::format(&volume, NEW_PASSPHRASE, tools).unwrap();
            (Header::Luks1(header.into()), writes)
        } else {
            let formatted = luks2::format(&volume, &options, NEW_PASSPHRASE, tools);
            let (header, writes) = formatted.unwrap();
            (Header::Luks2(header.into()), writes)
        }
    })
}

/// An old LUKS2 volume whose header copies are 64 KiB long.
fn large_luks2() -> Vec<u8> {
    let volume = NewVolume {
        data_offset: Some(512 << 10),
        ..new_volume("aes-xts-plain64", 64, cheap_pbkdf2())
    };
    let options = luks2::Options { metadata_size: Some(0x1_0000), ..luks2_options() };
    let format = with_tools(41, |tools| luks2::format(&volume, &options, PASSPHRASE, tools));
    let mut image = vec![0x77; 2 << 20];
    common::apply(&mut image, &format.unwrap().1);
    image
}

/// Old images: LUKS volumes of either version, with both copies or one, and a foreign one.
fn old_images() -> Vec<(&'static str, Vec<u8>)> {
    let mut torn = small_luks2();
    torn[5000] ^= 1;
    let mut newer = small_luks2();
    newer[0x4000 + 23] += 1;
    seal(&mut newer[0x4000..0x8000]);
    let mut md = vec![0; 2 << 20];
    md[0x438..0x43a].copy_from_slice(b"\x53\xef");
    let at = md.len() - 0x2000;
    md[at..at + 8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
    let mut images = vec![
        ("LUKS1", small_luks1()),
        ("LUKS2", small_luks2()),
        ("LUKS2 with a torn primary copy", torn),
        ("LUKS2 with an older primary copy", newer),
        ("LUKS2 with large copies", large_luks2()),
        ("ext4 on md", md),
    ];
    for (_, image) in &mut images {
        image.resize(2 << 20, 0);
    }
    images
}

/// Checks that the image holds the old volume with its key, the new one without a foreign
/// signature, or none. Otherwise returns the problem.
fn problem(image: &[u8], new: &Header) -> Option<String> {
    let Ok((header, _)) = Header::read(&image) else { return None };
    let is_new = header.uuid() == new.uuid();
    let passphrase = if is_new { NEW_PASSPHRASE } else { PASSPHRASE };
    let which = if is_new { "new" } else { "old" };
    if let Err(error) = header.unlock(&image, passphrase, None) {
        return Some(format!("the {which} header is there, and does not open: {error}"));
    }
    match signature::find_foreign(&image) {
        Ok(Some(found)) if is_new => Some(format!("the new header is there, and so is {found}")),
        _ => None,
    }
}

#[test]
fn a_crash_while_formatting_leaves_a_volume_that_opens_or_none() {
    for (old, before) in old_images() {
        for (luks1, metadata_size) in [(true, None), (false, None), (false, Some(0x1_0000))] {
            let (new, writes) = new_header(luks1, metadata_size);
            let medium = Recorder::new(&before);
            overwrite(&medium, &signature::find(&before).unwrap(), &writes).unwrap();
            let count = medium.crashes(1, |image| {
                let problem = problem(image, &new);
                assert_eq!(problem, None, "{old}, LUKS1 {luks1}, {metadata_size:?}");
            });
            assert!(count > 100, "{count} crashes");
            let after = medium.now.borrow();
            let (header, damage) = Header::read(&*after).unwrap();
            assert!(damage.is_none() && header.uuid() == new.uuid());
        }
    }
}

/// Shows that the test above can fail: if the old headers are not wiped first, the same writes at
/// some moment leave a header without its keyslots.
#[test]
fn old_headers_that_are_not_wiped_first_are_found_without_their_keyslots() {
    let before = old_images().swap_remove(1).1;
    let (new, writes) = new_header(false, None);
    let medium = Recorder::new(&before);
    write_durably(&medium, &writes).unwrap();
    let mut problems = 0;
    medium.crashes(1, |image| problems += u32::from(problem(image, &new).is_some()));
    assert!(problems > 0);
}

#[test]
fn a_crash_while_a_copy_is_repaired_leaves_the_other_one() {
    for copy in [0, 0x4000] {
        let mut before = small_luks2();
        before[copy + 5000] ^= 1;
        let (header, damage) = Header::read(&before).unwrap();
        let Header::Luks2(header) = header else { panic!("not LUKS2") };
        let damage = damage.unwrap();
        let write = with_tools(42, |tools| header.repair(&damage, tools.random)).unwrap();
        let medium = Recorder::new(&before);
        write_durably(&medium, &[write]).unwrap();
        medium.crashes(2, |image| {
            let (header, _) = Header::read(image).unwrap();
            assert!(header.unlock(image, PASSPHRASE, None).is_ok());
        });
        assert!(Header::read(&*medium.now.borrow()).unwrap().1.is_none());
    }
}

/// A medium on which only a given number of writes succeed.
struct Failing(Recorder, RefCell<usize>);

impl ReadAt for Failing {
    fn len(&self) -> u64 {
        ReadAt::len(&self.0)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, buf)
    }
}

impl Medium for Failing {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut left = self.1.borrow_mut();
        *left = left.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        self.0.write_all_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn forget_cached(&self, offset: u64, length: u64) {
        self.0.forget_cached(offset, length);
    }
}

#[test]
fn a_write_that_fails_ends_the_format_with_its_place_and_no_half_volume() {
    let before = small_luks2();
    let (new, writes) = new_header(false, None);
    let found = signature::find(&before).unwrap();
    for left in 0..found.len() + writes.len() {
        let medium = Failing(Recorder::new(&before), RefCell::new(left));
        let error = overwrite(&medium, &found, &writes).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains(" bytes at byte "), "{error}");
        assert_eq!(problem(&medium.0.now.borrow(), &new), None, "after {left} writes");
    }
}
