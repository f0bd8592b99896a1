//! Earlier signatures on an image are named as `wipefs` names them. After a format, neither this
//! crate nor `wipefs` finds them.

mod common;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::{PASSPHRASE, Scratch, cheap_pbkdf2, luks2_options, new_volume, text, with_tools};
use ucrypt_luks::{Header, Medium, NewVolume, ReadAt, luks1, luks2, overwrite, signature};

/// ZFS needs at least 64 MiB.
const LEN: u64 = 80 << 20;

struct Image(File);

impl Image {
    fn open(path: &Path) -> Self {
        Self(File::options().read(true).write(true).open(path).unwrap())
    }
}

impl ReadAt for Image {
    fn len(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

impl Medium for Image {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn forget_cached(&self, _offset: u64, _length: u64) {}
}

fn tool(program: &str, package: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| {
        panic!("{program} cannot be run ({error}): apt-get install {package}")
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The types that `wipefs` finds.
fn seen_by_wipefs(path: &Path) -> Vec<String> {
    let list = tool("wipefs", "util-linux", &["--no-act", "--parsable", text(path)]);
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let mut types: Vec<String> =
        lines.filter_map(|line| line.rsplit(',').next()).map(str::to_owned).collect();
    types.dedup();
    types
}

/// Formats the image with a header of either version, and checks that no other signature is left.
fn format(path: &Path, luks1: bool) {
    let image = Image::open(path);
    // Little is zeroed in front of the data, so signatures must be wiped individually.
    let volume = NewVolume {
        data_offset: Some(2 << 20),
        ..new_volume("aes-xts-plain64", 64, cheap_pbkdf2())
    };
    let writes = with_tools(30, |tools| {
        if luks1 {
            luks1::format(&volume, PASSPHRASE, tools).unwrap().1
        } else {
            luks2::format(&volume, &luks2_options(), PASSPHRASE, tools).unwrap().1
        }
    });
    overwrite(&image, &signature::find(&image).unwrap(), &writes).unwrap();
    assert_eq!(seen_by_wipefs(path), ["crypto_LUKS"]);
    assert_eq!(signature::find_foreign(&image).unwrap(), None);
    let (header, damage) = Header::read(&image).unwrap();
    assert!(damage.is_none(), "{damage:?}");
    assert!(header.unlock(&image, PASSPHRASE, None).is_ok());
}

/// Checks that `wipefs` and this crate both find the signature that `make` puts on an image, and
/// that a format removes it.
fn is_named_and_wiped(name: &str, make: impl Fn(&Path)) {
    for luks1 in [false, true] {
        let scratch = Scratch::new(LEN);
        let path = scratch.image();
        make(&path);
        let seen = seen_by_wipefs(&path);
        assert!(seen.iter().any(|seen| seen == name), "{name}: wipefs sees {seen:?}");
        let found = signature::find(&Image::open(&path)).unwrap();
        assert!(found.iter().any(|found| found.name == name), "{name}: {found:?}");
        format(&path, luks1);
    }
}

fn put(path: &Path, offset: u64, bytes: &[u8]) {
    Image::open(path).0.write_all_at(bytes, offset).unwrap();
}

/// An md superblock of version 1 for byte `offset`.
fn md1(offset: u64) -> Vec<u8> {
    let mut block = vec![0; 256];
    block[..8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
    block[16..32].fill(0x5a);
    block[144..152].copy_from_slice(&(offset / 512).to_le_bytes());
    block
}

#[test]
fn md_members_of_every_version() {
    let mut md0 = vec![0; 64];
    md0[..4].copy_from_slice(b"\xfc\x4e\x2b\xa9");
    md0[8] = 90;
    is_named_and_wiped("linux_raid_member", |path| put(path, LEN - 0x1_0000, &md0));
    for offset in [0, 0x1000, LEN - 0x2000] {
        is_named_and_wiped("linux_raid_member", |path| put(path, offset, &md1(offset)));
    }
}

#[test]
fn raid_members_that_are_marked_at_their_end() {
    let sector = |before: u64| LEN - before * 512;
    let mut adaptec = vec![0; 512];
    adaptec[..4].copy_from_slice(b"\x37\xfc\x4d\x1e");
    adaptec[256..260].copy_from_slice(b"DPTM");
    let mut via = vec![0; 51];
    (via[0], via[1], via[50]) = (0x55, 0xaa, 0xff);
    let mut silicon = vec![0; 512];
    silicon[0x63] = 0x2f;
    silicon[0x13f] = 0_u8.wrapping_sub(0x2f);
    let drbd = |magic: u8| [vec![0; 60], vec![0x83, 0x74, 0x02, magic]].concat();
    for (name, offset, bytes) in [
        ("ddf_raid_member", sector(1), b"\xde\x11\xde\x11".to_vec()),
        ("ddf_raid_member", sector(257), b"\xde\x11\xde\x11".to_vec()),
        ("isw_raid_member", sector(2), b"Intel Raid ISM Cfg Sig. 1.1.00".to_vec()),
        ("nvidia_raid_member", sector(2), b"NVIDIA  ".to_vec()),
        ("lsi_mega_raid_member", sector(1), b"$XIDE$".to_vec()),
        ("adaptec_raid_member", sector(1), adaptec),
        ("hpt45x_raid_member", sector(11), b"\xf3\x16\x78\x5a".to_vec()),
        ("promise_fasttrack_raid_member", sector(63), b"Promise Technology, Inc.".to_vec()),
        ("promise_fasttrack_raid_member", sector(3087), b"Promise Technology, Inc.".to_vec()),
        ("via_raid_member", sector(1), via),
        ("silicon_medley_raid_member", sector(1), silicon),
        ("drbd", sector(8), drbd(0x6b)),
        ("drbd", sector(8), drbd(0x6d)),
    ] {
        is_named_and_wiped(name, |path| put(path, offset, &bytes));
    }
}

#[test]
fn zfs_labels_at_both_ends() {
    let uberblocks = |label: u64| {
        move |path: &Path| {
            for block in 0..8 {
                let offset = label + (128 << 10) + block * 1024;
                put(path, offset, &0x00ba_b10c_u64.to_le_bytes());
            }
        }
    };
    for label in [0, 256 << 10, LEN - (512 << 10), LEN - (256 << 10)] {
        is_named_and_wiped("zfs_member", uberblocks(label));
    }
}

#[test]
fn file_systems_and_swap() {
    is_named_and_wiped("ext4", |path| {
        tool("mkfs.ext4", "e2fsprogs", &["-q", text(path)]);
    });
    is_named_and_wiped("swap", |path| {
        tool("mkswap", "util-linux", &[text(path)]);
    });
    is_named_and_wiped("bcache", |path| {
        put(path, 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81");
        put(path, 0x1008, &8_u64.to_le_bytes());
    });
    is_named_and_wiped("ceph_bluestore", |path| put(path, 0, b"bluestore block device\n"));
}

#[test]
fn an_old_secondary_header_behind_the_new_header_is_wiped() {
    let scratch = Scratch::new(LEN);
    let path = scratch.image();
    let options = luks2::Options { metadata_size: Some(4 << 20), ..luks2_options() };
    let volume = new_volume("aes-xts-plain64", 64, cheap_pbkdf2());
    let format_old = with_tools(31, |tools| luks2::format(&volume, &options, b"old", tools));
    overwrite(&Image::open(&path), &[], &format_old.unwrap().1).unwrap();
    assert_eq!(&fs::read(&path).unwrap()[4 << 20..][..6], b"SKUL\xba\xbe");
    format(&path, true);
    assert_eq!(&fs::read(&path).unwrap()[4 << 20..][..6], [0; 6]);
}

#[test]
fn a_signature_that_comes_back_is_told() {
    struct Stubborn(Vec<u8>);
    impl ReadAt for Stubborn {
        fn len(&self) -> u64 {
            ReadAt::len(&self.0)
        }
        fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.0.read_exact_at(offset, buf)
        }
    }
    impl Medium for Stubborn {
        fn write_all_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
        fn forget_cached(&self, _offset: u64, _length: u64) {}
    }
    let mut image = vec![0; 1 << 20];
    image[..4].copy_from_slice(b"XFSB");
    let image = Stubborn(image);
    let found = signature::find(&image).unwrap();
    let error = overwrite(&image, &found, &[]).unwrap_err().to_string();
    assert!(error.contains("xfs at byte 0 does not go away"), "{error}");
}
