//! Standard streams that are closed, full, or without a reader.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::image::{DATA, Image, LUKS2};
use crate::nbd_client::NbdClient;
use crate::process::{Ran, run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::{On, PATIENCE, Server, await_end, await_reader, await_that};

/// The command, run by a shell that redirects something.
fn redirected(scratch: &Scratch, redirection: &str, line: &[&str]) -> Ran {
    let mut shell = tool("sh", "dash");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirection}")).arg(UCRYPT).args(line);
    shell.env("XDG_RUNTIME_DIR", scratch.path("run"));
    run(&mut shell, b"some input\n")
}

/// Runs the command with this standard output. Returns how it ended and its messages.
fn into(mut command: Command, stdout: Stdio) -> (ExitStatus, String) {
    let child = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn();
    let output = child.and_then(std::process::Child::wait_with_output).expect("it runs");
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A pipe whose reader has gone.
fn unread() -> Stdio {
    io::pipe().expect("a pipe").1.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("/dev/full").into()
}

/// Every action that prints a result, on an open volume and its image.
fn printing(image: &Image) -> Vec<Vec<String>> {
    let path = image.path.display().to_string();
    let key = image.key.display().to_string();
    let lines: [&[&str]; 10] = [
        &["list"],
        &["list", "--json"],
        &["status", "volume"],
        &["status", "--dispatch", "--json", "volume"],
        &["luksDump", &path],
        &["luksUUID", &path],
        &["read", "--key-file", &key, &path],
        &["benchmark", "--pbkdf", "pbkdf2", "--hash", "sha256", "--time", "1"],
        &["--help"],
        &["--version"],
    ];
    lines.iter().map(|line| line.iter().map(ToString::to_string).collect()).collect()
}

fn open(scratch: &Scratch, image: &Image) -> Command {
    let mut open = scratch.ucrypt(&["open", "--as", "fuse"]);
    open.args(image.with_key()).arg("volume");
    open
}

#[test]
fn nobody_reads_a_result_and_the_command_ends_quietly() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    run(&mut open(&scratch, &image), b"").passes();
    for line in printing(&image) {
        let (ended, said) = into(scratch.ucrypt(&line), unread());
        let said: String = said.lines().filter(|line| !line.contains("in use")).collect();
        // It ends as `cat` would. `timeout`, which starts it, ends as its program does.
        assert_eq!((ended.signal(), said.as_str()), (Some(Signal::PIPE.as_raw()), ""), "{line:?}");
    }
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
}

#[test]
fn what_cannot_be_printed_is_told() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    run(&mut open(&scratch, &image), b"").passes();
    for line in printing(&image) {
        let (ended, said) = into(scratch.ucrypt(&line), full());
        assert_eq!(ended.code(), Some(1), "{line:?}: {said}");
        assert!(said.contains("No space left on device"), "{line:?}: {said}");
    }
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
}

#[test]
fn a_volume_whose_path_nobody_reads_is_open_as_if_somebody_did() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    for (stdout, code, words) in [(unread(), 0, ""), (full(), 1, "volume is open as")] {
        let (ended, said) = into(open(&scratch, &image), stdout);
        assert_eq!(ended.code(), Some(code), "{said}");
        assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{said}");
        run(&mut scratch.ucrypt(&["status", "volume"]), b"").passes();
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
    }
}

#[test]
fn a_server_serves_on_when_nobody_reads_what_it_announces() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut serve = scratch.ucrypt_child(&["serve"]);
    let socket = scratch.path("socket");
    serve.args(image.with_key()).arg("--nbd").arg(format!("unix:{}", socket.display()));
    serve.stdin(Stdio::null()).stdout(unread()).stderr(Stdio::null());
    let mut server = serve.spawn().expect("it starts");
    await_that("the server listens", || {
        assert!(server.try_wait().expect("waited").is_none(), "the server has ended");
        NbdClient::connect(&socket).is_ok()
    });
    let pid = Pid::from_child(&server);
    kill_process(pid, Signal::TERM).expect("a signal");
    assert!(await_end(&mut server).success());
}

/// A terminal that was closed, with a server in it that has something to say.
#[test]
fn a_server_serves_on_when_nobody_reads_its_messages() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut serve = scratch.ucrypt_child(&["serve"]);
    let socket = scratch.path("socket");
    serve.args(image.with_key()).arg("--nbd").arg(format!("unix:{}", socket.display()));
    serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(unread());
    let mut server = serve.spawn().expect("it starts");
    await_that("the server listens", || {
        assert!(server.try_wait().expect("waited").is_none(), "the server has ended");
        NbdClient::connect(&socket).is_ok()
    });
    // It says why it turns away who is no client of NBD, and then closes the connection.
    let mut stranger = UnixStream::connect(&socket).expect("connected");
    stranger.write_all(&[b'x'; 64]).expect("sent");
    let mut greeting = Vec::new();
    // It may close while bytes of the stranger are unread.
    let _ = stranger.read_to_end(&mut greeting);
    assert!(greeting.starts_with(b"NBDMAGIC"), "{greeting:?}");
    let mut client = NbdClient::connect(&socket).expect("it serves on");
    client.write(0, &[7; 4096]).expect("written");
    assert_eq!(client.read(0, 4096).expect("read"), [7; 4096]);
    drop(client);
    kill_process(Pid::from_child(&server), Signal::TERM).expect("a signal");
    assert!(await_end(&mut server).success());
}

/// `read | head` on a terminal: the bar is on it when the reader goes.
#[test]
fn nothing_of_a_progress_bar_stays_on_the_terminal_when_the_reader_has_gone() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let (path, key) = (image.path.display().to_string(), image.key.display().to_string());
    let seen = scratch.path("seen").display().to_string();
    // More than a pipe holds, so that the command meets the end of its reader, which goes when it has seen
    // the bar.
    let looks = format!("for _ in $(seq 600); do grep -aq B/s '{seen}' && break; sleep 0.1; done");
    let read = format!("'{UCRYPT}' read --key-file '{key}' '{path}'");
    let line = format!("{read} | {{ {looks}; head -c 100 >'{path}.head'; }}");
    let mut terminal = tool("script", "bsdutils");
    let shown = run(terminal.args(["-qefc", &line, &seen]), b"").exits(0).stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("B/s"), "there was no bar: {shown:?}");
    let left = shown.rsplit("\r\x1b[2K").next();
    assert_eq!(left, Some(""), "{shown:?}");
}

#[test]
fn a_closed_standard_output_is_not_taken_for_one_that_takes_everything() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let (path, key) = (image.path.display().to_string(), image.key.display().to_string());
    let read = ["read", "--key-file", &key, &path];
    let message = redirected(&scratch, ">&-", &read).refuses(1);
    assert!(message.contains("standard output is closed"), "{message}");
    redirected(&scratch, ">&-", &["luksUUID", &path]).refuses(1);
    // A user who wants the bytes thrown away gets that.
    redirected(&scratch, ">/dev/null", &read).exits(0);
    redirected(&scratch, ">/dev/null 2>&-", &read).exits(0);
    // An action does its work even if it cannot print.
    let open = ["open", "--as", "fuse", "--key-file", &key, &path, "volume"];
    redirected(&scratch, ">&-", &open).exits(0);
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
}

#[test]
fn a_closed_standard_input_is_not_taken_for_an_empty_one() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let before = image.bytes();
    let (path, key) = (image.path.display().to_string(), image.key.display().to_string());
    let write = ["write", "--key-file", &key, &path];
    let message = redirected(&scratch, "<&-", &write).refuses(1);
    assert!(message.contains("standard input is closed"), "{message}");
    for line in [&["read", &path][..], &["open", "--test-passphrase", "--key-file", "-", &path]] {
        let message = redirected(&scratch, "<&-", line).refuses(1);
        assert!(message.contains("standard input is closed"), "{message}");
    }
    redirected(&scratch, "</dev/null", &write).exits(0);
    assert!(image.bytes() == before);
}

#[test]
fn a_write_that_does_not_fit_says_what_is_there_only_after_a_flush() {
    let scratch = Scratch::new();
    let small = scratch.path("small");
    std::fs::create_dir(&small).expect("a directory");
    let mut mount = tool("mount", "mount");
    run(mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&small), b"").passes();
    // Writes to a loop device end in the page cache; only the flush finds that there is no room.
    let backing = scratch.sparse("small/image", 4 << 20);
    let mut losetup = tool("losetup", "mount");
    let device = run(losetup.args(["--find", "--show"]).arg(&backing), b"").text();
    let mut write = scratch.ucrypt(&["write", "-q", "--type", "plain", "--volume-key-file"]);
    write.arg(scratch.file("key", &[7; 64])).arg(device.trim());
    let data = vec![1; 5 << 20];
    let message = run(&mut write, &data).refuses(4);
    assert!(message.contains("flush failed") && !message.contains("was written"), "{message}");

    let image = scratch.sparse("image", 1 << 20);
    let mut write = scratch.ucrypt(&["write", "-q", "--type", "plain", "--volume-key-file"]);
    write.arg(scratch.path("key")).arg(&image);
    let message = run(&mut write, &data).refuses(4);
    assert!(message.contains("everything before byte 1048576 was written"), "{message}");
    let mut read = scratch.ucrypt(&["read", "--type", "plain", "--volume-key-file"]);
    let read = run(read.arg(scratch.path("key")).arg(&image), b"").passes();
    assert!(read == data[..1 << 20]);
}

#[test]
fn the_demo_can_be_interrupted_while_it_fills_its_volumes() {
    let scratch = Scratch::new();
    let dir = scratch.path("demo");
    std::fs::create_dir(&dir).expect("a directory");
    let mut demo = scratch.ucrypt_child(&["demo", "--size", "256M", "--dir"]);
    let mut demo = demo.arg(&dir).stderr(Stdio::piped()).spawn().expect("it starts");
    let stderr = BufReader::new(demo.stderr.take().expect("a pipe"));
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            let _ = say.send(line);
        }
    });
    let first = said.recv_timeout(PATIENCE).expect("the demo says that it begins");
    assert!(first.starts_with("scratch files:"), "{first}");
    let pid = Pid::from_child(&demo);
    kill_process(pid, Signal::INT).expect("a signal");
    assert_eq!(await_end(&mut demo).code(), Some(1));
    assert_eq!(said.iter().collect::<Vec<_>>(), ["ucrypt: interrupted"]);
    assert_eq!(std::fs::read_dir(&dir).expect("a directory").count(), 0, "files are left");
}

#[test]
fn serve_can_be_ended_while_it_waits_for_a_passphrase() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let fifo = scratch.path("fifo");
    run(tool("mkfifo", "coreutils").arg(&fifo), b"").passes();
    let mut serve = scratch.ucrypt_child(&["serve", "--nbd"]);
    serve.arg(format!("unix:{}", scratch.path("socket").display()));
    serve.arg(&image.path).arg("--key-file").arg(&fifo).stdin(Stdio::null());
    let mut serve = serve.spawn().expect("it starts");
    // Now it waits for the key.
    let _held = await_reader(&fifo);
    let pid = Pid::from_child(&serve);
    // Not SIGINT: shells make background processes ignore it, perhaps these tests too.
    kill_process(pid, Signal::TERM).expect("a signal");
    assert!(!await_end(&mut serve).success());
}

#[test]
fn a_header_that_is_the_image_itself_does_not_lock_it_out() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let link = scratch.path("link");
    std::os::unix::fs::symlink(&image.path, &link).expect("a link");
    for header in [&image.path, &link] {
        let mut line = image.with_key();
        line.extend(["--header".into(), header.into()]);
        let server = Server::start(&scratch, On::Nbd, &line);
        server.terminate();
    }
}
