//! One client that waits for each of its requests: does the second core help?
//!
//! Not pinned; requests of up to 1 MiB to an image in memory, in 512-byte sectors. Written data was
//! in the core's cache a moment before, like data that an export has received. `inline` never
//! offloads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_backend::memory;
use ucrypt_engine::{Fixed, Io, PolicyKind, Queue, QueueConfig};
use ucrypt_testkit::engine::aes;

use crate::stand::{finish, median, name, volume};

const LEN: u64 = 64 << 20;
const SIZES: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 1 << 20];
const ROUNDS: usize = 25;
const SLICE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// Microseconds per request of `bytes`.
fn time(queue: &mut Queue, direction: Direction, bytes: usize) -> f64 {
    let (started, mut requests) = (Instant::now(), 0u32);
    let source = vec![3; bytes];
    while started.elapsed() < SLICE {
        let offset = u64::from(requests) * bytes as u64 % LEN;
        let op = match direction {
            Direction::Read => Io::read(offset, bytes),
            Direction::Write => {
                let mut data = queue.alloc(bytes).expect("memory");
                data.copy_from_slice(&source);
                Io::write(offset, data, false)
            }
        };
        queue.submit(0, op).expect("room");
        finish(queue);
        requests += 1;
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(requests)
}

fn queue(policy: PolicyKind) -> Queue {
    let volume = volume(Arc::new(memory(LEN).expect("memory")), Some(aes(512)), None, policy);
    let mut queue = volume.queue(QueueConfig::new(8 << 20, 4)).expect("a queue");
    let data = vec![7; 1 << 20];
    for block in 0..LEN >> 20 {
        queue.submit(0, Io::write_borrowed(block << 20, &data, false)).expect("room");
        finish(&mut queue);
    }
    queue
}

pub(crate) fn run() {
    let (mut inline, mut adaptive) = (queue(Fixed::Inline.into()), queue(PolicyKind::Adaptive));
    println!("| | inline µs | adaptive µs | times as fast |");
    println!("|---|---:|---:|---:|");
    for (direction, what) in [(Direction::Read, "read"), (Direction::Write, "write")] {
        for bytes in SIZES {
            let (mut alone, mut helped, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let a = time(&mut inline, direction, bytes);
                let b = time(&mut adaptive, direction, bytes);
                alone.push(a);
                helped.push(b);
                ratio.push(a / b);
            }
            println!(
                "| {what} {} | {:.1} | {:.1} | {:.2} |",
                name(bytes as u64),
                median(&mut alone),
                median(&mut helped),
                median(&mut ratio)
            );
        }
    }
}
