//! Many threads, and processes that were forked.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ucrypt_lib::{IoError, NbdServer, OpenOptions, ServeError, ServedFile, Volume, VolumeFile};
use ucrypt_testkit::in_child;

use crate::images::{Image, KEY, passes, random, tool};

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
fn a_closed_volume_is_free_while_a_child_lives_that_was_forked() {
    let image = Image::new(1 << 20);
    let volume = image.open();
    let (mut ours, mut childs) = UnixStream::pair().expect("a pair");
    thread::scope(|scope| {
        let child = scope.spawn(move || {
            in_child(move || {
                childs.write_all(b"x").expect("told");
                u8::from(childs.read(&mut [0]).is_err())
            })
        });
        ours.read_exact(&mut [0]).expect("the child lives");
        volume.close().expect("flushed");
        let again = OpenOptions::new().open(&image.path, KEY);
        ours.write_all(b"x").expect("told");
        again.expect("the child has no part in the lock");
        assert_eq!(child.join().expect("a child"), Some(0));
    });
}

#[test]
fn a_child_that_drops_or_stops_its_parents_servers_neither_hangs_nor_ends_them() {
    let image = Image::new(1 << 20);
    let volume = image.open();
    let (socket, path) = (image.dir.path().join("socket"), image.dir.path().join("disk"));
    let nbd = volume.serve_nbd(&socket).expect("served");
    let file = volume.serve_file(&path).expect("FUSE: apt-get install fuse3");
    let (mut nbd, mut file) = (Some(nbd), Some(file));
    // Each child has a copy of its own of what is taken here.
    let dropped = in_child(|| {
        let is_foreign = nbd.as_ref().is_some_and(|nbd| nbd.clients() == 0);
        drop((nbd.take(), file.take()));
        u8::from(!is_foreign)
    });
    assert_eq!(dropped, Some(0), "a child that drops them");
    let stopped = in_child(|| {
        let foreign = |stopped| matches!(stopped, Err(ServeError::Flush(IoError::OtherProcess)));
        let stopped = [nbd.take().map(NbdServer::stop), file.take().map(ServedFile::stop)];
        u8::from(!stopped.into_iter().flatten().all(foreign))
    });
    assert_eq!(stopped, Some(0), "a child that stops them");
    assert_eq!(fs::metadata(&path).expect("it is mounted").len(), 1 << 20);
    let (nbd, file) = (nbd.expect("the parent's"), file.expect("the parent's"));
    passes(tool("qemu-img", "qemu-utils").arg("info").arg(nbd.uri()));
    nbd.stop().expect("flushed");
    file.stop().expect("flushed");
    assert!(!socket.exists() && !path.exists());
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
