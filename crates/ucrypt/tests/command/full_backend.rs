//! A full backend: the client gets the error, and the server lives on.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::process::Command;

use serde_json::Value;
use ucrypt_testkit::Random;

use crate::image::{Image, Kind, LUKS1, LUKS2, PASSPHRASE};
use crate::process::{python, run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};

const LEN: u64 = 32 << 20;

/// A sparse image on a file system with 6 MiB, of which the header takes less than 2.
fn image_with_little_room(scratch: &Scratch) -> Image {
    image_in(scratch, LUKS1, "6m")
}

/// A sparse image on a file system of this size.
fn image_in(scratch: &Scratch, kind: Kind, size: &str) -> Image {
    let small = scratch.path("small");
    fs::create_dir(&small).expect("a directory");
    let mut mount = tool("mount", "mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
    // Only root may mount.
    run(mount.arg(&small), b"").passes();
    let path = scratch.sparse("small/image", kind.data_offset() + LEN);
    let key = scratch.file("passphrase", PASSPHRASE);
    let image = Image { kind, path, header: None, key };
    let mut format = crate::process::cryptsetup();
    format.args(kind.format_arguments()).args(image.with_key());
    run(&mut format, b"").passes();
    image
}

#[test]
fn over_fuse_a_write_gets_the_error_and_reads_go_on() {
    let scratch = Scratch::new();
    let image = image_with_little_room(&scratch);
    let mut server = Server::start(&scratch, On::Fuse, &image.with_key());
    let file = server.open();
    let kept = Random::new(51).bytes(1 << 20);
    file.write_all_at(&kept, 0).expect("there is room");
    let more = Random::new(52).bytes(8 << 20);
    let error = file.write_all_at(&more, 4 << 20).expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(server.read(0, 1 << 20) == kept, "what was there is there");
    // Allocated data can be overwritten.
    file.write_all_at(&more[..1 << 20], 0).expect("no new room is needed");
    file.sync_all().expect("flushed");
    assert!(server.read(0, 1 << 20) == more[..1 << 20]);
    assert!(server.is_running());
    drop(file);
    server.terminate();
}

#[test]
fn over_nbd_a_write_gets_the_error_and_the_connection_goes_on() {
    let scratch = Scratch::new();
    let image = image_with_little_room(&scratch);
    let mut server = Server::start(&scratch, On::Nbd, &image.with_key());
    let script = include_str!("scripts/full.py");
    run(python(script, "nbd", "python3-libnbd").arg(server.uri()), b"").passes();
    assert!(server.is_running());
    server.terminate();
}

#[test]
fn write_tells_where_it_failed_and_fails() {
    let scratch = Scratch::new();
    let image = image_with_little_room(&scratch);
    let data = Random::new(53).bytes(LEN as usize);
    let message = run(&mut image.ucrypt(&scratch, "write"), &data).refuses(4);
    assert!(message.contains("No space left") && message.contains("byte"), "{message}");
}

#[test]
fn a_header_that_finds_no_room_is_refused_and_the_old_volume_is_still_there() {
    let scratch = Scratch::new();
    let image = image_with_little_room(&scratch);
    let before = image.bytes();
    // 16 MiB of header in a file system with 6.
    let mut format = scratch.ucrypt(&["luksFormat", "-q", "--pbkdf", "pbkdf2"]);
    format.args(["--pbkdf-force-iterations", "1000"]).args(image.with_key());
    let message = run(&mut format, b"").refuses(4);
    assert!(message.contains("no room for the header"), "{message}");
    assert!(image.bytes() == before);
}

/// A loop device over a file in a file system without room, until it is dropped.
struct Lossy(String);

impl Drop for Lossy {
    fn drop(&mut self) {
        let _ = tool("losetup", "mount").args(["--detach", &self.0]).output();
    }
}

/// A volume on a device that loses what is written to places where nothing was.
fn image_on_lossy_device(scratch: &Scratch) -> (Image, Lossy) {
    let small = image_with_little_room(scratch);
    let disk = scratch.sparse("small/disk", LUKS1.data_offset() + LEN);
    let mut losetup = tool("losetup", "mount");
    let device = run(losetup.args(["--find", "--show"]).arg(&disk), b"").text();
    let device = Lossy(device.trim().to_owned());
    let image = Image { path: device.0.clone().into(), ..small };
    let mut format = crate::process::cryptsetup();
    format.args(LUKS1.format_arguments()).args(image.with_key());
    run(&mut format, b"").passes();
    (image, device)
}

/// Takes what room is left.
fn fill(scratch: &Scratch) {
    fs::write(scratch.path("small/fill"), vec![1; 32 << 20]).expect_err("there is less room");
}

/// An image with this hole on a full disk, and a backup of its header.
fn image_with_hole(scratch: &Scratch, kind: Kind, (offset, len): (u64, u64)) -> (Image, String) {
    let image = image_in(scratch, kind, "20m");
    let backup = scratch.path("backup").display().to_string();
    let mut save = scratch.ucrypt(&["luksHeaderBackup", "--header-backup-file", &backup]);
    run(save.arg(&image.path), b"").passes();
    let mut punch = tool("fallocate", "util-linux");
    punch.args(["-p", "-o", &offset.to_string(), "-l", &len.to_string()]);
    run(punch.arg(&image.path), b"").passes();
    fill(scratch);
    (image, backup)
}

/// A copy that skips zeroes has holes in its header. The header was then left half written: after a restore that had
/// found no room, no passphrase opened the volume.
#[test]
fn on_a_full_disk_an_image_with_holes_in_its_header_is_changed_as_a_whole_or_not_at_all() {
    // The end of the second header copy of LUKS2, and keyslots that are not used.
    let holes =
        [(LUKS2, (28 << 10, 4 << 10)), (LUKS2, (1 << 20, 4 << 20)), (LUKS1, (1 << 20, 1 << 20))];
    for (kind, hole) in holes {
        let scratch = Scratch::new();
        let (image, backup) = image_with_hole(&scratch, kind, hole);
        let before = image.bytes();
        let new = scratch.file("new", b"another passphrase").display().to_string();
        let restore = ["luksHeaderRestore", "-q", "--header-backup-file", &backup];
        let uuid = ["luksUUID", "-q", "--uuid", "2c8c3b0a-9d4b-4e3c-8e0c-7a1b2c3d4e5f"];
        let key = image.key.display().to_string();
        let add =
            ["luksAddKey", "-q", "--new-key-slot", "7", "--key-file", &key, "--new-keyfile", &new];
        let add = [&add[..], &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]].concat();
        let is_copy = hole.0 < 32 << 10;
        // Those that write where the hole is.
        let actions =
            [(true, &restore[..]), (is_copy, &uuid[..]), (is_copy || kind.version == 1, &add[..])];
        for (_, action) in actions.into_iter().filter(|(writes, _)| *writes) {
            let message = run(scratch.ucrypt(action).arg(&image.path), b"").refuses(4);
            assert!(message.contains("no room for the header"), "{action:?}: {message}");
            assert!(image.bytes() == before, "{action:?} in {hole:?}: something was written");
        }
        let mut test = scratch.ucrypt(&["open", "--test-passphrase"]);
        run(test.args(image.with_key()), b"").passes();
    }
}

/// The new key was stored in one copy of the header, the other one found no room, and the old key stayed.
#[test]
fn on_a_full_disk_a_key_of_an_image_with_holes_is_rotated_as_a_whole_or_not_at_all() {
    // The end of the second header copy of LUKS2, and the area of the keyslot that is added.
    let areas = [(LUKS2, (0x4_7000, 0x3_f000)), (LUKS1, (0x4_0000, 0x3_f000))];
    for (kind, hole) in areas.into_iter().chain([(LUKS2, (28 << 10, 4 << 10))]) {
        let scratch = Scratch::new();
        let (image, _) = image_with_hole(&scratch, kind, hole);
        let before = image.bytes();
        let new = scratch.file("new", b"another passphrase").display().to_string();
        let rotate = || {
            let mut rotate = scratch.ucrypt(&["luksRotateKey", "-q", "--new-keyfile", &new]);
            rotate.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
            rotate.args(image.with_key());
            run(&mut rotate, b"")
        };
        let test = |program: &mut Command, key: &str| {
            program.args(["open", "--test-passphrase", "--key-file", key]);
            run(program.arg(&image.path), b"").code()
        };
        let key = image.key.display().to_string();
        let message = rotate().refuses(4);
        assert!(message.contains("no room for the header"), "{kind:?}, {hole:?}: {message}");
        assert!(image.bytes() == before, "{kind:?}, {hole:?}: something was written");
        assert_eq!(test(&mut scratch.ucrypt::<&str>(&[]), &key), Some(0), "{kind:?}, {hole:?}");
        fs::remove_file(scratch.path("small/fill")).expect("there is room again");
        rotate().passes();
        for program in [&mut scratch.ucrypt::<&str>(&[]), &mut crate::process::cryptsetup()] {
            assert_eq!(test(program, &new), Some(0), "{kind:?}, {hole:?}");
        }
        assert_eq!(test(&mut crate::process::cryptsetup(), &key), Some(2), "{kind:?}, {hole:?}");
    }
}

/// The first hole ended it, and the keys behind it stayed.
#[test]
fn on_a_full_disk_all_keys_of_an_image_with_holes_are_erased() {
    // Behind the hole lies what is looked at.
    for (kind, hole, area) in [
        (LUKS2, (0x8000, 0x8000), 0x1_0000..0x4_7000),
        (LUKS1, (0x1000, 0x1_0000), 0x2_0000..0x3_f000),
    ] {
        let scratch = Scratch::new();
        let (image, _) = image_with_hole(&scratch, kind, hole);
        let before = image.bytes();
        run(scratch.ucrypt(&["erase", "-q"]).arg(&image.path), b"").passes();
        let after = image.bytes();
        for page in area.step_by(4096) {
            let page = page..page + 4096;
            assert!(before[page.clone()].iter().any(|byte| *byte != 0), "nothing was at {page:?}");
            assert!(before[page.clone()] != after[page.clone()], "{kind:?}: {page:?} is as before");
        }
        let mut test = scratch.ucrypt(&["open", "--test-passphrase"]);
        assert!(!run(test.args(image.with_key()), b"").succeeded(), "{kind:?} opens");
    }
}

/// A2 of the audit: one connection's flush reported lost data, the other's did not, and no later
/// flush did.
#[test]
fn after_a_flush_that_failed_every_client_is_told_and_so_is_who_ends_the_server() {
    let scratch = Scratch::new();
    let (image, _device) = image_on_lossy_device(&scratch);
    let server = Server::start(&scratch, On::Nbd, &image.with_key());
    let script = include_str!("scripts/flush_once.py");
    run(python(script, "nbd", "python3-libnbd").arg(server.uri()), b"").passes();
    server.await_said("no flush succeeds any more");
    server.signal(rustix::process::Signal::TERM);
    let said = server.exits(4);
    assert!(said.contains("the last flush failed"), "{said}");
}

/// Of durable writes that failed at the same time, some succeeded: the kernel tells of lost data once for
/// each open file, and they had one.
#[test]
fn of_durable_writes_that_fail_together_none_succeeds() {
    let scratch = Scratch::new();
    let (image, _device) = image_on_lossy_device(&scratch);
    let server = Server::start(&scratch, On::Nbd, &image.with_key());
    fill(&scratch);
    let script = include_str!("scripts/durable_together.py");
    run(python(script, "nbd", "python3-libnbd").arg(server.uri()), b"").passes();
    server.await_said("no flush succeeds any more");
    server.signal(rustix::process::Signal::TERM);
    server.exits(4);
}

/// A flush succeeded on a connection that had begun after another program was told of the loss.
#[test]
fn a_loss_that_another_program_was_told_of_fails_the_flush_of_a_new_client() {
    let scratch = Scratch::new();
    let (image, device) = image_on_lossy_device(&scratch);
    let server = Server::start(&scratch, On::Nbd, &image.with_key());
    fill(&scratch);
    let script = include_str!("scripts/told_another.py");
    let mut clients = python(script, "nbd", "python3-libnbd");
    run(clients.arg(server.uri()).arg(&device.0), b"").passes();
    server.await_said("no flush succeeds any more");
    server.signal(rustix::process::Signal::TERM);
    server.exits(4);
}

#[test]
fn after_a_flush_that_failed_status_and_list_say_so_until_close_does() {
    let scratch = Scratch::new();
    let (image, _device) = image_on_lossy_device(&scratch);
    let mut open = scratch.ucrypt(&["open", "--as", "nbd"]);
    let uri = run(open.args(image.with_key()).arg("volume"), b"").text();
    let script = include_str!("scripts/flush_once.py");
    run(python(script, "nbd", "python3-libnbd").arg(uri.trim()), b"").passes();
    let status = run(&mut scratch.ucrypt(&["status", "volume"]), b"").text();
    assert!(status.contains("flush error: ") && status.contains("no flush succeeds"), "{status}");
    let json = run(&mut scratch.ucrypt(&["status", "--json", "volume"]), b"").text();
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert!(json["counters"]["flush_error"].is_string(), "{json}");
    let list = run(&mut scratch.ucrypt(&["list"]), b"").text();
    assert!(
        list.lines().any(|line| line.contains("volume") && line.contains(" failed ")),
        "{list}"
    );
    let message = run(&mut scratch.ucrypt(&["close", "volume"]), b"").refuses(4);
    assert!(message.contains("flush failed"), "{message}");
}
