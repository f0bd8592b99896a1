//! `ucrypt lab run`: what it may overwrite, and what a machine or a user lacks for it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::lab::{SMALL, about, lines, program_at, scratch_program};
use crate::namespace::script;
use crate::other_users::DOCKER;
use crate::process::{limited, run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::terminal::at_terminal;

#[test]
fn a_target_is_overwritten_only_after_a_yes_at_the_terminal() {
    let scratch = Scratch::new();
    let (file, out) = (scratch.file("file", &vec![7; 17 << 20]), scratch.path("out"));
    let is_as_it_was = || fs::read(&file).expect("read").iter().all(|byte| *byte == 7);
    let typed = |key: &[u8]| {
        let mut lab = at_terminal(&[key]);
        lab.args([UCRYPT, "lab", "run", "instant"]).args(SMALL).arg("--on").arg(&file);
        run(lab.arg("--out").arg(&out), b"").text()
    };
    let asks = format!("This will overwrite data on {} irrevocably", file.display());
    for (key, ended) in [("no\n", "with 1"), ("yes\n", "with 1"), ("\x03", "with -2")] {
        let shown = typed(key.as_bytes());
        let ended = format!("ended {ended} echo True");
        assert!(shown.contains(&asks) && shown.contains(&ended), "{shown}");
        assert!(is_as_it_was() && !out.exists(), "{key:?}: something was written");
    }
    let shown = typed(b"YES\n");
    assert!(shown.contains(&asks) && shown.contains("ended with 0 echo True"), "{shown}");
    assert!(!is_as_it_was() && !lines(&out.join("results.jsonl")).is_empty(), "{shown}");
}

#[test]
fn a_device_that_is_mounted_or_in_use_is_refused_and_stays_as_it_is() {
    let scratch = Scratch::new();
    let text = "truncate -s 32M disk; mkfs.ext4 -q disk
        device=$(losetup --find --show disk)
        trap 'umount m || true; losetup --detach $device' EXIT
        lab() { $1 lab run instant -q --on $device --out out --quick --time 3 --rounds 1; }
        before=$(sha256sum <disk)
        mount -o ro,noload $device m
        lab $1 2>said && exit 10
        cat said >&2; grep -q $device said
        umount m
        # A program that has it for itself.
        python3 -c 'import os, sys
held = os.open(sys.argv[1], os.O_RDWR | os.O_EXCL)
sys.exit(os.waitstatus_to_exitcode(os.system(sys.argv[2])))' $device \\
            \"$1 lab run instant -q --on $device --out out --quick --time 3 --rounds 1\" 2>said && exit 11
        cat said >&2; grep -q $device said
        [ \"$before\" = \"$(sha256sum <disk)\" ]
        [ ! -e out ]
        # Nothing but that was in the way.
        lab $1 >/dev/null 2>&1
        [ -e out/results.jsonl ]";
    let ran = run(&mut script(&scratch, text, &[UCRYPT]), b"").exits(0);
    assert_eq!(ran.stderr.matches("in use").count(), 2, "{}", ran.stderr);
}

/// Most users have no sbin in their path.
#[test]
fn programs_of_root_are_started_where_the_path_does_not_lead_to_them() {
    let scratch = Scratch::new();
    let (out, place) = (scratch.path("out"), scratch.path("place"));
    fs::create_dir(&place).expect("a directory");
    let mut lab = scratch.ucrypt(&["lab", "run", "block-sweep", "--against", "loop,loop-ext4"]);
    lab.args(&SMALL[..5]).args(["--rounds", "1", "--load", "built-in", "--on"]);
    lab.arg(&place).arg("--out").arg(&out);
    let mut through_env = limited("env");
    through_env.arg("PATH=/usr/bin:/bin").arg(scratch_program(&lab));
    through_env.args(lab.get_args().skip(program_at(&lab) + 1));
    run(&mut through_env, b"").exits(0);
    let results = lines(&out.join("results.jsonl"));
    for name in ["loop", "loop-ext4"] {
        let of_it = || results.iter().filter(|it| it["contender"] == name);
        assert!(of_it().count() == 2, "{name}: {}", about(&out)["left_out"]);
        assert!(of_it().all(|it| it["error"].is_null()), "{results:?}");
    }
    let versions = about(&out)["machine"]["versions"].to_string();
    for program in ["losetup", "mkfs.ext4", "fusermount3", "dd"] {
        assert!(versions.contains(&format!("[\"{program}\",\"")), "{program}: {versions}");
    }
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
}

/// Root of a container has not always the right to attach and to mount.
#[test]
fn root_without_the_rights_of_root_is_told_so_and_the_rest_runs() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut lab = limited("setpriv");
    lab.args([DOCKER, UCRYPT, "lab", "run", "kernel-tree", "request-merge"]).args(SMALL);
    lab.args(["--against", "ucrypt,loop", "--out"]).arg(&out);
    run(&mut lab, b"").exits(0);
    let results = lines(&out.join("results.jsonl"));
    assert!(!results.is_empty() && results.iter().all(|it| it["error"].is_null()), "{results:?}");
    let left_out = about(&out)["left_out"].to_string();
    assert_eq!(left_out.matches("CAP_SYS_ADMIN").count(), 2, "{left_out}");
}

#[test]
fn added_latency_is_measured_on_a_target_without_a_time_unless_one_is_named() {
    let scratch = Scratch::new();
    let on = |out: &Path| {
        let json = run(scratch.ucrypt(&["lab", "report", "--json"]).arg(out), b"").passes();
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        let all = json["experiments"].as_array().expect("a list").iter();
        all.map(|it| it["on"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    for (at, (words, expected)) in [
        (&["added-latency"][..], &["zero"][..]),
        (&["added-latency", "instant"], &["zero", "memory"]),
        (&["added-latency", "--on", "memory"], &["memory"]),
    ]
    .into_iter()
    .enumerate()
    {
        let out = scratch.path(&format!("out{at}"));
        let mut lab = scratch.ucrypt(&["lab", "run", "--out"]);
        lab.arg(&out).args(words).args(SMALL).args(["--against", "ucrypt"]);
        run(&mut lab, b"").exits(0);
        assert_eq!(on(&out), expected, "{words:?}");
        // It goes on where it began.
        let mut resume = scratch.ucrypt(&["lab", "run", "--resume"]);
        run(resume.arg(&out), b"").exits(0);
        assert_eq!(on(&out), expected, "{words:?}");
    }
}

/// Each contender works on the device itself, one after the other, and the rest of it stays as it is.
#[test]
fn servers_and_peers_work_on_a_block_device_itself_and_on_no_more_of_it_than_is_said() {
    const USED: usize = (16 + 16) << 20;
    let scratch = Scratch::new();
    let disk = scratch.file("disk", &vec![7; 48 << 20]);
    let mut losetup = tool("losetup", "mount");
    let device = run(losetup.args(["--find", "--show"]).arg(&disk), b"").text();
    let device = device.trim_end();
    let on_device = |experiment: &str, against: &str| {
        let out = scratch.path(experiment);
        let mut lab = scratch.ucrypt(&["lab", "run", experiment, "-q", "--on", device]);
        lab.args(["--quick", "--size", "16M", "--time", "20", "--rounds", "1"]);
        run(lab.args(["--against", against, "--out"]).arg(&out), b"").passes();
        let left_out = about(&out)["left_out"].to_string();
        (lines(&out.join("results.jsonl")), left_out)
    };
    let against = "ucrypt,ucrypt-nbd,ucrypt-fuse-none,ucrypt-nbd-4096,ucrypt-loop,copy-nbd,copy-fuse,\
                   loop,qemu-storage-daemon,qemu-nbd,nbdkit,gocryptfs,dm-crypt";
    let (results, left_out) = on_device("request-merge", against);
    assert!(left_out.contains("gocryptfs") && left_out.contains("files"), "{left_out}");
    let has_mapper = fs::File::options().read(true).write(true).open("/dev/mapper/control").is_ok();
    assert_eq!(left_out.contains("device-mapper"), !has_mapper, "{left_out}");
    // raw, null, memory, file, and those named, in four cells.
    assert_eq!(results.len(), 4 * (4 + 11 + usize::from(has_mapper)), "{results:?}");
    for result in &results {
        assert!(result["sample"]["mb_s"].as_f64() > Some(0.0), "{result}");
    }
    let (through, _) = on_device("block-sweep", "ucrypt-loop-ext4");
    let of_it = through.iter().filter(|it| it["contender"] == "ucrypt-loop-ext4");
    assert_eq!(of_it.count(), 2, "{through:?}");
    for result in &through {
        assert!(result["error"].is_null(), "{result}");
    }
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
    // It is nobody's any more: neither is it in use, nor is there a loop device over it.
    run(tool("losetup", "mount").arg("--detach").arg(device), b"").passes();
    let content = fs::read(&disk).expect("read");
    assert!(content[USED..].iter().all(|byte| *byte == 7), "it wrote behind its part");
    let is_left = content[..USED].chunks(1 << 20).any(|part| part.iter().all(|byte| *byte == 7));
    assert!(!is_left, "part of what is measured was not written");
}
