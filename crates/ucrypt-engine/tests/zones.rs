//! The zones of a volume are those of its device, counted from where the volume begins; and what an
//! error of a durable write means there.

mod common;

use std::sync::{Arc, Mutex};

use ucrypt_backend::{Backend, Extent, FileBackend, Limits, Queue, Zones};
use ucrypt_engine::{
    Errno, Io, QueueConfig, Rejected, Segment, Volume, VolumeOptions, Zone, ZoneAction, ZoneChange,
    ZoneKind, ZoneLimits, ZonesError,
};
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults};

const ZONE: u64 = 1 << 20;
const COUNT: u64 = 100;
/// Conventional zones: the first of the device, and one in the middle.
const CONVENTIONAL: [u64; 2] = [0, 50];

const CONFIG: QueueConfig = QueueConfig::new(1 << 16, 4);

fn change(action: ZoneAction, start: u64) -> Io<'static> {
    Io::Zones(ZoneChange::One { action, start })
}

/// A backend in memory that reports zones and records the actions on them.
struct Zoned {
    memory: FileBackend,
    acts: Mutex<Vec<(ZoneAction, u64, u64)>>,
}

impl Zoned {
    fn new() -> Arc<Self> {
        let memory = ucrypt_backend::memory(COUNT * ZONE).expect("memory");
        Arc::new(Self { memory, acts: Mutex::default() })
    }
}

impl Backend for Zoned {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    fn use_until(&self, _end: u64) {}

    fn queue(&self, depth: u32) -> std::io::Result<Box<dyn Queue>> {
        self.memory.queue(depth)
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.memory.extents(offset, len, max)
    }

    fn zones(&self) -> Option<&dyn Zones> {
        Some(self)
    }

    fn describe(&self) -> String {
        "zoned".into()
    }

    fn len_now(&self) -> std::io::Result<u64> {
        self.memory.len_now()
    }

    fn map(&self) -> Option<Arc<dyn ucrypt_backend::Map>> {
        self.memory.map()
    }
}

impl Zones for Zoned {
    fn limits(&self) -> ZoneLimits {
        ZoneLimits { len: ZONE, open_max: 3, active_max: 4 }
    }

    fn report(&self, offset: u64, zones: &mut [Zone]) -> Result<usize, Errno> {
        let first = offset / ZONE;
        let count = zones.len().min((COUNT - first) as usize);
        for (zone, index) in zones[..count].iter_mut().zip(first..) {
            let is_conventional = CONVENTIONAL.contains(&index);
            *zone = Zone {
                start: index * ZONE,
                len: ZONE,
                capacity: ZONE,
                write_pointer: index * ZONE + 4096,
                kind: if is_conventional {
                    ZoneKind::Conventional
                } else {
                    ZoneKind::SequentialRequired
                },
                condition: 2,
            };
        }
        Ok(count)
    }

    fn act(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        self.acts.lock().expect("acts").push((action, offset, len));
        Ok(())
    }
}

fn volume(device: &Arc<Zoned>, backend_offset: u64, len: u64, read_only: bool) -> Arc<Volume> {
    let segments = vec![Segment { len, backend_offset, cipher: None }];
    let options = VolumeOptions { read_only, ..VolumeOptions::default() };
    Arc::new(Volume::new(device.clone(), segments, options).expect("a volume"))
}

#[test]
fn zones_are_counted_from_the_volumes_start_and_end_with_it() {
    let device = Zoned::new();
    let volume = volume(&device, 10 * ZONE, 60 * ZONE, false);
    let zones = volume.zones().expect("aligned").expect("zoned");
    assert_eq!((zones.count(), zones.limits().open_max), (60, 3));
    let mut found = [Zone::default(); 4];
    assert_eq!(zones.report(0, &mut found), Ok(4));
    assert_eq!((found[1].start, found[1].write_pointer), (ZONE, ZONE + 4096));
    assert_eq!(zones.report(59 * ZONE, &mut found), Ok(1), "the device goes on, the volume ends");
    assert_eq!(zones.report(60 * ZONE, &mut found), Err(Errno::INVAL));

    let mut queue = volume.queue(CONFIG).expect("a queue");
    let mut act = |action, start| common::run(&mut queue, change(action, start)).result;
    assert_eq!(act(ZoneAction::Finish, 2 * ZONE), Ok(()));
    assert_eq!(act(ZoneAction::Finish, ZONE + 512), Err(Errno::INVAL));
    let beyond = queue.submit(1, change(ZoneAction::Reset, 60 * ZONE));
    assert!(matches!(beyond, Err(Rejected::OutOfRange)));
    let acts = std::mem::take(&mut *device.acts.lock().expect("acts"));
    assert_eq!(acts, [(ZoneAction::Finish, 12 * ZONE, ZONE)]);
}

#[test]
fn all_zones_are_reset_but_the_conventional_ones_and_those_of_others() {
    let device = Zoned::new();
    let volume = volume(&device, 10 * ZONE, 60 * ZONE, false);
    let mut queue = volume.queue(CONFIG).expect("a queue");
    common::run(&mut queue, Io::Zones(ZoneChange::ResetAll)).result.expect("reset");
    let acts = device.acts.lock().expect("acts");
    let mut reset: Vec<u64> = Vec::new();
    for &(action, offset, len) in &*acts {
        assert_eq!(action, ZoneAction::Reset);
        reset.extend((offset / ZONE)..(offset + len) / ZONE);
    }
    assert_eq!(reset, (10..70).filter(|zone| *zone != 50).collect::<Vec<_>>());
}

#[test]
fn a_read_only_volume_leaves_its_zones_alone() {
    let device = Zoned::new();
    let volume = volume(&device, 0, COUNT * ZONE, true);
    let mut queue = volume.queue(CONFIG).expect("a queue");
    for io in [change(ZoneAction::Reset, ZONE), Io::Zones(ZoneChange::ResetAll)] {
        assert!(matches!(queue.submit(0, io), Err(Rejected::ReadOnly)));
    }
    assert!(device.acts.lock().expect("acts").is_empty());
}

#[test]
fn no_zone_of_a_suspended_volume_changes_before_its_key_is_back() {
    let device = Zoned::new();
    let volume = volume(&device, 0, COUNT * ZONE, false);
    let mut queue = volume.queue(CONFIG).expect("a queue");
    let acts = || device.acts.lock().expect("acts").len();
    volume.halt();
    for (tag, action) in
        [ZoneAction::Open, ZoneAction::Finish, ZoneAction::Reset].iter().enumerate()
    {
        assert!(queue.submit(tag as u64, change(*action, ZONE)).is_ok());
    }
    assert!(queue.submit(3, Io::Zones(ZoneChange::ResetAll)).is_ok());
    queue.poll().expect("a queue that works");
    assert!(acts() == 0 && !queue.has_done() && volume.has_waiting());
    assert!(volume.suspend(), "what waits is not under way");
    volume.resume(vec![None]).expect("the key");
    for _ in 0..4 {
        queue.wait().expect("a queue that works");
        assert_eq!(queue.next_done().expect("an answer").result, Ok(()));
    }
    assert!(acts() > 3);
    // A volume that ends without its key leaves its zones alone, and says so.
    let before = acts();
    volume.halt();
    assert!(queue.submit(0, change(ZoneAction::Reset, ZONE)).is_ok());
    volume.abandon();
    queue.wait().expect("a queue that works");
    assert_eq!(queue.next_done().expect("an answer").result, Err(Errno::IO));
    assert_eq!((acts(), volume.unwritten()), (before, (1, ZONE)));
}

#[test]
fn a_volume_that_begins_or_ends_within_a_zone_has_none() {
    let device = Zoned::new();
    for (offset, len) in [(4096, ZONE), (ZONE, ZONE + 4096)] {
        let error = volume(&device, offset, len, false).zones().unwrap_err();
        let end = offset + len;
        assert_eq!(error, ZonesError::Unaligned { zone_len: ZONE, offset, end });
    }
    let memory = Arc::new(ucrypt_backend::memory(ZONE).expect("memory"));
    let plain = Arc::new(Volume::raw(memory, VolumeOptions::default()).expect("a volume"));
    assert!(plain.zones().unwrap().is_none());
    let mut queue = plain.queue(CONFIG).expect("a queue");
    let refused = queue.submit(0, change(ZoneAction::Reset, 0));
    assert!(matches!(refused, Err(Rejected::NotSupported)));
}

/// A zoned volume whose writes meet this fate.
fn faulty(fate: Fate) -> (Arc<Volume>, Faults) {
    let faults = Faults::new(1);
    faults.add(Rule::new(fate).on(Access::Write));
    let device = FaultBackend::new(Zoned::new(), faults.clone()).without_map();
    let volume = Volume::raw(Arc::new(device), VolumeOptions::default()).expect("a volume");
    (Arc::new(volume), faults)
}

#[test]
fn a_durable_write_to_a_zone_that_is_refused_fails_no_flush() {
    // Too many open or active zones, a full device, a write-protected one, a wrong request.
    for error in [Errno::TOOMANYREFS, Errno::OVERFLOW, Errno::NOSPC, Errno::ROFS, Errno::INVAL] {
        let (volume, faults) = faulty(Fate::Fail(error));
        let mut queue = volume.queue(QueueConfig::new(1 << 20, 4)).expect("a queue");
        let write = |offset| Io::write_borrowed(offset, &[1; 4096], true);
        assert_eq!(common::run(&mut queue, write(2 * ZONE)).result, Err(error));
        assert_eq!(volume.flush_error(), None, "{error}");
        faults.clear();
        assert_eq!(common::run(&mut queue, write(2 * ZONE)).result, Ok(()), "{error}");
        assert_eq!(common::run(&mut queue, Io::Flush).result, Ok(()), "{error}");
    }
}

#[test]
fn a_durable_write_to_a_zone_that_fails_is_not_written_again_and_no_flush_succeeds_after_it() {
    let (volume, faults) = faulty(Fate::Tear(Errno::IO));
    let mut queue = volume.queue(QueueConfig::new(1 << 20, 4)).expect("a queue");
    let write = |offset, fua| Io::write_borrowed(offset, &[1; 4096], fua);
    let plain = common::run(&mut queue, write(3 * ZONE, false));
    assert_eq!((plain.result, volume.flush_error()), (Err(Errno::IO), None));
    assert_eq!(common::run(&mut queue, write(2 * ZONE, true)).result, Err(Errno::IO));
    let log = faults.log();
    let writes = log.iter().filter(|reached| reached.range.start == 2 * ZONE).count();
    assert_eq!(writes, 1, "{log:?}");
    faults.clear();
    assert_eq!(common::run(&mut queue, Io::Flush).result, Err(Errno::IO));
    assert_eq!(common::run(&mut queue, write(4 * ZONE, true)).result, Err(Errno::IO));
}
