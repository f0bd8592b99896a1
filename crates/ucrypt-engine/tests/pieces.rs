//! Requests over foreign memory, in pieces of any length: the volume returns what was written,
//! touches no other byte, and leaves no ciphertext there when a read fails.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{backends, volume, volume_under, write};
use ucrypt_backend::memory;
use ucrypt_engine::{Buf, Errno, Fixed, Io, PolicyKind, Queue, QueueConfig, Rejected};
use ucrypt_testkit::engine::aes;
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults, ForeignMemory, Random};

const MIB: u64 = 1 << 20;
const CONFIG: QueueConfig = QueueConfig::new(8 << 20, 16);

fn finish(queue: &mut Queue) -> Result<(), Errno> {
    queue.wait().unwrap();
    let done = queue.next_done().expect("an answer");
    assert!(done.data.is_none(), "the data is with the client");
    done.result
}

#[test]
fn random_pieces_read_and_write_what_an_array_of_bytes_would() {
    for policy in PolicyKind::ALL {
        random_pieces(512, policy);
    }
    random_pieces(4096, PolicyKind::default());
}

fn random_pieces(sector_size: u32, policy: PolicyKind) {
    const LEN: u64 = MIB;
    for (name, backend, _dir) in backends(LEN) {
        let seed = 11 + u64::from(sector_size);
        println!("{name}, sectors of {sector_size}, {policy}, seed {seed}");
        let mut random = Random::new(seed);
        let volume = volume_under(policy, backend, 0, LEN, sector_size);
        let mut queue = volume.queue(CONFIG).unwrap();
        let mut model = vec![0x11; LEN as usize];
        queue.submit(0, Io::write_borrowed(0, &model, false)).unwrap();
        assert_eq!(finish(&mut queue), Ok(()));
        let guest = ForeignMemory::new(1 << 20);
        for round in 0..100 {
            // Whole sectors in pieces of whole sectors, whole sectors in any pieces, any bytes.
            let (bytes, align) = match random.below(3) {
                0 => (u64::from(sector_size), sector_size as usize),
                1 => (u64::from(sector_size), 1),
                _ => (1, 1),
            };
            let len = (random.below(300_000) + 1).next_multiple_of(bytes);
            let offset = random.below(LEN - len) / bytes * bytes;
            let (mut pieces, places) =
                guest.pieces(&mut random, len as usize, align).expect("room");
            let places: Vec<usize> = places.into_iter().flatten().collect();
            let range = offset as usize..(offset + len) as usize;
            let mut image: Vec<u8> = (0..1u32 << 20).map(|at| (at * 7 + round) as u8).collect();
            guest.fill(0, &image);
            if random.below(2) == 0 {
                queue.submit(1, Io::write_scattered(offset, &mut pieces, round % 8 == 0)).unwrap();
                let written = places.iter().map(|&place| image[place]);
                model[range].iter_mut().zip(written).for_each(|(to, from)| *to = from);
            } else {
                queue.submit(1, Io::read_into(offset, &mut pieces)).unwrap();
                places.iter().zip(&model[range]).for_each(|(&place, &byte)| image[place] = byte);
            }
            assert!(pieces.is_empty(), "the list is taken");
            assert_eq!(finish(&mut queue), Ok(()));
            assert!(guest.bytes() == image, "round {round}: {offset}+{len} (seed {seed})");
        }
        let mut all = vec![guest.buf(0, LEN as usize)];
        queue.submit(1, Io::read_into(0, &mut all)).unwrap();
        assert_eq!(finish(&mut queue), Ok(()));
        assert!(guest.bytes() == model);
    }
}

#[test]
fn neighbours_of_many_pieces_that_are_joined_go_their_own_ways_again() {
    for (_, backend, _dir) in backends(4 * MIB) {
        let volume = volume(backend, 0, 4 * MIB, 512);
        let mut queue = volume.queue(CONFIG).unwrap();
        let guest = ForeignMemory::new(4 << 20);
        let image: Vec<u8> = (0..4u32 << 20).map(|at| (at / 512 * 31 + at) as u8).collect();
        // 16 requests of 128 pieces: twice as many pieces as one system call takes.
        for (tag, write) in [true, false].into_iter().enumerate() {
            guest.fill(0, &if write { image.clone() } else { vec![0; 4 << 20] });
            for request in 0..16 {
                let piece = |index: usize| guest.buf((request * 128 + index) * 1024, 512);
                let mut pieces: Vec<Buf> = (0..128).map(piece).collect();
                let offset = request as u64 * 65536;
                if write {
                    queue
                        .submit(tag as u64, Io::write_scattered(offset, &mut pieces, false))
                        .unwrap();
                } else {
                    queue.submit(tag as u64, Io::read_into(offset, &mut pieces)).unwrap();
                }
            }
            for _ in 0..16 {
                assert_eq!(finish(&mut queue), Ok(()));
            }
        }
        let read = guest.bytes();
        for sector in 0..2048 {
            let at = sector * 1024;
            assert!(read[at..at + 512] == image[at..at + 512], "sector {sector}");
            assert!(read[at + 512..at + 1024] == [0; 512], "behind sector {sector}");
        }
    }
}

#[test]
fn what_is_refused_leaves_the_list_alone() {
    let volume = volume(Arc::new(memory(MIB).unwrap()), 0, MIB, 512);
    let mut queue = volume.queue(QueueConfig::new(65536, 1)).unwrap();
    let guest = ForeignMemory::new(1 << 20);
    let mut pieces = vec![guest.buf(0, 4096), guest.buf(8192, 512)];
    let beyond = queue.submit(0, Io::read_into(MIB - 4096, &mut pieces));
    assert!(matches!(beyond, Err(Rejected::OutOfRange)));
    let beyond = queue.submit(0, Io::write_scattered(u64::MAX, &mut pieces, false));
    assert!(matches!(beyond, Err(Rejected::OutOfRange)));
    let mut large = vec![guest.buf(0, 131_072)];
    let too_large = queue.submit(0, Io::write_scattered(0, &mut large, false));
    assert!(matches!(too_large, Err(Rejected::TooLarge)));
    queue.submit(0, Io::read_into(0, &mut large)).expect("a direct read needs no memory");
    assert!(matches!(queue.submit(0, Io::read_into(0, &mut pieces)), Err(Rejected::Busy(_))));
    assert!(matches!(
        queue.submit(0, Io::write_scattered(0, &mut pieces, true)),
        Err(Rejected::Busy(_))
    ));
    assert_eq!(pieces.len(), 2);
    assert_eq!(finish(&mut queue), Ok(()));
    queue.submit(0, Io::write_scattered(0, &mut pieces, true)).expect("now there is room");
    assert_eq!(finish(&mut queue), Ok(()));
}

/// Regression: the backend of direct I/O took memory of its own for each read to an odd address, and guests
/// choose the addresses.
#[test]
fn pieces_at_odd_addresses_are_read_through_the_queues_memory_where_the_backend_minds() {
    const ALIGN: usize = 512;
    let backend = FaultBackend::new(Arc::new(memory(MIB).unwrap()), Faults::new(1));
    let backend = backend.without_map().with_memory_align(ALIGN as u32);
    let volume = volume(Arc::new(backend), 0, MIB, 512);
    let mut queue = volume.queue(QueueConfig::new(65536, 4)).unwrap();
    let plain: Vec<u8> = (0..1u32 << 20).map(|at| (at / 512 * 31 + at) as u8).collect();
    for (at, part) in plain.chunks(65536).enumerate() {
        write(&mut queue, at as u64 * 65536, part);
    }
    let guest = ForeignMemory::new(1 << 20);
    let first = guest.buf(0, 1).as_ptr().addr().wrapping_neg() % ALIGN;
    for odd in [0, 1, 256, 511] {
        let mut pieces: Vec<_> =
            (0..8).map(|index| guest.buf(first + odd + index * 8192, 4096)).collect();
        queue.submit(1, Io::read_into(65536, &mut pieces)).unwrap();
        assert_eq!(finish(&mut queue), Ok(()), "{odd} bytes behind an aligned address");
        let read = guest.bytes();
        for (index, expected) in plain[65536..][..32768].chunks(4096).enumerate() {
            let at = first + odd + index * 8192;
            assert!(read[at..at + 4096] == *expected, "{odd} bytes behind: piece {index}");
        }
        let mut large = vec![guest.buf(first + odd, 131_072)];
        match queue.submit(1, Io::read_into(0, &mut large)) {
            Ok(()) => assert_eq!((odd, finish(&mut queue)), (0, Ok(()))),
            Err(Rejected::TooLarge) => assert!(odd > 0, "aligned pieces need no memory"),
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn a_read_that_fails_leaves_no_ciphertext_in_the_clients_memory() {
    // Each read fills its buffers and then fails, except in the first megabyte.
    let faults = Faults::new(1);
    faults.add(Rule::new(Fate::Tear(Errno::IO)).on(Access::Read).range(MIB..4 * MIB));
    let backend = FaultBackend::at_once(Arc::new(memory(4 * MIB).unwrap()), faults).without_map();
    let volume = volume(Arc::new(backend), 0, 4 * MIB, 512);
    let mut queue = volume.queue(CONFIG).unwrap();
    let plain = vec![0xaa; 2 << 20];
    write(&mut queue, 0, &plain);
    let guest = ForeignMemory::new(2 << 20);
    guest.fill(0, &vec![7; 2 << 20]);
    // One request: its first half can be read, its second half cannot.
    let mut pieces = (0..256).map(|index| guest.buf(index * 8192, 4096)).collect();
    queue.submit(0, Io::read_into(MIB / 2, &mut pieces)).unwrap();
    queue.wait().unwrap();
    assert_eq!(queue.next_done().unwrap().result, Err(Errno::IO));
    for (page, bytes) in guest.bytes().chunks(4096).enumerate() {
        let expected: &[u8] = match page {
            odd if odd % 2 == 1 => &[7],
            decrypted_or_not if decrypted_or_not < 256 => &[0xaa, 0],
            _ => &[0],
        };
        let same = bytes.iter().all(|&byte| byte == bytes[0]);
        assert!(same && expected.contains(&bytes[0]), "page {page}: {:02x?}", &bytes[..16]);
    }
}

#[test]
fn a_queue_that_is_dropped_lets_the_memory_go_and_leaves_no_ciphertext_there() {
    for (_, backend, _dir) in backends(4 * MIB) {
        let volume =
            volume_under(Fixed::Unbound { sorted: false }.into(), backend, 0, 4 * MIB, 512);
        let guest = ForeignMemory::new(4 << 20);
        let mut queue = volume.queue(CONFIG).unwrap();
        for tag in 0..8 {
            let mut pieces = vec![guest.buf(tag as usize * 131_072, 131_072)];
            queue.submit(tag, Io::read_into(tag * 131_072, &mut pieces)).unwrap();
        }
        // The backend has the requests, workers may have chunks; nothing was answered yet.
        queue.poll().unwrap();
        drop(queue);
        drop(volume);
        assert!(guest.is_unused(), "a buffer is left");
        let mut clear = vec![0; 1 << 20];
        aes(512).decrypt_in_place(0, &mut clear).unwrap();
        for (sector, bytes) in guest.bytes()[..1 << 20].chunks(512).enumerate() {
            let at = sector * 512;
            let allowed = bytes == [0; 512] || bytes == &clear[at..at + 512];
            assert!(allowed, "sector {sector}");
        }
    }
}

#[test]
fn a_client_that_scribbles_in_its_memory_spoils_its_own_data_only() {
    let volume = volume(Arc::new(memory(4 * MIB).unwrap()), 0, 4 * MIB, 512);
    let guest = ForeignMemory::new(1 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(3);
            while !stop.load(Ordering::Relaxed) {
                let at = random.below(1 << 20) as usize;
                guest.put(at, at as u8);
            }
        });
        let mut queue = volume.queue(CONFIG).unwrap();
        write(&mut queue, 2 * MIB, &vec![0x5a; 1 << 20]);
        for round in 0..200u64 {
            // Both requests, and both pieces of the second, use the same bytes.
            let offset = round % 16 * 65536;
            let mut pieces = vec![guest.buf(0, 1 << 19)];
            queue.submit(0, Io::write_scattered(offset, &mut pieces, false)).unwrap();
            let mut pieces = vec![guest.buf(0, 1 << 18), guest.buf(4096, 1 << 18)];
            queue.submit(1, Io::read_into(offset, &mut pieces)).unwrap();
            for _ in 0..2 {
                assert_eq!(finish(&mut queue), Ok(()));
            }
        }
        stop.store(true, Ordering::Relaxed);
        let op = Io::read(2 * MIB, 1 << 20);
        let data = common::run(&mut queue, op).data.unwrap();
        assert!(data.iter().all(|&byte| byte == 0x5a), "data of others is whole");
    });
}
