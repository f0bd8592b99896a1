//! Many threads, and processes that were forked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ucrypt_lib::{IoError, NbdServer, OpenOptions, ServedFile, Volume, VolumeFile};

use crate::images::{Image, random};

#[test]
fn more_threads_than_there_are_queues_lose_nothing() {
    const THREADS: usize = 24;
    const AREA: usize = 256 << 10;
    let image = Image::new((THREADS * AREA) as u64);
    let volume = image.open();
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (volume, done) = (volume.clone(), &done);
            scope.spawn(move || {
                // Neighbours share a sector: areas begin in the middle of one.
                let start = (number * AREA + 100) as u64;
                let len = if number + 1 == THREADS { AREA - 100 } else { AREA };
                for round in 0..6 {
                    let data = random((number * 100 + round) as u64, len);
                    for (index, piece) in data.chunks(50_000).enumerate() {
                        volume.write_at(start + index as u64 * 50_000, piece).expect("written");
                    }
                    let mut seen = vec![0; len];
                    volume.read_exact_at(start, &mut seen).expect("read");
                    assert!(seen == data, "thread {number}, round {round}");
                    volume.flush().expect("flushed");
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), THREADS);
}

#[test]
fn what_the_library_gives_can_be_sent_and_shared() {
    fn both<T: Send + Sync>() {}
    both::<Volume>();
    both::<VolumeFile>();
    both::<OpenOptions>();
    both::<NbdServer>();
    both::<ServedFile>();
    both::<IoError>();
}
