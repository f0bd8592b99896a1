//! The NBD export of an encrypted image, judged by libnbd's tools and fio.

use std::fs;

use serde_json::Value;
use ucrypt_testkit::Random;

use crate::image::{Image, LUKS2, LUKS2_512};
use crate::process::{python, run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};

const LEN: u64 = 64 << 20;

fn serve(scratch: &Scratch, image: &Image, options: &[&str]) -> Server {
    let mut line = image.with_key();
    line.extend(options.iter().map(Into::into));
    Server::start(scratch, On::Nbd, &line)
}

fn info(server: &Server) -> Value {
    let mut nbdinfo = tool("nbdinfo", "libnbd-bin");
    let text = run(nbdinfo.args(["--json", &server.uri()]), b"").passes();
    let info: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    info["exports"][0].clone()
}

#[test]
fn nbdinfo_reads_size_block_sizes_and_abilities() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let expect = |export: &Value, expected: &[(&str, Value)]| {
        for (key, value) in expected {
            assert_eq!(&export[key], value, "{key} in {export:#}");
        }
    };
    let server = serve(&scratch, &image, &[]);
    let export = info(&server);
    expect(
        &export,
        &[
            ("export-size", LEN.into()),
            ("block_size_minimum", 1.into()),
            ("block_size_preferred", 4096.into()),
            ("block_size_maximum", (32 << 20).into()),
            ("can_multi_conn", true.into()),
            ("can_flush", true.into()),
            ("can_fua", true.into()),
            ("can_zero", true.into()),
            ("can_trim", false.into()),
            ("is_read_only", false.into()),
            ("is_rotational", false.into()),
        ],
    );
    assert_eq!(export["contexts"][0], "base:allocation");
    server.terminate();
    expect(&info(&serve(&scratch, &image, &["--allow-discards"])), &[("can_trim", true.into())]);
    let read_only = serve(&scratch, &image, &["--readonly"]);
    expect(&info(&read_only), &[("is_read_only", true.into()), ("can_multi_conn", true.into())]);
}

#[test]
fn nbdcopy_brings_data_in_and_out_over_four_connections() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2_512, LEN);
    let data = Random::new(21).bytes(LEN as usize);
    let (source, copy) = (scratch.file("source", &data), scratch.path("copy"));
    let server = serve(&scratch, &image, &[]);
    let nbdcopy = || {
        let mut command = tool("nbdcopy", "libnbd-bin");
        command.args(["--connections=4", "--requests=16", "--flush"]);
        command
    };
    run(nbdcopy().arg(&source).arg(server.uri()), b"").passes();
    run(nbdcopy().arg(server.uri()).arg(&copy), b"").passes();
    assert!(fs::read(&copy).expect("read") == data);
    server.terminate();
    assert!(run(&mut image.ucrypt(&scratch, "read"), b"").passes() == data);
}

#[test]
fn every_command_and_every_refusal_is_as_libnbd_expects() {
    for kind in [LUKS2, LUKS2_512] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, LEN);
        let server = serve(&scratch, &image, &["--allow-discards"]);
        let script = include_str!("scripts/nbd.py");
        let mut python = python(script, "nbd", "python3-libnbd");
        run(python.args([&server.uri(), &LEN.to_string()]), b"").passes();
        server.terminate();
    }
}

#[test]
fn nbdsh_writes_what_ucrypt_reads() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let server = serve(&scratch, &image, &[]);
    // Use Debian's interpreter; the module is in the same package.
    let mut nbdsh = tool("nbdsh", "python3-libnbd");
    nbdsh.args(["-u", &server.uri(), "-c", "h.pwrite(b'from nbdsh', 4091)", "-c", "h.flush()"]);
    run(&mut nbdsh, b"").passes();
    server.terminate();
    let mut read = image.ucrypt(&scratch, "read");
    let read = run(read.args(["--offset", "4091", "--length", "10"]), b"").passes();
    assert_eq!(read, b"from nbdsh");
}

#[test]
fn fio_verifies_four_connections_of_random_sizes() {
    for kind in [LUKS2, LUKS2_512] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, LEN);
        let server = serve(&scratch, &image, &[]);
        let mut fio = tool("fio", "fio");
        fio.args(["--name=verify", "--ioengine=nbd", "--uri", &server.uri()]);
        fio.args(["--rw=randwrite", "--bsrange=512-256k", "--blockalign=512", "--iodepth=16"]);
        fio.args(["--numjobs=4", "--size=16m", "--offset_increment=16m", "--randseed=4"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--output-format=json"]);
        fio.arg("--group_reporting").arg("--output").arg(scratch.path("fio.json"));
        fio.current_dir(scratch.path(""));
        run(&mut fio, b"").passes();
        let text = fs::read_to_string(scratch.path("fio.json")).expect("a report");
        let json = &text[text.find('{').expect("an object")..];
        let report: Value = serde_json::from_str(json).expect("JSON");
        let job = &report["jobs"][0];
        assert_eq!(job["error"], 0);
        assert_eq!(job["write"]["io_bytes"], LEN, "all of it was written");
        assert_eq!(job["read"]["io_bytes"], LEN, "all of it was verified");
        server.terminate();
    }
}

#[test]
fn tcp_serves_on_loopback_and_nowhere_else() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let mut serve = image.ucrypt(&scratch, "serve");
    let message = run(serve.args(["--nbd", "tcp:0.0.0.0:0"]), b"").refuses(1);
    assert!(message.contains("loopback"), "{message}");
    let image_free = scratch.ucrypt(&["open", "--test-passphrase"]).args(image.with_key()).output();
    assert!(image_free.expect("ran").status.success());
}
