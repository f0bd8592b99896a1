//! LUKS headers that are damaged, in one copy and in both.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use rustix::fs::{FlockOperation, flock};

use crate::image::{DATA, Image, Kind, LUKS1, LUKS2, PASSPHRASE};
use crate::process::{Ran, cryptsetup, run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::{On, Server, await_that};

/// Where the second copy of cryptsetup's default LUKS2 header starts, in bytes.
const SECONDARY: u64 = 0x4000;

/// An offset in the JSON area of a header copy, far from its binary header.
const IN_JSON: u64 = 5000;

/// Inverts bytes of the image, so that they are wrong whatever their value.
fn damage(image: &Image, offset: u64, len: usize) {
    let file = File::options().read(true).write(true).open(&image.path).expect("the image");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).expect("read");
    for byte in &mut bytes {
        *byte ^= 0xff;
    }
    file.write_all_at(&bytes, offset).expect("damaged");
}

fn test_passphrase(scratch: &Scratch, image: &Image, options: &[&str]) -> Ran {
    let mut command = scratch.ucrypt(&["open", "--test-passphrase"]);
    run(command.args(options).args(image.with_key()), b"")
}

/// cryptsetup repairs a damaged copy as soon as it sees one, so it must find none.
fn cryptsetup_finds_nothing_to_repair(image: &Image) -> bool {
    let before = image.bytes();
    run(cryptsetup().arg("luksDump").arg(&image.path), b"").passes();
    image.bytes() == before
}

/// A disk that cannot read its first block until that is written: nbdkit below nbdfuse.
#[test]
fn a_copy_that_cannot_be_read_is_written_again_by_repair() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let (file, written) = (scratch.file("disk", b""), scratch.path("written"));
    let (at, len) = (image.path.display(), image.bytes().len());
    let written = written.display();
    let pread = format!(
        "pread=if [ $4 -lt 4096 ] && ! [ -e {written} ]; then echo EIO bad >&2; exit 1; fi; \
         dd if={at} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none"
    );
    let pwrite = format!(
        "pwrite=if [ $4 -lt 4096 ]; then touch {written}; fi; \
         dd of={at} oflag=seek_bytes seek=$4 conv=notrunc status=none"
    );
    let mut fuse = tool("nbdfuse", "libnbd-bin");
    fuse.arg(&file).args(["--command", "nbdkit", "-s", "--exit-with-parent", "eval"]);
    fuse.args([&format!("get_size=echo {len}"), "can_write=exit 0", "can_flush=exit 0"]);
    fuse.args(["flush=exit 0", &pread, &pwrite]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut disk = fuse.spawn().expect("nbdfuse starts");
    await_that("the disk is there", || {
        fs::metadata(&file).is_ok_and(|found| found.len() == len as u64)
    });
    let ran = run(scratch.ucrypt(&["repair", "-q"]).arg(&file), b"");
    let dump = run(scratch.ucrypt(&["luksDump"]).arg(&file), b"");
    run(tool("fusermount3", "fuse3").arg("-u").arg(&file), b"").passes();
    disk.wait().expect("it ends");
    assert!(ran.exits(0).stderr.contains("it was written again"));
    assert_eq!(dump.exits(0).stderr, "");
    assert!(cryptsetup_finds_nothing_to_repair(&image));
}

/// The parts of a copy to damage: its magic, its checksum, its JSON.
const PLACES: [u64; 3] = [0, 0x1c0 + 3, IN_JSON];

#[test]
fn one_damaged_copy_is_read_over_and_readonly_changes_nothing() {
    for copy in [0, SECONDARY] {
        for place in PLACES {
            let scratch = Scratch::new();
            let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
            let plain = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
            damage(&image, copy + place, 6);
            let before = image.bytes();

            let ran = test_passphrase(&scratch, &image, &["--readonly"]).exits(0);
            let warning = ran.stderr.trim_end();
            assert!(warning.contains("header") && !warning.contains('\n'), "{warning:?}");
            let mut read = image.ucrypt(&scratch, "read");
            assert!(run(read.arg("--readonly"), b"").passes() == plain);
            let mut line = image.with_key();
            line.push("--readonly".into());
            let server = Server::start(&scratch, On::Nbd, &line);
            assert!(server.stderr().contains("header"), "{:?}", server.stderr());
            server.terminate();
            for wrong in [&["--readonly"][..], &[]] {
                let mut open = scratch.ucrypt(&["open", "--test-passphrase"]);
                run(open.args(wrong).args(image.arguments()), b"wrong\n").exits(2);
            }
            assert!(image.bytes() == before, "copy {copy}, byte {place} of it");
        }
    }
}

/// Opens the volume for writing, and writes nothing. Returns the messages about the header.
fn open_for_writing(scratch: &Scratch, image: &Image) -> Ran {
    run(&mut image.ucrypt(scratch, "write"), b"")
}

#[test]
fn one_damaged_copy_is_written_again_by_who_writes_and_cryptsetup_agrees() {
    for copy in [0, SECONDARY] {
        // The magic must be intact: a copy without one may be another program's data.
        for place in &PLACES[1..] {
            let scratch = Scratch::new();
            let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
            let sound = image.bytes();
            damage(&image, copy + place, 6);
            let ran = open_for_writing(&scratch, &image).exits(0);
            assert!(ran.stderr.contains("it was written again"), "{:?}", ran.stderr);
            // The second time there is nothing to report.
            let ran = open_for_writing(&scratch, &image).exits(0);
            assert_eq!(ran.stderr, "");
            let repaired = image.bytes();
            let rest = 2 * SECONDARY as usize;
            assert!(repaired[rest..] == sound[rest..], "keyslots and data are as they were");
            assert!(cryptsetup_finds_nothing_to_repair(&image), "copy {copy}, byte {place}");
            let mut open = cryptsetup();
            open.args(["open", "--test-passphrase", "--key-file", "-"]).arg(&image.path);
            run(&mut open, PASSPHRASE).passes();
            // Now the copy that was sound can be damaged.
            damage(&image, SECONDARY - copy + place, 6);
            test_passphrase(&scratch, &image, &["--readonly"]).exits(0);
        }
    }
}

/// The other copy is good, and nothing else is needed to open the volume.
#[test]
fn a_torn_copy_that_cannot_be_written_again_keeps_no_volume_from_opening_for_writing() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    damage(&image, SECONDARY + IN_JSON, 6);
    let before = image.bytes();
    let told = |ran: Ran, why: &str| {
        let stderr = ran.exits(0).stderr;
        assert!(stderr.contains("secondary") && stderr.contains("using the other one"), "{stderr}");
        assert!(stderr.contains("nothing was repaired") && stderr.contains(why), "{stderr}");
        assert!(image.bytes() == before);
    };
    // A limit on the size of files, in front of this copy.
    let mut limited = tool("bash", "bash");
    limited.args(["-c", "ulimit -f 8; exec \"$@\"", "bash", UCRYPT, "write"]);
    limited.env("XDG_RUNTIME_DIR", scratch.path("run"));
    told(run(limited.args(image.with_key()), b""), "File too large");
    // Somebody who reads the header for a long time.
    let reader = File::open(&image.path).expect("the image");
    flock(&reader, FlockOperation::LockShared).expect("locked");
    told(open_for_writing(&scratch, &image), "another program has held the header");
    drop(reader);
    let ran = open_for_writing(&scratch, &image).exits(0);
    assert!(ran.stderr.contains("it was written again"), "{:?}", ran.stderr);
}

#[test]
fn an_action_that_only_reads_repairs_nothing() {
    for copy in [0, SECONDARY] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        damage(&image, copy + IN_JSON, 6);
        let before = image.bytes();
        let ran = test_passphrase(&scratch, &image, &[]).exits(0);
        assert!(ran.stderr.contains("nothing was repaired"), "{:?}", ran.stderr);
        let ran = run(&mut image.ucrypt(&scratch, "read"), b"").exits(0);
        assert!(ran.stderr.contains("nothing was repaired"), "{:?}", ran.stderr);
        for action in ["luksDump", "isLuks", "luksUUID"] {
            run(scratch.ucrypt(&[action]).arg(&image.path), b"").exits(0);
        }
        // A wrong passphrase repairs nothing, even for a write.
        let mut write = scratch.ucrypt(&["write"]);
        let wrong = scratch.file("wrong", b"another passphrase");
        run(write.args(image.arguments()).arg("--key-file").arg(wrong), b"").exits(2);
        assert!(image.bytes() == before, "copy {copy}");
    }
}

/// A header on read-only media serves a volume that is written all the same.
#[test]
fn a_detached_header_that_cannot_be_written_opens_the_volume_and_is_left_as_it_is() {
    for damaged in [false, true] {
        let scratch = Scratch::new();
        let kind = Kind { detached: true, ..LUKS2 };
        let mut image = Image::by_cryptsetup(&scratch, kind, DATA);
        let place = scratch.path("read-only");
        fs::create_dir(&place).expect("a directory");
        if damaged {
            let file = File::options().write(true).open(image.header_path()).expect("the header");
            file.write_all_at(b"damaged", IN_JSON).expect("damaged");
        }
        let header = place.join("header");
        fs::rename(image.header_path(), &header).expect("moved");
        image.header = Some(header.clone());
        let before = fs::read(&header).expect("read");
        let mount = |options: &[&str]| {
            run(tool("mount", "mount").args(options).arg(&place), b"").passes();
        };
        mount(&["--bind", place.to_str().expect("text")]);
        mount(&["-o", "remount,bind,ro"]);
        assert!(File::options().write(true).open(&header).is_err());

        let told = |stderr: &str| {
            let expected = if damaged { "nothing was repaired" } else { "" };
            assert!(stderr.contains(expected) && stderr.is_empty() != damaged, "{stderr:?}");
        };
        told(&run(&mut image.ucrypt(&scratch, "write"), b"by write").exits(0).stderr);
        let mut read = image.ucrypt(&scratch, "read");
        assert!(run(read.args(["--length", "8"]), b"").passes() == b"by write");
        let server = Server::start(&scratch, On::Fuse, &image.with_key());
        told(&server.stderr());
        let file = File::options().write(true).open(server.file()).expect("served");
        file.write_all_at(b"by serve", 0).expect("written");
        drop(file);
        server.terminate();
        // Flags that cannot be stored are refused first; those that are stored already need no writing.
        let mut open = image.ucrypt(&scratch, "open");
        open.args(["volume", "--as", "fuse", "--persistent", "--allow-discards"]);
        let refused = run(&mut open, b"").exits(4).stderr;
        assert!(refused.contains("read-only"), "{refused}");
        assert_eq!(run(&mut scratch.ucrypt(&["list", "--json"]), b"").text().trim(), "[]");
        let mut open = image.ucrypt(&scratch, "open");
        let ran = run(open.args(["volume", "--as", "fuse", "--persistent"]), b"").exits(0);
        told(&ran.stderr);
        let path = String::from_utf8(ran.stdout).expect("a path");
        let mut file = File::options().read(true).write(true).open(path.trim_end()).expect("open");
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes).expect("read");
        assert_eq!(&bytes, b"by serve");
        file.write_all_at(b"by open!", 0).expect("written");
        drop(file);
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
        let mut read = image.ucrypt(&scratch, "read");
        assert!(run(read.args(["--length", "8"]), b"").passes() == b"by open!");
        assert!(fs::read(&header).expect("read") == before);
        // An image that cannot be written is refused: only its header may be like that.
        let mut write = scratch.ucrypt(&["write", "--key-file"]);
        run(write.arg(&image.key).arg(&header), b"data").exits(4);
    }
}

#[test]
fn a_copy_without_its_magic_is_not_written_over() {
    for copy in [0, SECONDARY] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        damage(&image, copy, 6);
        let before = image.bytes();
        let ran = open_for_writing(&scratch, &image).exits(0);
        assert!(ran.stderr.contains("nothing was repaired"), "{:?}", ran.stderr);
        assert!(image.bytes() == before, "copy {copy}");
    }
}

/// A superblock of md, version 1, at byte `offset`.
fn md_superblock(offset: u64) -> Vec<u8> {
    let mut block = vec![0; 256];
    block[..8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
    block[16..32].fill(0x5a);
    block[144..152].copy_from_slice(&(offset / 512).to_le_bytes());
    block
}

#[test]
fn a_foreign_owner_over_the_primary_copy_is_not_overwritten() {
    // The header is damaged by another program's superblock, and cryptsetup refuses it too.
    for (offset, superblock) in [
        (0, b"bluestore block device\n".to_vec()),
        (0x1000, md_superblock(0x1000)),
        (0x438, b"\x53\xef".to_vec()),
    ] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        let file = File::options().write(true).open(&image.path).expect("the image");
        file.write_all_at(&superblock, offset).expect("written over");
        let before = image.bytes();
        let mut open = cryptsetup();
        open.args(["open", "--test-passphrase", "--key-file", "-"]).arg(&image.path);
        let theirs = run(&mut open, PASSPHRASE).exits(1);
        assert!(theirs.stderr.contains("ambiguous signatures"), "{offset}: {:?}", theirs.stderr);
        let message = test_passphrase(&scratch, &image, &[]).refuses(1);
        assert!(message.contains("ambiguous signatures"), "{offset}: {message}");
        let message = run(&mut image.ucrypt(&scratch, "write"), b"").refuses(1);
        assert!(message.contains("ambiguous signatures"), "{offset}: {message}");
        run(scratch.ucrypt(&["luksDump"]).arg(&image.path), b"").refuses(1);
        assert!(image.bytes() == before, "{offset}");
    }
}

#[test]
fn a_header_of_an_unknown_version_is_not_rolled_back() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let file = File::options().write(true).open(&image.path).expect("the image");
    file.write_all_at(&[0, 3], 6).expect("version 3");
    let before = image.bytes();
    let message = run(&mut image.ucrypt(&scratch, "write"), b"").refuses(1);
    assert!(message.contains("LUKS version 3"), "{message}");
    test_passphrase(&scratch, &image, &[]).refuses(1);
    assert!(image.bytes() == before);
}

#[test]
fn cryptsetup_does_repair_what_is_damaged() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    assert!(cryptsetup_finds_nothing_to_repair(&image));
    damage(&image, SECONDARY + IN_JSON, 6);
    assert!(!cryptsetup_finds_nothing_to_repair(&image));
}

#[test]
fn two_damaged_copies_are_refused_and_nothing_is_written() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    damage(&image, IN_JSON, 6);
    damage(&image, SECONDARY + IN_JSON, 6);
    let before = image.bytes();
    let message = test_passphrase(&scratch, &image, &[]).refuses(1);
    assert!(message.contains("checksum"), "{message}");
    run(scratch.ucrypt(&["luksDump"]).arg(&image.path), b"").refuses(1);
    run(&mut image.ucrypt(&scratch, "read"), b"").refuses(1);
    run(&mut image.ucrypt(&scratch, "write"), b"data").refuses(1);
    assert!(image.bytes() == before);
}

#[test]
fn damaged_luks1_headers_are_refused_with_the_reason_and_nothing_is_written() {
    // Version, hash name, payload offset, key length, stripes of the first keyslot.
    for (offset, len) in [(6, 2), (72, 32), (104, 4), (108, 4), (208 + 44, 4)] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS1, DATA);
        damage(&image, offset, len);
        let before = image.bytes();
        run(&mut image.ucrypt(&scratch, "write"), b"data").refuses(1);
        // Missing data does not prevent a test, as in cryptsetup.
        if offset != 104 {
            test_passphrase(&scratch, &image, &[]).refuses(1);
        }
        assert!(image.bytes() == before, "byte {offset}");
    }
}

#[test]
fn a_damaged_keyslot_opens_with_no_passphrase() {
    for (kind, area) in [(LUKS1, 4096), (LUKS2, 0x8000)] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        damage(&image, area + 100, 1);
        let before = image.bytes();
        test_passphrase(&scratch, &image, &[]).refuses(2);
        assert!(image.bytes() == before);
    }
}
