//! The command itself is killed in the middle of each action that writes a header: at a write or a flush
//! of its image, which never comes. Some of what it had not flushed is lost, as when the power fails, or
//! nothing is. Afterwards the old key or the new one opens the volume, with both programs.
//!
//! The image is a file of a FUSE export over the fault backend, in this process. `UCRYPT_EVERY_CRASH` cuts
//! at each write and flush, and not at some; `UCRYPT_SEED=N` repeats a run.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_backend::{FileBackend, memory};
use ucrypt_engine::PolicyKind;
use ucrypt_export::fuse::{FuseExport, FuseOptions};
use ucrypt_testkit::engine::VolumeKind;
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::given::number;
use ucrypt_testkit::{FaultBackend, Faults, Random};

use crate::process::{cryptsetup, run};
use crate::scratch::Scratch;

/// Bytes of an image: 2 MiB of header, and some data.
const LEN: u64 = (2 << 20) + (64 << 10);

/// At how many writes or flushes each action is killed, if not at all of them.
const CUTS: u64 = 3;

/// How long an action may take.
const LIMIT: Duration = Duration::from_secs(120);

const CHEAP: &[&str] = &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

const LUKS1: &[&str] = &["--type", "luks1", "--key-size", "256"];
const LUKS2: &[&str] =
    &["--type", "luks2", "--key-size", "256", "--offset", "4096", "--sector-size", "512"];

/// An action that is killed.
struct Action {
    /// Its words; `IMAGE` is the image, `CHEAP` the costs of a keyslot, and other words in capital letters
    /// are files.
    line: &'static str,
    input: &'static [u8],
    /// The passphrases of which one opens the volume after each interruption; empty: perhaps none.
    any: &'static [&'static str],
    /// Those that all open it.
    all: &'static [&'static str],
    /// Whether the same command comes to the end, and what opens the volume then.
    again: Option<&'static [&'static str]>,
}

const fn action(line: &'static str, input: &'static [u8]) -> Action {
    Action { line, input, any: &["one"], all: &["one", "two"], again: None }
}

/// How an action has ended.
struct Ended {
    image: Vec<u8>,
    /// Writes and flushes that came, if it was not killed.
    writes: u64,
    killed: bool,
}

/// Runs the command on an image, and kills it at its write or flush of this number.
fn run_on(scratch: &Scratch, image: &[u8], action: &Action, cut: Option<u64>, seed: u64) -> Ended {
    let inner = Arc::new(memory(LEN).expect("memory"));
    inner.write_all_at(0, image).expect("written");
    let faults = Faults::new(seed);
    faults.volatile();
    if let Some(number) = cut {
        let changes = Rule::new(Fate::Hang).on(Access::Write).on(Access::Flush);
        faults.add(changes.on(Access::Punch).nth(number));
    }
    let backend = Arc::new(FaultBackend::new(inner, faults.clone()));
    let policies = PolicyKind::ALL[0].into();
    let kind =
        VolumeKind { sector_size: None, policies, workers: 0, offset: 0, shared_memory: 4 << 20 };
    let volume = kind.over(backend.clone(), LEN);
    let served = scratch.path("served");
    let export = FuseExport::start(&volume, &served, FuseOptions::default()).expect("served");
    let words = action.line.split(' ').flat_map(|word| match word {
        "IMAGE" => vec![served.clone().into()],
        "CHEAP" => CHEAP.iter().map(OsString::from).collect(),
        file if file.bytes().all(|byte| byte.is_ascii_uppercase()) => {
            vec![scratch.path(file).into()]
        }
        word => vec![OsString::from(word)],
    });
    let mut command = scratch.ucrypt_child(&words.collect::<Vec<_>>());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // It may end without reading all.
    let _ = child.stdin.take().expect("a pipe").write_all(action.input);
    let mut status = None;
    let begun = Instant::now();
    while status.is_none() && faults.met().is_empty() {
        status = child.try_wait().expect("waited");
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("{:?} at {cut:?} neither ends nor reaches its cut", action.line);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_power_lost = seed.is_multiple_of(2);
    let lost = is_power_lost.then(|| backend.after_a_crash().expect("an image"));
    let killed = status.is_none();
    child.kill().expect("killed");
    faults.release();
    let said = child.wait_with_output().expect("it ends").stderr;
    let said = String::from_utf8_lossy(&said);
    let succeeded = status.is_none_or(|status| status.success());
    assert!(succeeded, "{:?} at {cut:?}: {said}", action.line);
    assert!(!said.contains("panicked"), "{:?} at {cut:?}: {said}", action.line);
    let left = lost.filter(|_| killed).unwrap_or_else(|| {
        backend.settle().expect("written");
        backend.after_a_crash().expect("an image")
    });
    let is_change = |access| [Access::Write, Access::Flush, Access::Punch].contains(&access);
    let writes = faults.log().iter().filter(|reached| is_change(reached.access)).count() as u64;
    drop(export);
    Ended { image: bytes(&left), writes, killed }
}

fn bytes(image: &FileBackend) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    image.read_exact_at(0, &mut bytes).expect("read");
    bytes
}

/// Which of these passphrases open the volume, with both programs.
fn opening<'a>(
    scratch: &Scratch,
    image: &[u8],
    passphrases: &[&'a str],
    what: &str,
) -> Vec<&'a str> {
    let mut open = Vec::new();
    for passphrase in passphrases {
        // cryptsetup repairs what it reads.
        let path = scratch.file("left", image);
        let test = ["open", "--test-passphrase", "--key-file", "-"];
        let ours = run(scratch.ucrypt(&test).arg(&path), passphrase.as_bytes());
        let theirs = run(cryptsetup().args(test).arg(&path), passphrase.as_bytes());
        assert_eq!(ours.code(), theirs.code(), "{what}: {passphrase}: {}", ours.stderr);
        open.extend(ours.succeeded().then_some(*passphrase));
    }
    open
}

/// Cuts an action at some of its writes and flushes, or at all of them.
fn cut(scratch: &Scratch, image: &[u8], action: &Action) {
    // Other places for each action. That of the power loss alternates.
    let of_line = |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte));
    let first = number("UCRYPT_SEED", 1);
    let mut seed = action.line.bytes().fold(first, of_line);
    let whole = run_on(scratch, image, action, None, seed);
    assert!(!whole.killed && whole.writes > 2, "{:?}: {} writes", action.line, whole.writes);
    let mut random = Random::new(seed);
    let numbers: Vec<u64> = if std::env::var_os("UCRYPT_EVERY_CRASH").is_some() {
        (0..whole.writes).collect()
    } else {
        (0..CUTS).map(|_| random.below(whole.writes)).collect()
    };
    for number in numbers {
        seed += 1;
        let what = format!(
            "{:?}, killed at {number} of {}, UCRYPT_SEED={first}",
            action.line, whole.writes
        );
        println!("{what}");
        let ended = run_on(scratch, image, action, Some(number), seed);
        // A long write comes in more parts at one time than at another: the last numbers may not be reached.
        assert!(ended.killed || number > whole.writes / 2, "{what}: it was not");
        let open = opening(scratch, &ended.image, action.all, &what);
        assert_eq!(open, action.all, "{what}");
        let open = opening(scratch, &ended.image, action.any, &what);
        assert!(!open.is_empty() || action.any.is_empty(), "{what}: no key opens the volume");
        if let Some(after) = action.again {
            let again = run_on(scratch, &ended.image, action, None, seed);
            assert_eq!(opening(scratch, &again.image, after, &what), after, "{what}, once more");
        }
    }
}

/// An image with the passphrases `one` and `two`.
fn image(scratch: &Scratch, kind: &[&str]) -> Vec<u8> {
    let path = scratch.sparse("image", LEN);
    let format = ["luksFormat", "-q", "--key-file", "-"];
    run(cryptsetup().args(format).args(kind).args(CHEAP).arg(&path), b"one").exits(0);
    let add = ["luksAddKey", "-q"];
    run(cryptsetup().args(add).args(CHEAP).arg(&path), b"one\ntwo").exits(0);
    std::fs::read(path).expect("read")
}

#[test]
fn a_killed_command_that_changes_keys_leaves_the_old_key_or_the_new_one() {
    let scratch = Scratch::new();
    scratch.file("OLD", b"one");
    scratch.file("NEW", b"new");
    for kind in [LUKS1, LUKS2] {
        let image = image(&scratch, kind);
        cut(&scratch, &image, &action("luksAddKey -q CHEAP IMAGE", b"one\nnew"));
        let change = action("luksChangeKey -q CHEAP IMAGE", b"one\nnew");
        cut(&scratch, &image, &Action { any: &["one", "new"], all: &["two"], ..change });
        let line = "luksRotateKey -q CHEAP --key-file OLD --new-keyfile NEW IMAGE";
        let again: Option<&[&str]> = Some(&["two", "new"]);
        let rotate = Action { any: &["one", "new"], all: &["two"], again, ..action(line, b"") };
        cut(&scratch, &image, &rotate);
        let remove = action("luksRemoveKey IMAGE", b"two");
        cut(&scratch, &image, &Action { all: &["one"], ..remove });
        let kill = action("luksKillSlot -q IMAGE 1", b"one");
        cut(&scratch, &image, &Action { all: &["one"], ..kill });
    }
    let line = "luksConvertKey --pbkdf argon2id --pbkdf-memory 64 --pbkdf-force-iterations 4 IMAGE";
    cut(&scratch, &image(&scratch, LUKS2), &action(line, b"one"));
}

#[test]
fn a_killed_command_that_changes_a_header_leaves_all_keys() {
    let scratch = Scratch::new();
    let (luks1, luks2) = (image(&scratch, LUKS1), image(&scratch, LUKS2));
    let uuid = "luksUUID -q --uuid 6f2e3f2b-7a3c-4d9e-9a41-0c7be8a1f2d3 IMAGE";
    let again: Option<&[&str]> = Some(&["one", "two"]);
    for (image, line) in [
        (&luks1, uuid),
        (&luks2, uuid),
        (&luks2, "config --label label IMAGE"),
        (&luks2, "config --priority prefer -S 1 IMAGE"),
        (&luks1, "convert -q --type luks2 IMAGE"),
        (&luks2, "convert -q --type luks1 IMAGE"),
    ] {
        cut(&scratch, image, &Action { again, ..action(line, b"") });
    }
    cut(&scratch, &luks2, &action("token add --key-description x IMAGE", b""));
    for copy in [0, 0x4000] {
        let mut damaged = luks2.clone();
        damaged[copy + 5000] ^= 1;
        cut(&scratch, &damaged, &Action { again, ..action("repair -q IMAGE", b"") });
    }
}

/// An image with one passphrase, in the first keyslot, for this volume key.
fn image_for(
    scratch: &Scratch,
    format: &[&str],
    key: &std::path::Path,
    passphrase: &[u8],
) -> Vec<u8> {
    let path = scratch.sparse("image", LEN);
    let mut make = cryptsetup();
    make.args(["luksFormat", "-q", "--key-file", "-", "--volume-key-file"]).arg(key);
    run(make.args(format).args(CHEAP).arg(&path), passphrase).exits(0);
    std::fs::read(path).expect("read")
}

/// The keyslots of both headers lie in the same place: one is moved first or, without room, the header is saved.
#[test]
fn a_killed_restore_over_the_only_keyslot_leaves_a_key_or_is_run_again() {
    let scratch = Scratch::new();
    let (key, long) = (scratch.file("key", &[7; 32]), scratch.file("long", &[7; 64]));
    let roomy = [LUKS2, &["--luks2-keyslots-size", "256k"]].concat();
    let small: Vec<&str> =
        roomy.iter().map(|word| if *word == "256" { "512" } else { word }).collect();
    let plain = "luksHeaderRestore -q --header-backup-file BACKUP IMAGE";
    let saving = "luksHeaderRestore -q --header-backup-file BACKUP --old-header-file SAVED IMAGE";
    for (format, key, line, any) in [
        (LUKS1, &key, plain, &["one", "new"][..]),
        (LUKS2, &key, plain, &["one", "new"]),
        (&roomy[..], &key, saving, &["one", "new"]),
        (&small[..], &long, saving, &[]),
    ] {
        let _ = std::fs::remove_file(scratch.path("SAVED"));
        let saved = image_for(&scratch, format, key, b"one");
        let (path, backup) = (scratch.file("saved", &saved), scratch.path("BACKUP"));
        let _ = std::fs::remove_file(&backup);
        let save = ["luksHeaderBackup", "--header-backup-file"];
        run(scratch.ucrypt(&save).arg(&backup).arg(&path), b"").exits(0);
        let present = image_for(&scratch, format, key, b"new");
        let again: Option<&[&str]> = Some(&["one"]);
        cut(&scratch, &present, &Action { any, all: &[], again, ..action(line, b"") });
    }
    let back = ["luksHeaderRestore", "-q", "--header-backup-file"];
    let path = scratch.file("left", &image_for(&scratch, &small, &long, b"third"));
    let mut restore = scratch.ucrypt(&back);
    restore.arg(scratch.path("SAVED")).arg("--old-header-file").arg(scratch.path("OTHER"));
    run(restore.arg(&path), b"").exits(0);
    let left = std::fs::read(&path).expect("read");
    assert_eq!(opening(&scratch, &left, &["new", "third"], "from the saved header"), ["new"]);
}

#[test]
fn a_killed_command_that_replaces_a_header_leaves_a_key_or_is_run_again() {
    let scratch = Scratch::new();
    for (kind, format) in [
        (LUKS1, "luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --key-size 256 IMAGE"),
        (LUKS2, "luksFormat -q CHEAP --key-size 256 --offset 4096 IMAGE"),
    ] {
        let saved = image(&scratch, kind);
        let path = scratch.file("saved", &saved);
        let backup = scratch.path("BACKUP");
        let _ = std::fs::remove_file(&backup);
        let save = ["luksHeaderBackup", "--header-backup-file"];
        run(scratch.ucrypt(&save).arg(&backup).arg(&path), b"").exits(0);
        let change = ["luksChangeKey", "-q"];
        run(scratch.ucrypt(&change).args(CHEAP).arg(&path), b"one\nnew").exits(0);
        run(scratch.ucrypt(&["luksKillSlot", "-q"]).arg(&path).arg("1"), b"").exits(0);
        let changed = std::fs::read(&path).expect("read");
        let restore = Action {
            any: &["one", "two", "new"],
            all: &[],
            again: Some(&["one", "two"]),
            ..action("luksHeaderRestore -q --header-backup-file BACKUP IMAGE", b"")
        };
        cut(&scratch, &changed, &restore);
        let none: &[&str] = &[];
        for (line, after) in [("erase -q IMAGE", none), (format, &["new"])] {
            let destroy = Action { any: &[], all: &[], again: Some(after), ..action(line, b"new") };
            cut(&scratch, &saved, &destroy);
        }
    }
}
