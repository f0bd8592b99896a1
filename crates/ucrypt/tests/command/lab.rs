//! `ucrypt lab`: what it lists it can run, what it is asked for it does, and it leaves only its
//! results behind. No figure is judged.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::metrics;
use crate::namespace::script;
use crate::process::run;
use crate::scratch::Scratch;

/// The smallest run.
pub(crate) const SMALL: [&str; 7] = ["--quick", "--size", "16M", "--time", "3", "--rounds", "2"];

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn the_list_names_every_experiment_with_its_question_and_its_time() {
    let scratch = Scratch::new();
    let text = run(&mut scratch.ucrypt(&["lab", "list"]), b"").text();
    let json = run(&mut scratch.ucrypt(&["lab", "list", "--json"]), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let all = json.as_array().expect("a list");
    assert_eq!(all.len(), 11);
    // `make lab-quick` is to end within 600 s, with its images and the simulation.
    let quick = all.iter().filter_map(|it| it["quick_seconds"].as_u64()).sum::<u64>();
    assert!(quick < 400, "{quick} s");
    for experiment in all {
        let name = experiment["name"].as_str().expect("a name");
        assert!(text.contains(&format!("{name}\n")), "{name}");
        assert!(experiment["question"].as_str().is_some_and(|question| question.ends_with('?')));
        assert!(experiment["seconds"].as_u64() > experiment["quick_seconds"].as_u64(), "{name}");
        for table in experiment["published"].as_array().expect("tables") {
            assert_ne!(table["source"], "", "{table}");
        }
    }
}

#[test]
fn wrong_uses_are_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let refused = |words: &[&str], code: i32| {
        let mut lab = scratch.ucrypt(&["lab", "run", "--out"]);
        let message = run(lab.arg(&out).args(words), b"").refuses(code);
        assert!(!out.exists(), "{words:?} wrote something");
        message
    };
    assert!(refused(&["block-swep"], 1).contains("block-sweep"));
    assert!(refused(&["instant", "instant"], 1).contains("twice"));
    assert!(refused(&["instant", "--against", "raw,vera"], 1).contains("nbdkit"));
    assert!(refused(&["instant", "--on", "model:tape"], 1).contains("sata2017"));
    assert!(refused(&["instant", "--on", "/nowhere/at/all"], 1).contains("/nowhere"));
    assert!(refused(&["instant", "--on", "/dev/null"], 1).contains("neither a file"));
    assert!(refused(&["instant", "--size", "1M"], 1).contains("--size"));
    // A link that leads nowhere is somebody's: it is neither followed nor replaced.
    let link = scratch.path("link");
    std::os::unix::fs::symlink(scratch.path("gone"), &link).expect("a link");
    let on_link = refused(&["instant", "-q", "--on", link.to_str().expect("text")], 1);
    assert!(on_link.contains("symbolic link"), "{on_link}");
    assert!(link.is_symlink() && !scratch.path("gone").exists());
    // Options without an effect.
    assert!(refused(&["many-drives", "--rounds", "2"], 1).contains("--rounds has no effect"));
    assert!(refused(&["many-drives", "--on", "memory"], 1).contains("--on has no effect"));
    assert!(refused(&["instant", "--load", "built-in"], 1).contains("--load"));
    let tree = ["kernel-tree", "--against", "loop", "--load", "built-in"];
    assert!(refused(&tree, 1).contains("--load"));
    let small = scratch.file("small", &[1; 4096]);
    let small = small.to_str().expect("text");
    assert!(refused(&["instant", "-q", "--on", small], 4).contains("4096 bytes"));
    // Somebody's file is overwritten only if that is asked for.
    let file = scratch.path("file");
    fs::write(&file, vec![7; 17 << 20]).expect("written");
    let message = refused(&["instant", "--on", file.to_str().expect("text")], 1);
    assert!(message.contains("overwrites") && message.contains("--batch-mode"), "{message}");
    assert!(fs::read(&file).expect("there").iter().all(|byte| *byte == 7));
    let mut nothing = scratch.ucrypt(&["lab", "report"]);
    assert!(run(nothing.arg(scratch.path("")), b"").refuses(4).contains("no run"));
    let mut resume = scratch.ucrypt(&["lab", "run", "--resume"]);
    assert!(run(resume.arg(scratch.path("")), b"").refuses(4).contains("no run"));
}

#[test]
fn a_run_keeps_every_measurement_and_its_page_shows_them() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let mut lab = scratch.ucrypt(&["lab", "run", "instant", "sorted-writes", "added-latency"]);
    let ran = run(lab.args(SMALL).arg("--on").arg(&place).arg("--out").arg(&out), b"").exits(0);
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(printed.contains("where we fall short"), "{printed}");
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "the scratch file is left");
    let results = lines(&out.join("results.jsonl"));
    // raw, null, memory and the policies, in every cell and round.
    assert_eq!(results.len(), 2 * (6 + 7 + 3 * 7));
    for result in &results {
        assert!(result["error"].is_null(), "{result}");
        assert!(result["sample"]["mb_s"].as_f64() > Some(0.0), "{result}");
        assert!(result["sample"]["disturbance"]["others"].is_number(), "{result}");
    }
    let mut again = scratch.ucrypt(&["lab", "run", "instant", "--out"]);
    assert!(run(again.arg(&out), b"").refuses(4).contains("--resume"));

    let mut sim = scratch.ucrypt(&["lab", "sim", "instant", "--quick", "--json", "--out"]);
    let rows = run(sim.arg(&out), b"").passes();
    let rows: Value = serde_json::from_slice(&rows).expect("JSON");
    assert_eq!(rows["scale"], "quick");
    assert!(rows["version"].as_str().is_some_and(|version| version.starts_with("0.")), "{rows}");
    let row = &rows["rows"][0];
    assert!(row["published"].as_f64() > Some(0.0) && row["adaptive"].is_number(), "{rows}");
    let page = run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").text();
    let page = fs::read_to_string(page.trim_end()).expect("a page");
    for needed in ["id=\"short\"", "id=\"instant\"", "id=\"sorted-writes\"", "id=\"sim\"", "<svg"] {
        assert!(page.contains(needed), "{needed}");
    }
    let markdown = run(scratch.ucrypt(&["lab", "report", "--markdown"]).arg(&out), b"").text();
    assert!(markdown.starts_with("# Results\n"), "{markdown}");
    let at = |what: &str| markdown.find(what).unwrap_or_else(|| panic!("{what}: {markdown}"));
    assert!(at("## Where we fall short") < at("## Published, and here"));
    assert!(at("`instant_2020.csv`") < at("## In virtual time"));
    assert!(!page.contains("<script") && !page.contains("src="), "the page needs something else");
    let csv = run(scratch.ucrypt(&["lab", "report", "--csv"]).arg(&out), b"").text();
    let simulated = rows["rows"].as_array().expect("rows").len();
    assert_eq!(csv.lines().count(), 1 + 6 + 7 + 3 * 7 + simulated);
    let json = run(scratch.ucrypt(&["lab", "report", "--json"]).arg(&out), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["experiments"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["simulation"]["rows"].as_array().map(Vec::len), Some(simulated));
}

#[test]
fn an_interrupted_simulation_keeps_its_rows_and_a_simulation_alone_has_a_report() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    // Longer than anybody waits.
    let words = ["lab", "sim", "added-latency", "many-drives", "--time", "60000", "--out"];
    let mut patience = Duration::from_secs(4);
    // The first rows take a moment, the next one many minutes.
    let file = loop {
        let mut lab = scratch.ucrypt_child(&words);
        lab.arg(&out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = lab.spawn().expect("it starts");
        std::thread::sleep(patience);
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a number")).expect("a process");
        kill_process(pid, Signal::INT).expect("it is there");
        let ended = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        if let Ok(file) = fs::read(out.join("sim.json")) {
            assert!(said.contains("rows so far are kept"), "{said}");
            break file;
        }
        assert!(said.contains("before the first row"), "{said}");
        assert!(patience < Duration::from_secs(200), "no row in all that time");
        patience *= 2;
    };
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    let rows = file["rows"].as_array().expect("rows").len();
    assert!(file["interrupted"] == true && (1..=3).contains(&rows), "{file}");
    let page = run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").text();
    let page = fs::read_to_string(page.trim_end()).expect("a page");
    assert!(page.contains("It was interrupted") && page.contains("id=\"sim\""), "{page}");
    let csv = run(scratch.ucrypt(&["lab", "report", "--csv"]).arg(&out), b"").text();
    assert_eq!(csv.lines().count(), 1 + rows);
    let markdown = run(scratch.ucrypt(&["lab", "report", "--markdown"]).arg(&out), b"").text();
    assert!(markdown.contains("It was interrupted"), "{markdown}");
    let json = run(scratch.ucrypt(&["lab", "report", "--json"]).arg(&out), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["simulation"]["rows"].as_array().map(Vec::len), Some(rows));
}

#[test]
fn what_a_simulation_was_changed_to_stands_in_its_file_and_on_its_table() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let words = ["lab", "sim", "instant", "--quick", "--cores", "3", "--wake-ns", "70000", "--out"];
    let text = run(scratch.ucrypt(&words).arg(&out), b"").text();
    assert!(text.contains("changed: 3 cores, 70000 ns"), "{text}");
    assert!(text.contains("rows that no preset was fitted to"), "{text}");
    assert!(
        text.contains("where we fall short\n") && text.to_lowercase().contains("in virtual time"),
        "{text}"
    );
    let file = fs::read(out.join("sim.json")).expect("written");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!(
        (&file["changes"]["cores"], &file["changes"]["wake_ns"]),
        (&3.into(), &70000.into())
    );
    // Whoever has the file can repeat it.
    let command =
        format!("ucrypt lab sim instant --quick --cores 3 --wake-ns 70000 --out {}", out.display());
    assert_eq!(file["command"], command);
    for form in [&["lab", "report"][..], &["lab", "report", "--markdown"]] {
        let said = run(scratch.ucrypt(form).arg(&out), b"").text();
        let page = if form.len() == 2 {
            fs::read_to_string(said.trim_end()).expect("a page")
        } else {
            said
        };
        assert!(page.contains(&command), "{form:?}");
    }
}

#[test]
fn a_run_on_a_file_system_without_direct_io_says_that_it_measures_the_page_cache() {
    let scratch = Scratch::new();
    // An overlay over ramfs has none.
    let text = "mkdir r l; mount -t ramfs none r; mkdir r/u r/w
        mount -t overlay none -o lowerdir=l,upperdir=r/u,workdir=r/w m
        head -c 20000000 /dev/zero > m/f
        $1 lab run instant -q --on m/f --out out --quick --size 16M --time 3 --rounds 1
        $1 lab report out";
    let ran = run(&mut script(&scratch, text, &[crate::scratch::UCRYPT]), b"").exits(0);
    assert!(ran.stderr.contains("no direct I/O"), "{}", ran.stderr);
    let out = scratch.path("out");
    assert_eq!(about(&out)["storage"]["cached"], true);
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("no direct I/O: the page cache was measured with it"));
}

#[test]
fn a_run_for_whose_images_there_is_no_room_is_refused_before_anything_is_made() {
    let scratch = Scratch::new();
    let text = "mount -t tmpfs -o size=100M none m; mkdir -m 700 m/place
        status=0
        $1 lab run request-merge --on m/place --against file,ucrypt-nbd --size 32M --quick --out out \\
            2>refusal || status=$?
        cat refusal >&2; test $status = 4; test ! -e out; ls -A m/place > left";
    let ran = run(&mut script(&scratch, text, &[crate::scratch::UCRYPT]), b"").exits(0);
    for needed in ["m/place has ", "bytes free, and the run needs ", "smaller --size", "servers"] {
        assert!(ran.stderr.contains(needed), "{needed}: {}", ran.stderr);
    }
    assert_eq!(fs::read_to_string(scratch.path("left")).expect("written"), "");
}

#[test]
fn a_disk_that_gets_full_ends_a_run_that_goes_on_when_there_is_room() {
    let scratch = Scratch::new();
    let text = "mount -t tmpfs -o size=64k none m
        run='heat-map --against ucrypt,ucrypt:inline --quick --size 16M --time 1 --rounds 3'
        status=0; $1 lab run $run --out m/out 2>refusal || status=$?
        cat refusal >&2; test $status = 4
        mount -o remount,size=10M m
        $1 lab run --resume m/out; cp m/out/results.jsonl results";
    let ran = run(&mut script(&scratch, text, &[crate::scratch::UCRYPT]), b"").exits(0);
    for needed in ["make room first", "results so far are kept", "lab run --resume m/out"] {
        assert!(ran.stderr.contains(needed), "{needed}: {}", ran.stderr);
    }
    let kept = fs::read_to_string(scratch.path("results")).expect("written");
    // raw, null and two policies; the line for which there was no room is cut off.
    let whole = kept.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok());
    assert_eq!(whole.count(), 12 * 3 * 4);
}

#[test]
fn a_page_for_which_there_is_no_room_leaves_the_one_before() {
    let scratch = Scratch::new();
    let text = "mount -t tmpfs -o size=1M none m
        $1 lab run instant --on memory --against null,memory --quick --time 3 --rounds 1 --out m/out
        $1 lab report m/out; cp m/out/report.html before
        cat /dev/zero > m/rest 2>/dev/null || true
        status=0; $1 lab report m/out 2>refusal || status=$?
        test $status = 4; grep 'cannot write m/out/report.html' refusal >&2
        cmp before m/out/report.html; ls -A m/out > left";
    let ran = run(&mut script(&scratch, text, &[crate::scratch::UCRYPT]), b"").exits(0);
    assert!(ran.stderr.contains("No space left"), "{}", ran.stderr);
    let left = fs::read_to_string(scratch.path("left")).expect("written");
    assert_eq!(
        left.split_whitespace().collect::<Vec<_>>(),
        ["report.html", "results.jsonl", "run.json"]
    );
}

#[test]
fn a_run_serves_with_the_program_that_runs_even_if_its_file_was_replaced() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let program = scratch.program("ucrypt", crate::scratch::UCRYPT);
    let mut lab = std::process::Command::new(&program);
    lab.args(["lab", "run", "request-merge", "--against", "raw,ucrypt-nbd,null,memory,file"]);
    lab.args(["--quick", "--size", "16M", "--time", "20", "--rounds", "1", "--on"]).arg(&place);
    lab.arg("--out").arg(&out).env("XDG_RUNTIME_DIR", scratch.path("run"));
    lab.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = lab.spawn().expect("it starts");
    await_results(&out, 1, &mut child);
    // An upgrade: another program has its name.
    fs::remove_file(&program).expect("removed");
    scratch.program("ucrypt", "/bin/false");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{said}");
    let results = lines(&out.join("results.jsonl"));
    assert_eq!(results.len(), 4 * 5);
    for result in results {
        assert!(result["error"].is_null(), "{result}");
    }
}

#[test]
fn a_directory_whose_name_is_no_text_takes_results() {
    let scratch = Scratch::new();
    let name = std::ffi::OsStr::from_bytes(b"out \xff");
    let out = scratch.path("").join(name);
    let mut lab = scratch.ucrypt(&["lab", "run", "instant"]);
    run(lab.args(SMALL).arg("--out").arg(&out), b"").exits(0);
    let about: Value = about(&out);
    let command = about["settings"]["command"].as_str().expect("text");
    assert!(command.contains(r"out\x20\xff'"), "{command}");
}

pub(crate) fn about(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("run.json")).expect("a run")).expect("JSON")
}

/// Changes the description of a run.
fn change(out: &Path, change: impl FnOnce(&mut Value)) {
    let mut about = about(out);
    change(&mut about);
    fs::write(out.join("run.json"), about.to_string()).expect("written");
}

#[test]
fn a_run_goes_on_only_with_the_same_machine_and_programs_and_says_what_it_leaves_out_now() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut lab = scratch.ucrypt(&["lab", "run", "instant"]);
    run(lab.args(SMALL).arg("--out").arg(&out), b"").exits(0);
    // The build is known by its commit, as `--version` prints it.
    let version = run(&mut scratch.ucrypt(&["--version"]), b"").text();
    let kept = about(&out);
    let kept = kept["machine"]["versions"][0][1].as_str().expect("a version");
    assert_eq!(version.trim_end(), format!("ucrypt {kept}"));
    change(&out, |about| {
        about["left_out"] =
            serde_json::json!([{ "experiment": "instant", "what": "a tape", "why": "broken" }]);
    });
    let resume = || run(scratch.ucrypt(&["lab", "run", "--resume"]).arg(&out), b"");
    resume().exits(0);
    assert_eq!(about(&out)["left_out"], serde_json::json!([]));
    for (what, named) in [("/machine/kernel", "the kernel was"), ("/machine/cores", "cores was")] {
        let before = about(&out);
        change(&out, |about| {
            let value = about.pointer_mut(what).expect("a field");
            *value = if value.is_string() { "another".into() } else { 7777.into() };
        });
        let refused = resume().refuses(1);
        assert!(refused.contains(named), "{refused}");
        change(&out, |about| *about = before);
    }
    change(&out, |about| about["machine"]["versions"][0][1] = "0.0.1".into());
    let refused = resume().refuses(1);
    assert!(refused.contains("ucrypt was 0.0.1 when"), "{refused}");
    // Measurements whose run is gone are not added to.
    fs::remove_file(out.join("run.json")).expect("removed");
    let results = fs::read(out.join("results.jsonl")).expect("results");
    let mut again = scratch.ucrypt(&["lab", "run", "instant"]);
    let refused = run(again.args(SMALL).arg("--out").arg(&out), b"").refuses(4);
    assert!(refused.contains("results.jsonl"), "{refused}");
    assert_eq!(fs::read(out.join("results.jsonl")).expect("results"), results);
}

#[test]
fn a_run_on_a_block_device_does_not_go_on_with_another_one_of_the_same_name() {
    let scratch = Scratch::new();
    let (out, disk) = (scratch.path("out"), scratch.sparse("disk", 32 << 20));
    let mut losetup = crate::process::tool("losetup", "mount");
    let device = run(losetup.args(["--find", "--show"]).arg(&disk), b"").text();
    let mut lab = scratch.ucrypt(&["lab", "run", "instant", "-q", "--on", device.trim_end()]);
    run(lab.args(SMALL).arg("--out").arg(&out), b"").exits(0);
    assert_eq!(about(&out)["storage"]["device"]["len"], 32 << 20);
    // The next file that is attached there has the same number, and is the next disk.
    let name = device.trim_end().strip_prefix("/dev/").expect("a device");
    let sequence = fs::read_to_string(format!("/sys/block/{name}/diskseq")).expect("Linux 5.15");
    let kept = about(&out)["storage"]["device"]["disk"].as_str().expect("text").to_owned();
    assert!(kept.starts_with(&format!("diskseq {} ", sequence.trim_end())), "{kept}");
    let resume = || run(scratch.ucrypt(&["lab", "run", "-q", "--resume"]).arg(&out), b"");
    resume().exits(0);
    let before = fs::read(&disk).expect("read");
    for (field, other) in [("len", 77.into()), ("disk", "diskseq 77".into())] {
        let kept = about(&out);
        change(&out, |about| about["storage"]["device"][field] = other);
        let refused = resume().refuses(4);
        assert!(refused.contains("not the disk that the run began with"), "{refused}");
        change(&out, |about| *about = kept);
    }
    assert!(fs::read(&disk).expect("read") == before, "something was written");
}

/// The words of a process.
fn words(pid: Pid) -> Vec<String> {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// A number of `/proc/PID/stat`, counted from the state, which is 0.
fn stat(pid: Pid, at: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(at)?.parse().ok()
}

/// Interrupts a run as Ctrl-C does, and returns what it says at its end.
fn interrupt(child: Child) -> String {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a number")).expect("a process");
    kill_process(pid, Signal::INT).expect("it is there");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("--resume"), "{said}");
    said
}

#[test]
fn a_server_that_hangs_does_not_keep_the_lab_from_its_end() {
    for (contender, load) in
        [("ucrypt-nbd", "built-in"), ("ucrypt-fuse", "fio"), ("ucrypt-loop", "built-in")]
    {
        let scratch = Scratch::new();
        let (out, place) = (scratch.path("out"), scratch.path("place"));
        fs::create_dir(&place).expect("a directory");
        let against = format!("{contender},raw,null,memory,file");
        let mut lab = scratch.ucrypt_child(&["lab", "run", "other-ssd", "--load", load]);
        lab.args(["--against", &against, "--size", "16M", "--time", "60000", "--on"]).arg(&place);
        lab.args(["--quick", "--out"]).arg(&out);
        lab.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = lab.spawn().expect("it starts");
        let deadline = Instant::now() + Duration::from_secs(100);
        let server = loop {
            assert!(Instant::now() < deadline, "no load on a server");
            let mut all = scratch.processes().into_iter();
            let server =
                all.find(|pid| words(*pid).get(1).is_some_and(|word| word.starts_with("serve")));
            // A load is under way when the server has worked for a while: user and system time.
            let worked = |pid: &Pid| Some(stat(*pid, 11)? + stat(*pid, 12)?);
            match server.filter(|pid| worked(pid) > Some(10)) {
                Some(server) => break server,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        kill_process(server, Signal::STOP).expect("it is there");
        std::thread::sleep(Duration::from_millis(100));
        interrupt(child);
        assert!(scratch.processes().is_empty() && scratch.mounts().is_empty(), "{contender}");
        assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "scratch files are left");
    }
}

/// The directory in which a child of `parent` has a file system mounted and works on it.
fn mounted_by(parent: u32) -> Option<std::path::PathBuf> {
    let all = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    let pids = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let mut children = pids.filter(|pid| stat(*pid, 1) == Some(parent.into()));
    children.find_map(|pid| {
        let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
        let dir = fs::read_link(proc.join("cwd")).ok()?;
        let mounts = fs::read_to_string(proc.join("mounts")).ok()?;
        mounts.contains(dir.join("m").to_str()?).then_some(dir)
    })
}

#[test]
fn an_interrupted_kernel_tree_leaves_no_server_no_device_and_no_mount() {
    // While the first contender has its turn, the kernel's loop device, and the last, ours.
    for turns in [0, 2] {
        let scratch = Scratch::new();
        let out = scratch.path("out");
        let mut lab = scratch.ucrypt_child(&["lab", "run", "kernel-tree", "--quick", "--out"]);
        lab.arg(&out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = lab.spawn().expect("it starts");
        await_results(&out, turns, &mut child);
        let deadline = Instant::now() + Duration::from_secs(100);
        let dir = loop {
            assert!(Instant::now() < deadline, "nothing is mounted");
            assert!(child.try_wait().expect("asked").is_none(), "it ended early");
            match mounted_by(child.id()) {
                Some(dir) => break dir,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let said = interrupt(child);
        assert!(!dir.exists(), "{} is left: {said}", dir.display());
        let name = dir.file_name().expect("a name").to_str().expect("text");
        let link = Path::new("/dev/ucrypt").join(name.to_lowercase());
        assert!(link.symlink_metadata().is_err(), "{} is left", link.display());
        for entry in fs::read_dir("/sys/block").expect("/sys").filter_map(Result::ok) {
            let over = fs::read_to_string(entry.path().join("loop/backing_file"));
            assert!(!over.unwrap_or_default().contains(name), "{:?} is left", entry.file_name());
        }
        let all = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
        let pids = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        for pid in pids {
            let words = words(pid);
            assert!(!words.iter().any(|word| word.contains(name)), "{words:?} is left");
        }
    }
}

#[test]
fn file_systems_are_measured_on_every_device_and_what_is_no_device_is_named() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut lab = scratch.ucrypt(&["lab", "run", "kernel-tree", "--quick", "--rounds", "1"]);
    lab.args(["--against", "raw,ucrypt-loop-none,ucrypt-loop,ucrypt-loop:inline", "--out"])
        .arg(&out);
    run(&mut lab, b"").passes();
    assert!(about(&out)["left_out"].to_string().contains("block devices"));
    let results = lines(&out.join("results.jsonl"));
    let names: BTreeSet<_> = results.iter().filter_map(|it| it["contender"].as_str()).collect();
    // What they are compared with is measured, too.
    assert_eq!(
        names.into_iter().collect::<Vec<_>>(),
        ["loop", "ucrypt-loop", "ucrypt-loop-none", "ucrypt-loop:inline"]
    );
    for result in &results {
        assert!(result["sample"]["seconds"].as_f64() > Some(0.0), "{result}");
        // The archive alone is some MB.
        let device = &result["sample"]["device"];
        assert!(device["writes"].as_u64() > Some(10), "{result}");
        assert!(device["bytes"].as_u64() > Some(1 << 20), "{result}");
        assert!(result["sample"]["below"].is_null(), "only dm-crypt has a device below: {result}");
    }
    let json = run(scratch.ucrypt(&["lab", "report", "--json"]).arg(&out), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let experiment = &json["experiments"][0];
    for figure in experiment["cells"][0]["figures"].as_array().expect("figures") {
        assert!(figure["ratio"]["median"].as_f64() > Some(0.0), "{figure}");
        assert!(figure["of_none"]["median"].as_f64() > Some(0.0), "{figure}");
    }
    let verdict = experiment["verdict"].as_str().expect("text");
    assert!(verdict.contains("by the cipher alone"), "{verdict}");
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
}

#[test]
fn file_systems_are_measured_on_images_in_the_directory_that_was_named() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    for target in ["zero", "model:hdd"] {
        let mut lab = scratch.ucrypt(&["lab", "run", "kernel-tree", "--on", target, "--out"]);
        let said = run(lab.arg(&out), b"").refuses(1);
        assert!(said.contains("directory") && !out.exists(), "{said}");
    }
    let mut lab = scratch.ucrypt_child(&["lab", "run", "kernel-tree", "--quick", "--rounds", "1"]);
    lab.args(["--against", "loop,ucrypt-loop", "--on"]).arg(&place).arg("--out").arg(&out);
    lab.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = lab.spawn().expect("it starts");
    // The images are there while it runs.
    let has_image = || {
        let mut entries = fs::read_dir(&place).expect("there").filter_map(Result::ok);
        entries.any(|entry| entry.path().join("luks.img").exists())
    };
    let deadline = Instant::now() + Duration::from_secs(100);
    while !has_image() {
        assert!(Instant::now() < deadline, "no image");
        assert!(child.try_wait().expect("asked").is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(2));
    }
    let ended = child.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "scratch files are left");
    let results = lines(&out.join("results.jsonl"));
    let names: BTreeSet<_> = results.iter().filter_map(|it| it["contender"].as_str()).collect();
    // The null cipher is a ceiling.
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["loop", "ucrypt-loop", "ucrypt-loop-none"]);
    assert!(results.iter().all(|it| it["error"].is_null()), "{results:?}");
    let json = run(scratch.ucrypt(&["lab", "report", "--json"]).arg(&out), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let on = json["experiments"][0]["on"].as_str().expect("text");
    assert!(on.contains(place.to_str().expect("text")), "{on}");
}

#[test]
fn a_file_on_a_file_system_is_read_over_every_device_and_nothing_stays_mounted() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let mut lab = scratch.ucrypt(&["lab", "run", "block-sweep", "--against", "ucrypt-loop-ext4"]);
    lab.args(&SMALL[..5]).args(["--rounds", "1", "--on"]).arg(&place).arg("--out").arg(&out);
    run(&mut lab, b"").exits(0);
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "scratch files are left");
    let results = lines(&out.join("results.jsonl"));
    let mut through = 0;
    for result in &results {
        assert!(result["error"].is_null(), "{result}");
        let load = result["sample"]["load"].as_str().expect("text");
        let is_through = result["contender"].as_str().is_some_and(|it| it.ends_with("-ext4"));
        assert_eq!(load.contains("ext4"), is_through, "{result}");
        through += usize::from(is_through && result["sample"]["requests"].as_u64() > Some(0));
    }
    // Both, in two cells.
    assert_eq!(through, 2 * 2, "{results:?}");
    let json = run(scratch.ucrypt(&["lab", "report", "--json"]).arg(&out), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let rows = json["experiments"][0]["beside"].as_array().expect("rows").iter();
    let with_ours = rows.filter(|row| {
        row["label"] == "LUKS, through a file system, 2017" && row["here_of_raw"].is_number()
    });
    assert_eq!(with_ours.count(), 2, "{json}");
}

#[test]
fn servers_of_others_are_measured_beside_ours_and_end() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    for load in ["fio", "built-in"] {
        let out = out.join(load);
        let mut lab = scratch.ucrypt(&["lab", "run", "request-merge", "--load", load]);
        lab.args(["--quick", "--size", "16M", "--time", "20", "--rounds", "1"]);
        let against = "ucrypt-fuse,ucrypt-nbd:inline,qemu-storage-daemon,qemu-nbd,nbdkit,gocryptfs";
        lab.args(["--against", against]).arg("--on").arg(&place).arg("--out").arg(&out);
        run(&mut lab, b"").passes();
        let results = lines(&out.join("results.jsonl"));
        // raw, null, memory, file and six servers, in four cells.
        assert_eq!(results.len(), 4 * 10, "{load}");
        for result in &results {
            assert!(result["sample"]["mb_s"].as_f64() > Some(0.0), "{load}: {result}");
            let served =
                !["raw", "null", "memory"].contains(&result["contender"].as_str().unwrap());
            let by = result["sample"]["load"].as_str().unwrap();
            assert_eq!(by.starts_with("fio"), served && load == "fio", "{result}");
        }
    }
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "scratch images are left");
}

#[test]
fn a_missing_program_is_named_with_its_package_and_the_rest_runs() {
    let scratch = Scratch::new();
    let (out, empty) = (scratch.path("out"), scratch.path("empty"));
    fs::create_dir(&empty).expect("a directory");
    let mut lab = scratch.ucrypt(&["lab", "run", "instant", "other-ssd", "--against"]);
    lab.args(["raw,ucrypt,nbdkit"]).args(SMALL).arg("--out").arg(&out);
    // `timeout` is found before the path changes.
    let mut through_env = std::process::Command::new("env");
    through_env.arg(format!("PATH={}", empty.display())).arg(scratch_program(&lab));
    through_env.args(lab.get_args().skip(program_at(&lab) + 1));
    let ran = run(&mut through_env, b"").exits(0);
    assert!(
        ran.stderr.contains("nbdkit") && ran.stderr.contains("apt-get install nbdkit"),
        "{}",
        ran.stderr
    );
    let results = lines(&out.join("results.jsonl"));
    assert!(!results.is_empty() && results.iter().all(|result| result["contender"] != "nbdkit"));
}

/// Where the command under test stands in a command line that begins with `timeout`.
pub(crate) fn program_at(command: &std::process::Command) -> usize {
    let ucrypt = crate::scratch::UCRYPT;
    command.get_args().position(|word| word == ucrypt).expect("the command")
}

pub(crate) fn scratch_program(command: &std::process::Command) -> std::ffi::OsString {
    command.get_args().nth(program_at(command)).expect("the command").into()
}

fn await_results(out: &Path, count: usize, child: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(100);
    while lines(&out.join("results.jsonl")).len() < count {
        assert!(Instant::now() < deadline, "no results");
        assert!(child.try_wait().expect("asked").is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interrupted_run_keeps_its_results_leaves_nothing_else_and_goes_on() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let mut lab =
        scratch.ucrypt_child(&["lab", "run", "other-ssd", "--against", "ucrypt,ucrypt-fuse"]);
    lab.args(["--size", "16M", "--time", "100", "--rounds", "2", "--on"]).arg(&place);
    lab.arg("--out").arg(&out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = lab.spawn().expect("it starts");
    await_results(&out, 5, &mut child);
    interrupt(child);
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "scratch files are left");
    let before = lines(&out.join("results.jsonl"));
    // raw, null, memory, file, ucrypt and ucrypt-fuse, in three cells and two rounds.
    let all = 6 * 3 * 2;
    assert!(before.len() >= 5 && before.len() < all, "{}", before.len());
    run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").passes();
    run(scratch.ucrypt(&["lab", "run", "--resume"]).arg(&out), b"").passes();
    let after = lines(&out.join("results.jsonl"));
    assert_eq!(after.len(), all);
    assert_eq!(after[..before.len()], before);
}

#[test]
fn many_drives_run_in_virtual_time_under_every_policy_of_the_experiment() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut lab = scratch.ucrypt(&["lab", "run", "many-drives", "--quick", "--out"]);
    run(lab.arg(&out), b"").passes();
    let results = lines(&out.join("results.jsonl"));
    assert_eq!(results.len(), 3 * 3);
    assert!(results.iter().all(|result| result["sample"]["load"] == "virtual time"));
    let json = run(scratch.ucrypt(&["lab", "report", "--json"]).arg(&out), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let verdict = json["experiments"][0]["verdict"].as_str().expect("text");
    assert!(verdict.contains("the cipher of all cores, 56.0 GB/s"), "{verdict}");
}

#[test]
fn a_machine_without_device_mapper_is_told_so_and_one_with_it_is_measured() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let mut lab = scratch.ucrypt(&["lab", "run", "request-merge", "--against", "dm-crypt"]);
    lab.args(["--quick", "--size", "16M", "--time", "5", "--rounds", "1", "--on"]).arg(&place);
    let ran = run(lab.arg("--out").arg(&out), b"").exits(0);
    let has = fs::File::options().read(true).write(true).open("/dev/mapper/control").is_ok();
    let left_out = about(&out)["left_out"].to_string();
    assert_eq!(left_out.contains("device-mapper"), !has, "{left_out}");
    assert_eq!(ran.stderr.contains("/dev/mapper/control"), !has, "{}", ran.stderr);
    let results = lines(&out.join("results.jsonl"));
    assert_eq!(results.iter().any(|it| it["contender"] == "dm-crypt"), has);
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "scratch images are left");
}

#[test]
fn a_simulation_takes_the_costs_of_this_machine_and_shows_how_far_it_agrees() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let mut sim = scratch.ucrypt(&["lab", "sim", "instant", "--quick", "--calibrate", "--on"]);
    let text = run(sim.arg(&place).arg("--out").arg(&out), b"").text();
    for needed in ["measured here:", "ns a byte", "the drive", "simulated", "fitted"] {
        assert!(text.contains(needed), "{needed}: {text}");
    }
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "the scratch file is left");
    let file: Value =
        serde_json::from_slice(&fs::read(out.join("sim.json")).expect("written")).expect("JSON");
    let measured = &file["changes"]["measured"];
    assert!(measured["cores"].as_u64() > Some(0) && measured["drive"].is_object(), "{measured}");
    assert!(file["checks"].as_array().is_some_and(|checks| checks.len() > 10), "{file}");
    let refused = |words: &[&str]| {
        let mut sim = scratch.ucrypt(&["lab", "sim"]);
        run(sim.args(words), b"").refuses(1)
    };
    assert!(refused(&["instant", "--calibrate", "--on", "/dev/null"]).contains("no directory"));
    assert!(refused(&["instant", "--drives", "3"]).contains("many-drives"));
    let mut on = scratch.ucrypt(&["lab", "sim", "instant", "--on", "/tmp"]);
    assert!(run(&mut on, b"").exits(1).stderr.contains("--calibrate"));
    let mut none = scratch.ucrypt(&["lab", "sim", "instant", "--threads-per-core", "0"]);
    assert!(run(&mut none, b"").exits(1).stderr.contains("--threads-per-core"));
}

#[test]
fn threads_that_share_cipher_units_are_named_and_halve_the_speed_of_many_drives() {
    let scratch = Scratch::new();
    let simulated = |words: &[&str]| {
        let mut sim = scratch.ucrypt(&["lab", "sim", "many-drives", "--json", "--time", "40"]);
        let json = run(sim.args(["--cores", "8", "--drives", "4"]).args(words), b"").passes();
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        let rows = json["rows"].as_array().expect("rows").clone();
        let inline = rows.iter().find(|row| row["policy"] == "inline").expect("a row");
        inline["simulated"].as_f64().expect("a figure")
    };
    let shared = simulated(&["--threads-per-core", "2"]) / simulated(&[]);
    assert!((0.4..0.6).contains(&shared), "{shared}");
    let mut sim = scratch.ucrypt(&["lab", "sim", "instant", "--quick", "--threads-per-core", "2"]);
    assert!(run(&mut sim, b"").text().contains("2 share a cipher unit"));
}

#[test]
fn an_experiment_runs_on_a_published_machine_and_has_a_page_with_heat_maps() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let words = ["lab", "sim", "heat-map", "--preset", "optane2020", "--quick", "--json", "--out"];
    let json = run(scratch.ucrypt(&words).arg(&out), b"").passes();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let experiment = &json["experiments"][0];
    assert!(experiment["on"].as_str().is_some_and(|on| on.contains("Optane")), "{experiment}");
    // raw, null and nine policies in twelve cells.
    assert_eq!(lines(&out.join("results.jsonl")).len(), 12 * 11);
    let page = run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").text();
    let page = fs::read_to_string(page.trim_end()).expect("a page");
    assert_eq!(page.matches("<table class=\"heat\">").count(), 2 * 2 * 9);
    assert!(page.contains("in virtual time, on a model of the machine of 2020"), "{page}");
    let markdown = run(scratch.ucrypt(&["lab", "report", "--markdown"]).arg(&out), b"").text();
    assert!(markdown.contains("in virtual time, on a model of the machine of 2020"), "{markdown}");
    // It is no run to go on with, and another one does not take its place.
    let resume = run(scratch.ucrypt(&["lab", "run", "--resume"]).arg(&out), b"").refuses(4);
    assert!(resume.contains("simulation"), "{resume}");
    assert!(run(scratch.ucrypt(&words).arg(&out), b"").refuses(4).contains("a run already"));
    let refused = |words: &[&str]| run(scratch.ucrypt(&["lab", "sim"]).args(words), b"").exits(1);
    assert!(refused(&["--preset", "optane", "heat-map"]).stderr.contains("optane2020"));
    assert!(refused(&["--preset", "ssd2017", "exports"]).stderr.contains("heat-map"));
    assert!(refused(&["heat-map"]).stderr.contains("--preset"));
}

#[test]
fn a_run_prints_where_it_is_kept_and_its_verdicts_for_programs() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut lab = scratch.ucrypt(&["lab", "run", "instant", "added-latency", "--json"]);
    let ran = run(lab.args(SMALL).args(["--against", "ucrypt,nbdkit", "--out"]).arg(&out), b"");
    let json: Value = serde_json::from_slice(&ran.exits(0).stdout).expect("nothing but JSON");
    let results = json["results"].as_str().expect("a path");
    assert_eq!(lines(Path::new(results)).len() as u64, json["measurements"].as_u64().expect("it"));
    assert!(fs::exists(json["run"].as_str().expect("a path")).expect("looked at"));
    let verdicts = json["verdicts"].as_array().expect("a list");
    let names: Vec<_> = verdicts.iter().filter_map(|it| it["experiment"].as_str()).collect();
    assert_eq!(names, ["instant", "added-latency"]);
    assert!(verdicts.iter().all(|it| it["verdict"].as_str().is_some_and(|it| it.len() > 10)));
    assert!(json["left_out"].to_string().contains("nbdkit"), "{json}");
    assert!(json["shortfalls"].is_array() && json["compared"].as_u64() > Some(0), "{json}");
    // Each measurement says for how long tasks waited, where the kernel knows.
    let knows = fs::read_to_string("/proc/pressure/cpu").is_ok();
    for result in lines(&out.join("results.jsonl")) {
        let pressure = &result["sample"]["disturbance"]["pressure"];
        assert_eq!(pressure["cpu"].is_number(), knows, "{result}");
        assert!(pressure["load"].is_number(), "{result}");
    }
}

/// Both are held to what the server counted, so that other load on this machine does not matter.
#[test]
fn fio_and_the_built_in_generator_report_what_was_served_at_the_depth_asked_for() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use ucrypt_backend::{FileBackend, OpenOptions};
    use ucrypt_lab::Pattern;
    use ucrypt_lab::catalogue::Cell;
    use ucrypt_lab::fio::{self, Address};
    use ucrypt_lab::load::{self, Load, Place, Times};

    const LEN: u64 = 64 << 20;
    const REQUESTS: u64 = 64;
    let scratch = Scratch::new();
    let (file, metrics) = (scratch.file("served", b""), scratch.path("metrics"));
    // A network volume: a request spends its time there, so that requests meet.
    let mut serve = scratch.ucrypt_child(&["serve", "--backend", "model:remote,64M", "--fuse"]);
    serve.arg(&file).arg("--metrics").arg(format!("unix:{}", metrics.display()));
    serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = serve.spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::metadata(&file).expect("there").len() < LEN || !metrics.exists() {
        assert!(Instant::now() < deadline, "it does not serve");
        std::thread::sleep(Duration::from_millis(5));
    }
    let options = OpenOptions { direct: true, unlocked: true, ..OpenOptions::default() };
    let place = Place::Raw(Arc::new(FileBackend::open(&file, options).expect("opened")));
    let go = AtomicBool::new(false);
    let times = Times { ramp: Duration::ZERO, measured: Duration::ZERO };
    for (pattern, block_bytes, depth) in
        [(Pattern::RandRead, 4096, 1), (Pattern::Read, 1 << 20, 4), (Pattern::RandWrite, 4096, 8)]
    {
        let (name, published) = (String::new(), Vec::new());
        let cell = Cell { name, pattern, block_bytes, depth, jobs: 1, published };
        let direction = if pattern == Pattern::RandWrite { "write" } else { "read" };
        let direction = format!("direction=\"{direction}\"");
        let load = Load {
            cell: &cell,
            region_bytes: LEN,
            times,
            slices: false,
            seed: 1,
            requests: Some(REQUESTS),
        };
        for by_fio in [false, true] {
            let (before, started) = (metrics::page(&metrics), Instant::now());
            let sample = if by_fio {
                let address = Address::Path(file.clone());
                fio::run(&address, load, (&scratch.path(""), None), &go)
            } else {
                load::run(&place, load, &go)
            };
            let (sample, elapsed) = (sample.expect("it runs"), started.elapsed());
            let after = metrics::page(&metrics);
            let context = format!("{pattern:?}, depth {depth}, by fio {by_fio}: {sample:?}");
            let counted = |name: &str, labels: &[&str]| {
                after.count(name, labels) - before.count(name, labels)
            };
            let bytes = counted("ucrypt_bytes_total", &[&direction]);
            assert_eq!(sample.requests, REQUESTS, "{context}");
            assert_eq!(bytes, REQUESTS * block_bytes, "{context}");
            assert!(sample.seconds <= elapsed.as_secs_f64(), "{elapsed:?}: {context}");
            let reported = sample.mb_s * 1e6 * sample.seconds;
            assert!((reported / bytes as f64 - 1.0).abs() < 0.02, "{context}");
            // Depths are those of one of the server's two queues.
            let arrived =
                |depth: u32| counted("ucrypt_queue_depth_bucket", &[&format!("le=\"{depth}\"")]);
            let all = counted("ucrypt_queue_depth_count", &[]);
            assert_eq!(arrived(depth), all, "more were in flight than asked for: {context}");
            let share = depth / 2;
            assert!(share == 0 || arrived(share / 2) < all, "few were in flight: {context}");
        }
    }
    drop(place);
    let pid = Pid::from_raw(i32::try_from(server.id()).expect("a number")).expect("a process");
    kill_process(pid, Signal::TERM).expect("it is there");
    server.wait().expect("it ends");
}
