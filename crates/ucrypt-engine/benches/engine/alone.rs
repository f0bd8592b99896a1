//! The engine alone: one core, AES-256-XTS, a backend of zeroes that takes no time.
//!
//! `cipher` runs the same cipher on the same amount of memory without an engine: reads decrypt in
//! place, writes encrypt from the client's memory into a buffer. The difference is the engine, and
//! for reads also the zeroes that the backend fills in.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use ucrypt_backend::ZeroBackend;
use ucrypt_engine::{Io, PolicyKind, Queue, QueueConfig};
use ucrypt_sector::SectorCipher;
use ucrypt_testkit::engine::aes;

use crate::stand::{finish, median, name, volume};

const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
const SECTOR_SIZES: [u32; 2] = [512, 4096];
const ROUNDS: usize = 101;
/// How long a contender is timed in a round.
const SLICE: Duration = Duration::from_micros(400);

/// The aims: nanoseconds beyond the cipher for a request of 4 KiB; share of the cipher's speed from
/// 64 KiB up.
const BEYOND_NS: f64 = 300.0;
const SHARE: f64 = 0.9;

/// Nanoseconds per call.
fn time(run: &mut dyn FnMut()) -> f64 {
    run();
    let (started, mut calls) = (Instant::now(), 0u32);
    while started.elapsed() < SLICE {
        for _ in 0..4 {
            run();
        }
        calls += 4;
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}

/// Medians of the cipher, of the engine, and of their difference.
fn compare(cipher: &mut dyn FnMut(), engine: &mut dyn FnMut()) -> (f64, f64, f64) {
    let (mut alone, mut whole, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (a, b) = (time(cipher), time(engine));
        alone.push(a);
        whole.push(b);
        beyond.push(b - a);
    }
    (median(&mut alone), median(&mut whole), median(&mut beyond))
}

fn reads(queue: &mut Queue, cipher: &SectorCipher, bytes: usize) -> (f64, f64, f64) {
    let mut data = queue.alloc(bytes).expect("memory");
    let mut alone = || cipher.decrypt_in_place(0, black_box(&mut data)).expect("whole sectors");
    let mut engine = || {
        queue.submit(0, Io::read(0, bytes)).expect("room");
        finish(queue);
    };
    compare(&mut alone, &mut engine)
}

fn writes(queue: &mut Queue, cipher: &SectorCipher, bytes: usize) -> (f64, f64, f64) {
    let (mut data, mut out) = (vec![0; bytes], queue.alloc(bytes).expect("memory"));
    data.fill(0x5a);
    let mut alone = || cipher.encrypt(0, black_box(&data), &mut out).expect("whole sectors");
    let mut engine = || {
        queue.submit(0, Io::write_borrowed(0, black_box(&data), false)).expect("room");
        finish(queue);
    };
    compare(&mut alone, &mut engine)
}

pub(crate) fn run() {
    let mut cores = CpuSet::new();
    cores.set(1);
    if sched_setaffinity(None, &cores).is_err() {
        println!("not pinned: there is no core 1 for this process");
    }
    println!(
        "| request | sector | cipher ns | engine ns | beyond ns | cipher GB/s | share | aim |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---|");
    for sector_size in SECTOR_SIZES {
        let backend = Arc::new(ZeroBackend::new(1 << 30));
        let volume = volume(backend, Some(aes(sector_size)), None, PolicyKind::Adaptive);
        let config = QueueConfig::new(8 << 20, 32);
        let mut queue = volume.queue(config).expect("a queue");
        let cipher = aes(sector_size);
        for bytes in SIZES {
            for (kind, measure) in [("read", reads as fn(&mut _, &_, _) -> _), ("write", writes)] {
                let (alone, whole, beyond) = measure(&mut queue, &cipher, bytes);
                let share = alone / whole;
                let aim = match bytes {
                    4096 => beyond <= BEYOND_NS,
                    65536.. => share >= SHARE,
                    _ => true,
                };
                println!(
                    "| {kind} {} | {sector_size} | {alone:.0} | {whole:.0} | {beyond:.0} | {:.2} | \
                     {share:.2} | {} |",
                    name(bytes as u64),
                    bytes as f64 / alone,
                    if aim { "reached" } else { "missed" },
                );
            }
        }
    }
}
