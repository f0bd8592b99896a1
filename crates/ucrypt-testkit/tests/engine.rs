//! Tests the engine with the random client: every policy and backend, faults, and crashes.
//!
//! `UCRYPT_SEEDS=N` multiplies the number of seeds, `UCRYPT_SEED=N` starts with seed N.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ucrypt_backend::model::ModelBackend;
use ucrypt_backend::{Backend, Errno, FileBackend, OpenOptions, memory};
use ucrypt_engine::{Fixed, Io, Policies, PolicyKind, QueueConfig, Volume};
use ucrypt_testkit::engine::{EnginePort, VolumeKind, check_after_crash};
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::given::{number, seeds};
use ucrypt_testkit::operation::Operation;
use ucrypt_testkit::{
    Client, Completion, FaultBackend, Faults, Plan, Port, Random, Report, Shape, Submitted,
    Watchdog, Whole,
};

const MIB: u64 = 1 << 20;

/// A queue whose memory and depth are exceeded by bursts.
const SMALL: QueueConfig = QueueConfig::new(1 << 20, 8);
const LARGE: QueueConfig = QueueConfig::new(8 << 20, 64);
/// A queue whose longer requests get memory when nothing else is in flight.
const TINY: QueueConfig = QueueConfig { memory: 64 << 10, request_max: 64 << 20, depth: 8 };

/// Polls within which a backend that makes progress when polled must have answered something.
const STEPS_MAX: u64 = 20_000;

fn ports<'a>(
    volume: &Arc<Volume>,
    config: QueueConfig,
    seed: u64,
    waits: bool,
    count: u64,
) -> Vec<Box<dyn Port + 'a>> {
    (0..count)
        .map(|index| {
            let port = EnginePort::new(volume, config, seed + index, waits).expect("a queue");
            Box::new(port) as Box<dyn Port>
        })
        .collect()
}

/// A policy, sector size, offset and number of queues, derived from the seed.
fn kind(random: &mut Random, policies: &[Policies], workers: usize) -> (VolumeKind, u64) {
    let sector_size = [None, Some(512), Some(4096)][random.below(3) as usize];
    let policies = policies[random.below(policies.len() as u64) as usize];
    let offset = [0, 512, 4096, MIB][random.below(4) as usize];
    let shared_memory = [0, 256 << 10][random.below(2) as usize];
    (VolumeKind { sector_size, policies, workers, offset, shared_memory }, 1 + random.below(8))
}

fn run(plan: Plan, volume: &Arc<Volume>, config: QueueConfig, waits: bool, queues: u64) -> Report {
    let seed = plan.seed;
    let mut ports = ports(volume, config, seed, waits, queues);
    let mut client = Client::new(plan, ports.len());
    client.run(&mut ports).unwrap_or_else(|failure| panic!("{:?}: {failure}", volume.policies()))
}

/// Every policy for both directions, and one pair that differs.
fn policies() -> Vec<Policies> {
    let mixed =
        Policies { reads: Fixed::Inline.into(), writes: Fixed::Unbound { sorted: true }.into() };
    PolicyKind::ALL.into_iter().map(Policies::from).chain([mixed]).collect()
}

/// A disk's block of at least `kind`'s sectors, by chance, that the volume's offset allows.
fn write_unit(random: &mut Random, kind: &VolumeKind) -> u32 {
    let unit = [512, 4096, 16 << 10][random.below(3) as usize];
    if kind.offset.is_multiple_of(u64::from(unit)) { unit } else { 512 }
}

fn sector(kind: &VolumeKind) -> u64 {
    u64::from(kind.sector_size.unwrap_or(512))
}

/// The units that are old or new as a whole on a backend of that name.
fn whole(backend: &str, sector: u64) -> Whole {
    match backend {
        name if name.starts_with("memory") => Whole::mapped(),
        name if name.contains("buffered") => Whole::cached(sector),
        _ => Whole::sectors(sector),
    }
}

/// One thread, a backend that answers in any order: the same run for the same seed.
fn virtual_run(seed: u64, prepare: impl Fn(&Faults, u64)) -> (Report, Faults) {
    let mut random = Random::new(seed);
    let (kind, queues) = kind(&mut random, &policies(), 0);
    // On a short disk, requests overlap and neighbours are joined.
    let len = [MIB / 4, 2 * MIB][random.below(2) as usize];
    let faults = Faults::new(seed);
    faults.delay(random.below(6)).tears_between(sector(&kind));
    prepare(&faults, len);
    let write_unit = write_unit(&mut random, &kind);
    let backend = FaultBackend::new(Arc::new(memory(kind.offset + len).unwrap()), faults.clone())
        .with_write_unit(write_unit);
    let volume = kind.over(Arc::new(backend), len);
    let config = [SMALL, LARGE, TINY][random.below(3) as usize];
    let plan = Plan {
        sector: sector(&kind).max(write_unit.into()),
        whole: Whole::sectors(sector(&kind)),
        operations: 200,
        depth: 1 + random.below(40) as usize,
        cancels: [0, 0, 5][random.below(3) as usize],
        watchdog: Watchdog::Steps(STEPS_MAX),
        faults: Some((faults.clone(), kind.offset)),
        ..Plan::new(seed, Shape::by_chance(&mut random, len))
    };
    (run(plan, &volume, config, false, queues), faults)
}

#[test]
fn nothing_is_lost_and_nothing_hangs_whatever_the_order_of_answers() {
    let (mut busy, mut cancelled) = (0, 0);
    for seed in seeds(300) {
        let (report, _) = virtual_run(seed, |_, _| {});
        assert_eq!(report.failed, 0, "seed {seed}");
        busy += report.busy;
        cancelled += report.cancelled;
    }
    assert!(busy > 100 && cancelled > 10, "{busy} times busy, {cancelled} cancelled");
}

#[test]
fn errors_reach_the_requests_that_they_concern_and_no_others() {
    let mut failed = 0;
    for seed in seeds(300) {
        let (report, _) = virtual_run(seed, |faults, len| {
            let mut random = Random::new(seed ^ 7);
            let at = random.below(len) / 512 * 512;
            match random.below(5) {
                0 => faults.add(Rule::new(Fate::Fail(Errno::IO)).range(at..at + 4096)),
                1 => faults.add(Rule::new(Fate::Tear(Errno::NOSPC)).on(Access::Write).chance(5)),
                2 => faults.add(Rule::new(Fate::Tear(Errno::IO)).on(Access::Punch).chance(20)),
                3 => faults.add(Rule::new(Fate::Fail(Errno::IO)).nth(random.below(100))),
                _ => faults.add(Rule::new(Fate::Fail(Errno::IO)).on(Access::Read).chance(5)),
            };
        });
        failed += report.failed;
    }
    assert!(failed > 300, "{failed} requests failed");
}

#[test]
fn after_a_flush_that_failed_no_flush_and_no_durable_write_succeeds() {
    let mut failed = 0;
    for seed in seeds(100) {
        let (report, faults) = virtual_run(seed, |faults, _| {
            faults.volatile();
            let nth = Random::new(seed ^ 9).below(5);
            faults.add(Rule::new(Fate::Fail(Errno::IO)).on(Access::Flush).nth(nth));
        });
        assert!(report.failed >= faults.met().len() as u64, "seed {seed}");
        failed += report.failed;
    }
    assert!(failed > 300, "{failed} requests failed");
}

#[test]
fn mapped_images_meet_faults_too() {
    let mut failed = 0;
    for seed in seeds(100) {
        let mut random = Random::new(seed);
        let (kind, queues) = kind(&mut random, &policies(), 0);
        let len = 2 * MIB;
        let faults = Faults::new(seed);
        faults.tears_between(sector(&kind));
        let image = memory(kind.offset + len).unwrap();
        // No holes: mapped and resident data is used in place.
        image.write_all_at(0, &vec![0; (kind.offset + len) as usize]).unwrap();
        if seed % 3 > 0 {
            let at = kind.offset + random.below(len) / 4096 * 4096;
            let fate =
                [Fate::Fail(Errno::IO), Fate::Tear(Errno::IO), Fate::Hang][(seed % 3) as usize];
            faults.add(Rule::new(fate).range(at..at + 8192).on(Access::Read).on(Access::Write));
            faults.release();
        }
        let backend = FaultBackend::at_once(Arc::new(image), faults.clone());
        let volume = kind.over(Arc::new(backend), len);
        let plan = Plan {
            sector: sector(&kind),
            whole: Whole::sectors(sector(&kind)),
            operations: 200,
            faults: Some((faults.clone(), kind.offset)),
            watchdog: Watchdog::Steps(STEPS_MAX),
            ..Plan::new(seed, Shape::by_chance(&mut random, len))
        };
        failed += run(plan, &volume, SMALL, false, queues).failed;
    }
    assert!(failed > 50, "{failed} requests failed");
}

/// Runs a client for `steps` and lets the power fail then: the disk holds what was flushed before.
/// With `at_every_step`, so do the disks that a power failure at any earlier step would leave.
fn crash_after(steps: u64, seed: u64, at_every_step: bool) {
    let mut random = Random::new(seed);
    let (kind, queues) = kind(&mut random, &policies(), 0);
    let len = 256 << 10;
    let faults = Faults::new(seed ^ steps << 32);
    faults.delay(random.below(6)).volatile().fail_now_and_then(&mut random);
    let inner: Arc<dyn Backend> = Arc::new(memory(kind.offset + len).unwrap());
    let write_unit = write_unit(&mut random, &kind);
    let backend = FaultBackend::new(inner.clone(), faults.clone()).with_write_unit(write_unit);
    let backend = Arc::new(backend);
    // A 4096-byte sector torn by a power failure is noise, as with dm-crypt on a disk of 512-byte
    // sectors.
    let kind = VolumeKind { sector_size: kind.sector_size.map(|_| 512), ..kind };
    let plan = Plan {
        faults: Some((faults.clone(), kind.offset)),
        ..Plan::until_a_crash(seed, len, Watchdog::Steps(STEPS_MAX))
    };
    let mut client = Client::new(plan, queues as usize);
    {
        let volume = kind.over(backend.clone(), len);
        let mut ports = ports(&volume, SMALL, seed, false, queues);
        for step in 0..steps {
            client.step(&mut ports).unwrap_or_else(|failure| panic!("step {step}: {failure}"));
            if at_every_step {
                println!("seed {seed}, crash after step {step}");
                let image = backend.after_a_crash().expect("memory");
                check_after_crash(&kind.over(Arc::new(image), len), &client);
            }
        }
        faults.crash();
    }
    backend.settle().expect("memory");
    println!("seed {seed}, crash after {steps} steps");
    check_after_crash(&kind.over(inner, len), &client);
}

#[test]
fn what_was_flushed_survives_a_crash_at_any_step() {
    for seed in seeds(300) {
        crash_after(Random::new(!seed).below(300), seed, false);
    }
    for seed in seeds(20) {
        crash_after(200, seed, true);
    }
}

/// Submits one operation and waits for its answer.
fn one(queue: &mut ucrypt_engine::Queue, io: Io<'_>) -> ucrypt_engine::Done {
    queue.submit(7, io).expect("room");
    let until = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        queue.poll().expect("the queue works");
        if let Some(done) = queue.next_done() {
            return done;
        }
        assert!(std::time::Instant::now() < until, "an answer is missing");
    }
}

/// A device with 4096-byte blocks does not zero less; an unencrypted volume has 512-byte sectors.
#[test]
fn zeroes_that_the_backend_refuses_for_their_alignment_are_written() {
    for error in [Errno::INVAL, Errno::OPNOTSUPP] {
        let faults = Faults::new(1);
        faults.add(Rule::new(Fate::Fail(error)).on(Access::Punch));
        let inner = memory(MIB).unwrap();
        inner.write_all_at(0, &vec![9; MIB as usize]).unwrap();
        let backend = FaultBackend::new(Arc::new(inner), faults.clone());
        let kind = VolumeKind {
            sector_size: None,
            policies: PolicyKind::default().into(),
            workers: 0,
            offset: 0,
            shared_memory: 0,
        };
        let mut queue = kind.over(Arc::new(backend), MIB).queue(LARGE).unwrap();
        let (offset, len) = (512, 8192);
        let zeroes = Io::WriteZeroes { offset, len, fua: false, no_unmap: false, fast: false };
        assert_eq!(one(&mut queue, zeroes).result, Ok(()), "{error}");
        assert_eq!(faults.met().len(), 1, "the backend was asked");
        let read = one(&mut queue, Io::read(0, 16384)).data.expect("data");
        for (at, &byte) in read.iter().enumerate() {
            let zero = (offset..offset + len).contains(&(at as u64));
            assert_eq!(byte, if zero { 0 } else { 9 }, "{error}: byte {at}");
        }
    }
}

/// Kinds of volumes, one for each sector size.
fn kinds() -> impl Iterator<Item = VolumeKind> {
    [None, Some(512), Some(4096)].into_iter().map(|sector_size| VolumeKind {
        sector_size,
        policies: PolicyKind::default().into(),
        workers: 0,
        offset: 512,
        shared_memory: 0,
    })
}

#[test]
fn a_part_of_a_sector_that_cannot_be_read_is_not_written() {
    for kind in kinds() {
        let faults = Faults::new(1);
        faults.add(Rule::new(Fate::Fail(Errno::IO)).on(Access::Read));
        let inner = Arc::new(memory(MIB).unwrap());
        inner.write_all_at(0, &vec![9; MIB as usize]).unwrap();
        let volume = kind.over(Arc::new(FaultBackend::new(inner.clone(), faults)), 256 << 10);
        let mut queue = volume.queue(LARGE).unwrap();
        for fua in [false, true] {
            let mut data = queue.alloc(100).unwrap();
            data.fill(1);
            let done = one(&mut queue, Io::write(10, data, fua));
            assert_eq!(done.result, Err(Errno::IO), "{kind:?}");
            let zeroes =
                Io::WriteZeroes { offset: 5000, len: 100, fua, no_unmap: fua, fast: false };
            assert_eq!(one(&mut queue, zeroes).result, Err(Errno::IO), "{kind:?}");
        }
        let mut bytes = vec![0; MIB as usize];
        inner.read_exact_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 9), "{kind:?}: something was written");
    }
}

#[test]
fn durable_writes_are_durable_to_their_first_and_last_byte() {
    for (kind, zeroes) in kinds().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (offset, len, size) = (100, 9000, 64 << 10);
        // The cache is lost completely, in part, or not at all.
        for seed in 0..20 {
            let faults = Faults::new(seed);
            faults.volatile();
            let inner: Arc<dyn Backend> = Arc::new(memory(MIB).unwrap());
            let backend = Arc::new(FaultBackend::new(inner.clone(), faults.clone()));
            {
                let mut queue = kind.over(backend.clone(), size).queue(LARGE).unwrap();
                let mut data = queue.alloc(size as usize).unwrap();
                data.fill(9);
                one(&mut queue, Io::write(0, data, false)).result.unwrap();
                one(&mut queue, Io::Flush).result.unwrap();
                let op = if zeroes {
                    Io::WriteZeroes { offset, len, fua: true, no_unmap: seed % 2 == 0, fast: false }
                } else {
                    let mut data = queue.alloc(len as usize).unwrap();
                    data.fill(0);
                    Io::write(offset, data, true)
                };
                one(&mut queue, op).result.unwrap();
                faults.crash();
            }
            backend.settle().unwrap();
            let mut queue = kind.over(inner, size).queue(LARGE).unwrap();
            let read = one(&mut queue, Io::read(0, size as usize)).data.unwrap();
            for (at, &byte) in read.iter().enumerate() {
                let new = (offset..offset + len).contains(&(at as u64));
                assert_eq!(byte, if new { 0 } else { 9 }, "{kind:?}, seed {seed}: byte {at}");
            }
        }
    }
}

#[test]
fn a_hang_is_reported_with_what_each_request_waits_for() {
    for kind in kinds() {
        let (len, faults) = (64 << 10, Faults::new(1));
        faults.add(Rule::new(Fate::Hang).on(Access::Write));
        let backend = FaultBackend::new(Arc::new(memory(MIB).unwrap()), faults.clone());
        let volume = kind.over(Arc::new(backend), len);
        // Writes that overlap, most of them in the middle of sectors.
        let shape = Shape { unaligned: 90, mix: [0, 100, 0, 0, 0], ..Shape::everything(len) };
        let watchdog = Watchdog::Steps(1000);
        let plan = Plan { operations: 50, watchdog, ..Plan::new(1, shape) };
        let mut client = Client::new(plan, 1);
        let failure = client.run(&mut ports(&volume, LARGE, 1, false, 1)).expect_err("a hang");
        for reason in ["is with the backend", "waits for its range"] {
            assert!(failure.to_string().contains(reason), "{kind:?}: {failure}");
        }
        faults.release();
    }
}

#[test]
fn a_queue_that_goes_while_it_waits_for_a_range_keeps_nobody_out() {
    for kind in kinds() {
        let faults = Faults::new(1);
        let rule = Rule::new(Fate::Hang).on(Access::Write);
        faults.add(rule.nth(0));
        let inner = Arc::new(memory(MIB).unwrap());
        let volume = kind.over(Arc::new(FaultBackend::new(inner, faults.clone())), 256 << 10);
        let [mut holder, mut goes, mut stays] = [(); 3].map(|()| volume.queue(LARGE).unwrap());
        // The write has the range alone and is not answered.
        holder.submit(1, Io::write_borrowed(100, &[1; 100], false)).unwrap();
        for _ in 0..10 {
            holder.poll().unwrap();
        }
        assert_eq!(faults.met().len(), 1, "{kind:?}: the write has reached the backend");
        goes.submit(2, Io::write_borrowed(50, &[2; 100], false)).unwrap();
        goes.submit(3, Io::read(0, 4096)).unwrap();
        stays.submit(4, Io::read(0, 4096)).unwrap();
        for queue in [&mut goes, &mut stays] {
            queue.poll().unwrap();
            assert!(queue.next_done().is_none(), "{kind:?}: the range is taken");
        }
        drop(goes);
        faults.release();
        let until = std::time::Instant::now() + Duration::from_secs(30);
        let mut answers = [None, None];
        while answers.contains(&None) {
            for (queue, answer) in [&mut holder, &mut stays].into_iter().zip(&mut answers) {
                queue.poll().unwrap();
                *answer = queue.next_done().map(|done| (done.tag, done.result)).or(*answer);
            }
            assert!(std::time::Instant::now() < until, "{kind:?}: {answers:?}");
        }
        assert_eq!(answers, [Some((1, Err(Errno::IO))), Some((4, Ok(())))], "{kind:?}");
    }
}

/// Every kind of backend available on this machine, with its name.
fn backends(dir: &Path, len: u64) -> Vec<(&'static str, Arc<dyn Backend>)> {
    let image = |name: &str| {
        let path = dir.join(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        path
    };
    let open = |name: &str, direct| {
        let options = OpenOptions { direct, ..OpenOptions::default() };
        Arc::new(FileBackend::open(&image(name), options).unwrap())
    };
    let filled = memory(len).unwrap();
    filled.write_all_at(0, &vec![0; len as usize]).unwrap();
    vec![
        ("file, buffered", open("buffered", false)),
        ("file, direct", open("direct", true)),
        ("memory", Arc::new(memory(len).unwrap())),
        ("memory without holes", Arc::new(filled)),
        ("model optane2020", Arc::new(ModelBackend::new("optane2020", len).unwrap())),
        ("model sata2017", Arc::new(ModelBackend::new("sata2017", len).unwrap())),
    ]
}

/// Found by the test below: the part behind the first, incomplete sector of a write was not aligned
/// in memory, so it went through the page cache and collided with direct writes to the same page.
/// The next flush failed ("Page cache invalidation failure on direct I/O" in the kernel's log).
#[test]
fn writes_at_odd_offsets_do_not_collide_with_direct_ones() {
    let dir = tempfile::tempdir().unwrap();
    let len = MIB;
    for seed in seeds(12) {
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        let options = OpenOptions { direct: true, ..OpenOptions::default() };
        let backend = Arc::new(FileBackend::open(&path, options).unwrap());
        let sector_size = [None, Some(512)][seed as usize % 2];
        let kind = VolumeKind {
            sector_size,
            policies: Fixed::Inline.into(),
            workers: 0,
            offset: 0,
            shared_memory: 0,
        };
        let volume = kind.over(backend, len);
        let shape = Shape {
            transfer_max: 8192,
            zeroes_max: 8192,
            unaligned: 60,
            mix: [5, 80, 0, 0, 15],
            ..Shape::everything(len)
        };
        let plan = Plan { operations: 300, depth: 32, ..Plan::new(seed, shape) };
        run(plan, &volume, LARGE, true, 2);
    }
}

/// A block device over a file, until it is dropped.
struct LoopDevice(String);

impl LoopDevice {
    /// `block`: bytes of the device's blocks.
    fn over(file: &Path, block: u32) -> Self {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--sector-size", &block.to_string()]).arg(file);
        let done = losetup.output().expect("losetup is there");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "this test makes a loop device, as root: {said}");
        Self(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Best effort: a leftover device shows up in `losetup --list`.
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_device_is_waited_for_that_another_has_for_a_moment() {
    use std::os::unix::fs::OpenOptionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    let device = LoopDevice::over(&image, 512);
    let path = Path::new(&device.0);
    let exclusively = || {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_EXCL).open(path).unwrap()
    };
    let other = exclusively();
    let refused = FileBackend::open(path, OpenOptions::default()).err().expect("refused");
    assert!(refused.is_busy(), "{refused}");
    let reader = OpenOptions { read_only: true, shared: true, ..OpenOptions::default() };
    assert!(FileBackend::open(path, reader).expect("goes on without").is_in_use());
    // As a child has it that was forked while it was open, until the child runs its program.
    let moment = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(other);
    });
    let opened = FileBackend::open(path, OpenOptions::default()).expect("it was waited for");
    moment.join().unwrap();
    drop(opened);
}

/// Runs the random client with workers, under every policy, on the first `len` bytes of a backend.
fn under_every_policy(name: &str, len: u64, backend: &Arc<dyn Backend>) {
    for (index, policies) in policies().into_iter().enumerate() {
        let seed = number("UCRYPT_SEED", 1) + index as u64;
        let mut random = Random::new(seed);
        let (kind, queues) = kind(&mut random, &[policies], 3);
        let kind = kind.fitting(&**backend);
        let volume = kind.over(backend.clone(), len);
        let shape = Shape { transfer_max: MIB, zeroes_max: 4 * MIB, ..Shape::everything(len) };
        let plan = Plan {
            sector: sector(&kind),
            whole: whole(name, sector(&kind)),
            operations: 150 * number("UCRYPT_SEEDS", 1),
            depth: 24,
            watchdog: Watchdog::Time(Duration::from_secs(30)),
            ..Plan::new(seed, shape)
        };
        let mut ports = ports(&volume, SMALL, seed, true, queues);
        let mut client = Client::new(plan, ports.len());
        if let Err(failure) = client.run(&mut ports) {
            panic!("{name}, {policies}, {kind:?}: {failure}");
        }
    }
}

#[test]
fn every_backend_under_every_policy_with_workers() {
    let dir = tempfile::tempdir().unwrap();
    let len = 8 * MIB;
    for (name, backend) in backends(dir.path(), len + MIB) {
        under_every_policy(name, len, &backend);
    }
}

#[test]
fn a_block_device_under_every_policy_with_workers() {
    let dir = tempfile::tempdir().unwrap();
    let len = 8 * MIB;
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(len + MIB).unwrap();
    let device = LoopDevice::over(&image, 512);
    for (name, direct) in [("device, buffered", false), ("device, direct", true)] {
        let options = OpenOptions { direct, ..OpenOptions::default() };
        let backend: Arc<dyn Backend> =
            Arc::new(FileBackend::open(Path::new(&device.0), options).unwrap());
        under_every_policy(name, len, &backend);
    }
}

/// Sectors of 512 bytes on a disk of 4096-byte blocks: the kernel writes part of a block through the
/// page cache, and a direct write to the rest of the block at that time is lost.
#[test]
fn direct_writes_of_parts_of_a_block_do_not_undo_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let len = 64 << 10;
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(len).unwrap();
    let device = LoopDevice::over(&image, 4096);
    for seed in seeds(10) {
        let options = OpenOptions { direct: true, ..OpenOptions::default() };
        let backend = FileBackend::open(Path::new(&device.0), options).unwrap();
        let kind = VolumeKind {
            sector_size: [None, Some(512)][seed as usize % 2],
            policies: Fixed::Inline.into(),
            workers: 0,
            offset: 0,
            shared_memory: 0,
        };
        let volume = kind.over(Arc::new(backend), len);
        let shape = Shape {
            transfer_max: 8192,
            unaligned: 0,
            mix: [40, 60, 0, 0, 0],
            fua: 0,
            ..Shape::everything(len)
        };
        let plan = Plan { operations: 500, depth: 32, ..Plan::new(seed, shape) };
        run(plan, &volume, LARGE, true, 2);
    }
}

#[test]
fn requests_of_64_mib_beside_small_ones() {
    let dir = tempfile::tempdir().unwrap();
    let len = 160 * MIB;
    for seed in seeds(4) {
        let (name, backend) = backends(dir.path(), len + MIB).swap_remove(seed as usize % 3);
        let mut random = Random::new(seed);
        let (kind, queues) = kind(&mut random, &policies(), 2);
        let volume = kind.fitting(&*backend).over(backend, len);
        let plan = Plan {
            sector: sector(&kind),
            whole: whole(name, sector(&kind)),
            operations: 60,
            depth: 4,
            watchdog: Watchdog::Time(Duration::from_secs(60)),
            ..Plan::new(
                seed,
                Shape { transfer_max: 64 * MIB, zeroes_max: len, ..Shape::everything(len) },
            )
        };
        let report = run(plan, &volume, QueueConfig::new(160 << 20, 8), true, queues);
        assert_eq!((report.failed, report.refused), (0, 0), "{name}, seed {seed}");
    }
}

/// A port that checks that exactly the operations reaching beyond the end are refused.
struct Bounded(EnginePort, Arc<Volume>);

impl Port for Bounded {
    fn submit(&mut self, tag: u64, operation: &Operation, data: &[u8]) -> Submitted {
        let submitted = self.0.submit(tag, operation, data);
        let len = self.1.info().len;
        let is_behind = operation.range().end > len;
        match submitted {
            Submitted::Busy => {}
            Submitted::Accepted => assert!(!is_behind, "{operation} of {len} bytes was accepted"),
            Submitted::Refused => assert!(is_behind, "{operation} of {len} bytes was refused"),
        }
        submitted
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> std::io::Result<()> {
        self.0.poll(wait, done)
    }

    fn cancel(&mut self, tag: u64) {
        self.0.cancel(tag);
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[test]
fn a_disk_that_gets_shorter_and_longer_under_load_loses_nothing() {
    for seed in seeds(60) {
        let mut random = Random::new(seed);
        let (kind, queues) = kind(&mut random, &policies(), [0, 2][seed as usize % 2]);
        let len = MIB;
        let faults = Faults::new(seed);
        faults.delay(random.below(6));
        let inner = Arc::new(memory(kind.offset + len).unwrap());
        let volume = kind.over(Arc::new(FaultBackend::new(inner, faults)), len);
        let plan = Plan {
            sector: sector(&kind),
            whole: Whole::cached(sector(&kind)),
            operations: 300,
            ..Plan::new(seed, Shape::by_chance(&mut random, len))
        };
        let mut ports: Vec<Box<dyn Port>> = (0..queues)
            .map(|index| {
                let port = EnginePort::new(&volume, LARGE, seed + index, false).expect("a queue");
                Box::new(Bounded(port, volume.clone())) as Box<dyn Port>
            })
            .collect();
        let mut client = Client::new(plan, ports.len());
        while !client.is_done() {
            client.step(&mut ports).unwrap_or_else(|failure| panic!("{kind:?}: {failure}"));
            if random.percent(3) {
                let sectors = 1 + random.below(len / sector(&kind));
                volume.resize(sectors * sector(&kind)).expect("it fits");
            }
        }
        volume.resize(len).expect("it fits");
        let report = client.end(&mut ports).unwrap_or_else(|failure| panic!("{kind:?}: {failure}"));
        assert!(report.refused > 0 && report.failed == 0, "seed {seed}: {report:?}");
    }
}
