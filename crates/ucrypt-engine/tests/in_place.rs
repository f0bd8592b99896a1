//! Writes that are encrypted directly to where the backend keeps them.

mod common;

use std::sync::Arc;

use common::{drain, run};
use ucrypt_backend::{Backend, FileBackend, memory};
use ucrypt_engine::{Fixed, Io, PolicyKind, Queue, QueueConfig, Segment, Volume, VolumeOptions};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};
use ucrypt_testkit::engine::aes;
use ucrypt_testkit::fault::{Access, Reached};
use ucrypt_testkit::{FaultBackend, Faults, Random};

const LEN: u64 = 4 << 20;
/// Where the volume begins: not at a page of the backend.
const OFFSET: u64 = 3 * 512;

/// A backend in memory that counts its writes.
struct Counting {
    memory: Arc<FileBackend>,
    backend: Arc<dyn Backend>,
    faults: Faults,
}

impl Counting {
    /// A backend of zeroes, the second half a hole. `hides`: the backend has no mapping.
    fn new(hides: bool) -> Self {
        let memory = Arc::new(memory(OFFSET + LEN).expect("memory"));
        memory.write_all_at(0, &vec![0; (OFFSET + LEN / 2) as usize]).expect("written");
        let faults = Faults::new(1);
        let backend = FaultBackend::at_once(memory.clone(), faults.clone());
        let backend = Arc::new(if hides { backend.without_map() } else { backend });
        Self { memory, backend, faults }
    }

    fn writes(&self) -> usize {
        let asked = |reached: &&Reached| reached.access == Access::Write && !reached.in_place;
        self.faults.log().iter().filter(asked).count()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; (OFFSET + LEN) as usize];
        self.memory.read_exact_at(0, &mut bytes).expect("read");
        bytes
    }
}

fn cipher(name: &str) -> SectorCipher {
    let spec: CipherSpec = name.parse().expect("a cipher");
    let key: Vec<u8> = (0..64).collect();
    let key = &key[..spec.key_sizes().iter().max().expect("a length").min(64)];
    SectorCipher::new(&spec, key, SectorOptions::default()).expect("keyed")
}

fn queue(backend: Arc<dyn Backend>, cipher: Option<SectorCipher>, policy: PolicyKind) -> Queue {
    let segment = Segment { len: LEN, backend_offset: OFFSET, cipher };
    let options =
        VolumeOptions { policies: policy.into(), workers: Some(2), ..VolumeOptions::default() };
    let volume = Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"));
    volume.queue(QueueConfig::new(8 << 20, 32)).expect("a queue")
}

fn write(queue: &mut Queue, offset: u64, bytes: &[u8], fua: bool) {
    let mut data = queue.alloc(bytes.len()).expect("memory");
    data.copy_from_slice(bytes);
    assert_eq!(run(queue, Io::write(offset, data, fua)).result, Ok(()));
}

#[test]
fn what_is_no_hole_is_written_in_place_and_holes_are_filled_by_the_backend() {
    let streams = cfg!(target_arch = "x86_64") && aes(4096).streams();
    for cipher in [None, Some(aes(4096))] {
        let in_place = cipher.is_none() || streams;
        let counting = Counting::new(false);
        let mut queue = queue(counting.backend.clone(), cipher, Fixed::Inline.into());
        for (offset, len) in [(0, 4096), (8192, 1 << 20), (5000, 7), (12_288, 70_001)] {
            write(&mut queue, offset, &vec![7; len], true);
        }
        assert_eq!(counting.writes() > 0, !in_place);
        let before = counting.writes();
        write(&mut queue, LEN / 2 + (256 << 10), &[8; 4096], false);
        assert_eq!(counting.writes(), before + 1, "into a hole");
    }
}

#[test]
fn what_would_be_spoilt_half_written_is_written_by_the_backend() {
    for name in ["aes-cbc-essiv:sha256", "aes-hctr2-plain64", "xchacha12,aes-adiantum-plain64"] {
        let counting = Counting::new(false);
        let mut queue = queue(counting.backend.clone(), Some(cipher(name)), PolicyKind::Adaptive);
        write(&mut queue, 0, &[7; 8192], false);
        assert!(counting.writes() > 0, "{name}");
    }
}

/// The same requests, several under way at a time and many to the same sectors in turn, leave the
/// same bytes with and without writes in place.
#[test]
fn the_backend_ends_up_with_the_same_bytes_as_without() {
    for policy in PolicyKind::ALL {
        for cipher in [|| None, || Some(aes(512))] {
            let left = [false, true].map(|hides| {
                let counting = Counting::new(hides);
                let mut queue = queue(counting.backend.clone(), cipher(), policy);
                overlapping(&mut queue, 0x5eed);
                drop(queue);
                counting.bytes()
            });
            assert!(left[0] == left[1], "{policy}, seed 0x5eed");
        }
    }
}

fn overlapping(queue: &mut Queue, seed: u64) {
    let mut random = Random::new(seed);
    for round in 0..60u8 {
        // Requests of one round do not overlap: under some policies any of them may be the last.
        let mut offset = random.below(64) * 512;
        for tag in 0..16 {
            let len = 512 * (1 + random.below(if round % 4 == 0 { 600 } else { 16 }));
            if offset + len > LEN {
                break;
            }
            let mut data = queue.alloc(len as usize).expect("memory");
            data.fill_with(|| random.below(256) as u8);
            let fua = random.below(4) == 0;
            queue.submit(tag, Io::write(offset, data, fua)).expect("room");
            offset += len + random.below(3) * 512;
        }
        drain(queue);
        let offset = random.below(LEN - 3000);
        let bytes: Vec<u8> = (0..=random.below(2999)).map(|_| random.below(256) as u8).collect();
        write(queue, offset, &bytes, false);
        if round % 16 == 7 {
            let (offset, len) = (random.below(64) << 14, 200 << 10);
            let op = Io::WriteZeroes { offset, len, fua: false, no_unmap: false, fast: false };
            assert_eq!(run(queue, op).result, Ok(()));
        }
    }
}
