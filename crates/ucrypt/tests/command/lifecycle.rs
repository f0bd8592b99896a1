//! `open`, `status`, `close`: volumes whose server runs in the background.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use ucrypt_testkit::Random;

use crate::held_exec::nobody_hangs;
use crate::image::{DATA, Image, LUKS1, LUKS2, PASSPHRASE};
use crate::namespace::{OWN_DEV, script};
use crate::nbd_client::NbdClient;
use crate::process::{Ran, cryptsetup, run, tool};
use crate::scratch::Scratch;
use crate::server::{await_end, await_reader, await_that};

fn open(scratch: &Scratch, image: &Image, name: &str, options: &[&str]) -> Ran {
    let mut command = image.ucrypt(scratch, "open");
    if !options.contains(&"--as") {
        command.args(["--as", "fuse"]);
    }
    run(command.arg(name).args(options), b"")
}

fn close(scratch: &Scratch, name: &str) -> Ran {
    run(&mut scratch.ucrypt(&["close", name]), b"")
}

fn status(scratch: &Scratch, name: &str) -> Value {
    let text = run(&mut scratch.ucrypt(&["status", "--json", name]), b"").passes();
    serde_json::from_slice(&text).expect("JSON")
}

/// Asserts that nothing is left of any open volume.
#[track_caller]
fn nothing_is_left(scratch: &Scratch) {
    // A server answers shortly before it ends.
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    assert!(scratch.mounts().is_empty(), "a mount is left");
    let left: Vec<_> = fs::read_dir(scratch.runtime("")).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_users_own_file_in_the_runtime_directory_is_no_volume() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // It also makes the directory.
    open(&scratch, &image, "volume", &[]).passes();
    let file = scratch.runtime("mine");
    fs::write(&file, "kept").expect("written");
    let refused = close(&scratch, "mine").exits(4).stderr;
    assert!(refused.contains("is not open"), "{refused}");
    let refused = open(&scratch, &image, "mine", &[]).exits(5).stderr;
    assert!(!refused.contains("killed"), "{refused}");
    assert_eq!(fs::read(&file).expect("still there"), b"kept");
    fs::remove_file(&file).expect("removed");
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_volume_is_opened_used_and_closed() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let path = open(&scratch, &image, "volume", &[]).text();
        assert_eq!(path, format!("{}\n", scratch.runtime("volume").display()));
        let file = File::options().read(true).write(true).open(path.trim_end()).expect("opened");
        let data = Random::new(61).bytes(100_000);
        file.write_all_at(&data, 1234).expect("written");
        drop(file);
        close(&scratch, "volume").passes();
        nothing_is_left(&scratch);
        let mut read = image.ucrypt(&scratch, "read");
        let read = run(read.args(["--offset", "1234", "--length", "100000"]), b"").passes();
        assert!(read == data);
    }
}

/// As root, the server locks its memory, which includes a mapped image. Other users lock nothing,
/// so the test then only checks that opening leaves holes alone.
#[test]
fn a_sparse_image_in_memory_stays_sparse() {
    let scratch = Scratch::new();
    let memory = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
    let path = memory.path().join("image");
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    fs::copy(&image.path, &path).expect("copied");
    File::options().write(true).open(&path).expect("opened").set_len(1 << 30).expect("grown");
    let blocks = || fs::metadata(&path).expect("there").blocks();
    let before = blocks();
    let image = Image { path: path.clone(), ..image };
    let file = open(&scratch, &image, "volume", &[]).text();
    assert_eq!(fs::metadata(file.trim_end()).expect("served").len() >> 20, (1 << 10) - 16);
    assert!(blocks() < before + 2048, "{} of 512 bytes, {before} before", blocks());
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
}

#[test]
fn the_runtime_directory_is_for_its_user_only() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, "volume", &[]).passes();
    let mode = fs::metadata(scratch.runtime("")).expect("metadata").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    close(&scratch, "volume").passes();
    fs::set_permissions(scratch.runtime(""), PermissionsExt::from_mode(0o777)).expect("set");
    open(&scratch, &image, "volume", &[]).refuses(2);
}

#[test]
fn a_relative_image_and_a_passphrase_line_open_too() {
    let scratch = Scratch::new();
    Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut command = scratch.ucrypt(&["luksOpen", "--as", "fuse", "image", "volume"]);
    let line = [PASSPHRASE, b"\n"].concat();
    run(command.current_dir(scratch.path("")), &line).passes();
    assert_eq!(status(&scratch, "volume")["active"], true);
    run(&mut scratch.ucrypt(&["luksClose", "volume"]), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn over_nbd_a_socket_is_served() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let uri = open(&scratch, &image, "volume", &["--as", "nbd"]).text();
    let mut nbdinfo = tool("nbdinfo", "libnbd-bin");
    let size = run(nbdinfo.args(["--size", uri.trim()]), b"").text();
    assert_eq!(size.trim(), DATA.to_string());
    let copy = scratch.path("copy");
    let mut nbdcopy = tool("nbdcopy", "libnbd-bin");
    run(nbdcopy.arg(uri.trim()).arg(&copy), b"").passes();
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
    let read = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
    assert!(fs::read(&copy).expect("read") == read);
}

#[test]
fn status_says_what_cryptsetup_knows_and_counts() {
    let _quiet = nobody_hangs();
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        open(&scratch, &image, "volume", &[]).passes();
        let file = File::options().read(true).write(true).open(scratch.runtime("volume"));
        let file = file.expect("opened");
        file.write_all_at(&[1; 8192], 4096).expect("written");
        file.sync_all().expect("flushed");
        file.read_exact_at(&mut [0; 4096], 0).expect("read");
        drop(file);

        let said = status(&scratch, "volume");
        let uuid = run(cryptsetup().arg("luksUUID").arg(&image.path), b"").text();
        let volume = &said["volume"];
        assert_eq!(volume["type"], format!("luks{}", kind.version));
        assert_eq!(volume["cipher"], kind.cipher);
        assert_eq!(volume["key_bits"], kind.key_bits);
        assert_eq!(volume["sector_size"], kind.sector);
        assert_eq!(volume["offset"], kind.data_offset());
        assert_eq!(volume["size"], DATA);
        assert_eq!(volume["uuid"], uuid.trim());
        assert_eq!(volume["read_only"], false);
        assert_eq!(said["counters"]["written_bytes"], 8192);
        assert_eq!(said["counters"]["read_bytes"], 4096);
        assert_eq!(said["counters"]["flushes"], 1);
        assert_eq!(said["counters"]["errors"], 0);
        let reason = said["export"]["transport_reason"].as_str().expect("a reason");
        let number = &said["export"]["file_system"];
        let export = json!({
            "kind": "fuse",
            "transport": "classic",
            "transport_reason": reason,
            "file_system": number,
        });
        assert_eq!(number.as_array().map(Vec::len), Some(2), "{number}");
        assert_eq!(said["export"], export);

        // Threads that answer come and go, and so does their memory.
        await_that("text and JSON agree on the locked memory", || {
            let exact = run(&mut scratch.ucrypt(&["status", "--bytes", "volume"]), b"").text();
            let locked = status(&scratch, "volume")["server"]["locked_bytes"].as_u64();
            locked > Some(0) && exact.contains(&format!(", {} bytes locked", locked.unwrap_or(0)))
        });

        let text = run(&mut scratch.ucrypt(&["status", "volume"]), b"").text();
        let mut lines = text.lines();
        let first = format!("{} is active", scratch.runtime("volume").display());
        assert!(lines.next().is_some_and(|line| line.starts_with(&first)), "{text}");
        let lines: Vec<Vec<_>> = lines.map(|line| line.split_whitespace().collect()).collect();
        let export = format!("export: fuse (FUSE, classic: {reason})");
        let export: Vec<_> = export.split(' ').collect();
        for expected in [
            &["type:", if kind.version == 1 { "LUKS1" } else { "LUKS2" }][..],
            &["cipher:", kind.cipher],
            &["keysize:", "512", "bits"],
            &["size:", "1M", "(2048", "sectors)"],
            &["mode:", "read/write"],
            &export,
            &["users:", "nobody", "that", "can", "be", "seen"],
            &["now:", "0/s", "read,", "0/s", "written,", "0", "requests/s"],
            &["name:", "volume"],
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected:?} in {text}");
        }
        let offset = format!("({} sectors)", kind.data_offset() / 512);
        let server = format!("PID {}, up ", said["server"]["pid"]);
        let log = scratch.runtime(".volume.log").display().to_string();
        let expected = [offset.as_str(), &server, &log, "dispatch:    adaptive. ", "(8K)"];
        for expected in expected {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        fits_a_screen(&text);
        let exact = run(&mut scratch.ucrypt(&["status", "--bytes", "volume"]), b"").text();
        assert!(exact.contains("size:        1048576 bytes (2048 sectors)"), "{exact}");
        // Who has it open is named.
        let user = File::open(scratch.runtime("volume")).expect("opened");
        let used = run(&mut scratch.ucrypt(&["status", "volume"]), b"").text();
        assert!(used.contains(&format!("(process {})", std::process::id())), "{used}");
        drop(user);
        close(&scratch, "volume").passes();
    }
}

/// With the lines that a terminal of 80 columns wraps, and the prompt below.
#[track_caller]
pub(crate) fn fits_a_screen(status: &str) {
    let rows: usize = status.lines().map(|line| line.chars().count().div_ceil(80).max(1)).sum();
    assert!(rows < 24, "{rows} rows: {status}");
    for note in status.lines().filter(|line| line.contains(" note: ")) {
        assert!(note.chars().count() <= 80, "{note}");
    }
}

#[test]
fn the_way_to_wait_for_the_disk_is_chosen_and_shown() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    for (option, poll, shown) in [
        (&[][..], "off", "asleep (--poll off)"),
        (&["--poll", "auto"], "auto", "asleep (not measured yet)"),
        (&["--poll", "50"], "50", "spinning (--poll 50)"),
    ] {
        open(&scratch, &image, "volume", option).passes();
        assert_eq!(status(&scratch, "volume")["polling"]["poll"], poll);
        let text = run(&mut scratch.ucrypt(&["status", "--dispatch", "volume"]), b"").text();
        let line = text.lines().find(|line| line.contains("waits for the disk:"));
        assert!(line.is_some_and(|line| line.ends_with(shown)), "{text}");
        close(&scratch, "volume").passes();
    }
}

#[test]
fn a_name_that_is_open_is_busy_and_its_volume_goes_on() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let elsewhere = Scratch::new();
    let other = Image::by_cryptsetup(&elsewhere, LUKS1, DATA);
    open(&scratch, &image, "volume", &[]).passes();
    open(&scratch, &other, "volume", &[]).refuses(5);
    open(&scratch, &image, "volume", &[]).refuses(5);
    open(&scratch, &image, "again", &[]).refuses(5);
    assert_eq!(status(&scratch, "volume")["volume"]["type"], "luks2");
    open(&scratch, &other, "second", &[]).passes();
    close(&scratch, "volume").passes();
    close(&scratch, "second").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_file_and_new_nbd_connections_follow_a_resize() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let resize =
        |options: &[&str]| run(scratch.ucrypt(&["resize"]).args(options).arg("volume"), b"");
    open(&scratch, &image, "volume", &[]).passes();
    let file = scratch.runtime("volume");
    let size = || fs::metadata(&file).expect("metadata").len();
    assert_eq!(size(), DATA);
    let message = resize(&["--device-size", "1T"]).refuses(1);
    assert!(message.contains(&format!("room for, which is {DATA}")), "{message}");
    let message = resize(&["--device-size", "1000"]).refuses(1);
    assert!(message.contains("has to be a multiple of"), "{message}");
    let message = open(&scratch, &image, "other", &[]).refuses(5);
    assert!(message.contains("as volume; ucrypt close volume"), "{message}");
    resize(&["--size", "1024"]).passes();
    assert_eq!(size(), 512 << 10);
    assert_eq!(fs::read(&file).expect("read").len(), 512 << 10);
    let grown = image.kind.data_offset() + 3 * DATA + 700;
    File::options().write(true).open(&image.path).and_then(|it| it.set_len(grown)).expect("grown");
    let opened = File::options().read(true).write(true).open(&file).expect("opened");
    resize(&["--size", "0"]).passes();
    assert_eq!(size(), 3 * DATA);
    opened.write_all_at(b"in the new part", 2 * DATA).expect("written");
    drop(opened);
    close(&scratch, "volume").passes();
    open(&scratch, &image, "volume", &["--as", "nbd"]).passes();
    let uri = format!("nbd+unix:///?socket={}", scratch.runtime(".volume.nbd").display());
    let size = || {
        let mut nbdinfo = tool("nbdinfo", "libnbd-bin");
        run(nbdinfo.args(["--size", &uri]), b"").text().trim().parse::<u64>().expect("a number")
    };
    assert_eq!(size(), 3 * DATA);
    resize(&["--device-size", "1M"]).passes();
    assert_eq!(size(), DATA);
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
}

/// What was written there and not flushed failed the next flush, and all after it, if the image was made shorter.
#[test]
fn what_lay_behind_the_new_end_of_a_volume_is_no_loss() {
    const LEN: u64 = 8 << 20;
    let scratch = Scratch::new();
    let image = scratch.sparse("image", LEN);
    let mut open = scratch.ucrypt(&["open", "--cipher", "none", "--as", "nbd"]);
    run(open.arg(&image).arg("volume"), b"").passes();
    let mut client = NbdClient::connect(&scratch.runtime(".volume.nbd")).expect("connected");
    client.write(LEN - 4096, &[1; 4096]).expect("written");
    run(&mut scratch.ucrypt(&["resize", "--device-size", "4M", "volume"]), b"").passes();
    File::options().write(true).open(&image).and_then(|it| it.set_len(LEN / 2)).expect("shorter");
    client.write(0, &[2; 4096]).expect("written");
    client.flush().expect("flushed");
    drop(client);
    close(&scratch, "volume").passes();
}

#[test]
fn all_open_volumes_are_listed() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let list = || run(&mut scratch.ucrypt(&["list"]), b"").text();
    assert_eq!(list(), "");
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let other = Image::by_cryptsetup(&elsewhere, LUKS1, DATA);
    open(&scratch, &image, "second", &[]).passes();
    open(&scratch, &other, "first", &["--as", "nbd"]).passes();
    let text = list();
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "TYPE", "SIZE", "EXPORT", "STATE", "DEVICE"]);
    assert_eq!(lines[2][..5], ["second", "LUKS2", "1M", "fuse", "open"]);
    assert!(lines[2][5].ends_with("/second"), "{text}");
    assert_eq!(lines[1][..5], ["first", "LUKS1", "1M", "nbd", "open"]);
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    let wide = run(&mut scratch.ucrypt(&["list", "--wide", "--bytes"]), b"").text();
    let file = scratch.runtime("second").display().to_string();
    let row = wide.lines().nth(2).map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(row, Some(vec!["second", "LUKS2", "1048576", "fuse", "open", &file]));
    let said = run(&mut scratch.ucrypt(&["list", "--json"]), b"").passes();
    let said: Value = serde_json::from_slice(&said).expect("JSON");
    assert_eq!(said[0]["name"], "first");
    assert_eq!(said[1]["volume"]["type"], "luks2");
    close(&scratch, "first").passes();
    scratch.kill_background_server();
    assert!(list().contains("dead") && list().contains("the server of"), "{}", list());
    assert!(list().lines().all(|line| line.chars().count() <= 60), "{}", list());
    let wide = run(&mut scratch.ucrypt(&["list", "--wide"]), b"").text();
    assert!(wide.contains("was killed; ucrypt close second removes"), "{wide}");
    close(&scratch, "second").refuses(4);
    assert_eq!(list(), "");
    nothing_is_left(&scratch);
}

#[test]
fn all_open_volumes_are_closed_at_once_also_if_one_lies_on_another() {
    let scratch = Scratch::new();
    let close_all = || run(&mut scratch.ucrypt(&["close", "--all"]), b"");
    close_all().passes();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let below = open(&scratch, &image, "below", &[]).text();
    let mut raw = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
    // The one below comes first in the list, and is in use by the one above.
    let above = run(raw.args([below.trim_end(), "by"]), b"").text();
    let reader = File::open(above.trim_end()).expect("opened");
    let refused = close_all().exits(5).stderr;
    assert!(refused.contains("below") && refused.contains("by "), "{refused}");
    drop(reader);
    close_all().passes();
    nothing_is_left(&scratch);
    run(&mut scratch.ucrypt(&["close", "--all", "below"]), b"").exits(1);
    run(&mut scratch.ucrypt(&["close"]), b"").exits(1);
}

#[test]
fn names_that_are_not_open_are_no_device() {
    let scratch = Scratch::new();
    close(&scratch, "nobody").refuses(4);
    let ran = run(&mut scratch.ucrypt(&["status", "nobody"]), b"").exits(4);
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(text.trim_end().ends_with("is inactive."), "{text}");
    let ran = run(&mut scratch.ucrypt(&["status", "--json", "nobody"]), b"").exits(4);
    let said: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(said["active"], false);
}

#[test]
fn a_volume_in_use_is_not_closed_until_it_is_free() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, "volume", &[]).passes();
    let file = File::options().read(true).write(true).open(scratch.runtime("volume"));
    let file = file.expect("opened");
    close(&scratch, "volume").refuses(5);
    file.write_all_at(b"still here", 0).expect("the volume goes on");
    assert_eq!(status(&scratch, "volume")["active"], true);
    drop(file);
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
}

#[test]
fn the_users_of_a_volume_are_seen_whatever_link_leads_to_the_runtime_directory() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let link = scratch.path("link");
    std::os::unix::fs::symlink(scratch.path("run"), &link).expect("a link");
    fs::create_dir_all(scratch.path("run")).expect("a directory");
    let by_link = |mut command: Command| {
        command.env("XDG_RUNTIME_DIR", &link);
        command
    };
    let mut open = image.ucrypt(&scratch, "open");
    open.args(["volume", "--as", "fuse"]);
    let path = run(&mut by_link(open), b"").text();
    let file = File::open(path.trim()).expect("opened");
    let status = run(&mut by_link(scratch.ucrypt(&["status", "volume"])), b"").text();
    assert!(status.contains("(process "), "{status}");
    drop(file);
    run(&mut by_link(scratch.ucrypt(&["close", "volume"])), b"").passes();
}

#[test]
fn with_few_descriptors_a_volume_is_open_or_it_is_not() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 1 << 20);
    let mut opened = 0;
    for limit in 12..60 {
        let mut open = tool("prlimit", "util-linux");
        open.arg(format!("--nofile={limit}")).arg(crate::scratch::UCRYPT);
        open.args(["open", "--cipher", "none", "--as", "fuse"]).arg(&image).arg("volume");
        let said = run(open.env("XDG_RUNTIME_DIR", scratch.path("run")), b"");
        let list = run(&mut scratch.ucrypt(&["list"]), b"").text();
        if said.succeeded() {
            opened += 1;
            assert!(list.contains("open"), "limit {limit}: {said:?}: {list}");
            run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
        } else {
            assert_eq!(list, "", "limit {limit}: {said:?}");
        }
    }
    assert!(opened > 0, "no limit was high enough");
}

#[test]
fn a_deferred_close_ends_with_the_last_user() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, "volume", &[]).passes();
    let file = File::options().read(true).write(true).open(scratch.runtime("volume"));
    let file = file.expect("opened");
    run(&mut scratch.ucrypt(&["close", "--deferred", "volume"]), b"").passes();
    assert!(scratch.mounts().is_empty(), "the name is gone");
    file.write_all_at(b"to the end", 0).expect("the volume goes on");
    let server = scratch.server();
    drop(file);
    scratch.await_end(server);
    nothing_is_left(&scratch);
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "10"]), b"").passes(), b"to the end");
}

/// The last thread of a killed server keeps its lock and its socket for a moment.
#[test]
fn a_killed_server_that_has_not_quite_ended_is_waited_for() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // This makes the runtime directory.
    open(&scratch, &image, "volume", &[]).passes();
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
    let lock = File::create(scratch.runtime(".volume.lock")).expect("a lock");
    flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("locked");
    let socket = UnixListener::bind(scratch.runtime(".volume.sock")).expect("a socket");
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| open(&scratch, &image, "volume", &[]));
        // It was asked and has not answered: now it ends.
        let asking = socket.accept().expect("a client");
        assert!(!opening.is_finished());
        drop((lock, asking, socket));
        opening.join().expect("no panic").passes();
    });
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
}

#[test]
fn what_a_killed_server_left_is_cleaned_up_by_the_next_open() {
    for options in [&[][..], &["--as", "nbd"]] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        open(&scratch, &image, "volume", options).passes();
        scratch.kill_background_server();
        run(&mut scratch.ucrypt(&["status", "volume"]), b"").exits(4);
        close(&scratch, "volume").refuses(4);
        open(&scratch, &image, "volume", options).passes();
        assert_eq!(status(&scratch, "volume")["active"], true);
        close(&scratch, "volume").passes();
        nothing_is_left(&scratch);
    }
}

#[test]
fn a_refused_open_leaves_nothing() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut wrong = scratch.ucrypt(&["open", "--as", "fuse"]);
    run(wrong.arg(&image.path).arg("volume"), b"wrong\n").refuses(2);
    open(&scratch, &image, "a/b", &[]).refuses(1);
    open(&scratch, &image, ".hidden", &[]).refuses(1);
    nothing_is_left(&scratch);
}

#[test]
fn a_detached_header_stays_with_its_volume() {
    let scratch = Scratch::new();
    let kind = crate::image::Kind { detached: true, ..LUKS2 };
    let image = Image::by_cryptsetup(&scratch, kind, DATA);
    let data = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
    open(&scratch, &image, "volume", &["--readonly"]).passes();
    assert!(fs::read(scratch.runtime("volume")).expect("read") == data);
    assert_eq!(status(&scratch, "volume")["volume"]["read_only"], true);
    close(&scratch, "volume").passes();
    nothing_is_left(&scratch);
}

#[test]
fn sigterm_closes_an_open_volume_cleanly() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, "volume", &[]).passes();
    let server = scratch.server();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).expect("a signal");
    scratch.await_end(server);
    nothing_is_left(&scratch);
}

#[test]
fn what_a_server_has_to_say_at_its_end_reaches_the_systems_log() {
    let scratch = Scratch::new();
    let log = UnixDatagram::bind(scratch.path("log")).expect("a log");
    log.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    scratch.sparse("image", DATA);
    // Another server serves the image and is killed, so the last flush fails.
    let text = format!(
        "{OWN_DEV}
        nodes fuse
        touch /dev/log; mount --bind log /dev/log
        open() {{ $ucrypt open --cipher none --as fuse \"$@\"; }}
        ucrypt=$1
        below=$(open $PWD/image below)
        above=$(open --log syslog $below above)
        printf x | dd of=$above conv=notrunc
        pid=$($ucrypt status --json below | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p')
        kill -KILL $pid
        status=0
        $ucrypt close above || status=$?
        $ucrypt close below || :
        exit $status"
    );
    let mut command = script(&scratch, &text, &[crate::scratch::UCRYPT]);
    let ran = run(command.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").exits(4);
    assert!(ran.stderr.contains("the last flush failed"), "{}", ran.stderr);
    let mut line = [0; 4000];
    let mut next = || {
        let len = log.recv(&mut line).expect("a line in the log");
        String::from_utf8_lossy(&line[..len]).into_owned()
    };
    let first = next();
    assert!(first.starts_with("<30>ucrypt[") && first.contains("]: opened "), "{first}");
    let is_end = |line: &String| line.contains("]: the last flush failed");
    let end = std::iter::from_fn(|| Some(next())).find(is_end).expect("its end");
    assert!(end.starts_with("<27>ucrypt["), "{end}");
    nothing_is_left(&scratch);
}

/// An upgrade may replace the program while it asks for a passphrase.
#[test]
fn a_program_that_is_gone_by_now_starts_its_server_nevertheless() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let copy = scratch.program("ucrypt", env!("CARGO_BIN_EXE_ucrypt"));
    let fifo = scratch.path("fifo");
    run(tool("mkfifo", "coreutils").arg(&fifo), b"").passes();
    let mut open = Command::new(&copy);
    open.env("XDG_RUNTIME_DIR", scratch.path("run")).args(["open", "--as", "nbd", "--key-file"]);
    let mut open = open.arg(&fifo).arg(&image.path).arg("replaced").spawn().expect("it starts");
    let mut key = await_reader(&fifo);
    fs::remove_file(&copy).expect("removed");
    key.write_all(PASSPHRASE).expect("written");
    drop(key);
    assert!(await_end(&mut open).success());
    close(&scratch, "replaced").passes();
    nothing_is_left(&scratch);
}

/// The one that came last was referred to a log that was not there.
#[test]
fn of_many_that_close_a_volume_one_does_and_the_others_find_it_closed() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", DATA).display().to_string();
    for _ in 0..10 {
        let open = ["open", "--cipher", "none", "--as", "nbd", &image, "volume"];
        run(&mut scratch.ucrypt(&open), b"").passes();
        let close = |_| run(&mut scratch.ucrypt(&["close", "volume"]), b"");
        let ended: Vec<_> = std::thread::scope(|scope| {
            let begun: Vec<_> = (0..4).map(|number| scope.spawn(move || close(number))).collect();
            begun.into_iter().map(|thread| thread.join().expect("it ran")).collect()
        });
        assert_eq!(ended.iter().filter(|ran| ran.succeeded()).count(), 1, "{ended:?}");
        for ran in ended.iter().filter(|ran| !ran.succeeded()) {
            let is_said = ["is not open", "is being closed already"];
            assert!(is_said.iter().any(|said| ran.stderr.contains(said)), "{}", ran.stderr);
        }
    }
}
