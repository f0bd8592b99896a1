//! Queues have memory of their own and memory that they share, and a long request gets its own.

mod common;

use std::sync::Arc;

use common::run;
use ucrypt_backend::memory;
use ucrypt_engine::{Errno, Io, Queue, QueueConfig, Rejected, Segment, Volume, VolumeOptions};
use ucrypt_testkit::engine::aes;

const KIB: usize = 1 << 10;
const LEN: u64 = 16 << 20;

fn volume(shared_memory: usize) -> Arc<Volume> {
    let segment = Segment { len: LEN, backend_offset: 0, cipher: Some(aes(512)) };
    let options = VolumeOptions { shared_memory, ..VolumeOptions::default() };
    Arc::new(Volume::new(Arc::new(memory(LEN).unwrap()), vec![segment], options).unwrap())
}

/// A queue with 64 KiB of its own, where a request of up to `request_max` gets memory of its own.
fn queue(volume: &Arc<Volume>, request_max: usize) -> Queue {
    volume.queue(QueueConfig { memory: 64 * KIB, request_max, depth: 4 }).unwrap()
}

#[test]
fn a_queue_gets_on_when_another_one_holds_all_shared_memory() {
    let volume = volume(256 * KIB);
    assert_eq!(volume.shared_memory(), 256 * KIB);
    let (mut greedy, mut modest) = (queue(&volume, 0), queue(&volume, 0));
    run(&mut greedy, Io::write_borrowed(0, &vec![7; 64 * KIB], false)).result.unwrap();
    // While something is in flight, a queue gets nothing but what the pools have.
    greedy.submit(9, Io::read(LEN - 512, 512)).unwrap();
    let mut held = Vec::new();
    while let Some(buf) = greedy.alloc(32 * KIB) {
        held.push(buf);
    }
    assert_eq!(held.len(), 9, "256 KiB that are shared, and of its own what the read has left");
    for _ in 0..3 {
        let read = run(&mut modest, Io::read(0, 64 * KIB));
        assert_eq!(read.result, Ok(()));
        assert!(read.data.unwrap().iter().all(|&byte| byte == 7));
    }
    // Shared memory that comes back serves others.
    held.clear();
    let both = [modest.alloc(64 * KIB), modest.alloc(256 * KIB)];
    assert!(both.iter().all(Option::is_some));
}

#[test]
fn a_long_request_gets_memory_once_nothing_else_is_in_flight() {
    let volume = volume(0);
    let mut queue = queue(&volume, 4096 * KIB);
    let plain: Vec<u8> = (0..3_usize << 20).map(|at| (at / 512) as u8).collect();
    assert_eq!(run(&mut queue, Io::write_borrowed(100, &plain, false)).result, Ok(()));
    queue.submit(1, Io::read(0, 4096)).unwrap();
    let refused = queue.submit(2, Io::read(100, plain.len()));
    let Err(Rejected::Busy(long)) = refused else { panic!("not while another one is in flight") };
    queue.wait().unwrap();
    assert_eq!(queue.next_done().unwrap().result, Ok(()));
    let read = run(&mut queue, long);
    assert!(read.data.as_ref().unwrap()[..] == plain[..]);
    // The answer is still held, and the next one waits for its memory.
    queue.set_holds_answers(true);
    let refused = queue.submit(2, Io::read(100, plain.len()));
    let Err(Rejected::Busy(long)) = refused else { panic!("not while an answer is held") };
    drop(read);
    queue.set_holds_answers(false);
    assert!(run(&mut queue, long).data.unwrap()[..] == plain[..]);
    let too_long = queue.submit(3, Io::read(0, 4096 * KIB + 512));
    assert!(matches!(too_long, Err(Rejected::TooLarge)));
    assert_eq!(too_long.unwrap_err().errno(), Some(Errno::INVAL));
}

#[test]
fn more_requests_with_partly_written_sectors_than_have_memory_wait_their_turn() {
    let volume = volume(0);
    let config = QueueConfig::new(1 << 20, 128);
    let mut queue = volume.queue(config).unwrap();
    let mut waiting: Vec<u64> = (0..128).rev().collect();
    let mut busy = 0;
    while !waiting.is_empty() || queue.in_flight() > 0 {
        while let Some(&at) = waiting.last() {
            match queue.submit(at, Io::write_borrowed(at * 1000 + 3, &[at as u8; 900], false)) {
                Ok(()) => drop(waiting.pop()),
                Err(Rejected::Busy(_)) => {
                    busy += 1;
                    assert!(queue.in_flight() > 0, "nobody would say when to try again");
                    break;
                }
                Err(refused) => panic!("{:?}", refused.errno()),
            }
        }
        queue.wait().unwrap();
        while let Some(done) = queue.next_done() {
            assert_eq!(done.result, Ok(()));
        }
    }
    assert!(busy > 0, "the bound is not reached");
    for at in 0..128u64 {
        let read = run(&mut queue, Io::read(at * 1000 + 3, 900)).data.unwrap();
        assert!(read.iter().all(|&byte| byte == at as u8), "write {at}");
    }
}
