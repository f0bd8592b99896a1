//! How fast sectors are, beside what others do and what the core could do at best.
//!
//! ```text
//! cargo bench -p ucrypt-sector --bench sectors [-- SPEC…]
//! ```
//!
//! One thread works on 64 KiB that stay in the cache, as they do between a read and its client.
//! Every row is the best of many rounds in which all rows take turns, so that they meet the same
//! clock; the last column divides by the round limit: AES rounds on independent registers, with
//! no load, store or tweak. Pin it to an idle core: `taskset -c 1 cargo bench …`.

#![allow(clippy::cast_precision_loss, reason = "byte counts are far below 2^52")]
#![allow(clippy::cast_possible_wrap, reason = "and below 2^31")]
#![expect(unsafe_code, reason = "AWS-LC is C, and the round limit is bare instructions")]

#[path = "sectors/aws_lc.rs"]
mod aws_lc;
#[path = "sectors/limit.rs"]
mod limit;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use ucrypt_sector::{CipherSpec, Kernel, SectorCipher, SectorOptions};

const BUFFER: usize = 64 * 1024;
const ROUNDS: usize = 60;
/// How long a row is timed in each round: long enough that the clock does not matter, short enough
/// that some rounds are undisturbed.
const SLICE: Duration = Duration::from_micros(100);
const SECTOR_SIZES: [usize; 2] = [512, 4096];

/// Without arguments. The portable kernel of Serpent and Camellia is the crate of that name.
const DEFAULT_SPECS: [&str; 8] = [
    "aes-xts-plain64",
    "aes-cbc-essiv:sha256",
    "serpent-xts-plain64",
    "serpent-cbc-plain64",
    "camellia-xts-plain64",
    "camellia-cbc-plain64",
    "twofish-xts-plain64",
    "twofish-cbc-plain64",
];

/// One line of the table.
struct Row<'a> {
    name: String,
    bytes: usize,
    run: Box<dyn FnMut() + 'a>,
    best_ns: f64,
}

/// Times each row in turn, again and again, and keeps its best.
fn measure(rows: &mut [Row]) {
    for _ in 0..ROUNDS {
        for row in &mut *rows {
            (row.run)();
            let (start, mut calls) = (Instant::now(), 0);
            while start.elapsed() < SLICE {
                for _ in 0..(BUFFER / row.bytes) {
                    (row.run)();
                }
                calls += BUFFER / row.bytes;
            }
            let ns = start.elapsed().as_secs_f64() * 1e9 / calls as f64;
            row.best_ns = row.best_ns.min(ns);
        }
    }
}

fn row<'a>(name: String, bytes: usize, run: impl FnMut() + 'a) -> Row<'a> {
    Row { name, bytes, run: Box::new(run), best_ns: f64::INFINITY }
}

/// Rows for `len` bytes of one specification: each direction, in place or not, by each kernel.
fn ours<'a>(spec: &CipherSpec, sector_size: usize, len: usize) -> Vec<Row<'a>> {
    let key: Vec<u8> = (0..spec.key_sizes().iter().next_back().unwrap_or(0) as u8).collect();
    let options = SectorOptions { sector_size: sector_size as u32, ..SectorOptions::default() };
    let mut rows = Vec::new();
    let runs = |kernel: &Kernel| {
        kernel.is_available() && (*kernel == Kernel::Portable || kernel.is_for(spec.cipher()))
    };
    for kernel in Kernel::ALL.iter().copied().filter(runs) {
        let cipher = || SectorCipher::with_kernel(spec, &key, options, kernel).expect("a cipher");
        let name = |what: &str| format!("{spec} {sector_size} {kernel} {what}");
        let (a, src) = (cipher(), aligned(len));
        rows.push(row(name("encrypt in place"), len, move || {
            a.encrypt_in_place(0, black_box(src)).expect("whole sectors");
        }));
        let (b, src, dst) = (cipher(), aligned(len), aligned(len));
        rows.push(row(name("encrypt"), len, move || {
            b.encrypt(0, black_box(src), black_box(dst)).expect("whole sectors");
        }));
        let (c, src) = (cipher(), aligned(len));
        rows.push(row(name("decrypt in place"), len, move || {
            c.decrypt_in_place(0, black_box(src)).expect("whole sectors");
        }));
    }
    rows
}

/// A buffer that starts at a cache line, as the buffers of a server do.
fn aligned(len: usize) -> &'static mut [u8] {
    let buffer = vec![0u8; len + 4096].leak();
    let start = buffer.as_ptr().align_offset(4096);
    &mut buffer[start..][..len]
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let specs =
        if arguments.is_empty() { DEFAULT_SPECS.map(str::to_owned).into() } else { arguments };
    let mut rows = vec![
        row("limit: AES-256 rounds on registers".to_owned(), BUFFER, || {
            black_box(limit::rounds(BUFFER / 16));
        }),
        {
            let (src, dst) = (aligned(BUFFER), aligned(BUFFER));
            row("limit: memcpy".to_owned(), BUFFER, move || {
                black_box(&mut *dst).copy_from_slice(black_box(src));
            })
        },
    ];
    for spec in &specs {
        let spec: CipherSpec = match spec.parse() {
            Ok(spec) => spec,
            Err(error) => panic!("{error}"),
        };
        for sector_size in SECTOR_SIZES {
            for len in [sector_size, BUFFER] {
                rows.extend(ours(&spec, sector_size, len));
                if spec.to_string() == "aes-xts-plain64" {
                    rows.extend(aws_lc::rows(sector_size, len));
                }
            }
        }
    }
    measure(&mut rows);
    let limit = rows[0].bytes as f64 / rows[0].best_ns;
    println!("{:60} {:>7} {:>10} {:>8} {:>9}", "", "bytes", "ns", "GB/s", "of limit");
    for row in &rows {
        let speed = row.bytes as f64 / row.best_ns;
        println!(
            "{:60} {:>7} {:>10.1} {speed:>8.2} {:>9.3}",
            row.name,
            row.bytes,
            row.best_ns,
            speed / limit
        );
    }
}
