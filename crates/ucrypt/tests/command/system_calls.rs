//! How many system calls of the server a request takes while requests come one at a time.
//!
//! Over a disk and past the page cache, so that a request waits for the disk as a rule. Chunks stay on the
//! queue's thread: on a busy machine, the explorer finds workers faster now and then.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::aligned::Aligned;
use crate::image::{Image, LUKS2};
use crate::nbd_client::NbdClient;
use crate::process::{run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};

const LEN: u64 = 4 << 20;
const BLOCK: u64 = 4096;

/// Requests until the server knows that they come one at a time.
const WARM_UP: u64 = 200;
const REQUESTS: u64 = 1000;

/// Calls that a thread was in when it was watched first, and such that have nothing to do with requests.
const OTHERS: u64 = 20;

/// strace, which stops counting when it is dropped.
struct Counter {
    /// `None` once it has ended.
    strace: Option<Child>,
    /// It writes there to the end.
    _said: BufReader<ChildStderr>,
}

impl Counter {
    /// Counts the calls of all threads of a process.
    fn start(process: Pid, report: &Path) -> Self {
        let mut strace = tool("strace", "strace");
        strace.args(["-c", "-f", "-U", "name,calls", "-o"]).arg(report);
        strace.arg("-p").arg(process.as_raw_pid().to_string());
        let mut strace =
            strace.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(strace.stderr.take().expect("a pipe"));
        // It says so when it has all threads.
        let (mut line, mut heard) = (String::new(), String::new());
        while !line.contains("attached") {
            line.clear();
            let count = said.read_line(&mut line).expect("text");
            assert!(count > 0, "strace has ended: {heard}");
            heard += &line;
        }
        Self { strace: Some(strace), _said: said }
    }

    /// The calls by name.
    fn end(mut self, report: &Path) -> Vec<(String, u64)> {
        self.interrupt();
        let report = std::fs::read_to_string(report).expect("a report");
        let calls = report.lines().filter_map(|line| {
            let (name, calls) = line.trim().split_once(char::is_whitespace)?;
            Some((name.to_owned(), calls.trim().parse().ok()?))
        });
        calls.filter(|(name, _)| name != "total").collect()
    }

    /// `timeout` passes it on.
    fn interrupt(&mut self) {
        let Some(mut strace) = self.strace.take() else { return };
        // It may have ended.
        let _ = kill_process(Pid::from_child(&strace), Signal::INT);
        let _ = strace.wait();
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.interrupt();
    }
}

/// Reads blocks one after the other, and checks that each takes at most `most` calls of the server.
#[track_caller]
fn takes(scratch: &Scratch, server: Pid, most: u64, mut read: impl FnMut(u64)) {
    let report = scratch.path("calls");
    let mut blocks = (0..LEN / BLOCK).cycle().map(|block| block * BLOCK);
    blocks.by_ref().take(WARM_UP as usize).for_each(&mut read);
    let counter = Counter::start(server, &report);
    blocks.take(REQUESTS as usize).for_each(read);
    let calls = counter.end(&report);
    let sum: u64 = calls.iter().map(|(_, count)| count).sum();
    // Fewer than one each is no count of these requests.
    println!("{sum} calls for {REQUESTS} requests");
    let expected = REQUESTS..=most * REQUESTS + OTHERS;
    assert!(expected.contains(&sum), "{sum} calls for {REQUESTS} requests: {calls:?}");
}

/// Reads a file or a device past its page cache.
fn direct(path: &Path) -> impl FnMut(u64) + use<> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    let file = options.open(path).expect("it opens");
    let mut memory = Aligned::new(BLOCK as usize);
    move |offset| file.read_exact_at(memory.bytes(), offset).expect("read")
}

#[test]
fn a_lone_request_of_a_file_takes_three_calls_and_by_rings_two() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let has_rings = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let has_rings = has_rings.is_ok_and(|value| value.trim() == "Y");
    for (transport, most) in [("classic", 3), ("io_uring", if has_rings { 2 } else { 3 })] {
        let mut arguments = image.with_key();
        let options = ["--direct", "--dispatch", "inline", "--fuse-transport", transport];
        arguments.extend(options.map(Into::into));
        let server = Server::start(&scratch, On::Fuse, &arguments);
        takes(&scratch, server.pid(), most, direct(server.file()));
        server.terminate();
    }
}

#[test]
fn a_lone_request_of_a_loop_device_takes_three_calls() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let mut open = image.ucrypt(&scratch, "open");
    open.arg(scratch.unique()).args(["--as", "loop", "--direct", "--dispatch", "inline"]);
    let path = run(&mut open, b"").text();
    takes(&scratch, scratch.server(), 3, direct(Path::new(path.trim_end())));
    run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"").passes();
}

#[test]
fn a_lone_request_by_nbd_takes_four_calls() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let mut arguments = image.with_key();
    arguments.extend(["--direct", "--dispatch", "inline"].map(Into::into));
    let server = Server::start(&scratch, On::Nbd, &arguments);
    let mut client = NbdClient::connect(server.socket()).expect("connected");
    takes(&scratch, server.pid(), 4, |offset| {
        client.read(offset, BLOCK as u32).expect("read");
    });
    drop(client);
    server.terminate();
}
