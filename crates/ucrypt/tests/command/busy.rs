//! Images that another process has open.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::image::{DATA, Image, LUKS1, LUKS2};
use crate::nbd_client::NbdClient;
use crate::process::{run, tool};
use crate::scratch::Scratch;
use crate::server::{On, PATIENCE, Server};

/// Every action that opens the data for writing is refused with exit code 5.
#[track_caller]
fn is_busy(scratch: &Scratch, image: &Image) {
    run(&mut image.ucrypt(scratch, "write"), b"data").refuses(5);
    let socket = format!("unix:{}", scratch.path("second-socket").display());
    run(image.ucrypt(scratch, "serve").args(["--nbd", &socket]), b"").refuses(5);
    let mut open = scratch.ucrypt(&["open", "--as", "fuse", "--key-file"]);
    run(open.args([&image.key, &image.path, &PathBuf::from("second")]), b"").refuses(5);
    assert!(!scratch.runtime("second").exists());
    let mut format = scratch.ucrypt(&image.kind.format_arguments());
    run(format.args(image.with_key()), b"").refuses(5);
}

#[test]
fn an_image_that_another_ucrypt_writes_is_busy_until_it_ends() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let server = Server::start(&scratch, On::Nbd, &image.with_key());
    let before = image.bytes();
    is_busy(&scratch, &image);
    assert!(image.bytes() == before);
    server.terminate();
    run(&mut image.ucrypt(&scratch, "read"), b"").passes();
}

#[test]
fn readers_share_an_image_and_keep_writers_out() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut line = image.with_key();
    line.push("--readonly".into());
    let server = Server::start(&scratch, On::Nbd, &line);
    let mut read = image.ucrypt(&scratch, "read");
    run(read.arg("--readonly"), b"").passes();
    is_busy(&scratch, &image);
    server.terminate();
}

#[test]
fn what_qemu_has_open_is_busy_and_what_ucrypt_has_open_is_busy_for_qemu() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS1, DATA);
    let nbd = QemuNbd::start(&scratch, &image);
    is_busy(&scratch, &image);
    drop(nbd);
    let server = Server::start(&scratch, On::Nbd, &image.with_key());
    let mut convert = tool("qemu-img", "qemu-utils");
    convert.args(["convert", "-f", "raw", "-O", "raw"]).arg(&image.path);
    let refused = run(convert.arg(scratch.path("copy")), b"").exits(1);
    assert!(refused.stderr.contains("lock"), "{}", refused.stderr);
    server.terminate();
}

#[test]
fn what_is_attached_to_a_loop_device_is_busy() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut losetup = tool("losetup", "mount");
    losetup.args(["--find", "--show"]).arg(&image.path);
    let device = run(&mut losetup, b"").text();
    is_busy(&scratch, &image);
    run(tool("losetup", "mount").args(["--detach", device.trim()]), b"").passes();
    // It is detached when its last opener is gone: programs such as mkfs.btrfs open all devices.
    let attached = Path::new("/sys/block").join(&device.trim()["/dev/".len()..]).join("loop");
    let deadline = Instant::now() + PATIENCE;
    while attached.exists() {
        assert!(Instant::now() < deadline, "{device} is still attached");
        std::thread::sleep(Duration::from_millis(5));
    }
    run(&mut image.ucrypt(&scratch, "write"), b"data").passes();
}

/// Found by its name only, it was opened by another name while the loop device wrote to it.
#[test]
fn what_is_attached_to_a_loop_device_by_another_name_is_busy() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let link = scratch.path("link");
    std::fs::hard_link(&image.path, &link).expect("a hard link");
    let mut losetup = tool("losetup", "mount");
    let device = run(losetup.args(["--find", "--show"]).arg(&link), b"").text();
    is_busy(&scratch, &image);
    run(tool("losetup", "mount").args(["--detach", device.trim()]), b"").passes();
}

#[test]
fn a_block_device_opens_and_is_busy_while_it_is_mounted() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 16 << 20);
    let mut losetup = tool("losetup", "mount");
    losetup.args(["--find", "--show"]).arg(&image.path);
    let device = run(&mut losetup, b"").text();
    let device = Image { path: device.trim().into(), ..image };
    run(&mut device.ucrypt(&scratch, "write"), b"data").passes();
    let mut read = device.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "4"]), b"").passes(), b"data");

    let mut mkfs = tool("mkfs.ext4", "e2fsprogs");
    run(mkfs.args(["-q", "-F"]).arg(&device.path), b"").passes();
    let mount_point = scratch.path("mounted");
    std::fs::create_dir(&mount_point).expect("a directory");
    run(tool("mount", "mount").args([&device.path, &mount_point]), b"").passes();
    is_busy(&scratch, &device);
    run(tool("umount", "mount").arg(&mount_point), b"").passes();
}

/// `qemu-nbd` with the image open for writing.
struct QemuNbd(Child);

impl QemuNbd {
    fn start(scratch: &Scratch, image: &Image) -> Self {
        let socket = scratch.path("qemu-socket");
        let mut qemu = tool("qemu-nbd", "qemu-utils");
        qemu.arg("--object").arg(format!("secret,id=key,file={}", image.key.display()));
        qemu.arg("--persistent").arg(format!("--socket={}", socket.display()));
        qemu.arg("--image-opts").arg(format!(
            "driver=luks,key-secret=key,file.driver=file,file.filename={}",
            image.path.display()
        ));
        let child = qemu.stdin(Stdio::null()).spawn().expect("qemu-nbd starts");
        let mut started = Self(child);
        // It does not report when it is ready; a greeting shows it.
        while NbdClient::connect(&socket).is_err() {
            assert!(started.0.try_wait().expect("waited").is_none(), "qemu-nbd has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        started
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        // `timeout` forwards the signal, and ends with its program.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}
