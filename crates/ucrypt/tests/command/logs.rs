//! What servers log: one line an event, in the form and the place that the user has chosen.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde_json::Value;

use crate::image::{DATA, Image, LUKS2};
use crate::namespace::script;
use crate::nbd_client::NbdClient;
use crate::process::{run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::{On, PATIENCE, Server};

/// The events of a log in JSON.
fn events(log: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(log).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn a_log_tells_of_clients_and_of_what_the_user_asks_for_one_line_an_event() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let log = scratch.path("log");
    let mut open = image.ucrypt(&scratch, "open");
    open.args(["work", "--as", "nbd", "--log-format", "json", "--log"]).arg(&log);
    run(&mut open, b"").passes();
    let client = NbdClient::connect(&scratch.runtime(".work.nbd")).expect("connected");
    drop(client);
    run(&mut scratch.ucrypt(&["resize", "--size", "1024", "work"]), b"").passes();
    let said = |what: &str| {
        let is_it = |event: &Value| event["message"].as_str().is_some_and(|it| it.contains(what));
        fs::metadata(&log).is_ok() && events(&log).iter().any(is_it)
    };
    let deadline = Instant::now() + PATIENCE;
    while !said("has gone") {
        assert!(Instant::now() < deadline, "{:?}", events(&log));
        std::thread::sleep(Duration::from_millis(5));
    }
    run(&mut scratch.ucrypt(&["close", "work"]), b"").passes();
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    let events = events(&log);
    let kinds: Vec<_> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    for kind in ["opened", "client", "resized", "closed"] {
        assert!(kinds.contains(&kind), "{kind} is missing in {events:?}");
    }
    assert_eq!((kinds.first(), kinds.last()), (Some(&"opened"), Some(&"closed")));
    for event in &events {
        assert_eq!((&event["level"], &event["volume"]), (&"info".into(), &"work".into()));
        let time = event["time"].as_str().expect("a time");
        assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    }
    assert!(said("NBD client 1 has connected"));
}

#[test]
fn less_is_logged_where_less_is_asked_for_and_nothing_without_a_reason() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let log = scratch.path("log");
    for (options, opened) in [(&[][..], true), (&["--log-level", "warning"], false)] {
        let mut open = image.ucrypt(&scratch, "open");
        open.args(["work", "--as", "nbd", "--log"]).arg(&log).args(options);
        run(&mut open, b"").passes();
        run(&mut scratch.ucrypt(&["close", "work"]), b"").passes();
        scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
        let text = fs::read_to_string(&log).expect("a log");
        assert_eq!(text.contains("Z info: opened "), opened, "{text}");
        assert_eq!(text.is_empty(), !opened, "{text}");
        fs::remove_file(&log).expect("removed");
    }
    // Without --log there is a log only if something went wrong.
    run(image.ucrypt(&scratch, "open").args(["work", "--as", "nbd"]), b"").passes();
    let status = run(&mut scratch.ucrypt(&["status", "--json", "work"]), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    assert_eq!(status["log"], scratch.runtime(".work.log").to_str().expect("text"));
    run(&mut scratch.ucrypt(&["close", "work"]), b"").passes();
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    assert!(!scratch.runtime(".work.log").exists());
}

#[test]
fn a_server_in_the_foreground_logs_where_it_is_told_and_fails_on_standard_error() {
    let scratch = Scratch::new();
    let log = scratch.path("events");
    let line = ["--backend", "mem:1M", "--log", log.to_str().expect("text")];
    let server = Server::start(&scratch, On::Nbd, &line);
    drop(NbdClient::connect(server.socket()).expect("connected"));
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_to_string(&log).unwrap_or_default().contains("NBD client 1 has gone") {
        assert!(Instant::now() < deadline, "{:?}", fs::read_to_string(&log));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.stderr(), "");
    server.terminate();
    let text = fs::read_to_string(&log).expect("a log");
    assert!(text.trim_end().ends_with("Z info: volume has ended"), "{text}");
    // A log that cannot be written is told before a passphrase is asked for.
    let pipe = scratch.path("pipe");
    run(tool("mkfifo", "coreutils").arg(&pipe), b"").passes();
    for place in ["/no/such/log", "/", pipe.to_str().expect("text")] {
        let mut serve = scratch.ucrypt(&["serve", "--nbd", "unix:x", "--log", place]);
        let refused = run(serve.arg("/dev/null"), b"").refuses(4);
        assert!(refused.contains("cannot log to"), "{refused}");
    }
}

#[test]
fn the_journal_gets_events_with_their_level_and_their_volume() {
    let scratch = Scratch::new();
    let journal = UnixDatagram::bind(scratch.path("journal")).expect("a journal");
    journal.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let text = "mount -t tmpfs none /run; mkdir -p /run/systemd/journal
        touch /run/systemd/journal/socket
        mount --bind journal /run/systemd/journal/socket
        # Its path lets the server be found if the test fails.
        ln -s $1 ucrypt
        $PWD/ucrypt open --as nbd --backend mem:1M --log journal work
        $PWD/ucrypt close work";
    let mut command = script(&scratch, text, &[UCRYPT]);
    run(command.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").passes();
    let mut fields = Vec::new();
    while fields.last().is_none_or(|last: &String| !last.contains("MESSAGE=work is closed\n")) {
        let mut datagram = [0; 4096];
        let len = journal.recv(&mut datagram).expect("an event");
        fields.push(String::from_utf8_lossy(&datagram[..len]).into_owned());
    }
    for event in &fields {
        for field in ["PRIORITY=6", "SYSLOG_IDENTIFIER=ucrypt", "UCRYPT_VOLUME=work"] {
            assert!(event.lines().any(|line| line == field), "{field} in {event}");
        }
    }
    assert!(fields[0].contains("\nUCRYPT_EVENT=opened\n"), "{fields:?}");
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", "x"]);
    if !std::path::Path::new("/run/systemd/journal/socket").exists() {
        let refused = run(open.args(["--log", "journal"]), b"").refuses(4);
        assert!(refused.contains("/run/systemd/journal/socket"), "{refused}");
    }
}

/// As a unit of systemd with `log=journal` in the table.
#[test]
fn a_server_in_the_foreground_that_logs_to_the_system_ends() {
    let scratch = Scratch::new();
    let _journal = UnixDatagram::bind(scratch.path("journal")).expect("a journal");
    let text = "mount -t tmpfs none /run; mkdir -p /run/systemd/journal
        touch /run/systemd/journal/socket
        mount --bind journal /run/systemd/journal/socket
        ln -s $1 ucrypt
        $PWD/ucrypt open --foreground --as nbd --backend mem:1M --log journal work >ready &
        server=$!
        until [ -s ready ]; do kill -0 $server; done
        $PWD/ucrypt close work
        wait $server";
    let mut command = script(&scratch, text, &[UCRYPT]);
    run(command.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").passes();
}

#[test]
fn a_log_that_nobody_reads_keeps_a_server_neither_from_answers_nor_from_its_end() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    run(tool("mkfifo", "coreutils").arg(&pipe), b"").passes();
    let fill = || {
        // Both ends: it is open, and nobody reads it.
        let mut options = fs::File::options();
        let options =
            options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let file = options.open(&pipe).expect("a pipe");
        while std::io::Write::write(&mut &file, &[b'x'; 4096]).is_ok() {}
        file
    };
    let _full = fill();
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", "work"]);
    run(open.arg("--log").arg(&pipe), b"").passes();
    let client = NbdClient::connect(&scratch.runtime(".work.nbd")).expect("connected");
    drop(client);
    run(&mut scratch.ucrypt(&["status", "work"]), b"").passes();
    run(&mut scratch.ucrypt(&["close", "work"]), b"").passes();
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
}
