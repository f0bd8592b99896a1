//! Rings full of noise.

use ucrypt_testkit::Random;

use crate::driver::{Driver, OK, READ, started};
use crate::front_end::{FrontEnd, Memory};
use crate::harness::{Harness, LEN, aes};
use crate::requests::DATA;

/// Half-sensible descriptors: addresses near and beyond the ends of memory, all flags.
fn descriptor(random: &mut Random) -> (u64, u32, u16, u16) {
    let at = match random.below(6) {
        0 => random.bits(),
        1 => (8 << 20) - random.below(8192),
        2 => random.below(0x10000),
        _ => DATA + random.below(8 << 20),
    };
    let len = match random.below(5) {
        0 => random.bits() as u32,
        1 => 16,
        2 => 1,
        _ => random.below(64) as u32 * 512,
    };
    (at, len, random.below(8) as u16, random.below(70) as u16)
}

#[test]
fn noise_in_a_ring_harms_its_guest_only() {
    let seed = 4242;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let harness = Harness::start(aes(512));
    for round in 0..150 {
        let memory = Memory::new();
        let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
        front_end.set_memory(&memory);
        let mut driver = Driver::new(&memory.map, 0, 64);
        // Headers of all kinds, where some descriptors point.
        for at in 0..64u64 {
            let mut header = (random.below(16) as u32).to_le_bytes().to_vec();
            header.extend([0; 4]);
            header.extend(random.below(LEN / 512).to_le_bytes());
            driver.write(DATA + at * 512, &header);
        }
        for index in 0..64 {
            driver.put_descriptor(driver.table(), index, descriptor(&mut random));
            driver.put_descriptor(DATA + 0x1000, index, descriptor(&mut random));
        }
        driver.start(&mut front_end, 0).expect("started");
        for _ in 0..random.below(64) {
            driver.offer(random.below(65) as u16);
            if random.below(4) == 0 {
                // Change descriptors while the server reads them.
                let index = random.below(64) as u16;
                driver.put_descriptor(driver.table(), index, descriptor(&mut random));
            }
        }
        if random.below(8) == 0 {
            let noise = random.bytes(0x400);
            driver.write(driver.available_ring(), &noise);
            driver.kick();
        }
        if round % 2 == 0 {
            front_end.stop_ring(0).expect("it can be stopped whatever the guest does");
        }
    }
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097));
}
