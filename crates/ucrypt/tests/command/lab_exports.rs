//! `ucrypt lab run` on servers of ucrypt: every kind of them, those that only copy, and another build.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde_json::Value;

use crate::lab::{about, lines};
use crate::process::{run, tool};
use crate::scratch::{Scratch, UCRYPT};

/// A short run on servers, in `place`.
fn exports(scratch: &Scratch, against: &str, place: &Path, out: &Path) -> Command {
    let mut lab = scratch.ucrypt(&["lab", "run", "exports", "--quick", "--size", "16M"]);
    lab.args(["--time", "20", "--rounds", "1", "--against", against]);
    lab.arg("--on").arg(place).arg("--out").arg(out);
    lab
}

/// The loop devices over what is below a directory.
fn loops_below(dir: &Path) -> Vec<String> {
    let file = |entry: fs::DirEntry| {
        let path = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        path.starts_with(dir.to_str()?).then_some(path)
    };
    fs::read_dir("/sys/block").expect("sysfs").filter_map(Result::ok).filter_map(file).collect()
}

#[test]
fn every_server_of_ours_and_those_that_only_copy_are_measured_and_end() {
    const SERVED: [&str; 11] = [
        "copy-fuse",
        "copy-loop",
        "copy-nbd",
        "ucrypt-fuse-none",
        "ucrypt-fuse-4096-classic",
        "ucrypt-nbd-none",
        "ucrypt-nbd-4096:inline",
        "ucrypt-loop-4096",
        "before-fuse",
        "before-nbd-none",
        "control-loop",
    ];
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let mut lab = exports(&scratch, &SERVED.join(","), &place, &out);
    run(lab.args(["--before", UCRYPT]), b"").passes();
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
    assert_eq!(loops_below(&place), [""; 0]);
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "scratch images are left");
    let mut cells = BTreeMap::<String, u32>::new();
    for result in lines(&out.join("results.jsonl")) {
        let name = result["contender"].as_str().expect("a name");
        *cells.entry(name.to_owned()).or_default() += 1;
        let sample = &result["sample"];
        assert!(sample["mb_s"].as_f64() > Some(0.0), "{result}");
        // Who is no process of its own has no time of its own.
        let is_served = SERVED.contains(&name) || name == "file";
        assert_eq!(sample["processor"].is_object(), is_served, "{result}");
    }
    let ceilings = ["raw", "null", "memory", "file"];
    assert_eq!(cells.len(), SERVED.len() + ceilings.len(), "{cells:?}");
    assert!(cells.values().all(|count| *count == 2), "{cells:?}");
    let before = &about(&out)["settings"]["before"];
    assert!(before["version"].as_str().is_some_and(|it| it.starts_with("ucrypt ")), "{before}");
    let page = out.join("report.html");
    run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").passes();
    let page = fs::read_to_string(page).expect("the page");
    for needed in ["copy-loop", "before-nbd-none", "processor µs", "added µs"] {
        assert!(page.contains(needed), "{needed}");
    }
}

#[test]
fn another_build_is_asked_for_where_it_takes_part_and_is_one_of_ucrypt() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    for wrong in ["/bin/true", "/nowhere/ucrypt"] {
        let mut lab = exports(&scratch, "before-nbd", &place, &out);
        let said = run(lab.args(["--before", wrong]), b"").exits(1).stderr;
        assert!(said.contains("--before") && said.contains(wrong), "{said}");
        assert!(!out.exists());
    }
    // One that would take no part.
    let mut lab = exports(&scratch, "ucrypt-nbd", &place, &out);
    let said = run(lab.args(["--before", UCRYPT]), b"").exits(1).stderr;
    assert!(said.contains("--before has an effect on exports") && !out.exists(), "{said}");
    run(&mut exports(&scratch, "before-nbd,ucrypt-nbd", &place, &out), b"").exits(0);
    let left_out = about(&out)["left_out"].to_string();
    assert!(left_out.contains("before-nbd") && left_out.contains("--before"), "{left_out}");
    // A run does not go on with a build that was replaced.
    let out = scratch.path("another");
    let build = scratch.program("build", UCRYPT);
    let mut lab = exports(&scratch, "before-nbd", &place, &out);
    run(lab.arg("--before").arg(&build), b"").passes();
    scratch.file("replaced", b"#!/bin/sh\necho ucrypt 0.0.1\n");
    let script = "chmod +x replaced && mv replaced build";
    assert!(
        run(Command::new("sh").args(["-c", script]).current_dir(scratch.path("")), b"").succeeded()
    );
    let said = run(scratch.ucrypt(&["lab", "run", "--resume"]).arg(&out), b"").exits(1).stderr;
    assert!(said.contains("0.0.1") && said.contains("begin another run"), "{said}");
}

/// A server that only copies. Killed when dropped.
struct Copying(Child);

impl Drop for Copying {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Copying {
    fn start(scratch: &Scratch, way: &str, image: &Path, place: &Path) -> Self {
        let mut serve = scratch.ucrypt_child(&["lab", "copy", way]);
        serve.arg(image).arg(place).stdin(Stdio::null());
        Self(serve.spawn().expect("it starts"))
    }

    fn until(&mut self, is_ready: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_ready() {
            assert!(Instant::now() < deadline, "it does not serve");
            assert!(self.0.try_wait().expect("asked").is_none(), "it has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn what_servers_that_only_copy_are_told_and_asked_is_in_the_image() {
    const LEN: usize = 8 << 20;
    let scratch = Scratch::new();
    let mut random = fastrand::Rng::with_seed(11);
    let mut content = || {
        let mut bytes = vec![0; LEN];
        random.fill(&mut bytes);
        bytes
    };
    let (first, second) = (content(), content());
    let image = scratch.file("image", &first);

    let socket = scratch.path("socket");
    let mut server = Copying::start(&scratch, "nbd", &image, &socket);
    server.until(|| UnixStream::connect(&socket).is_ok());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let (got, put) = (scratch.path("got"), scratch.file("put", &second));
    run(tool("nbdcopy", "libnbd-bin").arg(&uri).arg(&got), b"").passes();
    assert!(fs::read(&got).expect("copied") == first, "reads by NBD");
    run(tool("nbdcopy", "libnbd-bin").arg(&put).arg(&uri), b"").passes();
    assert!(fs::read(&image).expect("there") == second, "writes by NBD");
    drop(server);

    let place = scratch.file("place", b"");
    let mut server = Copying::start(&scratch, "fuse", &image, &place);
    server.until(|| fs::metadata(&place).is_ok_and(|it| it.len() == LEN as u64));
    let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag");
    let file = File::options().read(true).write(true).custom_flags(direct).open(&place);
    let file = file.expect("opened");
    // Of several requests each, and of less than a page.
    let mut got = vec![0; LEN];
    file.read_exact_at(&mut got, 0).expect("read");
    assert!(got == second, "reads by FUSE");
    file.write_all_at(&first, 0).expect("written");
    file.sync_all().expect("written out");
    assert!(fs::read(&image).expect("there") == first, "writes by FUSE");
    drop((file, server));
    let unmount = run(Command::new("umount").arg(&place), b"");
    assert!(unmount.succeeded() && scratch.mounts().is_empty());
}

/// What is on the page is what the run measured.
#[test]
fn processor_times_stand_in_every_form_of_a_report() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    run(&mut exports(&scratch, "ucrypt-nbd", &place, &out), b"").passes();
    let report = |form: &str| {
        let said = run(scratch.ucrypt(&["lab", "report", form]).arg(&out), b"").passes();
        String::from_utf8(said).expect("text")
    };
    let json: Value = serde_json::from_str(&report("--json")).expect("JSON");
    let figures = json["experiments"][0]["cells"][0]["figures"].as_array().expect("figures");
    let ours = figures.iter().find(|it| it["contender"] == "ucrypt-nbd").expect("ours");
    // A short measurement may have no tick of the clock.
    let all = ours["processor_us"]["median"].as_f64().expect("a figure");
    let csv = report("--csv");
    let column = csv.lines().next().expect("names").split(',').position(|it| it == "processor_us");
    let column = column.expect("the column");
    let row = csv.lines().find(|it| it.contains(",ucrypt-nbd,")).expect("ours");
    let shown: f64 = row.split(',').nth(column).expect("a field").parse().expect("a number");
    assert!((shown - all).abs() < 1e-6, "{shown}, {all}");
}
