//! Volumes of `/etc/ucrypttab` in a machine whose first process is systemd: they are opened at boot, mounted by
//! fstab, written to until the machine is turned off, and hold everything afterwards.
//!
//! `guest/run.py` boots Debian's kernel with this machine's systemd and udev, once for all tests of this file.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

const UCRYPT: &str = env!("CARGO_BIN_EXE_ucrypt");

/// Seconds for boot, load and shutdown, on a machine that is busy with other tests.
const LIMIT_S: &str = "900";

/// Bytes of a file system that is mounted, and of one that is not.
const LEN: u64 = 32 << 20;
const SMALL_LEN: u64 = 4 << 20;

const PROGRAMS: [&str; 11] = [
    "/lib/systemd/systemd",
    "/lib/systemd/systemd-shutdown",
    "/lib/systemd/system-generators/systemd-fstab-generator",
    "nbdcopy",
    "systemctl",
    "udevadm",
    "lsblk",
    "mount",
    "umount",
    "dd",
    "ls",
];

const MODULES: [&str; 4] = ["loop", "fuse", "ext4", "ublk_drv"];

/// systemd's own units that the machine needs.
const UNITS: [&str; 26] = [
    "basic.target",
    "blockdev@.target",
    "cryptsetup-pre.target",
    "cryptsetup.target",
    "final.target",
    "local-fs-pre.target",
    "local-fs.target",
    "modprobe@.service",
    "multi-user.target",
    "paths.target",
    "poweroff.target",
    "remote-cryptsetup.target",
    "remote-fs-pre.target",
    "remote-fs.target",
    "shutdown.target",
    "slices.target",
    "sockets.target",
    "swap.target",
    "sysinit.target",
    "systemd-poweroff.service",
    "systemd-udev-trigger.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udevd.service",
    "timers.target",
    "umount.target",
];

const RULES: [&str; 4] =
    ["50-udev-default.rules", "60-block.rules", "60-persistent-storage.rules", "99-systemd.rules"];

/// What the machine left.
struct Machine {
    files: BTreeMap<String, String>,
    run: Output,
    /// For each volume: its decrypted content's check, the sums of its files that are wrong, by name.
    checks: BTreeMap<&'static str, (String, Vec<String>)>,
}

fn passes(command: &mut Command) -> Vec<u8> {
    let ran = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {}\n{said}", ran.status);
    ran.stdout
}

/// A program of the system, which a user may not have in the path.
fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn format(key: &Path, image: &Path) {
    let mut format = Command::new(UCRYPT);
    format.args(["luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
    passes(format.arg("--key-file").arg(key).arg(image));
}

/// A volume with an empty file system.
fn volume(dir: &Path, key: &Path, name: &str, len: u64) -> PathBuf {
    let (image, system) = (dir.join(name), dir.join("system"));
    File::create(&image).and_then(|file| file.set_len(len + (16 << 20))).expect("an image");
    File::create(&system).and_then(|file| file.set_len(len)).expect("a file");
    format(key, &image);
    passes(tool("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(&system));
    let mut write = Command::new(UCRYPT);
    write.args(["write", "--key-file"]).arg(key).arg(&image);
    let mut child = write.stdin(File::open(&system).expect("opened")).spawn().expect("it starts");
    assert!(child.wait().expect("waited").success());
    image
}

/// The decrypted content of a volume, in a file.
fn content(dir: &Path, key: &Path, image: &Path) -> PathBuf {
    let path = dir.join("content");
    let file = File::create(&path).expect("a file");
    let mut read = Command::new(UCRYPT);
    let read = read.args(["read", "--key-file"]).arg(key).arg(image).stdout(file).status();
    assert!(read.expect("it starts").success());
    path
}

fn uuid_of_system(content: &Path) -> String {
    let shown = passes(tool("dumpe2fs").arg("-h").arg(content));
    let shown = String::from_utf8_lossy(&shown).into_owned();
    let line = shown.lines().find_map(|line| line.strip_prefix("Filesystem UUID:"));
    line.expect("a UUID").trim().to_owned()
}

/// The sum of a file in a file system, as `sha256sum` prints it.
fn sum(content: &Path, name: &str) -> String {
    let script = "debugfs -R \"cat /$2\" \"$1\" 2>/dev/null | sha256sum";
    let summed = passes(tool("sh").args(["-c", script, "sh"]).arg(content).arg(name));
    String::from_utf8_lossy(&summed).trim().to_owned()
}

impl Machine {
    fn get() -> &'static Self {
        static MACHINE: OnceLock<Machine> = OnceLock::new();
        MACHINE.get_or_init(Self::boot)
    }

    fn boot() -> Self {
        let dir = TempDir::with_prefix("ucrypt-systemd-").expect("a directory");
        let key = dir.path().join("key");
        fs::write(&key, "a key").expect("written");
        let images = ["data", "uuid"].map(|name| (name, volume(dir.path(), &key, name, LEN)));
        volume(dir.path(), &key, "small", SMALL_LEN);
        let of_header = passes(Command::new(UCRYPT).arg("luksUUID").arg(&images[1].1));
        let of_header = String::from_utf8_lossy(&of_header).trim().to_owned();
        let of_system = uuid_of_system(&content(dir.path(), &key, &images[1].1));
        let run = Self::guest(dir.path(), &images, &of_header, &of_system);
        let out = dir.path().join("out");
        let listed = fs::read_dir(&out).into_iter().flatten().filter_map(Result::ok);
        let files: BTreeMap<_, _> = listed
            .map(|entry| {
                let text = fs::read(entry.path()).unwrap_or_default();
                let name = entry.file_name().to_string_lossy().into_owned();
                (name, String::from_utf8_lossy(&text).into_owned())
            })
            .collect();
        let checks = images.map(|(name, image)| {
            let content = content(dir.path(), &key, &image);
            let checked = tool("e2fsck").arg("-fn").arg(&content).output().expect("it starts");
            let check = format!("{}: {}", checked.status, String::from_utf8_lossy(&checked.stdout));
            let sums = files.get(&format!("{name}.sums")).map_or("", String::as_str);
            let numbered = (1..).zip(sums.lines()).map(|(at, sum): (u32, _)| (at.to_string(), sum));
            let last = files.get(&format!("{name}.last")).map_or("no last file", |sum| sum.trim());
            let numbered = numbered.chain([("last".to_owned(), last)]);
            let wrong = numbered.filter(|(file, expected)| sum(&content, file) != *expected);
            (name, (check, wrong.map(|(file, _)| file).collect()))
        });
        Self { files, run, checks: checks.into_iter().collect() }
    }

    /// Runs the machine until it has turned itself off.
    fn guest(dir: &Path, images: &[(&str, PathBuf)], of_header: &str, of_system: &str) -> Output {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let here = repository.join("crates/ucrypt/tests/systemd");
        let etc = dir.join("etc");
        fs::create_dir(&etc).expect("a directory");
        let table = format!(
            "data ID=virtio-data /etc/key luks\n\
             bad /no/image none luks,frobnicate\n\
             uuid UUID={of_header} /etc/key luks,_netdev\n\
             later /no/image none luks,noauto\n"
        );
        let fstab = format!(
            "/dev/ucrypt/data /data ext4 defaults 0 0\n\
             UUID={of_system} /uuid ext4 _netdev 0 0\n\
             /dev/ucrypt/bad /bad ext4 nofail 0 0\n"
        );
        let load = "[Unit]\nRequiresMountsFor=/%i\n[Service]\nExecStart=/work/load %i\n";
        let drive = "[Service]\nExecStart=/work/drive\n";
        // Nothing but the generator has multi-user.target want the volume that needs the network.
        let target = "[Unit]\nRequires=basic.target\nAfter=basic.target\n\
            Wants=cryptsetup.target multi-user.target load@data.service load@uuid.service drive.service systemd-udevd.service \
            systemd-udev-trigger.service ucrypt-nbd@disk.socket ucrypt-nbd@still.socket ucrypt-nbd@wrong.socket\n";
        // Soon enough for a test, late enough for a server on a machine that is busy.
        let watched = "[Service]\nWatchdogSec=15\nTimeoutStopSec=3\n";
        let record = "[Service]\nExecStopPost=/bin/sh -c 'echo $SERVICE_RESULT $EXIT_STATUS >/out/%i.result'\n";
        let mut command = Command::new(repository.join("guest/run.py"));
        // One processor: on a busy machine that is faster than two.
        command.args(["--memory", "768", "--cpus", "1"]);
        command.args(["--timeout", LIMIT_S, "--out"]).arg(dir.join("out"));
        let mut file = |from: &Path, to: &str| {
            command.arg("--file").arg(format!("{}:{to}", from.display()));
        };
        for (name, text, place) in [
            ("ucrypttab", table.as_str(), "/etc/ucrypttab"),
            ("fstab", &fstab, "/etc/fstab"),
            ("os-release", "ID=test\n", "/etc/os-release"),
            ("passwd", "root:x:0:0::/root:/bin/sh\n", "/etc/passwd"),
            ("group", "root:x:0:\ndisk:x:6:\n", "/etc/group"),
            ("load", load, "/etc/systemd/system/load@.service"),
            ("drive", drive, "/etc/systemd/system/drive.service"),
            ("target", target, "/etc/systemd/system/default.target"),
            ("record", record, "/etc/systemd/system/ucrypt@.service.d/record.conf"),
            ("watched", watched, "/etc/systemd/system/ucrypt-nbd@still.service.d/watched.conf"),
        ] {
            fs::write(etc.join(name), text).expect("written");
            file(&etc.join(name), place);
        }
        file(&dir.join("key"), "/etc/key");
        for (name, key) in [("disk", "key"), ("still", "key"), ("wrong", "etc/passwd")] {
            file(&dir.join("small"), &format!("/etc/ucrypt/nbd/{name}.img"));
            file(&dir.join(key), &format!("/etc/ucrypt/nbd/{name}.key"));
        }
        for name in ["init", "load", "drive", "results"] {
            file(&here.join(name), &format!("/work/{name}"));
        }
        for name in UNITS {
            let place = format!("/lib/systemd/system/{name}");
            file(Path::new(&place), &place);
        }
        for name in RULES {
            let place = format!("/lib/udev/rules.d/{name}");
            file(Path::new(&place), &place);
        }
        let dist = repository.join("dist");
        for unit in ["ucrypt@.service", "ucrypt-nbd@.service", "ucrypt-nbd@.socket"] {
            file(&dist.join("systemd").join(unit), &format!("/lib/systemd/system/{unit}"));
        }
        file(&dist.join("udev/61-ucrypt.rules"), "/lib/udev/rules.d/61-ucrypt.rules");
        let generator = "/lib/systemd/system-generators/ucrypt-generator";
        file(&dist.join("systemd/ucrypt-generator"), generator);
        // Without debug information: the machine keeps it in memory.
        let program = dir.join("ucrypt");
        passes(tool("strip").args(["--strip-debug", "-o"]).arg(&program).arg(UCRYPT));
        command.arg("--program").arg(&program);
        for program in PROGRAMS {
            command.args(["--program", program]);
        }
        for module in MODULES {
            command.args(["--module", module]);
        }
        for (name, image) in images {
            command.arg("--disk").arg(format!("{name}={}", image.display()));
        }
        command.arg("--append").arg(
            "rdinit=/work/init systemd.log_target=kmsg systemd.log_level=info \
             systemd.default_standard_output=kmsg printk.devkmsg=on systemd.show_status=no",
        );
        command.arg(here.join("init")).stdin(Stdio::null());
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    fn file(&self, name: &str) -> &str {
        self.files.get(name).map_or("(none)", String::as_str)
    }

    /// What happened, for the message of a test that fails.
    fn told(&self) -> String {
        let printed = String::from_utf8_lossy(&self.run.stdout);
        let errors = String::from_utf8_lossy(&self.run.stderr);
        let files = self.files.iter().filter(|(name, _)| !name.contains(".sums"));
        let files: Vec<_> = files.map(|(name, text)| format!("== {name}\n{text}")).collect();
        format!("{}\n{printed}\n{errors}\n{}", self.run.status, files.join("\n"))
    }
}

#[test]
fn a_shutdown_under_load_loses_nothing_of_what_is_mounted_by_name_or_by_uuid() {
    let machine = Machine::get();
    for (name, (check, wrong)) in &machine.checks {
        let count = machine.file(&format!("{name}.count")).trim().parse::<u32>();
        assert!(count.is_ok_and(|count| count >= 5), "{name}: {}", machine.told());
        assert!(check.starts_with("exit status: 0"), "{name}: {check}\n{}", machine.told());
        assert!(wrong.is_empty(), "{name}: wrong are {wrong:?}\n{}", machine.told());
    }
}

#[test]
fn services_end_in_order_and_nothing_is_left_mounted() {
    let machine = Machine::get();
    for name in ["data", "uuid"] {
        let result = machine.file(&format!("{name}.result"));
        assert_eq!(result.trim(), "success 0", "{name}: {}", machine.told());
    }
    let mounts = machine.file("mounts");
    assert!(mounts.contains(" / tmpfs") && !mounts.contains("ext4"), "{}", machine.told());
    assert!(!machine.file("dmesg").contains("I/O error"), "{}", machine.told());
}

#[test]
fn a_wrong_line_fails_with_its_number_in_the_status_and_stops_nothing_else() {
    let machine = Machine::get();
    let status = machine.file("status");
    let (bad, good) = status.split_once("ucrypt@data.service").unwrap_or((status, ""));
    assert!(bad.contains("failed") && bad.contains(":2: 'frobnicate'"), "{}", machine.told());
    assert!(
        good.contains("active (running)") && good.contains("serves /dev/"),
        "{}",
        machine.told()
    );
    assert_eq!(machine.file("active"), "active\nactive\n", "{}", machine.told());
    assert_eq!(machine.file("bad.result").trim(), "exit-code 1", "{}", machine.told());
}

#[test]
fn udev_knows_the_volume_and_what_is_on_it() {
    let machine = Machine::get();
    let udev = machine.file("udev");
    for word in ["UCRYPT_NAME=data", "ID_FS_TYPE=ext4", "SYSTEMD_ALIAS=/dev/ucrypt/data"] {
        assert!(udev.contains(word), "{word}: {}", machine.told());
    }
    assert!(machine.file("links").contains("ucrypt-data -> "), "{}", machine.told());
    // udev looks at ublk devices only because of the rule.
    let ublk = machine.file("ublk");
    for word in ["UCRYPT_NAME=seen", "ID_FS_TYPE=ext4", "lsblk: ext4", "closed: 0"] {
        assert!(ublk.contains(word), "{word}: {ublk}\n{}", machine.told());
    }
}

#[test]
fn a_socket_starts_the_server_of_its_image_and_what_clients_wrote_is_in_it_when_it_has_stopped() {
    let machine = Machine::get();
    let lines = ["before: inactive", "after: active", "stopped: inactive success", "same"];
    assert_eq!(machine.file("nbd"), lines.join("\n") + "\n", "{}", machine.told());
}

#[test]
fn a_server_that_stands_still_is_ended_by_the_watchdog_and_its_socket_waits_for_the_next_client() {
    let machine = Machine::get();
    let lines = ["running: success", "still: watchdog", "socket: active", "left: 0"];
    assert_eq!(machine.file("watchdog"), lines.join("\n") + "\n", "{}", machine.told());
}

/// Regression: the client was still waiting, so systemd started the server over and over, and then gave the socket up.
#[test]
fn a_server_that_cannot_start_turns_its_client_away_and_its_socket_waits_for_the_next_one() {
    let machine = Machine::get();
    let lines = ["client: 1", "server: failed", "socket: active"];
    assert_eq!(machine.file("wrong"), lines.join("\n") + "\n", "{}", machine.told());
}
