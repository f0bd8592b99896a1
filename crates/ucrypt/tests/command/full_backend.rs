//! A full backend: the client gets the error, and the server lives on.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use ucrypt_testkit::Random;

use crate::image::{Image, LUKS1, PASSPHRASE};
use crate::process::{python, run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};

const LEN: u64 = 32 << 20;

/// A sparse image on a file system with 6 MiB, of which the header takes less than 2.
fn image_with_little_room(scratch: &Scratch) -> Image {
    let small = scratch.path("small");
    fs::create_dir(&small).expect("a directory");
    let mut mount = tool("mount", "mount");
    mount.args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]);
    // Only root may mount.
    run(mount.arg(&small), b"").passes();
    let path = scratch.sparse("small/image", LUKS1.data_offset() + LEN);
    let key = scratch.file("passphrase", PASSPHRASE);
    let image = Image { kind: LUKS1, path, header: None, key };
    let mut format = crate::process::cryptsetup();
    format.args(LUKS1.format_arguments()).args(image.with_key());
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
    fs::write(scratch.path("small/fill"), vec![1; 8 << 20]).expect_err("there is less room");
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
