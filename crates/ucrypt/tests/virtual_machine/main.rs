//! A virtual machine with a real kernel whose disks are ucrypt's exports. Its fio verifies what it
//! writes while the servers are killed, ended and started again. Afterwards the volumes must hold
//! the data.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const UCRYPT: &str = env!("CARGO_BIN_EXE_ucrypt");

/// Seconds for the guest, on a machine that is busy with other tests.
const LIMIT_S: &str = "400";

/// A program that ends with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// The lines that it prints.
    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let stdout = self.0.stdout.take().expect("a pipe");
        BufReader::new(stdout).lines().map_while(Result::ok)
    }

    fn end(mut self, signal: Signal) -> std::process::ExitStatus {
        kill_process(Pid::from_child(&self.0), signal).expect("a signal");
        self.0.wait().expect("waited")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // run.py ends QEMU on this signal; it may have ended already.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// One volume and how it is served.
struct Disk {
    image: PathBuf,
    key: PathBuf,
    export: [String; 2],
    server: Option<Running>,
}

impl Disk {
    fn new(dir: &Path, name: &str, sector_size: &str, export: [String; 2]) -> Self {
        let (image, key) = (dir.join(name), dir.join("key"));
        fs::write(&key, "a key").expect("written");
        fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
        let mut disk = Self { image, key, export, server: None };
        let format = ["luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        let mut command = disk.ucrypt(&format);
        let made = command.args(["--sector-size", sector_size]).status().expect("ucrypt runs");
        assert!(made.success(), "no volume in {}", disk.image.display());
        disk.start();
        disk
    }

    fn ucrypt(&self, words: &[&str]) -> Command {
        let mut command = Command::new(UCRYPT);
        command.args(words).arg("--key-file").arg(&self.key).arg(&self.image);
        command
    }

    /// Starts a server and waits until it says where it is.
    fn start(&mut self) {
        let mut server = Running::start(self.ucrypt(&["serve"]).args(&self.export));
        assert!(server.lines().next().is_some(), "the server does not start");
        self.server = Some(server);
    }

    fn end(&mut self, signal: Signal) {
        let status = self.server.take().expect("it is served").end(signal);
        assert_eq!(status.success(), signal == Signal::TERM, "{status}");
    }

    /// The disk's serial number over vhost-user: as much of the UUID as fits.
    fn serial(&self) -> String {
        let output = Command::new(UCRYPT).arg("luksUUID").arg(&self.image).output();
        let uuid = String::from_utf8(output.expect("ucrypt runs").stdout).expect("text");
        let digits = uuid.trim().replace('-', "");
        assert_eq!(digits.len(), 32, "{uuid}");
        digits[..20].into()
    }

    /// The digest of the volume's content, as `sha256sum` prints it.
    fn digest(&self) -> String {
        let script = r#""$@" | sha256sum"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", UCRYPT, "read", "--length", "16M", "--key-file"]);
        let output = command.arg(&self.key).arg(&self.image).output().expect("a digest");
        String::from_utf8(output.stdout).expect("text")
    }
}

#[test]
fn the_disks_of_a_virtual_machine_outlive_their_servers() {
    let dir = TempDir::with_prefix("ucrypt-vm-").expect("a directory");
    let (vhost, nbd) = (dir.path().join("vhost.sock"), dir.path().join("nbd.sock"));
    let out = dir.path().join("out");
    let vhost_user = ["--vhost-user".into(), vhost.display().to_string()];
    let over_nbd = ["--nbd".into(), format!("unix:{}", nbd.display())];
    let mut disks = [
        Disk::new(dir.path(), "ucrypt", "4096", vhost_user),
        Disk::new(dir.path(), "nbd", "512", over_nbd),
    ];
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(here.join("../../guest/run.py"));
    command.args(["--memory", "512", "--timeout", LIMIT_S, "--program", "fio"]);
    command.args(["--module", "virtio_blk", "--out"]).arg(&out);
    for words in [
        "-object memory-backend-memfd,id=ram,size=512M,share=on -machine memory-backend=ram".into(),
        format!("-chardev socket,id=vhost,path={},reconnect=1", vhost.display()),
        "-device vhost-user-blk-pci,chardev=vhost,num-queues=2".into(),
        format!(
            "-drive if=none,id=nbd,driver=raw,file.driver=nbd,file.server.type=unix,\
             file.server.path={},file.reconnect-delay=120",
            nbd.display()
        ),
        "-device virtio-blk-pci,drive=nbd,serial=nbd".into(),
    ] {
        command.arg("--qemu").arg(words);
    }
    let names = [disks[0].serial(), "nbd".into()];
    command.arg(here.join("tests/virtual_machine/guest.sh")).args(&names).stderr(Stdio::piped());
    let mut guest = Running::start(&mut command);
    let mut lines = guest.lines();
    let mut before = Vec::new();
    let begun = lines.by_ref().any(|line| {
        before.push(line);
        before.last().is_some_and(|line| line == "fio begins")
    });
    let mut stderr = guest.0.stderr.take().expect("a pipe");
    let mut complain = |what: &str| {
        let mut said = String::new();
        let _ = stderr.read_to_string(&mut said);
        let fio = names.each_ref().map(|name| fs::read_to_string(out.join(format!("{name}.fio"))));
        panic!("{what}: {said}\n{fio:?}");
    };
    if !begun {
        complain(&format!("the guest did not begin, it said {before:#?}"));
    }
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
        std::thread::sleep(Duration::from_millis(1500));
        for disk in &mut disks {
            disk.end(signal);
        }
        for disk in &mut disks {
            disk.start();
        }
    }
    let rest: Vec<String> = lines.collect();
    if !rest.iter().any(|line| line == "fio ended") {
        complain(&format!("fio did not pass, the guest said {rest:?}"));
    }
    let status = guest.0.wait().expect("waited");
    if !status.success() {
        complain("the guest failed");
    }
    for (disk, name) in disks.iter_mut().zip(&names) {
        disk.end(Signal::TERM);
        let there = fs::read_to_string(out.join(format!("{name}.sum"))).expect("a digest");
        assert_eq!(disk.digest(), there, "{name}: the volume holds what the guest has read");
    }
}
