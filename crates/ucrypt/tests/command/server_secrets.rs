//! A volume key must not be on a command line. Only some users may give orders to a server.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use rustix::process::Pid;

use crate::image::{DATA, Image, LUKS2};
use crate::process::{limited, run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::{On, Server};

const KEY: &str = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210";

fn table(scratch: &Scratch) -> String {
    let image = scratch.sparse("image", DATA);
    format!("0 2048 crypt aes-xts-plain64 {KEY} 0 {} 0", image.display())
}

#[track_caller]
fn has_no_key_on_its_command_line(pid: Pid) {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).expect("a command line");
    let line = String::from_utf8_lossy(&line).into_owned();
    assert!(line.contains("image"), "another process: {line}");
    assert!(!line.contains(&KEY[..16]), "{line}");
}

#[test]
fn the_key_of_a_table_line_is_on_no_servers_command_line() {
    let scratch = Scratch::new();
    let line = table(&scratch);
    let image = scratch.path("image");
    let data = b"the same volume by every way".as_slice();
    let mut write = scratch.ucrypt(&["write", "--table", &line]);
    run(write.arg(&image), data).passes();
    let file = scratch.file("table", format!("{line}\n").as_bytes());
    let ways: [(&[&str], &[u8]); 3] = [
        (&["--table", &line], b""),
        (&["--table", "-"], line.as_bytes()),
        (&["--table-file", file.to_str().expect("text")], b""),
    ];
    for (way, input) in ways {
        let mut open = scratch.ucrypt(&["open", "--as", "fuse"]);
        let path = run(open.args(way).arg(&image).arg("volume"), input).text();
        let server = scratch.server();
        has_no_key_on_its_command_line(server);
        let mut found = vec![0; data.len()];
        File::open(path.trim()).expect("opened").read_exact_at(&mut found, 0).expect("read");
        assert_eq!(found, data, "{way:?}");
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
        scratch.await_end(server);
    }
    let server =
        Server::start(&scratch, On::Nbd, &["--table", &line, image.to_str().expect("text")]);
    has_no_key_on_its_command_line(server.pid());
    server.terminate();
}

/// A command as another user, in this test's runtime directory.
fn as_nobody(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = limited("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(scratch.path("ucrypt"));
    command.args(arguments).env("XDG_RUNTIME_DIR", scratch.path("run"));
    command
}

#[test]
fn with_umask_0_nobody_else_gives_orders_to_a_server_or_gets_at_its_volume() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    scratch.program("ucrypt", UCRYPT);
    for dir in ["", "run", "run/ucrypt"] {
        // With the mode of a directory made by hand.
        fs::create_dir_all(scratch.path(dir)).expect("a directory");
        fs::set_permissions(scratch.path(dir), PermissionsExt::from_mode(0o755)).expect("set");
    }
    for served in ["nbd", "fuse", "loop"] {
        let name = scratch.unique();
        let mut open = tool("sh", "dash");
        open.args(["-euc", "umask 0; exec \"$@\"", "sh", UCRYPT, "open"]).args(image.with_key());
        open.args([&name, "--as", served]).env("XDG_RUNTIME_DIR", scratch.path("run"));
        let path = run(&mut open, b"").text();
        // The directory's mode is one barrier. The mode of each file in it and the check of the
        // peer's user are others.
        fs::set_permissions(scratch.runtime(""), PermissionsExt::from_mode(0o755)).expect("set");
        for entry in fs::read_dir(scratch.runtime("")).expect("a directory") {
            let entry = entry.expect("an entry");
            let mode = entry.metadata().expect("metadata").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{entry:?} is for others too: {mode:o}");
        }
        let socket = scratch.runtime(&format!(".{name}.sock"));
        run(&mut as_nobody(&scratch, &["close", &name]), b"").refuses(2);
        fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).expect("set");
        run(&mut as_nobody(&scratch, &["close", &name]), b"").refuses(2);
        run(&mut as_nobody(&scratch, &["resize", &name, "--size", "8"]), b"").refuses(2);
        if served != "nbd" {
            let mut read = tool("setpriv", "util-linux");
            read.args(["--reuid=65534", "--regid=65534", "--clear-groups", "head", "-c", "1"]);
            run(read.arg(path.trim()), b"").exits(1);
        }
        run(&mut scratch.ucrypt(&["close", &name]), b"").passes();
        fs::set_permissions(scratch.runtime(""), PermissionsExt::from_mode(0o700)).expect("set");
    }
    if let Ok(links) = fs::metadata("/dev/ucrypt") {
        assert_eq!(links.permissions().mode() & 0o777, 0o755);
    }
}
