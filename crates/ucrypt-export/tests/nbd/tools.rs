//! Third-party clients as interop tools: libnbd's tools, fio and QEMU.

use std::process::{Command, Output};

use ucrypt_engine::VolumeOptions;
use ucrypt_export::nbd::{Address, Server, ServerConfig};
use ucrypt_testkit::Random;

use crate::harness::{Harness, aes, plain, with_options};

const LEN: u64 = 64 << 20;

/// Runs an interop tool; if it is missing, fails with the command that installs it.
fn tool(program: &str, package: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments);
    // nbdsh starts the first python3 of the path; only Debian's has nbdsh's module.
    if let Some(path) = std::env::var_os("PATH") {
        let mut all = std::ffi::OsString::from("/usr/bin:");
        all.push(path);
        command.env("PATH", all);
    }
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{program}: {error}; install it with: apt-get install {package}"),
    }
}

/// As [`tool`], and the tool must succeed.
fn passes(program: &str, package: &str, arguments: &[&str]) -> String {
    let output = tool(program, package, arguments);
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

#[test]
fn nbdinfo_reads_every_ability() {
    let discards = VolumeOptions { allow_discards: true, ..VolumeOptions::default() };
    let harness = Harness::start(with_options(LEN, discards));
    let info = passes("nbdinfo", "libnbd-bin", &["--json", harness.uri()]);
    for line in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-size\": 67108864",
        "\"can_cache\": false",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"is_read_only\": false",
        "\"block_size_minimum\": 1",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "\"base:allocation\"",
    ] {
        assert!(info.contains(line), "{line} is missing in {info}");
    }
    let map = passes("nbdinfo", "libnbd-bin", &["--map", harness.uri()]);
    assert!(map.contains("67108864") && map.contains("hole,zero"), "{map}");
    let list = passes("nbdinfo", "libnbd-bin", &["--list", harness.uri()]);
    assert!(list.contains("export-size: 67108864"), "{list}");
}

#[test]
fn nbdcopy_brings_a_file_in_and_out() {
    let harness = Harness::start(aes(LEN, 512));
    let (source, copy) = (harness.dir.path().join("in"), harness.dir.path().join("out"));
    let data = Random::new(4).bytes(LEN as usize);
    std::fs::write(&source, &data).expect("written");
    let (source, copy) = (source.to_str().expect("a path"), copy.to_str().expect("a path"));
    passes("nbdcopy", "libnbd-bin", &["--connections=4", "--flush", source, harness.uri()]);
    passes("nbdcopy", "libnbd-bin", &["--connections=4", harness.uri(), copy]);
    assert!(std::fs::read(copy).expect("read") == data);
}

#[test]
fn nbdsh_finds_commands_errors_and_contexts_as_specified() {
    let discards = VolumeOptions { allow_discards: true, ..VolumeOptions::default() };
    let harness = Harness::start(with_options(LEN, discards));
    let script = r#"
import errno
h = nbd.NBD()
h.set_strict_mode(0)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(URI)
size = h.get_size()
h.pwrite(b"a" * 1000, 500, nbd.CMD_FLAG_FUA)
assert h.pread(1000, 500, nbd.CMD_FLAG_DF) == b"a" * 1000
h.pwrite(b"b" * (32 << 20), 1)
assert h.pread(32 << 20, 1) == b"b" * (32 << 20)
h.zero(1 << 20, 0, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(1 << 20, 0) == bytes(1 << 20)
h.trim(8 << 20, 8 << 20, nbd.CMD_FLAG_FUA)
assert h.pread(8 << 20, 8 << 20) == bytes(8 << 20)
entries = []
h.block_status(16 << 20, 0, lambda m, o, e, err: entries.extend([m, o] + e))
assert entries == ["base:allocation", 0, 8 << 20, 0, 8 << 20, 3], entries
h.flush()
def fails(code, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == code, (error, code)
        return
    raise AssertionError("not refused")
fails(errno.EINVAL, lambda: h.pread(2, size - 1))
fails(errno.ENOSPC, lambda: h.pwrite(b"xx", size - 1))
fails(errno.ENOSPC, lambda: h.zero(2, size - 1))
fails(errno.EINVAL, lambda: h.trim(2, size - 1))
fails(errno.EINVAL, lambda: h.cache(512, 0))
fails(errno.EINVAL, lambda: h.pread(1, 0, 1 << 14))
fails(errno.EINVAL, lambda: h.pread((32 << 20) + 512, 0))
assert h.pread(1, 0) == b"\0"
h.shutdown()
"#;
    let script = script.replace("URI)", &format!("{:?})", harness.uri()));
    passes("nbdsh", "libnbd-bin python3-libnbd", &["-c", &script]);
}

/// Random sizes and offsets, every block verified, over four connections at once.
fn fio(harness: &Harness, arguments: &[&str]) {
    let uri = format!("--uri={}", harness.uri());
    let output = format!("--output={}", harness.dir.path().join("fio.log").display());
    let mut all = vec!["--name=verify", "--ioengine=nbd", &uri, &output, "--verify=crc32c"];
    all.extend(["--verify_fatal=1", "--verify_state_save=0", "--randseed=1", "--group_reporting"]);
    all.extend(arguments);
    passes("fio", "fio", &all);
}

#[test]
fn fio_verifies_four_connections_with_random_sizes() {
    for volume in [plain(LEN), aes(LEN, 512), aes(LEN, 4096)] {
        let harness = Harness::start(volume);
        fio(
            &harness,
            &[
                "--rw=randwrite",
                "--bsrange=512-256k",
                "--iodepth=16",
                "--numjobs=4",
                "--size=16m",
                "--offset_increment=16m",
                "--thread=1",
            ],
        );
    }
}

#[test]
fn fio_verifies_large_requests_at_depth() {
    let harness = Harness::start(aes(LEN, 512));
    fio(&harness, &["--rw=write", "--bs=4m", "--iodepth=16", "--size=64m"]);
    fio(&harness, &["--rw=randwrite", "--bs=512", "--iodepth=64", "--size=1m"]);
}

#[test]
fn qemu_img_compares_equal_what_it_converted() {
    let harness = Harness::start(aes(LEN, 4096));
    let image = harness.dir.path().join("image");
    let mut data = Random::new(5).bytes(LEN as usize / 2);
    data.resize(LEN as usize, 0);
    std::fs::write(&image, data).expect("written");
    let image = image.to_str().expect("a path");
    let package = "qemu-utils";
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", image, harness.uri()];
    passes("qemu-img", package, &convert);
    passes("qemu-img", package, &["compare", "-f", "raw", "-F", "raw", image, harness.uri()]);
}

#[test]
fn the_tools_reach_tcp_on_loopback() {
    let address: Address = "tcp:127.0.0.1:0".parse().expect("an address");
    let config = ServerConfig { export_name: "disk".into(), ..ServerConfig::default() };
    let server = Server::start(aes(LEN, 512), &address, config).expect("a server");
    let uri = format!("{}/disk", server.uri());
    assert_eq!(passes("nbdinfo", "libnbd-bin", &["--size", &uri]).trim(), LEN.to_string());
    let output = tool("nbdinfo", "libnbd-bin", &["--size", &format!("{}/tape", server.uri())]);
    assert!(!output.status.success(), "another name is refused");

    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("in"), dir.path().join("out"));
    let data = Random::new(6).bytes(LEN as usize);
    std::fs::write(&source, &data).expect("written");
    let (source, copy) = (source.to_str().expect("a path"), copy.to_str().expect("a path"));
    passes("nbdcopy", "libnbd-bin", &["--connections=2", source, &uri]);
    passes("nbdcopy", "libnbd-bin", &["--connections=2", &uri, copy]);
    assert!(std::fs::read(copy).expect("read") == data);
}
