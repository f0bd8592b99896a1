//! Cancelled requests end once, free their memory, and leave only data that a write may leave.

mod common;

use std::sync::Arc;

use common::{run, volume, volume_under};
use ucrypt_backend::model::ModelBackend;
use ucrypt_backend::{Backend, memory};
use ucrypt_engine::{Done, Errno, Fixed, Io, PolicyKind, Queue, QueueConfig};
use ucrypt_testkit::Random;

const MIB: u64 = 1 << 20;
const MEMORY: usize = 8 << 20;
const DEPTH: u32 = 16;
const CONFIG: QueueConfig = QueueConfig::new(MEMORY, DEPTH);

/// Blocks of the volume; each request touches one block, all but its first and last bytes.
const BLOCKS: usize = 24;
const BLOCK: u64 = 80 << 10;

/// The bytes that a block may hold: the last one written, and those of writes cancelled since.
type Block = Vec<u8>;

struct Asked {
    block: usize,
    /// The byte to write; `None` for a read.
    fill: Option<u8>,
    cancelled: bool,
}

struct Clients {
    queue: Queue,
    random: Random,
    blocks: Vec<Block>,
    asked: Vec<Option<Asked>>,
    ended: [usize; 2],
}

impl Clients {
    fn new(queue: Queue, seed: u64) -> Self {
        let asked = (0..DEPTH).map(|_| None).collect();
        let blocks = vec![vec![0]; BLOCKS];
        Self { queue, random: Random::new(seed), blocks, asked, ended: [0; 2] }
    }

    fn offset(block: usize) -> u64 {
        block as u64 * BLOCK + 100
    }

    fn ask(&mut self) {
        let Some(tag) = self.asked.iter().position(Option::is_none) else { return };
        let block = self.random.below(BLOCKS as u64) as usize;
        if self.asked.iter().flatten().any(|asked| asked.block == block) {
            return;
        }
        let (offset, len) = (Self::offset(block), BLOCK as usize - 200);
        let fill = (self.random.below(3) > 0).then(|| self.random.below(255) as u8);
        let op = match fill {
            None => Io::read(offset, len),
            Some(0) => {
                Io::WriteZeroes { offset, len: len as u64, fua: false, no_unmap: true, fast: false }
            }
            Some(fill) => {
                let Some(mut data) = self.queue.alloc(len) else { return };
                data.fill(fill);
                Io::write(offset, data, fill < 16)
            }
        };
        if self.queue.submit(tag as u64, op).is_ok() {
            self.asked[tag] = Some(Asked { block, fill, cancelled: false });
        }
    }

    fn cancel(&mut self) {
        let tag = self.random.below(u64::from(DEPTH));
        self.queue.cancel(|of| of == tag);
        if let Some(asked) = &mut self.asked[tag as usize] {
            asked.cancelled = true;
        }
    }

    fn take(&mut self) {
        while let Some(Done { tag, result, data, .. }) = self.queue.next_done() {
            let asked = self.asked[tag as usize].take().expect("a request ended twice");
            self.ended[usize::from(result.is_err())] += 1;
            let block = &mut self.blocks[asked.block];
            match (result, asked.fill) {
                (Ok(()), Some(fill)) => *block = vec![fill],
                (Ok(()), None) => check(block, &data.expect("a read has data")),
                (Err(error), fill) => {
                    assert_eq!((error, asked.cancelled), (Errno::CANCELED, true));
                    assert!(data.is_none());
                    block.extend(fill);
                }
            }
        }
    }
}

fn check(block: &Block, data: &[u8]) {
    let legal = data.iter().all(|byte| block.contains(byte));
    assert!(legal, "what nobody wrote there: one of {block:?} expected");
}

fn backends() -> Vec<Arc<dyn Backend>> {
    let len = BLOCKS as u64 * BLOCK + MIB;
    vec![Arc::new(ModelBackend::new("sata2017", len).unwrap()), Arc::new(memory(len).unwrap())]
}

#[test]
fn whatever_is_cancelled_ends_once_and_leaves_what_a_write_may_leave() {
    for policy in [PolicyKind::Adaptive, Fixed::Unbound { sorted: true }.into()] {
        for backend in backends() {
            for seed in 1..=3 {
                println!("{policy}, {}, seed {seed}", backend.describe());
                let volume = volume_under(policy, backend.clone(), MIB, BLOCKS as u64 * BLOCK, 512);
                let mut queue = volume.queue(CONFIG).unwrap();
                let len = BLOCKS as u64 * BLOCK;
                let zeroes =
                    Io::WriteZeroes { offset: 0, len, fua: false, no_unmap: false, fast: false };
                assert_eq!(run(&mut queue, zeroes).result, Ok(()));
                let mut clients = Clients::new(queue, seed);
                for _ in 0..800 {
                    clients.ask();
                    match clients.random.below(6) {
                        0 => clients.cancel(),
                        1 => clients.queue.wait().unwrap(),
                        _ => clients.queue.poll().unwrap(),
                    }
                    clients.take();
                }
                clients.queue.cancel(|_| false);
                while clients.queue.in_flight() > 0 {
                    clients.queue.wait().unwrap();
                    clients.take();
                }
                let Clients { mut queue, blocks, ended: [done, cancelled], .. } = clients;
                assert!(queue.alloc(MEMORY).is_some(), "memory is kept");
                for (index, block) in blocks.iter().enumerate() {
                    let len = BLOCK as usize - 200;
                    let read = Io::read(Clients::offset(index), len);
                    check(block, &run(&mut queue, read).data.expect("a read has data"));
                }
                assert!(done > 20, "{done} requests were done");
                // Memory answers before a request can be cancelled.
                let slow = !volume.info().synchronous;
                assert!(!slow || cancelled > 10, "{cancelled} requests were cancelled");
                assert_eq!(volume.totals().errors, 0, "a client's wish is no error");
            }
        }
    }
}

#[test]
fn a_request_that_waits_for_its_range_ends_at_once_when_it_is_cancelled() {
    let backend = Arc::new(ModelBackend::new("sata2017", 2 * MIB).unwrap());
    let volume = volume(backend, 0, MIB, 4096);
    let mut queue = volume.queue(CONFIG).unwrap();
    // Both change part of the same sector.
    for tag in 0..2 {
        queue.submit(tag, Io::write_borrowed(100, &[1; 50], false)).unwrap();
    }
    queue.cancel(|tag| tag == 1);
    let Done { tag, result, .. } = queue.next_done().expect("it ends at once");
    assert_eq!((tag, result), (1, Err(Errno::CANCELED)));
    queue.wait().unwrap();
    let Done { tag, result, .. } = queue.next_done().unwrap();
    assert_eq!((tag, result, queue.in_flight()), (0, Ok(()), 0));
}

#[test]
fn a_write_that_waits_for_its_range_keeps_nobody_out_once_it_is_given_up() {
    let backend = Arc::new(ModelBackend::new("sata2017", 2 * MIB).unwrap());
    let volume = volume(backend, 0, MIB, 4096);
    let mut reader = volume.queue(CONFIG).unwrap();
    let mut others = [volume.queue(CONFIG).unwrap(), volume.queue(CONFIG).unwrap()];
    reader.submit(0, Io::read(0, 4096)).unwrap();
    for other in &mut others {
        other.submit(0, Io::write_borrowed(100, &[1; 50], false)).unwrap();
        assert!(other.next_done().is_none(), "it waits for the reader");
    }
    let [mut cancelled, dropped] = others;
    cancelled.cancel(|_| true);
    drop(dropped);
    reader.submit(1, Io::read(8192, 4096)).unwrap();
    for _ in 0..2 {
        reader.wait().unwrap();
        assert_eq!(reader.next_done().unwrap().result, Ok(()));
    }
}
