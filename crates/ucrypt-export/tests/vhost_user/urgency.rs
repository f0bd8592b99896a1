//! The urgency that a guest shows decides where its requests are transformed.

use std::sync::Arc;

use ucrypt_engine::{CipherModel, Stats, Volume, VolumeOptions};

use crate::driver::{Driver, OK, READ, Run, STRIDE, started};
use crate::front_end::Memory;
use crate::harness::{Harness, LEN, with_options};

/// Address of the guest's data.
const DATA: u64 = 4 << 20;

const IDLE: u32 = 3 << 13;

/// A volume with workers and a cipher that takes 4 us for 4 KiB, and for 64 KiB longer than waking
/// any worker.
fn slow() -> Arc<Volume> {
    let cipher_model = Some(CipherModel { ns_per_byte: 1.0, ns_per_call: 0 });
    let options = VolumeOptions { workers: Some(2), cipher_model, ..VolumeOptions::default() };
    with_options(Arc::new(ucrypt_backend::memory(LEN).expect("memory")), 512, options)
}

fn stats(volume: &Volume) -> Stats {
    volume.decisions().iter().map(|decisions| decisions.stats).sum()
}

/// Reads four at a time, `rounds` times; `answer` waits for one.
fn read<'a>(
    driver: &mut Driver<'a>,
    priority: u32,
    (rounds, len): (u32, u32),
    mut answer: impl FnMut(&mut Driver<'a>) -> u16,
) {
    for _ in 0..rounds {
        for slot in 0..4 {
            let data: Run = (DATA + u64::from(slot) * (1 << 20), len);
            driver.submit_with(priority, slot, READ, u64::from(slot) * 256, &[data]);
        }
        for _ in 0..4 {
            let head = answer(driver);
            assert_eq!(driver.status_of(head / STRIDE * STRIDE), OK);
        }
    }
}

#[test]
fn what_a_guest_asks_for_with_idle_priority_goes_to_workers() {
    let volume = slow();
    let harness = Harness::start(volume.clone());
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    read(&mut driver, IDLE, (100, 4096), |driver| driver.answer().0);
    let told = stats(&volume);
    assert!(told.offloaded > 100 && told.inline == 0, "{told:?}");
}

#[test]
fn what_a_guest_polls_for_is_never_offloaded() {
    let volume = slow();
    let harness = Harness::start(volume.clone());
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    read(&mut driver, 0, (50, 65536), |driver| driver.answer().0);
    // Enough answers for the server to notice the polling, and for decisions to be published.
    read(&mut driver, 0, (400, 4096), Driver::poll_for_answer);
    let before = stats(&volume);
    assert!(before.offloaded > 0, "with calls, workers pay off: {before:?}");
    read(&mut driver, 0, (100, 65536), Driver::poll_for_answer);
    let after = stats(&volume);
    assert!(after.inline > before.inline, "{after:?}");
    assert_eq!(after.offloaded, before.offloaded, "{before:?}, {after:?}");
}
