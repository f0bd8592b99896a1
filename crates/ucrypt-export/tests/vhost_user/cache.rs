//! The write cache: answered writes are durable unless the guest knows that it has to flush.

use ucrypt_testkit::Faults;
use ucrypt_testkit::fault::Access;

use crate::driver::{Driver, FLUSH, OK, WRITE};
use crate::front_end::{FrontEnd, Memory, message};
use crate::harness::{Harness, faulty, over};
use crate::requests::DATA;

/// Feature bits.
const FLUSHES: u64 = 1 << 9;
const CONFIG_WCE: u64 = 1 << 11;

/// Offset of the configuration byte that says whether there is a cache.
const CACHE_AT: u32 = 32;

/// A front end with a ring of its own.
struct Guest<'a> {
    front_end: FrontEnd,
    driver: Driver<'a>,
    /// Injects no faults; its log records what reaches the disk.
    faults: Faults,
}

impl<'a> Guest<'a> {
    fn new(harness: &Harness, faults: &Faults, memory: &'a Memory, without: u64) -> Self {
        let mut front_end = FrontEnd::negotiated(&harness.socket(), without);
        front_end.set_memory(memory);
        let driver = Driver::new(&memory.map, 0, 64);
        driver.start(&mut front_end, 0).expect("started");
        Self { front_end, driver, faults: faults.clone() }
    }

    fn cache(&mut self) -> u8 {
        self.front_end.config(CACHE_AT, 1).expect("the space")[0]
    }

    /// Whether a write is durable when it is answered.
    fn writes_through(&mut self) -> bool {
        let before = durable(&self.faults, Access::Write);
        assert_eq!(self.driver.run(WRITE, 0, &[(DATA, 4096)]), (OK, 1));
        durable(&self.faults, Access::Write) > before
    }

    /// Acts like a machine that is paused and goes on.
    fn stop_and_go_on(&mut self, features: u64) {
        let base = self.front_end.stop_ring(0).expect("stopped");
        let features = features.to_le_bytes();
        self.front_end.order(message::SET_FEATURES, &features, &[]).expect("accepted");
        self.driver.start(&mut self.front_end, base).expect("started again");
    }
}

/// How many durable operations of this kind have reached the disk so far.
fn durable(faults: &Faults, access: Access) -> usize {
    faults.log().iter().filter(|reached| reached.durable && reached.access == access).count()
}

fn harness() -> (Harness, Faults) {
    let (disk, faults) = faulty();
    (Harness::start(over(disk, 512)), faults)
}

#[test]
fn a_guests_write_through_survives_that_its_machine_is_paused() {
    let ((harness, faults), memory) = (harness(), Memory::new());
    let mut guest = Guest::new(&harness, &faults, &memory, 0);
    assert_eq!(guest.cache(), 1);
    assert!(!guest.writes_through(), "the guest knows of the cache");
    guest.front_end.set_config(CACHE_AT, &[0]).expect("switched off");
    assert!(guest.writes_through());
    let features = guest.front_end.ask_u64(message::GET_FEATURES);
    for _ in 0..3 {
        guest.stop_and_go_on(features);
        assert!(guest.writes_through(), "nobody has switched it on");
        assert_eq!(guest.cache(), 0);
    }
    // In between another driver that knows of no cache, such as firmware: the setting belongs to
    // the front end.
    guest.stop_and_go_on(features & !(FLUSHES | CONFIG_WCE));
    assert!(guest.writes_through());
    guest.stop_and_go_on(features);
    assert!(guest.writes_through() && guest.cache() == 0);
    guest.front_end.set_config(CACHE_AT, &[1]).expect("switched on");
    assert!(!guest.writes_through());
    assert_eq!(guest.cache(), 1);
    assert!(guest.front_end.set_config(0, &[1]).is_err(), "nothing else can be changed");
}

#[test]
fn a_guest_that_comes_back_writes_through_because_its_setting_is_not_known() {
    let ((harness, faults), memory) = (harness(), Memory::new());
    let mut guest = Guest::new(&harness, &faults, &memory, 0);
    assert_eq!(guest.cache(), 1);
    guest.front_end.set_config(CACHE_AT, &[0]).expect("switched off");
    drop(guest);
    // A front end that reconnects neither reports the setting nor asks for it.
    let mut guest = Guest::new(&harness, &faults, &memory, 0);
    guest.driver.write(guest.driver.available_ring(), &[0; 0x1000]);
    guest.driver.write(guest.driver.used_ring(), &[0; 0x1000]);
    guest.front_end.config(0, 8).expect("the capacity");
    assert!(guest.writes_through());
    // A front end that asks tells its guest.
    assert_eq!(guest.cache(), 1);
    assert!(!guest.writes_through());
}

#[test]
fn a_guest_that_cannot_switch_the_cache_has_one_if_it_flushes_and_none_otherwise() {
    for (without, writes_through) in
        [(CONFIG_WCE, false), (CONFIG_WCE | FLUSHES, true), (FLUSHES, true)]
    {
        let ((harness, faults), memory) = (harness(), Memory::new());
        let mut guest = Guest::new(&harness, &faults, &memory, without);
        assert_eq!(guest.writes_through(), writes_through, "without {without:#x}");
    }
}

#[test]
fn a_guest_that_cannot_flush_has_no_cache_even_if_it_could_switch_one() {
    let ((harness, faults), memory) = (harness(), Memory::new());
    let mut guest = Guest::new(&harness, &faults, &memory, FLUSHES);
    assert_eq!(guest.cache(), 0);
    assert!(guest.writes_through(), "it sends no flush");
    // Its front end asked before the driver accepted any features, for another driver's sake.
    drop(guest);
    let mut front_end = FrontEnd::connect(&harness.socket());
    let features = front_end.ask_u64(message::GET_FEATURES) & !FLUSHES;
    let protocol = front_end.ask_u64(message::GET_PROTOCOL_FEATURES);
    front_end.tell(message::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes());
    assert_eq!(front_end.config(CACHE_AT, 1).expect("the space"), [1]);
    front_end.order(message::SET_FEATURES, &features.to_le_bytes(), &[]).expect("accepted");
    let memory = Memory::new();
    front_end.set_memory(&memory);
    let driver = Driver::new(&memory.map, 0, 64);
    driver.start(&mut front_end, 0).expect("started");
    let mut guest = Guest { front_end, driver, faults };
    assert!(guest.writes_through() && guest.cache() == 0);
}

#[test]
fn what_was_written_before_the_cache_was_switched_off_is_flushed() {
    let ((harness, faults), memory) = (harness(), Memory::new());
    let mut guest = Guest::new(&harness, &faults, &memory, 0);
    assert_eq!(guest.cache(), 1);
    assert!(!guest.writes_through());
    assert_eq!(durable(&faults, Access::Flush), 0);
    guest.front_end.set_config(CACHE_AT, &[0]).expect("switched off");
    assert_eq!(durable(&faults, Access::Flush), 1, "the guest will not flush it");
    assert!(guest.writes_through());
    assert_eq!(guest.driver.run(FLUSH, 0, &[]), (OK, 1), "flushes are served all the same");
}

#[test]
fn what_was_written_over_an_earlier_connection_is_flushed_when_the_cache_is_switched_off() {
    let ((harness, faults), memory) = (harness(), Memory::new());
    let mut guest = Guest::new(&harness, &faults, &memory, 0);
    assert_eq!(guest.cache(), 1);
    assert!(!guest.writes_through());
    drop(guest);
    // The front end reconnects, and its guest goes on; with rings elsewhere, which changes nothing.
    let memory = Memory::new();
    let mut guest = Guest::new(&harness, &faults, &memory, 0);
    assert_eq!(durable(&faults, Access::Flush), 0);
    guest.front_end.set_config(CACHE_AT, &[0]).expect("switched off");
    assert_eq!(durable(&faults, Access::Flush), 1, "the guest will not flush it");
    assert!(guest.writes_through());
    let features = guest.front_end.ask_u64(message::GET_FEATURES);
    guest.stop_and_go_on(features);
    guest.front_end.set_config(CACHE_AT, &[0]).expect("as it is");
    assert_eq!(durable(&faults, Access::Flush), 1, "there is nothing to flush");
}

#[test]
fn a_driver_may_switch_the_cache_off_before_it_starts() {
    let ((harness, faults), memory) = (harness(), Memory::new());
    let mut front_end = FrontEnd::connect(&harness.socket());
    let features = front_end.ask_u64(message::GET_FEATURES);
    let protocol = front_end.ask_u64(message::GET_PROTOCOL_FEATURES);
    front_end.tell(message::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes());
    assert_eq!(front_end.config(CACHE_AT, 1).expect("the space"), [1]);
    front_end.set_config(CACHE_AT, &[0]).expect("switched off");
    front_end.order(message::SET_FEATURES, &features.to_le_bytes(), &[]).expect("accepted");
    front_end.set_memory(&memory);
    let driver = Driver::new(&memory.map, 0, 64);
    driver.start(&mut front_end, 0).expect("started");
    let mut guest = Guest { front_end, driver, faults };
    assert!(guest.writes_through());
}
