//! `top` in a real terminal: tmux.

use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::image::{DATA, Image, LUKS2};
use crate::nbd_client::NbdClient;
use crate::other_users::unused_user;
use crate::process::{run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::PATIENCE;

/// A terminal in which a shell runs `top`, and then tells how it ended and how the terminal is set.
struct Terminal {
    /// The socket of tmux, whose server may end after the next one begins.
    dir: TempDir,
}

/// Tells how a terminal is set: `echo` or `-echo`.
const SETTINGS: &str = "stty -a | tr ' ;' '\\n\\n' | grep -x -- '-*echo'";

impl Terminal {
    /// Of 80 columns and 24 lines.
    fn start(scratch: &Scratch, before: &str) -> Self {
        let top = format!("{before} {UCRYPT} top --delay 0.2; echo ended with $?; {SETTINGS}; cat");
        Self::of(scratch, &["sh", "-c", &top])
    }

    fn of(scratch: &Scratch, program: &[&str]) -> Self {
        let dir = tempfile::tempdir_in(scratch.path("")).expect("a directory");
        let terminal = Self { dir };
        let config = scratch.file("tmux.conf", b"set -g status off\n");
        let mut new = terminal.tmux(&["-f", config.to_str().expect("text"), "new-session", "-d"]);
        new.args(["-x", "80", "-y", "24"]).args(program);
        run(new.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").passes();
        terminal
    }

    fn tmux(&self, line: &[&str]) -> Command {
        let mut tmux = tool("tmux", "tmux");
        tmux.arg("-S").arg(self.dir.path().join("tmux")).args(line);
        tmux.env_remove("TMUX").env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        tmux
    }

    fn keys(&self, keys: &[&str]) {
        run(self.tmux(&["send-keys"]).args(keys), b"").passes();
    }

    fn shown(&self) -> String {
        run(&mut self.tmux(&["capture-pane", "-p"]), b"").text()
    }

    /// Waits until the screen is as wanted. Returns it.
    #[track_caller]
    fn await_shown(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.shown();
            if is_so(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "waited in vain: {what}: {shown}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end of `top`, after which the terminal is as before.
    #[track_caller]
    fn await_end(&self, code: &str) -> String {
        let end = format!("ended with {code}\necho");
        self.await_shown(&end, |shown| shown.contains(&end))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

fn open(scratch: &Scratch, name: &str) {
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", name]);
    // The path also lets the server be found if the test fails.
    run(open.arg("--log").arg(scratch.path("log")), b"").passes();
}

#[test]
fn all_volumes_are_watched_in_terminals_of_any_size() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    run(image.ucrypt(&scratch, "open").args(["work", "--as", "nbd"]), b"").passes();
    open(&scratch, "idle");
    let terminal = Terminal::start(&scratch, "");
    let shown = terminal.await_shown("two volumes", |shown| shown.contains("2 open"));
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[2].starts_with("NAME") && lines[2].contains("WRITE/s*"), "{shown}");
    assert!(lines[2].contains("ERR") && !lines[2].contains("EXPORT"), "{shown}");
    assert!(lines[3].starts_with("idle ") && lines[4].starts_with("work "), "{shown}");
    assert!(lines.last().is_some_and(|line| line.contains("q quit")), "{shown}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{shown}");
    // Who writes is shown first, with what it writes.
    let mut client = NbdClient::connect(&scratch.runtime(".work.nbd")).expect("connected");
    let deadline = Instant::now() + PATIENCE;
    let is_busy = |shown: &str| shown.lines().nth(3).is_some_and(|line| line.starts_with("work "));
    while !is_busy(&terminal.shown()) {
        assert!(Instant::now() < deadline, "the writer is not the first: {}", terminal.shown());
        for at in 0..64 {
            client.write(at * 4096, &[1; 4096]).expect("written");
        }
    }
    drop(client);
    terminal.keys(&["r"]);
    terminal.await_shown("the other order", |shown| shown.contains("WRITE/s^"));
    terminal.keys(&["r", "Left", "Left", "Left"]);
    terminal.await_shown("by name", |shown| shown.contains("NAME*"));
    run(&mut terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]), b"").passes();
    let wide = terminal.await_shown("more columns", |shown| {
        shown.contains("DEVICE")
            && shown.lines().nth(49).is_some_and(|line| line.contains("q quit"))
    });
    assert!(wide.contains("nbd+unix:///?socket="), "{wide}");
    open(&scratch, "another");
    terminal.await_shown("a third volume", |shown| shown.contains("3 open"));
    terminal.keys(&["q"]);
    let after = terminal.await_end("0");
    assert!(!after.contains("NAME"), "the screen is not as before: {after}");
    run(&mut scratch.ucrypt(&["close", "--all"]), b"").passes();
}

#[test]
fn the_terminal_is_as_before_however_top_ends() {
    let scratch = Scratch::new();
    for signal in [None, Some("TERM"), Some("HUP"), Some("INT")] {
        let pid = scratch.path("pid");
        let terminal = Terminal::start(&scratch, &format!("echo $$ >{};", pid.display()));
        terminal.await_shown("nothing is open", |shown| shown.contains("no volume is open"));
        match signal {
            None => terminal.keys(&["C-c"]),
            Some(signal) => {
                let shell = std::fs::read_to_string(&pid).expect("a process");
                let mut kill = tool("pkill", "procps");
                let kill = kill.args([&format!("-{signal}"), "-P", shell.trim(), "-x", "ucrypt"]);
                run(kill, b"").passes();
            }
        }
        terminal.await_end("0");
    }
    // A server whose runtime directory cannot be read is an error, told on a whole terminal.
    let file = scratch.file("file", b"");
    let before = format!("export XDG_RUNTIME_DIR={};", file.display());
    let terminal = Terminal::start(&scratch, &before);
    let shown = terminal.await_end("4");
    assert!(shown.contains("ucrypt: cannot show the volumes"), "{shown}");
}

#[test]
fn top_is_stopped_and_brought_back_as_a_job() {
    let scratch = Scratch::new();
    let terminal = Terminal::of(&scratch, &["bash", "--norc", "--noprofile", "-i"]);
    let is_shown = |shown: &str| shown.contains("no volume is open");
    terminal.keys(&[&format!("{UCRYPT} top"), "Enter"]);
    terminal.await_shown("it runs", is_shown);
    terminal.keys(&["C-z"]);
    terminal.await_shown("it is stopped", |shown| shown.contains("Stopped") && !is_shown(shown));
    terminal.keys(&[SETTINGS, "Enter"]);
    terminal.await_shown("the terminal is as before", |shown| shown.contains("\necho\n"));
    terminal.keys(&["fg", "Enter"]);
    terminal.await_shown("it runs again", is_shown);
    terminal.keys(&["q"]);
    terminal.await_shown("it has ended", |shown| !is_shown(shown));
    terminal.keys(&["exit", "Enter"]);
}

#[test]
fn without_a_terminal_top_says_what_to_use() {
    let scratch = Scratch::new();
    let refused = run(&mut scratch.ucrypt(&["top"]), b"").refuses(1);
    assert!(refused.contains("needs a terminal") && refused.contains("status --json"), "{refused}");
    run(&mut scratch.ucrypt(&["top", "--delay", "0"]), b"").exits(1);
}

/// A user who may have few threads, and servers that stand still: who asks one of them needs a thread.
#[test]
fn top_shows_all_volumes_where_there_are_not_enough_threads() {
    let scratch = Scratch::new();
    let program = scratch.program("ucrypt", UCRYPT);
    // A user of this test alone, because the kernel counts threads by users.
    let user = unused_user().to_string();
    let dir = scratch.runtime("");
    std::fs::create_dir_all(&dir).expect("made");
    let number = user.parse().ok();
    let servers: Vec<_> = (0..5)
        .map(|at| {
            let socket = dir.join(format!(".v{at}.sock"));
            let listener = UnixListener::bind(&socket).expect("a socket");
            chown(&socket, number, number).expect("given away");
            listener
        })
        .collect();
    for path in [dir.as_path(), &scratch.path("run"), &scratch.path("")] {
        chown(path, number, number).expect("given away");
    }
    let of = ["--reuid", &user, "--regid", &user, "--clear-groups", "prlimit", "--nproc=4:4"];
    let top =
        format!("setpriv {} {} top; echo ended with $?; cat", of.join(" "), program.display());
    let terminal = Terminal::of(&scratch, &["sh", "-c", &top]);
    let shown = terminal.await_shown("the volumes", |shown| shown.contains("5 open"));
    assert!(shown.matches(" dead ").count() == 5 && !shown.contains("panicked"), "{shown}");
    terminal.keys(&["q"]);
    terminal.await_shown("its end", |shown| shown.contains("ended with 0"));
    drop(servers);
}
