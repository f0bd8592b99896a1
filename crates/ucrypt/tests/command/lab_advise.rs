//! `ucrypt lab advise`: it finds what is slow, asks for nothing, and writes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::run;
use crate::scratch::Scratch;

/// A LUKS2 volume with random data.
fn volume(scratch: &Scratch, words: &[&str]) -> PathBuf {
    let image = scratch.path("disk.img");
    let mut content = vec![0; 48 << 20];
    fastrand::Rng::with_seed(7).fill(&mut content);
    fs::write(&image, content).expect("written");
    let key = scratch.file("key", b"a passphrase");
    let mut format = scratch.ucrypt(&["luksFormat", "-q", "--pbkdf", "pbkdf2"]);
    format.args(["--pbkdf-force-iterations", "1000"]).args(words).arg("--key-file").arg(key);
    run(format.arg(&image), b"").exits(0);
    image
}

fn json(scratch: &Scratch, words: &[&str], image: &Path) -> Value {
    let mut advise = scratch.ucrypt(&["lab", "advise", "--json", "--time", "2"]);
    let ran = run(advise.args(words).arg(image), b"").exits(0);
    serde_json::from_slice(&ran.stdout).expect("JSON")
}

fn ids(advice: &Value) -> Vec<&str> {
    let findings = advice["findings"].as_array().expect("findings");
    findings.iter().map(|it| it["id"].as_str().expect("an id")).collect()
}

#[test]
fn a_slow_volume_is_advised_without_a_passphrase_and_not_written() {
    let scratch = Scratch::new();
    let words = ["--cipher", "serpent-cbc-plain64", "--sector-size", "512"];
    let image = volume(&scratch, &words);
    let before = fs::read(&image).expect("read");
    let advice = json(&scratch, &[], &image);
    assert!(fs::read(&image).expect("read") == before, "something was written");
    let volume = advice["volume"].as_str().expect("text");
    assert!(volume.contains("luks2, serpent-cbc-plain64, 256 bits, sectors of 512"), "{volume}");
    let found = ids(&advice);
    assert!(found.contains(&"pbkdf-cheap"), "{advice}");
    let cipher =
        advice["findings"].as_array().expect("a list").iter().find(|it| it["id"] == "cipher");
    // Beside other load, the figures may be too far apart; it is not said then that all is well.
    let tells = |list: &str| advice[list].to_string().contains("serpent-cbc-plain64 decrypts");
    assert!(cipher.is_some() != tells("not_measured") && !tells("fine"), "{advice}");
    if let Some(gain) = cipher.map(|it| &it["gain"]) {
        assert!(gain["times"]["median"].as_f64() > Some(1.05), "{gain}");
        assert_eq!(gain["times"]["count"], 5, "{gain}");
    }
    // Every way that this system has was measured, or it is said why not.
    let ways = advice["ways"].as_array().expect("ways");
    let not_measured = advice["not_measured"].to_string();
    for way in ["fuse", "nbd", "loop", "ublk"] {
        let measured = ways.iter().any(|it| it["way"] == way);
        assert!(measured != not_measured.contains(&format!("{way}: ")), "{way}: {advice}");
    }
    assert!(ways.iter().any(|it| it["way"] == "nbd"), "{advice}");
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
    // A block device is given to one server at a time, and all are measured all the same.
    let mut losetup = crate::process::tool("losetup", "mount");
    let device = run(losetup.args(["--find", "--show", "--read-only"]).arg(&image), b"").text();
    let on_device = json(&scratch, &[], Path::new(device.trim_end()));
    let measured = |advice: &Value| {
        let ways = advice["ways"].as_array().expect("ways").iter();
        ways.map(|it| it["way"].to_string()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(measured(&on_device), measured(&advice), "{on_device}");
    // In words.
    let mut advise = scratch.ucrypt(&["lab", "advise", "--time", "1"]);
    let text = run(advise.arg(&image), b"").exits(0);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("luksFormat --cipher") || text.contains("too far apart"), "{text}");
    for needed in ["left", "to do:", "gain:", "serpent-cbc-plain64 decrypts", "Not measured:"] {
        assert!(text.contains(needed), "{needed}: {text}");
    }
}

#[test]
fn a_volume_that_is_open_and_a_plain_one_are_advised_and_others_are_refused() {
    let scratch = Scratch::new();
    let image = volume(&scratch, &["--sector-size", "4096"]);
    let key = scratch.path("key");
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--key-file"]);
    run(open.arg(&key).arg(&image).arg("work"), b"").exits(0);
    let advice = json(&scratch, &[], &image);
    assert!(advice["not_measured"].to_string().contains("in use"), "{advice}");
    assert!(!ids(&advice).contains(&"sector-size"), "{advice}");
    run(&mut scratch.ucrypt(&["close", "work"]), b"").exits(0);

    let plain = ["--cipher", "aes-cbc-plain64", "--key-size", "256", "--offset", "1"];
    let advice = json(&scratch, &plain, &image);
    let volume = advice["volume"].as_str().expect("text");
    assert!(volume.contains("plain, aes-cbc-plain64, 256 bits"), "{volume}");

    let refused = |words: &[&str], image: &Path, code: i32| {
        let mut advise = scratch.ucrypt(&["lab", "advise", "--time", "1"]);
        run(advise.args(words).arg(image), b"").refuses(code)
    };
    let foreign = scratch.file("foreign", &vec![7; 1 << 20]);
    assert!(refused(&[], &foreign, 1).contains("--cipher"));
    let small = refused(&["--cipher", "aes-xts-plain64"], &foreign, 4);
    assert!(small.contains("cannot be measured"), "{small}");
    assert!(refused(&[], &scratch.path("none"), 4).contains("none"));
    assert!(refused(&["--cipher", "rot13-ecb"], &image, 1).contains("rot13"));
    assert!(refused(&["--scratch", "/dev/null"], &image, 1).contains("no directory"));
    assert!(
        refused(&["--cipher", "aes-xts-plain64", "--sector-size", "513"], &image, 1)
            .contains("513")
    );
    // A header that is cut off at any place is told, and nothing panics.
    let whole = fs::read(&image).expect("read");
    for len in [0, 6, 100, 4096, 20_000] {
        let cut = scratch.file("cut", &whole[..len]);
        let mut advise = scratch.ucrypt(&["lab", "advise", "--time", "1"]);
        let ran = run(advise.arg(&cut), b"");
        assert!(matches!(ran.code(), Some(1 | 4)), "{len} bytes: {:?} {}", ran.code(), ran.stderr);
    }
}

#[test]
fn writes_are_measured_on_a_scratch_file_that_is_removed() {
    let scratch = Scratch::new();
    let image = volume(&scratch, &["--sector-size", "512"]);
    let place = scratch.path("place");
    fs::create_dir(&place).expect("a directory");
    let before = fs::read(&image).expect("read");
    let advice = json(&scratch, &["--scratch", place.to_str().expect("text")], &image);
    let loads = advice["loads"].as_array().expect("loads");
    let writes = loads.iter().filter(|it| it["load"].as_str().expect("text").starts_with("writes"));
    assert_eq!(writes.count(), 2, "{advice}");
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "the scratch file is left");
    assert!(fs::read(&image).expect("read") == before, "something was written");
}

#[test]
fn advice_that_is_interrupted_leaves_no_server_no_device_and_no_file() {
    let scratch = Scratch::new();
    let image = volume(&scratch, &["--sector-size", "512"]);
    let (place, sockets) = (scratch.path("place"), scratch.path("sockets"));
    fs::create_dir(&place).expect("a directory");
    fs::create_dir(&sockets).expect("a directory");
    let mut advise = scratch.ucrypt_child(&["lab", "advise", "--time", "600", "--scratch"]);
    advise.arg(&place).arg(&image).env("TMPDIR", &sockets);
    advise.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = advise.spawn().expect("it starts");
    // It has servers when it measures.
    let deadline = Instant::now() + Duration::from_secs(100);
    while scratch.processes().len() < 2 {
        assert!(Instant::now() < deadline, "no servers");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a number")).expect("a process");
    kill_process(pid, Signal::INT).expect("it is there");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(scratch.processes().is_empty() && scratch.mounts().is_empty());
    assert_eq!(fs::read_dir(&place).expect("there").count(), 0, "the scratch file is left");
    assert_eq!(fs::read_dir(&sockets).expect("there").count(), 0, "a directory is left");
}
