//! Key derivations in control groups with little memory. Needs root.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Advice, FlockOperation, fadvise, flock};

use crate::image::PASSPHRASE;
use crate::process::{cryptsetup, limited, run};
use crate::scratch::{Scratch, UCRYPT};

/// A control group of a test. Removed when dropped: its processes have ended by then.
struct Container {
    dir: PathBuf,
}

impl Container {
    fn new(scratch: &Scratch, mib: u64) -> Self {
        let top = Path::new("/sys/fs/cgroup");
        let is_v1 = top.join("memory/memory.limit_in_bytes").exists();
        let (parent, file) = if is_v1 {
            (top.join("memory"), "memory.limit_in_bytes")
        } else {
            (top.to_owned(), "memory.max")
        };
        let dir = parent.join(scratch.unique());
        fs::create_dir(&dir).unwrap_or_else(|error| {
            panic!("{}: {error}; these tests need root and the memory controller", dir.display())
        });
        let container = Self { dir };
        let limit = (mib << 20).to_string();
        fs::write(container.dir.join(file), limit).expect("the memory controller is on");
        for swap in ["memory.swap.max", "memory.memsw.limit_in_bytes"] {
            // Only there where swap is accounted for.
            let bytes = if is_v1 { (mib << 20).to_string() } else { "0".to_owned() };
            let _ = fs::write(container.dir.join(swap), bytes);
        }
        container
    }

    /// The command inside.
    fn ucrypt(&self, scratch: &Scratch, arguments: &[&str]) -> Command {
        self.run(UCRYPT.as_ref(), scratch, arguments)
    }

    /// A program inside.
    fn run(&self, program: &Path, scratch: &Scratch, arguments: &[&str]) -> Command {
        let mut command = limited("sh");
        let enter = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", self.dir.display());
        command.args(["-euc", &enter, "sh"]).arg(program).args(arguments);
        command.env("XDG_RUNTIME_DIR", scratch.path("run"));
        command
    }
}

impl Container {
    /// Bytes of memory that its processes use.
    fn used(&self) -> u64 {
        let files = ["memory.current", "memory.usage_in_bytes"].map(|name| self.dir.join(name));
        let used = files.iter().find_map(|file| fs::read_to_string(file).ok());
        used.and_then(|used| used.trim().parse().ok()).expect("a number")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// A volume whose keyslot takes this much memory.
fn image(scratch: &Scratch, mib: u32) -> String {
    let path = scratch.sparse("image", 20 << 20);
    let mut format = cryptsetup();
    format.args(["luksFormat", "-q", "--pbkdf", "argon2id", "--pbkdf-force-iterations", "4"]);
    format.args(["--pbkdf-parallel", "1", "--pbkdf-memory", &(mib << 10).to_string()]);
    run(format.arg(&path), PASSPHRASE).passes();
    path.to_str().expect("text").to_owned()
}

#[test]
fn a_new_keyslot_takes_what_the_container_allows_and_says_so() {
    let scratch = Scratch::new();
    let container = Container::new(&scratch, 96);
    let path = scratch.sparse("image", 20 << 20);
    let path = path.to_str().expect("text");
    let costs = ["--pbkdf", "argon2id", "--pbkdf-force-iterations", "4"];
    let memory = |keyslot: &str| {
        let mut dump = cryptsetup();
        let json = run(dump.args(["luksDump", "--dump-json-metadata", path]), b"").text();
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        json["keyslots"][keyslot]["kdf"]["memory"].as_u64().expect("a number")
    };
    let mut format = container.ucrypt(&scratch, &["luksFormat", "-q", path]);
    let said = run(format.args(costs), PASSPHRASE).exits(0).stderr;
    assert!(said.contains("here instead of 1 GiB: this container has 96 MiB"), "{said}");
    // Half of the limit, less what the command itself takes.
    assert!((32 << 10..=48 << 10).contains(&memory("0")), "{} KiB", memory("0"));
    let mut add =
        container.ucrypt(&scratch, &["luksAddKey", "-q", path, "--pbkdf-memory", "16384"]);
    let input = [PASSPHRASE, b"\nanother"].concat();
    let said = run(add.args(costs), &input).exits(0).stderr;
    assert_eq!(said, "", "16 MiB fit");
    assert_eq!(memory("1"), 16 << 10);
    let mut test = cryptsetup();
    run(test.args(["open", "--test-passphrase", path]), b"another").passes();
}

#[test]
fn an_unlock_that_the_container_has_no_memory_for_is_refused_and_not_killed() {
    let scratch = Scratch::new();
    let container = Container::new(&scratch, 32);
    let path = &image(&scratch, 40);
    let test = || container.ucrypt(&scratch, &["open", "--test-passphrase", path]);
    // Before a passphrase is read: there is none.
    let said = run(&mut test(), b"").refuses(3);
    assert!(said.contains("needs 40 MiB") && said.contains("this container has 32 MiB"), "{said}");
    for action in
        ["luksAddKey", "luksChangeKey", "luksConvertKey", "luksRotateKey", "luksRemoveKey"]
    {
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        let cheap = if action == "luksRemoveKey" { &[][..] } else { &cheap };
        let mut change = container.ucrypt(&scratch, &[action, path]);
        let said = run(change.args(cheap), b"").refuses(3);
        assert!(said.contains("needs 40 MiB"), "{action}: {said}");
    }
    let mut kill = container.ucrypt(&scratch, &["luksKillSlot", path, "0"]);
    let said = run(&mut kill, b"").refuses(3);
    assert!(said.contains("needs 40 MiB"), "{said}");
    let mut add = cryptsetup();
    add.args(["luksAddKey", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", path]);
    run(&mut add, &[PASSPHRASE, b"\ncheap"].concat()).passes();
    run(&mut test(), b"cheap").passes();
    let said = run(&mut test(), b"wrong").refuses(2);
    assert!(said.contains("not tried: keyslot 0") && said.contains("needs 40 MiB"), "{said}");
}

#[test]
fn unlocks_in_a_small_container_wait_for_each_other() {
    let scratch = Scratch::new();
    let container = Container::new(&scratch, 80);
    let path = image(&scratch, 36);
    // Its pages are not in memory, so that they count as the container's.
    let program = scratch.path("ucrypt");
    fs::copy(UCRYPT, &program).expect("copied");
    let copy = File::open(&program).expect("opened");
    copy.sync_all().expect("written");
    fadvise(&copy, 0, None, Advice::DontNeed).expect("forgotten");
    drop(copy);
    let unlock = || {
        let arguments = ["open", "--test-passphrase", &path];
        run(&mut container.run(&program, &scratch, &arguments), PASSPHRASE).passes();
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(unlock);
        // It has found room for two; the others come when it has taken its own.
        while container.used() < 30 << 20 && !first.is_finished() {
            std::thread::yield_now();
        }
        (0..5).for_each(|_| drop(scope.spawn(unlock)));
    });
}

#[test]
fn an_unlock_waits_for_cryptsetups_lock_of_memory_hard_derivations() {
    let scratch = Scratch::new();
    let path = image(&scratch, 32);
    let dir = Path::new("/run/cryptsetup");
    let _ = fs::DirBuilder::new().mode(0o700).create(dir);
    let place = dir.join("LN_memory-hard-access");
    let lock = loop {
        let lock = File::options().create(true).truncate(false).write(true).open(&place);
        let lock = lock.expect("root opens the lock");
        flock(&lock, FlockOperation::LockExclusive).expect("locked");
        // A cryptsetup that held it before has removed it.
        let inode = lock.metadata().expect("known").ino();
        if fs::metadata(&place).is_ok_and(|it| it.ino() == inode) {
            break lock;
        }
    };
    let mut test = scratch.ucrypt(&["open", "--test-passphrase", &path]);
    let mut child = test.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, PASSPHRASE).expect("written");
    drop(stdin);
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut said = String::new();
    stderr.read_line(&mut said).expect("text");
    assert!(said.contains("waiting for the memory of other key derivations"), "{said}");
    assert!(child.try_wait().expect("waited").is_none(), "it did not wait for the lock");
    drop(lock);
    assert!(child.wait().expect("it ends").success());
}
