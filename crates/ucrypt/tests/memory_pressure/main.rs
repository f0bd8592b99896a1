//! A file system on a device of ours, in a machine with little memory. Writers fill the page cache
//! again and again, so that the kernel needs our server to reclaim memory. A server that waited for
//! memory would hang with the kernel, and nothing would be written any more.
//!
//! `UCRYPT_SOAK_S` sets for how many seconds the writers go on.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

const UCRYPT: &str = env!("CARGO_BIN_EXE_ucrypt");

/// Memory of the guest, in MiB: its kernel and its root file system take half of it.
const MEMORY_MIB: &str = "256";

/// Length of the image: more than the guest could keep in memory.
const IMAGE_LEN: u64 = 640 << 20;

/// Seconds of writing by default.
const WRITING_S: u64 = 10;

/// Seconds without a byte written after which the guest is taken to hang, on a machine that is busy
/// with other tests.
const SILENCE_S: &str = "300";

/// Seconds for everything else.
const PATIENCE_S: u64 = 1800;

const MODULES: [&str; 2] = ["fuse", "loop"];

#[track_caller]
fn passes(command: &mut Command) -> String {
    let ran = command.stdin(Stdio::null()).output().expect("it starts");
    let (said, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{command:?}: {}\n{said}\n{errors}", ran.status);
    said.into_owned()
}

/// The command without debug information: the guest keeps it in memory.
fn stripped(to: &Path) {
    passes(Command::new("strip").args(["--strip-debug", "-o"]).arg(to).arg(UCRYPT));
}

#[test]
fn writers_that_fill_a_small_memory_do_not_stop_the_server() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory_pressure");
    let dir = tempfile::Builder::new().prefix("ucrypt-pressure-").tempdir().expect("a directory");
    let (image, key) = (dir.path().join("image"), dir.path().join("key"));
    let program = dir.path().join("ucrypt");
    stripped(&program);
    fs::write(&key, "passphrase").expect("written");
    File::create(&image).and_then(|file| file.set_len(IMAGE_LEN)).expect("an image");
    let mut format = Command::new(UCRYPT);
    format.args(["luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
    passes(format.arg("--key-file").arg(&key).arg(&image));

    let asked = std::env::var("UCRYPT_SOAK_S").ok();
    let writing_s = asked.map_or(WRITING_S, |text| text.parse().expect("UCRYPT_SOAK_S in seconds"));
    let mut guest = Command::new(here.join("../../../../guest/run.py"));
    guest.args(["--memory", MEMORY_MIB, "--timeout", &(writing_s + PATIENCE_S).to_string()]);
    guest
        .args(["--silence", SILENCE_S])
        .arg("--program")
        .arg(&program)
        .args(["--program", "mkfs.ext4"]);
    for module in MODULES {
        guest.args(["--module", module]);
    }
    guest.arg("--file").arg(&key).arg("--disk").arg(format!("image={}", image.display()));
    guest.arg(here.join("guest.sh")).arg(writing_s.to_string());
    print!("{}", passes(&mut guest));
}
