//! `luks_sweep_2017`: an SSD of that year, and a cipher of 1.1 GB/s (dm-crypt's on that core).
//!
//! Reads of 4 KiB to 1 GiB by one client at depth 1. A read beyond 1 MiB is sent as requests of
//! 1 MiB, up to 32 of them ahead. Then random writes of 64 KiB by 20 jobs. The raw contender is the
//! same engine without a cipher over the same model; the contenders take turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_backend::model::ModelBackend;
use ucrypt_engine::{CipherModel, Done, Io, PolicyKind, Queue, QueueConfig, Rejected};
use ucrypt_testkit::Random;
use ucrypt_testkit::engine::aes;

use crate::stand::{median, name, volume};

const LEN: u64 = 4 << 30;
/// Bytes at the start of the device that random writes go to. They are filled before: in a virtual
/// machine the first touch of memory takes long, sometimes longer than the modelled device.
const WRITTEN: u64 = 1 << 30;
const CIPHER: CipherModel = CipherModel { ns_per_byte: 1.0 / 1.1, ns_per_call: 0 };
/// The largest request to the engine, and the number of such requests under way in a larger read.
const REQUEST_MAX: u64 = 1 << 20;
const AHEAD: u64 = 32;
const SLICE: Duration = Duration::from_millis(60);
const ROUNDS: usize = 5;
const JOBS: u64 = 20;

/// The aims: encrypted speed as a share of raw speed.
const SMALL: f64 = 0.93;
const LARGE: f64 = 0.97;

/// Reads `bytes` from `offset` on.
fn read(queue: &mut Queue, offset: u64, bytes: u64) {
    let (mut sent, mut done) = (0, 0);
    while done < bytes {
        while sent < bytes && sent - done < AHEAD * REQUEST_MAX {
            let len = (bytes - sent).min(REQUEST_MAX) as usize;
            match queue.submit(len as u64, Io::read(offset + sent, len)) {
                Ok(()) => sent += len as u64,
                Err(Rejected::Busy(_)) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        queue.wait().expect("the model works");
        while let Some(Done { tag, result, .. }) = queue.next_done() {
            assert_eq!(result, Ok(()));
            done += tag;
        }
    }
}

/// MB/s of sequential reads of `bytes` each.
fn reads(queue: &mut Queue, bytes: u64, at: &mut u64) -> f64 {
    let (started, mut total) = (Instant::now(), 0);
    while started.elapsed() < SLICE {
        *at = if *at + bytes > LEN { 0 } else { *at };
        read(queue, *at, bytes);
        *at += bytes;
        total += bytes;
    }
    total as f64 / started.elapsed().as_secs_f64() / 1e6
}

/// Writes the range of the random writes once.
fn fill(queue: &mut Queue) {
    let data = vec![0x5a; REQUEST_MAX as usize];
    for offset in (0..WRITTEN).step_by(data.len()) {
        queue.submit(0, Io::write_borrowed(offset, &data, false)).expect("room");
        while queue.in_flight() > 0 {
            queue.wait().expect("the model works");
            while let Some(answer) = queue.next_done() {
                assert_eq!(answer.result, Ok(()));
            }
        }
    }
}

/// MB/s of random writes of 64 KiB, `JOBS` under way.
fn writes(queue: &mut Queue, random: &mut Random) -> f64 {
    const BYTES: u64 = 64 << 10;
    let data = vec![0x5a; BYTES as usize];
    let (started, mut done) = (Instant::now(), 0);
    let mut under_way = 0;
    while under_way > 0 || started.elapsed() < 4 * SLICE {
        while under_way < JOBS && started.elapsed() < 4 * SLICE {
            let offset = random.below(WRITTEN / BYTES) * BYTES;
            queue.submit(0, Io::write_borrowed(offset, &data, false)).expect("room");
            under_way += 1;
        }
        queue.wait().expect("the model works");
        while let Some(answer) = queue.next_done() {
            assert_eq!(answer.result, Ok(()));
            (under_way, done) = (under_way - 1, done + 1);
        }
    }
    (done * BYTES) as f64 / started.elapsed().as_secs_f64() / 1e6
}

fn row(what: &str, aim: f64, mut measure: impl FnMut(bool) -> f64) {
    let (mut raw, mut encrypted, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (a, b) = (measure(false), measure(true));
        raw.push(a);
        encrypted.push(b);
        ratio.push(b / a);
    }
    let reached = median(&mut ratio);
    let verdict = if reached >= aim { "reached" } else { "missed" };
    println!(
        "| {what} | {:.1} | {:.1} | {reached:.3} | {aim} | {verdict} |",
        median(&mut raw),
        median(&mut encrypted)
    );
}

pub(crate) fn run() {
    let config = QueueConfig::new(64 << 20, 64);
    let queue = |encrypted: bool| {
        let backend = Arc::new(ModelBackend::new("sata2017", LEN).expect("a model"));
        let cipher = encrypted.then(|| aes(512));
        let volume = volume(backend, cipher, Some(CIPHER), PolicyKind::Adaptive);
        volume.queue(config).expect("a queue")
    };
    let (mut raw, mut encrypted) = (queue(false), queue(true));
    let mut pick = |is: bool, run: &mut dyn FnMut(&mut Queue) -> f64| {
        run(if is { &mut encrypted } else { &mut raw })
    };
    println!("| read | raw MB/s | encrypted MB/s | ratio | aim | |");
    println!("|---|---:|---:|---:|---:|---|");
    for shift in 12..=30 {
        let bytes = 1u64 << shift;
        let aim = if shift == 12 { SMALL } else { LARGE };
        let mut at = [0, 0];
        row(&name(bytes), aim, |is| {
            pick(is, &mut |queue| reads(queue, bytes, &mut at[usize::from(is)]))
        });
    }
    for encrypted in [false, true] {
        pick(encrypted, &mut |queue| {
            fill(queue);
            0.0
        });
    }
    let mut random = [1, 1].map(Random::new);
    row("random write 64 KiB x 20", LARGE, |is| {
        pick(is, &mut |queue| writes(queue, &mut random[usize::from(is)]))
    });
}
