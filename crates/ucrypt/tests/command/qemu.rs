//! Moves data between the command, QEMU and nbdkit, over every export.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ucrypt_testkit::Random;

use crate::image::{Image, LUKS1, PASSPHRASE};
use crate::process::{run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};

/// Bytes of data: a mebibyte and a sector more than a multiple of the largest request.
const LEN: u64 = (33 << 20) + 512;

const XTS: &str = "cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64";
const ESSIV: &str = "cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256";

fn qemu_img(key: &Path, action: &str) -> Command {
    let mut command = tool("qemu-img", "qemu-utils");
    command.arg(action).arg("--object").arg(format!("secret,id=key,file={}", key.display()));
    command
}

/// A LUKS1 image that QEMU wrote, the plaintext, and the file with its passphrase.
fn by_qemu(scratch: &Scratch, options: &str) -> (PathBuf, Vec<u8>, PathBuf) {
    let plain = Random::new(11).bytes(LEN as usize);
    let source = scratch.file("plain", &plain);
    let key = scratch.file("passphrase", PASSPHRASE);
    let image = scratch.path("image");
    let mut convert = qemu_img(&key, "convert");
    convert.args(["-f", "raw", "-O", "luks", "-o"]);
    convert.arg(format!("key-secret=key,iter-time=10,hash-alg=sha512,{options}"));
    convert.args([&source, &image]);
    for _ in 0..20 {
        let ran = run(&mut convert, b"");
        // QEMU benchmarks the hash, and gives up if the system counts less than a clock tick for that.
        if !ran.stderr.contains("Unable to get accurate CPU usage") {
            ran.passes();
            return (image, plain, key);
        }
    }
    panic!("QEMU cannot benchmark its hash here");
}

fn nbdcopy(from: &str, to: &str) {
    run(tool("nbdcopy", "libnbd-bin").args(["--flush", from, to]), b"").passes();
}

#[test]
fn what_qemu_wrote_reads_back_over_nbd_fuse_and_read() {
    for options in [XTS, ESSIV] {
        let scratch = Scratch::new();
        let (image, plain, key) = by_qemu(&scratch, options);
        let read = run(scratch.ucrypt(&["read", "--key-file"]).args([&key, &image]), b"").passes();
        assert!(read == plain);
        let arguments = [image.as_os_str(), "--key-file".as_ref(), key.as_os_str()];
        let server = Server::start(&scratch, On::Both, &arguments);
        let copy = scratch.path("copy");
        nbdcopy(&server.uri(), copy.to_str().expect("a path"));
        assert!(fs::read(&copy).expect("read") == plain);
        run(tool("cmp", "diffutils").arg(server.file()).arg(scratch.path("plain")), b"").passes();
        server.terminate();
    }
}

/// QEMU's and nbdkit's view of the data in a LUKS1 image.
fn read_by_others(scratch: &Scratch, image: &Path, key: &Path) -> [Vec<u8>; 2] {
    let (of_qemu, of_nbdkit) = (scratch.path("of-qemu"), scratch.path("of-nbdkit"));
    let mut convert = qemu_img(key, "convert");
    convert.args(["-O", "raw", "--image-opts"]);
    convert.arg(format!(
        "driver=luks,key-secret=key,file.driver=file,file.filename={}",
        image.display()
    ));
    run(convert.arg(&of_qemu), b"").passes();

    let mut nbdkit = tool("nbdkit", "nbdkit");
    nbdkit.args(["--unix", "-", "--filter=luks", "file"]).arg(image);
    nbdkit.arg(format!("passphrase=+{}", key.display()));
    nbdkit.arg("--run").arg(format!("nbdcopy \"$uri\" '{}'", of_nbdkit.display()));
    tool("nbdcopy", "libnbd-bin");
    run(&mut nbdkit, b"").passes();
    [of_qemu, of_nbdkit].map(|path| fs::read(path).expect("read"))
}

#[test]
fn what_was_written_over_nbd_fuse_and_write_reads_back_with_qemu_and_nbdkit() {
    let scratch = Scratch::new();
    let (image, _, key) = by_qemu(&scratch, XTS);
    let new = Random::new(12).bytes(LEN as usize);
    let source = scratch.file("new", &new);
    let arguments = [image.as_os_str(), "--key-file".as_ref(), key.as_os_str()];

    let server = Server::start(&scratch, On::Both, &arguments);
    nbdcopy(source.to_str().expect("a path"), &server.uri());
    server.terminate();
    assert!(read_by_others(&scratch, &image, &key) == [new.clone(), new.clone()], "over NBD");

    let new = Random::new(13).bytes(LEN as usize);
    let source = scratch.file("new", &new);
    let server = Server::start(&scratch, On::Both, &arguments);
    let mut dd = tool("dd", "coreutils");
    dd.arg(format!("if={}", source.display())).arg(format!("of={}", server.file().display()));
    run(dd.args(["bs=1M", "conv=notrunc,fsync"]), b"").passes();
    server.terminate();
    assert!(read_by_others(&scratch, &image, &key) == [new.clone(), new.clone()], "over FUSE");

    let new = Random::new(14).bytes(LEN as usize);
    run(scratch.ucrypt(&["write"]).args(arguments), &new).passes();
    assert!(read_by_others(&scratch, &image, &key) == [new.clone(), new], "with write");
}

#[test]
fn qemu_and_nbdkit_read_an_image_that_the_command_made_and_wrote() {
    let scratch = Scratch::new();
    let image = Image::by_ucrypt(&scratch, LUKS1, LEN);
    let new = Random::new(15).bytes(LEN as usize);
    run(&mut image.ucrypt(&scratch, "write"), &new).passes();
    assert!(read_by_others(&scratch, &image.path, &image.key) == [new.clone(), new]);
    let mut info = qemu_img(&image.key, "info");
    info.args(["--output=json", "--image-opts"]);
    info.arg(format!(
        "driver=luks,key-secret=key,file.driver=file,file.filename={}",
        image.path.display()
    ));
    let info: serde_json::Value =
        serde_json::from_slice(&run(&mut info, b"").passes()).expect("JSON");
    assert_eq!(info["virtual-size"], LEN);
    assert_eq!(info["format-specific"]["data"]["cipher-mode"], "xts");
}
