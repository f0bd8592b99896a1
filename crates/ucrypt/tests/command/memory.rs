//! A server's memory is bounded, whatever its clients do, and a server that has nothing to do
//! sleeps.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::image::{Image, LUKS2};
use crate::process::{Ran, run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server, await_that};

const LEN: u64 = 96 << 20;

/// Memory of a server beside its buffers, in bytes: stacks, tables, and what the allocator keeps.
const BESIDE: u64 = 10 << 20;

fn open(scratch: &Scratch, image: &Image, options: &[&str]) -> Ran {
    let mut command = image.ucrypt(scratch, "open");
    run(command.arg(scratch.unique()).args(options), b"")
}

/// Bytes that a process has for itself: not those of its program, which all servers share.
fn own_memory(process: Pid) -> u64 {
    let path = format!("/proc/{}/smaps_rollup", process.as_raw_nonzero());
    let rollup = fs::read_to_string(path).expect("the memory of our own process");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a field");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Writes requests of all lengths at a depth that exceeds any buffer, and verifies them.
fn verify(scratch: &Scratch, device: &str) {
    let mut fio = tool("fio", "fio");
    fio.current_dir(scratch.path("")).arg("--verify_state_save=0");
    if device.starts_with("nbd") {
        fio.arg("--ioengine=nbd").arg(format!("--uri={device}"));
    } else {
        fio.args(["--ioengine=libaio", "--direct=1", "--allow_file_create=0"]);
        fio.arg(format!("--filename={device}"));
    }
    fio.args(["--name=verify", "--rw=randwrite", "--bsrange=4k-1m", "--blockalign=4k"]);
    fio.args(["--iodepth=128", "--numjobs=2", "--size=40m", "--offset_increment=40m"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randseed=7"]);
    run(&mut fio, b"").passes();
}

#[test]
fn buffers_take_no_more_memory_than_the_user_says() {
    for (served, memory) in [("loop", 1), ("loop", 24), ("fuse", 1), ("fuse", 6), ("nbd", 6)] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
        let memory_arg = format!("{memory}M");
        let opened = open(&scratch, &image, &["--as", served, "--memory", &memory_arg]);
        let device = opened.text().trim().to_owned();
        let server = scratch.server();
        verify(&scratch, &device);
        let own = own_memory(server);
        println!("{served} with {memory_arg}: {} KiB", own >> 10);
        assert!(own <= (memory << 20) + BESIDE, "{served} with {memory_arg}: {own} bytes");
        if served == "loop" {
            assert!(own >= memory << 20, "a loop device's buffers are locked: {own} bytes");
        }
        run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"").passes();
    }
}

#[test]
fn buffers_that_are_too_small_or_too_large_are_refused() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    for memory in ["1023K", "5G", "0", "many"] {
        let refused = open(&scratch, &image, &["--as", "nbd", "--memory", memory]).exits(1);
        assert!(refused.stderr.contains("--memory"), "{}", refused.stderr);
    }
    assert_eq!(scratch.processes(), []);
}

/// How often each thread of a process has gone to sleep or was taken off its core, by its number.
fn switches(process: Pid) -> BTreeMap<OsString, u64> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let threads = threads.expect("threads").filter_map(Result::ok);
    let of_thread = |status: String| -> u64 {
        let fields = status.lines().filter(|line| line.contains("ctxt_switches:"));
        fields.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
    };
    let status = |it: &fs::DirEntry| fs::read_to_string(it.path().join("status")).ok();
    threads.filter_map(|it| Some((it.file_name(), of_thread(status(&it)?)))).collect()
}

#[test]
fn a_server_that_nobody_uses_never_wakes_up() {
    let watch = |(served, seconds)| {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
        open(&scratch, &image, &["--as", served]).passes();
        let server = scratch.server();
        // Udev looks at a new device for a while, and others' `sync` and the like at all that there are. A thread that
        // wakes up by itself never sleeps for so long, whenever one looks.
        let patience = Duration::from_secs(seconds);
        let deadline = Instant::now() + Duration::from_secs(100);
        let mut asleep = BTreeMap::new();
        let mut slept = BTreeSet::new();
        loop {
            let (now, switches) = (Instant::now(), switches(server));
            asleep.retain(|thread, _| switches.contains_key(thread));
            for (thread, count) in &switches {
                let (before, since) = asleep.entry(thread.clone()).or_insert((*count, now));
                if before != count {
                    (*before, *since) = (*count, now);
                } else if now - *since >= patience {
                    slept.insert(thread.clone());
                }
            }
            let restless: Vec<_> = switches.keys().filter(|it| !slept.contains(*it)).collect();
            if restless.is_empty() {
                break;
            }
            assert!(now < deadline, "{served}: threads {restless:?} wake up: {switches:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"").passes();
    };
    std::thread::scope(|scope| {
        for how in [("loop", 2), ("fuse", 12), ("nbd", 12)] {
            scope.spawn(move || watch(how));
        }
    });
}

/// Time that a process has had a core, in ticks of 10 ms.
fn ticks(process: Pid) -> u64 {
    let path = format!("/proc/{}/stat", process.as_raw_nonzero());
    let line = fs::read_to_string(path).expect("the times of our own process");
    // The name is the only field with spaces. After it: state, ten others, user and system time.
    let (_, fields) = line.rsplit_once(')').expect("a name");
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(|time| time.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_server_without_descriptors_sleeps_while_a_front_end_waits_for_one() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let socket = scratch.path("guest");
    let mut line = image.with_key();
    line.extend(["--vhost-user".into(), socket.clone().into()]);
    let server = Server::start(&scratch, On::Nbd, &line);
    let number = server.pid().as_raw_nonzero();
    let is_free = |fd: &u64| fs::symlink_metadata(format!("/proc/{number}/fd/{fd}")).is_err();
    let descriptors = || fs::read_dir(format!("/proc/{number}/fd")).expect("descriptors").count();
    await_that("the guest's socket is there", || socket.exists());
    let before = descriptors();
    let _first = UnixStream::connect(&socket).expect("connected");
    await_that("the first front end is served", || descriptors() > before);
    let free = (0..=descriptors() as u64).find(is_free);
    let limit = Rlimit { current: free, ..getrlimit(Resource::Nofile) };
    prlimit(Some(server.pid()), Resource::Nofile, limit).expect("a limit");
    let _second = UnixStream::connect(&socket).expect("it waits to be accepted");
    let (start, before) = (Instant::now(), ticks(server.pid()));
    std::thread::sleep(Duration::from_secs(2));
    let (spent, passed) = (ticks(server.pid()) - before, start.elapsed());
    assert!(spent < 50, "{spent} ticks of a core in {passed:?}");
    prlimit(Some(server.pid()), Resource::Nofile, getrlimit(Resource::Nofile)).expect("a limit");
    server.terminate();
}
