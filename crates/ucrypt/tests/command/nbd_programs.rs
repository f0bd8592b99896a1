//! Third-party NBD programs, which keep many requests of all kinds in flight. A program that hangs
//! is ended.
//!
//! The images are files on a disk, with default options: in memory, some of this went well by luck.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ucrypt_testkit::Random;

use crate::image::{Image, Kind, LUKS2, LUKS2_512};
use crate::namespace::script;
use crate::process::{run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};

const MIB: u64 = 1 << 20;
const LEN: u64 = 128 * MIB;

const KINDS: [Kind; 2] = [LUKS2, LUKS2_512];

/// An encrypted volume that is noise at first, and its server.
fn serve(scratch: &Scratch, kind: Kind, len: u64, options: &[&str]) -> (Image, Server) {
    let image = Image::by_cryptsetup(scratch, kind, len);
    let mut line = image.with_key();
    line.extend(options.iter().map(Into::into));
    let server = Server::start(scratch, On::Nbd, &line);
    (image, server)
}

/// A file of data and holes in turn, in MiB.
fn source(scratch: &Scratch, name: &str, len: u64, [data, hole]: [u64; 2]) -> PathBuf {
    let path = scratch.sparse(name, len);
    let file = fs::File::options().write(true).open(&path).expect("the source");
    for start in (0..len).step_by(((data + hole) * MIB) as usize) {
        let bytes = Random::new(start + data).bytes((data * MIB) as usize);
        file.write_all_at(&bytes, start).expect("written");
    }
    path
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    assert!(
        fs::read(one).expect("read") == fs::read(other).expect("read"),
        "{} {}",
        one.display(),
        other.display()
    );
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// Copies in and out again.
#[track_caller]
fn nbdcopy(scratch: &Scratch, server: &Server, source: &Path, options: &[&str]) {
    let copy = scratch.path("copy");
    for [from, to] in [[text(source), &server.uri()], [&server.uri(), text(&copy)]] {
        run(tool("nbdcopy", "libnbd-bin").args(options).args([from, to]), b"").passes();
    }
    assert_same(source, &copy);
}

/// Holes become writes of zeroes. More of them are in flight than memory has room for, so the queue
/// once hung, most often with one connection to a new image.
#[test]
fn nbdcopy_of_a_sparse_image_ends() {
    for kind in KINDS {
        let scratch = Scratch::new();
        let (_, server) = serve(&scratch, kind, LEN, &[]);
        let source_1 = source(&scratch, "sparse-1", LEN, [1, 7]);
        nbdcopy(&scratch, &server, &source_1, &["--connections=1", "--requests=256"]);
        // With the defaults; zeroes go where there was data.
        nbdcopy(&scratch, &server, &source(&scratch, "sparse-2", LEN, [2, 6]), &[]);
        server.terminate();
    }
}

#[test]
fn nbdcopy_of_a_dense_image_over_many_connections_is_whole() {
    const LEN: u64 = 64 * MIB;
    for kind in KINDS {
        let scratch = Scratch::new();
        let (_, server) = serve(&scratch, kind, LEN, &[]);
        let options = ["--flush", "--requests=256", "--connections=8"];
        nbdcopy(&scratch, &server, &source(&scratch, "dense", LEN, [8, 0]), &options);
        server.terminate();
    }
}

#[test]
fn qemu_img_converts_out_of_order_in_and_out() {
    for kind in KINDS {
        let scratch = Scratch::new();
        let (_, server) = serve(&scratch, kind, LEN, &[]);
        let convert = |from: &str, to: &str, more: &[&str]| {
            let mut convert = tool("qemu-img", "qemu-utils");
            convert.args(["convert", "-f", "raw", "-O", "raw", "-W", "-m", "16"]).args(more);
            run(convert.args([from, to]), b"").passes();
        };
        let copy = scratch.path("copy");
        for parts in [[1, 7], [5, 3]] {
            let source = source(&scratch, "source", LEN, parts);
            convert(text(&source), &server.uri(), &["-n"]);
            convert(&server.uri(), text(&copy), &[]);
            assert_same(&source, &copy);
        }
        server.terminate();
    }
}

/// Runs all commands on one connection, the asynchronous ones at the same time.
#[track_caller]
fn qemu_io(server: &Server, commands: &[String]) {
    let mut qemu_io = tool("qemu-io", "qemu-utils");
    qemu_io.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command]));
    let said = run(qemu_io.arg(server.uri()), b"").text();
    // The exit code does not cover requests that were not waited for.
    assert!(!said.contains("failed"), "{said}");
}

/// A piece of the disk: its position, its length, and the value of all its bytes.
struct Piece(u64, u64, u8);

/// The whole disk in unaligned pieces.
fn pieces(random: &mut Random, len: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < len {
        let piece_len = (1 + random.below([700, 5000, 400_000][pieces.len() % 3])).min(len - at);
        pieces.push(Piece(at, piece_len, 1 + random.below(255) as u8));
        at += piece_len;
    }
    pieces
}

#[test]
fn qemu_io_finds_its_patterns_after_writes_zeroes_and_discards_at_once() {
    const LEN: u64 = 8 * MIB;
    for (kind, seed) in KINDS.into_iter().zip(61..) {
        let scratch = Scratch::new();
        let (image, server) = serve(&scratch, kind, LEN, &["--allow-discards"]);
        let mut random = Random::new(seed);
        let mut pieces = pieces(&mut random, LEN);
        for _ in 0..3 {
            let mut write = Vec::new();
            let mut again = Vec::new();
            for Piece(at, len, byte) in &mut pieces {
                *byte = 1 + random.below(255) as u8;
                match random.below(6) {
                    0 | 1 => write.push(format!("aio_write -q -P {byte} {at} {len}")),
                    2 => write.push(format!("aio_write -q -f -P {byte} {at} {len}")),
                    3 | 4 => {
                        let unmap = ["", " -u"][random.below(2) as usize];
                        write.push(format!("aio_write -q -z{unmap} {at} {len}"));
                        *byte = 0;
                    }
                    _ => {
                        // At the same time as writes to its neighbours. A discard may leave
                        // anything.
                        write.push(format!("discard -q {at} {len}"));
                        again.push(format!("aio_write -q -P {byte} {at} {len}"));
                    }
                }
            }
            write.push("aio_flush".into());
            write.extend(again);
            write.push("aio_flush".into());
            qemu_io(&server, &write);
            let read = |Piece(at, len, byte): &Piece| format!("aio_read -q -P {byte} {at} {len}");
            qemu_io(&server, &pieces.iter().map(read).collect::<Vec<_>>());
        }
        server.terminate();
        let all = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
        for Piece(at, len, byte) in pieces {
            let found = &all[at as usize..(at + len) as usize];
            assert!(found.iter().all(|is| *is == byte), "{len} bytes at {at} are not all {byte}");
        }
    }
}

#[test]
fn dd_through_nbdfuse_finds_what_it_wrote() {
    const LEN: u64 = 32 * MIB;
    for kind in KINDS {
        let scratch = Scratch::new();
        let (_, server) = serve(&scratch, kind, LEN, &[]);
        source(&scratch, "sparse", LEN, [1, 7]);
        source(&scratch, "dense", LEN, [8, 0]);
        tool("nbdfuse", "libnbd-bin");
        let text = "
            here=$(pwd)
            nbdfuse --pidfile $here/pid $here/m/disk $1 &
            trap 'umount m || :; wait' EXIT
            i=0
            while [ ! -s pid ]; do
                i=$((i + 1)); [ $i -lt 600 ]
                kill -0 $!
                sleep 0.1
            done
            dd if=dense of=m/disk bs=1M conv=notrunc,fsync
            cmp dense m/disk
            dd if=sparse of=m/disk bs=60000 conv=notrunc,fsync
            dd if=m/disk of=copy bs=100000
            cmp sparse copy
            dd if=dense of=m/disk bs=999 count=1000 skip=7 seek=5 conv=notrunc,fsync
            dd if=dense of=sparse bs=999 count=1000 skip=7 seek=5 conv=notrunc
            cmp sparse m/disk";
        let mut nbdfuse: Command = script(&scratch, text, &[&server.uri()]);
        run(&mut nbdfuse, b"").passes();
        server.terminate();
    }
}
