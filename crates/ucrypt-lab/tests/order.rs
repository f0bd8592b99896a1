//! Writes leave in the order in which they arrived, on real threads: where order matters,
//! encryption by several workers costs no seeks and no write is refused.

use std::str::FromStr as _;
use std::sync::Arc;

use ucrypt_backend::model::ModelBackend;
use ucrypt_engine::{
    CipherModel, Fixed, Io, PolicyKind, Queue, QueueConfig, Segment, Volume, VolumeOptions,
};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};
use ucrypt_testkit::fault::Access;
use ucrypt_testkit::{FaultBackend, Faults};

const MIB: u64 = 1 << 20;
const LEN: u64 = 48 * MIB;
const BLOCK: usize = 128 << 10;
const DEPTH: usize = 16;

/// A volume on that device, with three workers and a cipher slow enough to use them. Nothing fails;
/// `faults` logs what reaches the device.
fn volume(device: &str, policy: PolicyKind, faults: &Faults) -> Arc<Volume> {
    let inner = Arc::new(ModelBackend::new(device, LEN).unwrap());
    let backend = Arc::new(FaultBackend::new(inner, faults.clone()));
    let key: Vec<u8> = (0..64).collect();
    let options = SectorOptions { sector_size: 512, iv_offset: 0, iv_large_sectors: false };
    let spec = CipherSpec::from_str("aes-xts-plain64").unwrap();
    let cipher = Some(SectorCipher::new(&spec, &key, options).unwrap());
    let segment = Segment { len: LEN, backend_offset: 0, cipher };
    let options = VolumeOptions {
        policies: policy.into(),
        cipher_model: Some(CipherModel { ns_per_byte: 2.0, ns_per_call: 0 }),
        workers: Some(3),
        ..VolumeOptions::default()
    };
    Arc::new(Volume::new(backend, vec![segment], options).unwrap())
}

fn fill(block: u64) -> u8 {
    (block % 251) as u8 + 1
}

/// Writes the whole volume once, from its start; every write must succeed.
fn write_all(queue: &mut Queue) {
    for block in 0..LEN / BLOCK as u64 {
        while queue.in_flight() == DEPTH {
            queue.wait().unwrap();
            while let Some(done) = queue.next_done() {
                assert_eq!(done.result, Ok(()), "the write of block {} is refused", done.tag);
            }
        }
        let mut data = queue.alloc(BLOCK).expect("room for the depth");
        data.fill(fill(block));
        queue.submit(block, Io::write(block * BLOCK as u64, data, false)).unwrap();
    }
    while queue.in_flight() > 0 {
        queue.wait().unwrap();
        while let Some(done) = queue.next_done() {
            assert_eq!(done.result, Ok(()), "the write of block {} is refused", done.tag);
        }
    }
}

fn check_all(queue: &mut Queue) {
    for block in 0..LEN / BLOCK as u64 {
        queue.submit(0, Io::read(block * BLOCK as u64, BLOCK)).unwrap();
        queue.wait().unwrap();
        let data = queue.next_done().unwrap().data.expect("a read has data");
        assert!(data.iter().all(|&byte| byte == fill(block)), "block {block}");
    }
}

#[test]
fn workers_encrypt_and_no_write_is_out_of_order_or_refused() {
    for device in ["hdd", "zoned"] {
        for policy in [PolicyKind::Adaptive, Fixed::Unbound { sorted: true }.into()] {
            let faults = Faults::new(1);
            let volume = volume(device, policy, &faults);
            let config = QueueConfig::new(8 << 20, DEPTH as u32);
            let mut queue = volume.queue(config).unwrap();
            write_all(&mut queue);
            check_all(&mut queue);
            let mut writes = faults.log();
            writes.retain(|reached| reached.access == Access::Write);
            let sorted = writes.is_sorted_by_key(|write| write.range.start);
            assert!(sorted, "{device}, {policy}: a write left before an earlier one");
            // The decisions are published only now and then; most are by now. Adaptive joins
            // requests that wait for the disk, so its chunks are few and long.
            let stats = volume.decisions()[0].stats;
            let handed = stats.offloaded + stats.taken_back;
            assert!(handed >= 4, "{device}, {policy}: workers were offered only {handed} chunks");
        }
    }
}
