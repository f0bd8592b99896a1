//! `/etc/ucrypttab`, and volumes as services: `attach`, `detach`, `open --foreground`, systemd's protocols.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::image::{DATA, Image, LUKS2};
use crate::nbd_client::NbdClient;
use crate::process::{python, run};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::{On, Server};

/// How long a service may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

fn table(scratch: &Scratch, text: &str) -> PathBuf {
    scratch.file("table", text.as_bytes())
}

/// An action on the table.
fn on_table(scratch: &Scratch, table: &Path, words: &[&str]) -> Command {
    let mut command = scratch.ucrypt(words);
    command.arg("--ucrypttab").arg(table);
    command
}

fn names(scratch: &Scratch) -> Vec<String> {
    let list = run(&mut scratch.ucrypt(&["list", "--json"]), b"").passes();
    let list: Value = serde_json::from_slice(&list).expect("JSON");
    let names = list.as_array().expect("a list").iter();
    names.map(|volume| volume["name"].as_str().expect("a name").to_owned()).collect()
}

/// Two volumes, in `one` and `two`.
fn two_volumes(scratch: &Scratch) -> Image {
    let image = Image::by_cryptsetup(scratch, LUKS2, DATA);
    for name in ["one", "two"] {
        fs::copy(&image.path, scratch.path(name)).expect("copied");
    }
    image
}

#[test]
fn the_volumes_of_a_table_are_opened_and_closed_and_a_wrong_line_stops_no_other() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    let table = table(
        &scratch,
        &format!(
            "# volumes\n\
             one {dir}/one {key} luks,as=nbd,read-only\n\
             bad {dir}/one {key} luks,as=nbd,frobnicate\n\
             missing {dir}/none {key} luks,as=nbd,nofail\n\
             later {dir}/two {key} luks,as=nbd,noauto\n\
             two {dir}/two {key} luks,as=nbd,discard,quiet\n"
        ),
    );
    let checked = run(&mut on_table(&scratch, &table, &["attach", "--check"]), b"").exits(1);
    let text = String::from_utf8(checked.stdout).expect("text");
    assert!(text.contains("3: bad: WRONG: 'frobnicate'"), "{text}");
    assert!(text.contains("2: one:") && text.contains("quiet: "), "{text}");
    assert!(names(&scratch).is_empty(), "nothing was opened");
    let opened = run(&mut on_table(&scratch, &table, &["attach", "--all"]), b"").exits(1);
    assert!(opened.stderr.contains(":3: 'frobnicate'"), "{}", opened.stderr);
    assert_eq!(names(&scratch), ["one", "two"]);
    let status = run(&mut scratch.ucrypt(&["status", "--json", "one"]), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    assert_eq!(status["volume"]["read_only"], true);
    assert_eq!(status["volume"]["discards"], false);
    let status = run(&mut scratch.ucrypt(&["status", "--json", "two"]), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    assert_eq!(status["volume"]["discards"], true);
    // What is open stays so, and is no error.
    run(&mut on_table(&scratch, &table, &["attach", "one"]), b"").passes();
    let message = run(&mut on_table(&scratch, &table, &["attach", "bad"]), b"").refuses(1);
    assert!(message.contains(":3: 'frobnicate'"), "{message}");
    let message = run(&mut on_table(&scratch, &table, &["attach", "none"]), b"").refuses(1);
    assert!(message.contains("no entry none"), "{message}");
    run(&mut on_table(&scratch, &table, &["attach", "missing"]), b"").exits(4);
    run(&mut on_table(&scratch, &table, &["detach", "--all"]), b"").passes();
    assert!(names(&scratch).is_empty());
    run(&mut on_table(&scratch, &table, &["detach", "--all"]), b"").passes();
    // By its name, an entry is opened that is not at boot.
    run(&mut on_table(&scratch, &table, &["attach", "later"]), b"").passes();
    assert_eq!(names(&scratch), ["later"]);
    run(&mut scratch.ucrypt(&["detach", "later"]), b"").passes();
    let message = run(&mut on_table(&scratch, &scratch.path("none"), &["attach", "--all"]), b"");
    assert!(message.refuses(4).contains("cannot read"));
}

#[test]
fn json_of_a_table_names_entries_and_mistakes_by_their_lines() {
    let scratch = Scratch::new();
    let table = table(&scratch, "a /a none luks\nb relative none\n");
    let checked =
        run(&mut on_table(&scratch, &table, &["attach", "--check", "--json"]), b"").exits(1);
    let shown: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!((&shown[0]["line"], &shown[0]["open"]), (&1.into(), &false.into()));
    assert_eq!(shown[1]["line"], 2);
    assert!(shown[1]["error"].as_str().is_some_and(|error| error.contains("no device")), "{shown}");
}

#[test]
fn detach_waits_for_the_users_of_a_volume() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    run(image.ucrypt(&scratch, "open").args(["volume", "--as", "nbd"]), b"").passes();
    let mut client = NbdClient::connect(&scratch.runtime(".volume.nbd")).expect("connected");
    let message = run(&mut scratch.ucrypt(&["detach", "volume"]), b"").exits(5).stderr;
    assert!(message.contains("in use"), "{message}");
    let mut waiting = scratch.ucrypt_child(&["detach", "--wait", "60", "volume"]);
    let mut waiting = waiting.stderr(Stdio::piped()).spawn().expect("it starts");
    client.write(0, b"the last words").expect("written");
    let mut said = String::new();
    let mut stderr = std::io::BufReader::new(waiting.stderr.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut stderr, &mut said).expect("read");
    assert!(said.contains("waits for at most 60 s"), "{said}");
    drop(client);
    assert!(waiting.wait().expect("waited").success());
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "14"]), b"").passes(), b"the last words");
}

/// A volume that is served as a service, and the socket of its manager.
struct Service {
    child: Child,
    manager: UnixDatagram,
}

impl Service {
    fn start(scratch: &Scratch, words: &[&str], environment: &[(&str, &str)]) -> Self {
        let place = scratch.path("notify");
        let manager = UnixDatagram::bind(&place).expect("a socket");
        manager.set_read_timeout(Some(PATIENCE)).expect("set");
        let mut command = scratch.ucrypt_child(words);
        command.env("NOTIFY_SOCKET", &place).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().expect("it starts"), manager }
    }

    /// The next message.
    #[track_caller]
    fn next(&self) -> String {
        let mut buf = [0; 4096];
        let len = self.manager.recv(&mut buf).expect("a message");
        String::from_utf8_lossy(&buf[..len]).into_owned()
    }

    /// Skips messages up to one that has this word.
    #[track_caller]
    fn await_word(&self, word: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.next();
            if message.contains(word) {
                return message;
            }
            assert!(Instant::now() < deadline, "no {word}, but {message}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_is_ready_when_the_volume_can_be_used_and_keeps_its_process() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    let table = table(&scratch, &format!("one {dir}/one {key} luks,as=nbd\n"));
    let table = table.to_str().expect("text");
    let words = ["attach", "--foreground", "--ucrypttab", table, "one"];
    let mut service = Service::start(&scratch, &words, &[]);
    let ready = service.next();
    assert!(ready.starts_with("READY=1\nSTATUS=serves "), "{ready}");
    let mut client = NbdClient::connect(&scratch.runtime(".one.nbd")).expect("connected");
    client.write(0, b"a service").expect("written");
    drop(client);
    let status = run(&mut scratch.ucrypt(&["status", "--json", "one"]), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    assert_eq!(status["server"]["pid"], service.child.id());
    service.signal(Signal::TERM);
    let stopping = service.next();
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
    assert!(service.child.wait().expect("waited").success());
    let mut read = scratch.ucrypt(&["read", "--length", "9", "--key-file"]);
    read.arg(&image.key).arg(scratch.path("one"));
    assert_eq!(run(&mut read, b"").passes(), b"a service");
    let left: Vec<_> = fs::read_dir(scratch.runtime("")).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_service_that_cannot_unlock_fails_with_the_reason_in_its_status() {
    let scratch = Scratch::new();
    let _ = two_volumes(&scratch);
    let dir = scratch.path("").display().to_string();
    let wrong = scratch.file("wrong", b"wrong");
    let table = table(
        &scratch,
        &format!(
            "one {dir}/one {} luks,as=nbd\nbad {dir}/one none luks,nonsense\n",
            wrong.display()
        ),
    );
    let table = table.to_str().expect("text");
    for (name, code, word) in
        [("one", 2, "no keyslot"), ("bad", 1, ":2: 'nonsense'"), ("x", 1, "no entry")]
    {
        let _ = fs::remove_file(scratch.path("notify"));
        let words = ["attach", "--foreground", "--ucrypttab", table, name];
        let mut service = Service::start(&scratch, &words, &[]);
        let status = service.next();
        assert!(status.starts_with("STATUS=") && status.contains(word), "{name}: {status}");
        assert_eq!(service.child.wait().expect("waited").code(), Some(code), "{name}");
    }
}

#[test]
fn the_watchdog_is_served_while_the_volume_gets_on_and_only_then() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // An image that can be made to answer nothing: a file of another server.
    let lower = scratch.sparse("lower", fs::metadata(&image.path).expect("there").len());
    fs::copy(&image.path, &lower).expect("copied");
    let words = ["--cipher", "none", lower.to_str().expect("text")];
    let below = Server::start(&scratch, On::Fuse, &words);
    let file = below.file().to_str().expect("text").to_owned();
    let key = image.key.to_str().expect("text");
    let words = ["open", "--foreground", "--as", "nbd", "--key-file", key, &file, "volume"];
    let service = Service::start(&scratch, &words, &[("WATCHDOG_USEC", "400000")]);
    service.await_word("READY=1");
    for _ in 0..3 {
        service.await_word("WATCHDOG=1");
    }
    let mut client = NbdClient::connect(&scratch.runtime(".volume.nbd")).expect("connected");
    below.signal(Signal::STOP);
    let writing = std::thread::spawn(move || client.write(0, &[7; 4096]));
    // Beats come every 100 ms until the request is under way, and then no more.
    service.manager.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
    let deadline = Instant::now() + PATIENCE;
    let mut stands_still = false;
    while !stands_still && Instant::now() < deadline {
        stands_still = service.manager.recv(&mut [0; 4096]).is_err();
    }
    below.signal(Signal::CONT);
    assert!(stands_still, "a server that stands still says that it is well");
    service.manager.set_read_timeout(Some(PATIENCE)).expect("set");
    service.await_word("WATCHDOG=1");
    writing.join().expect("joined").expect("written");
    service.signal(Signal::TERM);
    service.await_word("STOPPING=1");
}

#[test]
fn a_server_in_the_foreground_says_where_the_volume_is_and_ends_with_close() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let key = image.key.to_str().expect("text");
    let path = image.path.to_str().expect("text");
    let words =
        ["open", "--json", "--foreground", "--as", "nbd", "--key-file", key, path, "volume"];
    let mut service = Service::start(&scratch, &words, &[]);
    service.await_word("READY=1");
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
    assert!(service.child.wait().expect("waited").success());
    let mut said = String::new();
    let mut stdout = service.child.stdout.take().expect("a pipe");
    std::io::Read::read_to_string(&mut stdout, &mut said).expect("read");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["name"], "volume");
    assert!(said["device"].as_str().is_some_and(|it| it.starts_with("nbd+unix:")), "{said}");
}

#[test]
fn the_socket_of_a_unit_is_served() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let socket = scratch.path("unit.sock");
    // As systemd does: the socket is descriptor 3, and the environment says so.
    let start = "import os, socket, sys\n\
        s = socket.socket(socket.AF_UNIX)\n\
        s.bind(sys.argv[1]); s.listen()\n\
        if s.fileno() != 3: os.dup2(s.fileno(), 3)\n\
        os.set_inheritable(3, True)\n\
        os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[2], sys.argv[2:])\n";
    // Not below `timeout`, which would be another process.
    let mut probe = python("", "socket", "python3");
    run(&mut probe, b"").passes();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", start]).arg(&socket).arg(UCRYPT);
    command.args(["serve", "--nbd", "systemd", "--key-file"]).arg(&image.key).arg(&image.path);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Service {
        child: command.spawn().expect("it starts"),
        manager: UnixDatagram::unbound().expect("a socket"),
    };
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(server.child.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut stdout, &mut line).expect("read");
    assert_eq!(line, format!("nbd: nbd+unix:///?socket={}\n", socket.display()));
    let mut client = NbdClient::connect(&socket).expect("connected");
    client.write(0, b"by a socket unit").expect("written");
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.child.wait().expect("waited").success());
    assert!(socket.exists(), "the socket is the manager's");
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "16"]), b"").passes(), b"by a socket unit");
    let message =
        run(&mut scratch.ucrypt(&["serve", "--nbd", "systemd", "--backend", "mem:1M"]), b"");
    assert!(message.refuses(1).contains("socket unit"));
}

#[test]
fn units_are_made_of_a_table() {
    let scratch = Scratch::new();
    let units = scratch.path("units");
    let table = table(&scratch, "my-vol /srv/disk.img none luks\nbad /i none nonsense\n");
    let mut generator = on_table(&scratch, &table, &["systemd-generator"]);
    run(generator.arg(&units).arg(&units).arg(&units), b"").passes();
    let settings = units.join("ucrypt@my\\x2dvol.service.d/50-ucrypttab.conf");
    let settings = fs::read_to_string(settings).expect("settings");
    assert!(settings.contains("RequiresMountsFor=\"/srv/disk.img\""), "{settings}");
    assert!(units.join("cryptsetup.target.requires/ucrypt@my\\x2dvol.service").is_symlink());
    assert!(units.join("dev-ucrypt-bad.device.requires/ucrypt@bad.service").is_symlink());
}

#[test]
fn a_volume_whose_server_was_killed_is_not_taken_for_open() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    let table = table(&scratch, &format!("one {dir}/one {key} luks,as=nbd\n"));
    run(&mut on_table(&scratch, &table, &["attach", "one"]), b"").passes();
    let check = || run(&mut on_table(&scratch, &table, &["attach", "--check"]), b"").text();
    assert!(check().contains(", open"), "{}", check());
    scratch.kill_background_server();
    assert!(check().contains(", closed"), "{}", check());
    run(&mut on_table(&scratch, &table, &["attach", "--all"]), b"").passes();
    run(&mut scratch.ucrypt(&["status", "one"]), b"").passes();
    run(&mut on_table(&scratch, &table, &["detach", "--all"]), b"").passes();
}

#[test]
fn a_wait_beyond_all_times_is_no_panic() {
    let scratch = Scratch::new();
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", "volume"]);
    // The path also lets the server be found if the test fails.
    run(open.arg("--log").arg(scratch.path("log")), b"").passes();
    let forever = u64::MAX.to_string();
    run(&mut scratch.ucrypt(&["detach", "--wait", &forever, "volume"]), b"").passes();
}

#[test]
fn a_check_names_what_open_would_refuse() {
    let scratch = Scratch::new();
    for (options, word) in [
        ("luks,iv-large-sectors", "iv-large-sectors describes a plain volume"),
        ("luks,readonly,read-only", "multiple times"),
        ("luks,key-slot=x", "invalid value 'x'"),
        ("luks,dispatch=nonsense", "no dispatch policy"),
        ("luks,tries=2,volume-key-file=/k", "tries= has no effect beside volume-key-file="),
        ("luks,size=x,volume-key-file=/k", "invalid value 'x' for 'size='"),
        ("plain,cipher=aes,size=256,hash=sha256,key-slot=1", "key-slot= has no effect"),
        ("luks,header-digest=sha256:00", "no digest"),
    ] {
        let table = table(&scratch, &format!("a /a none {options}\n"));
        let checked = run(&mut on_table(&scratch, &table, &["attach", "--check"]), b"").exits(1);
        let text = String::from_utf8(checked.stdout).expect("text");
        assert!(text.contains("WRONG: ") && text.contains(word), "{options}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains("--"), "options of open in {text}");
    }
}

/// systemd ignores for a LUKS volume what describes one without a header.
#[test]
fn a_line_of_crypttab_with_options_of_plain_volumes_opens_its_luks_volume() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    let options = "luks,as=nbd,cipher=aes-xts-plain64,size=512,hash=sha256";
    let table = table(&scratch, &format!("one {dir}/one {key} {options}\n"));
    let checked = run(&mut on_table(&scratch, &table, &["attach", "--check"]), b"").text();
    for name in ["cipher", "size", "hash"] {
        assert!(checked.contains(&format!("{name}: means nothing here")), "{checked}");
    }
    run(&mut on_table(&scratch, &table, &["attach", "--all"]), b"").passes();
    assert_eq!(names(&scratch), ["one"]);
    run(&mut on_table(&scratch, &table, &["detach", "--all"]), b"").passes();
}

#[test]
fn a_volume_whose_line_has_gone_or_has_another_name_is_closed_with_the_others() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    // The second one's image is the first one's file.
    let served = scratch.runtime("one").display().to_string();
    scratch.file("plain-key", &[7; 32]);
    let text = format!(
        "one {dir}/one {key} as=fuse\n\
         above {served} {dir}/plain-key plain,cipher=aes-xts-plain64,size=256,as=nbd\n\
         two {dir}/two {key} as=nbd\n"
    );
    let table_path = table(&scratch, &text);
    for kept in [&["one", "above"][..], &["above", "two"], &["one"], &[]] {
        table(&scratch, &text);
        run(&mut on_table(&scratch, &table_path, &["attach", "--all"]), b"").passes();
        // Not of this table.
        let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", "own"]);
        run(open.arg("--log").arg(scratch.path("log")), b"").passes();
        assert_eq!(names(&scratch), ["above", "one", "own", "two"]);
        let lines = text.lines().map(|line| {
            let is_kept = kept.iter().any(|name| line.starts_with(&format!("{name} ")));
            if is_kept { format!("{line}\n") } else { format!("new-{line}\n") }
        });
        table(&scratch, &lines.collect::<String>());
        run(&mut on_table(&scratch, &table_path, &["detach", "--all"]), b"").passes();
        assert_eq!(names(&scratch), ["own"], "{kept:?}");
        run(&mut scratch.ucrypt(&["close", "own"]), b"").passes();
    }
}

/// As the init scripts call it where the package has just been installed.
#[test]
fn without_the_systems_table_there_is_nothing_to_attach_or_to_detach() {
    let scratch = Scratch::new();
    let text = "
        mkdir etc; mount --bind etc /etc
        $1 attach --all; $1 detach --all
        status=0; $1 attach one 2>said || status=$?
        [ $status = 4 ]; grep -q 'cannot read /etc/ucrypttab' said";
    let mut shell = crate::namespace::script(&scratch, text, &[UCRYPT]);
    let ran = run(shell.env("XDG_RUNTIME_DIR", scratch.path("run")), b"");
    assert_eq!(ran.stderr, "");
    ran.passes();
}

#[test]
fn mistakes_of_a_table_are_told_in_the_order_of_its_lines() {
    let scratch = Scratch::new();
    let dir = scratch.path("").display().to_string();
    let text = format!(
        "first {dir}/none1 {dir}/key luks,as=nbd\n\
         second {dir}/one {dir}/key luks,frobnicate\n\
         third {dir}/none3 {dir}/key luks,as=nbd,nofail\n\
         fourth relative none luks\n"
    );
    let table = table(&scratch, &text);
    let ran = run(&mut on_table(&scratch, &table, &["attach", "--all"]), b"").exits(4);
    let said = &ran.stderr;
    let places = ["/none1", ":2: 'frobnicate'", "/none3", ":4: "];
    let places = places.map(|it| said.find(it).unwrap_or_else(|| panic!("{it}: {said}")));
    assert!(places.is_sorted(), "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
    // By their names, in the order of these.
    let ran = run(&mut on_table(&scratch, &table, &["attach", "fourth", "first"]), b"").exits(1);
    assert!(ran.stderr.find(":4: ") < ran.stderr.find("/none1"), "{}", ran.stderr);
}

#[test]
fn a_wrong_line_does_not_stop_a_right_one_of_its_name() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    let text = format!("one relative none luks\none {dir}/one {key} luks,as=nbd\n");
    let table = table(&scratch, &text);
    run(&mut on_table(&scratch, &table, &["attach", "one"]), b"").passes();
    run(&mut scratch.ucrypt(&["detach", "one"]), b"").passes();
}

#[test]
fn a_volume_that_is_being_closed_is_not_said_to_be_open() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    let table = table(&scratch, &format!("one {dir}/one {key} luks,as=nbd\n"));
    run(&mut on_table(&scratch, &table, &["attach", "one"]), b"").passes();
    let client = NbdClient::connect(&scratch.runtime(".one.nbd")).expect("connected");
    run(&mut scratch.ucrypt(&["close", "--deferred", "one"]), b"").passes();
    let message = run(&mut on_table(&scratch, &table, &["attach", "one"]), b"").refuses(5);
    assert!(message.contains("is being closed"), "{message}");
    drop(client);
}

#[test]
fn who_detaches_what_is_neither_open_nor_in_the_table_is_told() {
    let scratch = Scratch::new();
    let dir = scratch.path("").display().to_string();
    let table = table(&scratch, &format!("one {dir}/one none luks\ntwo relative none luks\n"));
    let detach = |names: &[&str]| {
        let mut detach = on_table(&scratch, &table, &["detach"]);
        run(detach.args(names), b"").exits(0).stderr
    };
    assert_eq!(detach(&["one", "two"]), "");
    // A service that has ended by itself runs it as well.
    let said = detach(&["won", "one"]);
    assert!(said.contains("no entry won") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_volume_that_is_open_under_another_runtime_directory_is_not_said_to_be_closed() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let name = scratch.unique();
    let (path, key) = (image.path.display(), image.key.display());
    let table = table(&scratch, &format!("{name} {path} {key} luks,as=loop\n"));
    run(&mut on_table(&scratch, &table, &["attach", &name]), b"").passes();
    let elsewhere = |mut command: Command| {
        command.env("XDG_RUNTIME_DIR", scratch.path("login"));
        command
    };
    let mut check = elsewhere(on_table(&scratch, &table, &["attach", "--check"]));
    assert!(run(&mut check, b"").text().contains(", open"));
    run(&mut elsewhere(on_table(&scratch, &table, &["attach", "--all"])), b"").passes();
    let message = run(&mut elsewhere(scratch.ucrypt(&["detach", &name])), b"").refuses(5);
    assert!(message.contains("XDG_RUNTIME_DIR"), "{message}");
    run(&mut scratch.ucrypt(&["detach", &name]), b"").passes();
}

/// systemd would wait for the device for ever.
#[test]
fn a_service_is_not_ready_without_the_device_that_its_line_promises() {
    let scratch = Scratch::new();
    let image = two_volumes(&scratch);
    let (dir, key) = (scratch.path("").display().to_string(), image.key.display());
    table(&scratch, &format!("one {dir}/one {key} luks\n"));
    let text = format!(
        "for node in loop-control ublk-control; do
             [ ! -e /dev/$node ] || mount --bind /dev/null /dev/$node
         done
         code=0; {UCRYPT} attach --foreground --ucrypttab table one 2>said || code=$?
         cat said >&2; [ $code = 4 ]; grep -q 'no device can be had' said"
    );
    let mut attach = crate::namespace::script(&scratch, &text, &[] as &[&str]);
    run(attach.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").passes();
}

#[test]
fn the_watchdog_is_served_while_one_request_writes_for_long() {
    let scratch = Scratch::new();
    let log = scratch.path("log");
    // This card takes 57 ms for 1 MiB.
    let backend = "model:sd2015,512M";
    let words = ["open", "--foreground", "--as", "fuse", "--backend", backend, "volume"];
    let words = [&words[..], &["--log", log.to_str().expect("text")]].concat();
    let service = Service::start(&scratch, &words, &[("WATCHDOG_USEC", "400000")]);
    service.await_word("READY=1");
    let mut zero = crate::process::tool("fallocate", "util-linux");
    zero.args(["--zero-range", "--length", "64M"]).arg(scratch.runtime("volume"));
    let mut zero = zero.spawn().expect("it starts");
    let mut beats = 0;
    while zero.try_wait().expect("waited").is_none() {
        beats += u32::from(service.next().contains("WATCHDOG=1"));
    }
    assert!(beats > 10, "{beats} beats in seconds of writing");
    service.signal(Signal::TERM);
    service.await_word("STOPPING=1");
}

#[test]
fn init_scripts_unmount_the_last_mount_first() {
    let scratch = Scratch::new();
    let text = "
        mkdir bin default; export PATH=$PWD/bin:$PATH
        for program in mountpoint umount ucrypt; do
            printf '#!/bin/sh\\necho $(basename $0) $* >>said\\n' >bin/$program; chmod 755 bin/$program
        done
        echo 'MOUNTS=\"/a /a/b\"' >default/ucrypt; mount --bind default /etc/default
        expected='umount /a/b
umount /a'
        sh $1/ucrypt.sysv stop
        [ \"$(grep ^umount said)\" = \"$expected\" ]
        rm said; mounts='/a /a/b'
        ebegin() { :; }; eend() { :; }
        . $1/ucrypt.openrc; stop
        [ \"$(grep ^umount said)\" = \"$expected\" ]";
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/init");
    run(&mut crate::namespace::script(&scratch, text, &[init]), b"").passes();
}

#[test]
fn the_init_script_tells_by_its_status_whether_the_volumes_are_open() {
    let scratch = Scratch::new();
    let text = "
        mkdir bin; export PATH=$PWD/bin:$PATH; init=$1/ucrypt.sysv
        printf \"#!/bin/sh\\nexec $2 \\\"\\$@\\\" --ucrypttab table\\n\" >bin/ucrypt; chmod 755 bin/ucrypt
        code() { code=0; sh $init status >said 2>&1 || code=$?; }
        status() {
            printf \"$2\" >table; code
            [ $code = $1 ] || { echo \"$code for $2\"; cat said; exit 1; }
        }
        status 3 'one /srv/one.img none luks\\n'
        status 3 'two /srv/two.img none luks,noauto\\none /srv/one.img none luks\\n'
        status 3 'one /srv/one.img none luks\\ntwo /srv/two.img none luks,noauto\\n'
        status 0 'two /srv/two.img none luks,noauto\\n'
        status 0 ''
        status 4 'one\\n'
        rm table; code; [ $code = 4 ]";
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/init");
    run(&mut crate::namespace::script(&scratch, text, &[init, UCRYPT.into()]), b"").passes();
}
