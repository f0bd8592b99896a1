//! `many-drives`: many drives, many cores, one queue for each core.

use std::cell::RefCell;
use std::io;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use hdrhistogram::Histogram;
use ucrypt_backend::model::Profile;
use ucrypt_engine::{
    CipherModel, Io, PolicyKind, Queue, QueueConfig, Rejected, Segment, Volume, VolumeOptions,
};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

use crate::Pattern;
use crate::catalogue::{Cell, Published, Scale};
use crate::contender::Contender;
use crate::load::INTERRUPTED;
use crate::published;
use crate::sample::{Sample, distribution};
use crate::world::{Clients, Costs, Present, World};

use super::history::Changes;

/// The machine: `one writer, 128 KiB, qd 4` runs at one core's cipher speed, and 40 cores of that
/// speed make the 56 GB/s of the fastest row. The number of drives is chosen. Nobody published
/// whether hyper-threads were on: here every core has a cipher unit of its own, and
/// [`Changes::threads_per_core`] shares them.
pub(super) const CORES: u32 = 40;
const DRIVES: u32 = 20;
pub(super) const CIPHER: CipherModel = CipherModel { ns_per_byte: 1.0 / 1.4, ns_per_call: 60 };

/// Bytes of a drive.
const LEN: u64 = 8 << 30;

/// Events between two looks at `stop`.
const EVENTS: u32 = 4096;

const MIX: &str = "66 % reads (64k and 1m at 60/40), 34 % writes (1m)";
const MANY: &str = "128k randread qd8 × 40 cores";
const ONE: &str = "one writer, 128k qd4";

/// The label of figures without a scheduler, which the simulator has not either.
const ON: &str = "dm-crypt, work queues, 2020";
const OFF: &str = "dm-crypt, no work queues, 2020";

/// Whether a figure was published for drives without a scheduler.
pub(crate) fn is_simulated(of: &Published) -> bool {
    [ON, OFF].contains(&of.label)
}

pub(crate) fn cells() -> Vec<Cell> {
    let rows = published::MANY_DRIVES_2020.rows();
    let figures = |workload: &str, scheduler: &str, [on, off]: [&'static str; 2]| {
        let row = rows.iter().find(|row| {
            row.text("workload").contains(workload) && row.text("scheduler").contains(scheduler)
        });
        let gb_s = |column| row.and_then(|row| row.number::<f64>(column)).map(|gb_s| gb_s * 1000.0);
        let of = |contender, label, column| Published {
            contender,
            label,
            mb_s: gb_s(column),
            ..Published::default()
        };
        let both = [
            of("ucrypt:unbound", on, "workqueues_on_gb_s"),
            of("ucrypt:inline", off, "workqueues_off_gb_s"),
        ];
        both.into_iter().filter(|it| it.mb_s.is_some()).collect::<Vec<_>>()
    };
    let mut many = figures("many drives", "none", [ON, OFF]);
    let deadline =
        ["dm-crypt, work queues, mq-deadline, 2020", "dm-crypt, no work queues, mq-deadline, 2020"];
    many.extend(figures("many drives", "mq-deadline", deadline));
    let all = [
        "dm-crypt, work queues, all settings, 2020",
        "dm-crypt, no work queues, all settings, 2020",
    ];
    many.extend(figures("many drives", "all settings", all));
    let mix = figures("66 % read", "", [ON, OFF]);
    let one = figures("one writer", "", [ON, OFF]);
    let cell = |name: &str, pattern, block_bytes, depth, jobs, published| Cell {
        name: name.into(),
        pattern,
        block_bytes,
        depth,
        jobs,
        published,
    };
    vec![
        cell(MANY, Pattern::RandRead, 128 << 10, 8, CORES, many),
        cell(MIX, Pattern::RandRw, 1 << 20, 8, CORES, mix),
        cell(ONE, Pattern::Write, 128 << 10, 4, 1, one),
    ]
}

/// Whether the machine was chosen so that it has the published figure of a policy in a cell.
pub(crate) fn is_fitted(cell: &Cell, policy: &str) -> bool {
    [(ONE, "inline"), (MANY, "unbound")].contains(&(cell.name.as_str(), policy))
}

/// The ceiling of every policy in GB/s: the ciphers of all cores. Without a cipher there is none, because the drives take
/// no time.
pub(crate) fn ceiling_gb_s() -> f64 {
    f64::from(CORES) / CIPHER.ns_per_byte
}

/// Runs a cell under the policy of a contender, in virtual time, on the machine with the given
/// changes.
///
/// # Errors
/// If the contender is no policy, memory is missing, a request fails, or `stop` is set.
pub fn run(
    cell: &Cell,
    contender: Contender,
    (scale, changes): (Scale, Changes),
    stop: &AtomicBool,
) -> io::Result<Sample> {
    let Contender::Ucrypt(policy) = contender else {
        return Err(io::Error::other("only ucrypt's policies run in virtual time"));
    };
    let virtual_ns = virtual_ms(scale, changes) * 1_000_000;
    let machine = Machine {
        cores: changes.cores(CORES),
        threads_per_core: changes.threads_per_core(),
        drives: changes.drives.unwrap_or(DRIVES),
        device: changes.drive()?,
        cipher: changes.cipher(CIPHER),
        costs: changes.costs(Costs::default()),
        virtual_ns,
    };
    machine.run(cell, policy, stop)
}

/// Virtual time of a run.
pub(crate) fn virtual_ms(scale: Scale, changes: Changes) -> u64 {
    changes.virtual_ms.unwrap_or(match scale {
        Scale::Full => 200,
        Scale::Quick => 10,
    })
}

/// How often the runs that are done are counted.
const TICK: Duration = Duration::from_millis(100);

/// Runs contenders in cells, given by their place, as many at a time as this machine has cores. `tick` is told how many
/// are done. Returns MB/s of each, or why it failed, as [`run`] does.
pub(crate) fn run_all(
    cells: &[Cell],
    runs: &[(usize, Contender)],
    how: (Scale, Changes),
    (stop, tick): (&AtomicBool, &dyn Fn(usize)),
) -> Vec<io::Result<f64>> {
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((cell, contender)) = runs.get(at) else { return done };
            done.push((at, run(&cells[*cell], *contender, how, stop).map(|sample| sample.mb_s)));
            ended.fetch_add(1, Ordering::Relaxed);
        }
    };
    let count = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let mut all = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            tick(ended.load(Ordering::Relaxed));
            thread::sleep(TICK);
        }
        tick(runs.len());
        let ended = threads.into_iter().map(|it| it.join().unwrap_or_else(|it| resume_unwind(it)));
        ended.flatten().collect::<Vec<_>>()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, speed)| speed).collect()
}

/// A machine with many drives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Cores, or threads of cores.
    pub cores: u32,
    /// Threads that share a core's cipher unit.
    pub threads_per_core: u32,
    /// Drives; queues take them in turn.
    pub drives: u32,
    /// The drives' timing; `None`: they take no time.
    pub device: Option<&'static Profile>,
    /// The speed of the cipher on each core.
    pub cipher: CipherModel,
    /// All other costs.
    pub costs: Costs,
    /// Virtual time of a run. The first quarter is not measured.
    pub virtual_ns: u64,
}

impl Machine {
    /// Runs a cell, with a queue for each of its jobs.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(&self, cell: &Cell, policy: PolicyKind, stop: &AtomicBool) -> io::Result<Sample> {
        // A cell of as many jobs as the published machine has cores has one for each core of this one.
        let jobs = if cell.jobs == CORES { self.cores } else { cell.jobs };
        let queues = jobs.min(self.cores).max(1);
        let workers = if policy.uses_workers() { self.cores } else { 0 };
        let costs = self.costs;
        let count = |number: u32| number as usize;
        let mut world = World::new(count(self.cores), count(queues), count(workers), costs);
        world.set_threads_per_core(self.threads_per_core);
        let null = || Profile::by_name("null").ok_or_else(|| io::Error::other("no null model"));
        let profile = self.device.map_or_else(null, Ok)?;
        let adaptive = policy == PolicyKind::Adaptive;
        let volumes = (0..self.drives.min(queues).max(1)).map(|drive| {
            let disk = world.empty_disk(profile, LEN, drive.into());
            let segment = Segment { len: LEN, backend_offset: 0, cipher: Some(nothing()?) };
            let options = VolumeOptions {
                policies: policy.into(),
                cipher_model: Some(self.cipher),
                ..VolumeOptions::default()
            };
            let calibration = costs.calibration(&self.cipher);
            let executor = world.executor(adaptive.then_some(self.cores), calibration);
            let volume = Volume::with_executor(disk, vec![segment], options, executor);
            volume.map(Arc::new).map_err(io::Error::other)
        });
        let volumes = volumes.collect::<io::Result<Vec<_>>>()?;
        let measured = Rc::new(RefCell::new(Measured::default()));
        let block = cell.block_bytes as usize;
        let config =
            QueueConfig::new(2 * count(cell.depth) * block.next_power_of_two(), cell.depth);
        for index in 0..count(queues) {
            let queue = world.queue(&volumes[index % volumes.len()], config)?;
            queue.borrow_mut().set_clients_here(true);
            let clients = Mixed {
                cell: cell.clone(),
                random: Rng::with_seed(index as u64 + 1),
                next: 0,
                held: None,
                from_ns: self.virtual_ns / 4,
                until_ns: self.virtual_ns,
                sent: vec![(0, 0); count(cell.depth)],
                free: (0..u64::from(cell.depth)).map(|tag| (tag, 0)).collect(),
                measured: measured.clone(),
            };
            world.attach(index, Box::new(clients));
        }
        let mut events = 0;
        while world.advance() {
            events += 1;
            if events % EVENTS == 0 && stop.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
            }
        }
        let measured = &*measured.borrow();
        if measured.failed > 0 {
            return Err(io::Error::other(format!("{} requests failed", measured.failed)));
        }
        let seconds = (self.virtual_ns - self.virtual_ns / 4) as f64 / 1e9;
        Ok(Sample {
            mb_s: measured.bytes as f64 / 1e6 / seconds,
            seconds,
            load: super::VIRTUAL_TIME.into(),
            ..Sample::of_latencies(&measured.latencies)
        })
    }
}

/// A cipher that changes nothing: its time comes from the model.
fn nothing() -> io::Result<SectorCipher> {
    let spec = CipherSpec::from_str("cipher_null-ecb").map_err(io::Error::other)?;
    let options = SectorOptions { sector_size: 4096, iv_offset: 0, iv_large_sectors: false };
    SectorCipher::new(&spec, &[], options).map_err(io::Error::other)
}

/// The measurements of all queues.
struct Measured {
    latencies: Histogram<u64>,
    bytes: u64,
    failed: u64,
}

impl Default for Measured {
    fn default() -> Self {
        Self { latencies: distribution(), bytes: 0, failed: 0 }
    }
}

/// The clients of one queue, until a point in virtual time.
struct Mixed {
    cell: Cell,
    random: Rng,
    /// The next sequential block.
    next: u64,
    /// The next request, if the queue had no room for it: whether it reads, offset, length.
    held: Option<(bool, u64, u64)>,
    from_ns: u64,
    until_ns: u64,
    /// By tag: when the client had its turn, and the bytes of its request.
    sent: Vec<(u64, u64)>,
    /// Tags without a request in flight, and since when: a client does not wait before its next request, but the
    /// queue may have no room for it yet.
    free: Vec<(u64, u64)>,
    measured: Rc<RefCell<Measured>>,
}

impl Mixed {
    /// Whether the next request reads, and its length.
    fn kind(&mut self) -> (bool, u64) {
        match self.cell.pattern {
            Pattern::RandRw => {
                let is_read = self.random.u32(..100) < 66;
                let is_short = is_read && self.random.u32(..100) < 60;
                (is_read, if is_short { 64 << 10 } else { 1 << 20 })
            }
            Pattern::Read | Pattern::RandRead => (true, self.cell.block_bytes),
            Pattern::Write | Pattern::RandWrite => (false, self.cell.block_bytes),
        }
    }

    fn offset(&mut self, len: u64) -> u64 {
        let blocks = LEN / len;
        match self.cell.pattern {
            Pattern::Read | Pattern::Write => {
                self.next += 1;
                (self.next - 1) % blocks * len
            }
            _ => self.random.u64(..blocks) * len,
        }
    }
}

impl Clients for Mixed {
    fn turn(&mut self, queue: &mut Queue, present: &mut Present<'_>) -> bool {
        let mut any = false;
        while let Some(done) = queue.next_done() {
            any = true;
            present.finish(done.data.as_deref());
            let (at_ns, bytes) = self.sent[done.tag as usize];
            let now_ns = present.now_ns();
            let measured = &mut *self.measured.borrow_mut();
            measured.failed += u64::from(done.result.is_err());
            if (self.from_ns..self.until_ns).contains(&now_ns) {
                measured.latencies.saturating_record(now_ns - at_ns);
                measured.bytes += bytes;
            }
            self.free.push((done.tag, now_ns));
        }
        while present.now_ns() < self.until_ns
            && let Some(&(tag, since_ns)) = self.free.last()
        {
            let (is_read, offset, len) = self.held.take().unwrap_or_else(|| {
                let (is_read, len) = self.kind();
                (is_read, self.offset(len), len)
            });
            let op = if is_read {
                Some(Io::read(offset, len as usize))
            } else {
                queue.alloc(len as usize).map(|data| Io::write(offset, data, false))
            };
            match op.map(|op| queue.submit(tag, op)) {
                Some(Ok(())) => {}
                None | Some(Err(Rejected::Busy(_))) => {
                    self.held = Some((is_read, offset, len));
                    break;
                }
                Some(Err(rejected)) => {
                    self.measured.borrow_mut().failed += 1;
                    debug_assert!(false, "{rejected:?}");
                    break;
                }
            }
            self.free.pop();
            self.sent[tag as usize] = (since_ns, len);
            present.accept();
            any = true;
        }
        if any {
            present.round();
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(virtual_ns: u64) -> Machine {
        Machine {
            cores: 4,
            threads_per_core: 1,
            drives: 2,
            device: None,
            cipher: CIPHER,
            costs: Costs::default(),
            virtual_ns,
        }
    }

    #[test]
    fn a_run_that_fails_leaves_the_others_their_speeds() {
        let go = AtomicBool::new(false);
        let adaptive = Contender::Ucrypt(PolicyKind::Adaptive);
        let runs = [(2, adaptive), (2, Contender::Raw), (2, adaptive)];
        let seen = RefCell::new(Vec::new());
        let tick = |done: usize| seen.borrow_mut().push(done);
        let how = (Scale::Quick, Changes::default());
        let speeds = run_all(&cells(), &runs, how, (&go, &tick));
        let seen = seen.into_inner();
        assert!(seen.is_sorted() && seen.last() == Some(&runs.len()), "{seen:?}");
        let failed: Vec<_> = speeds.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, false], "{speeds:?}");
        assert!(speeds[0].as_ref().is_ok_and(|mb_s| *mb_s > 0.0), "{speeds:?}");
    }

    #[test]
    fn threads_of_one_core_share_its_cipher_unit_and_threads_of_two_do_not() {
        let go = AtomicBool::new(false);
        let cell = &cells()[0];
        let mb_s = |cores, threads_per_core, policy: &str| {
            let machine = Machine { cores, threads_per_core, ..machine(20_000_000) };
            machine.run(cell, policy.parse().expect("a policy"), &go).expect("a run").mb_s
        };
        for policy in ["inline", "unbound", "adaptive"] {
            let (two, four) = (mb_s(2, 1, policy), mb_s(4, 1, policy));
            let shared = mb_s(4, 2, policy);
            // Four threads of two cores encrypt as fast as two cores, not as four.
            assert!(shared < 0.6 * four, "{policy}: {shared} of {four}");
            assert!(shared > 0.8 * two, "{policy}: {shared} of {two}");
        }
        // One client has the unit of its core for itself.
        let one = |threads_per_core| {
            let machine = Machine { threads_per_core, ..machine(20_000_000) };
            machine.run(&cells()[2], "inline".parse().expect("a policy"), &go).expect("a run").mb_s
        };
        assert!((one(2) / one(1) - 1.0).abs() < 0.01, "{} and {}", one(2), one(1));
    }

    #[test]
    fn every_cell_runs_under_every_policy_and_a_second_run_is_the_same() {
        let go = AtomicBool::new(false);
        let small = Machine { cores: 4, drives: 2, ..machine(20_000_000) };
        for cell in cells() {
            for policy in PolicyKind::ALL {
                let run = || small.run(&cell, policy, &go).expect("a run");
                let first = run();
                assert!(first.requests > 0 && first.mb_s > 0.0, "{} {policy}", cell.name);
                assert_eq!(first, run(), "{} {policy}", cell.name);
            }
        }
        let cell = &cells()[0];
        assert!(small.run(cell, PolicyKind::Adaptive, &AtomicBool::new(true)).is_err());
        let how = (Scale::Quick, Changes::default());
        assert!(run(cell, Contender::Raw, how, &go).is_err());
        for policy in PolicyKind::ALL {
            let seen = run(cell, Contender::Ucrypt(policy), how, &go).expect("a run").mb_s / 1000.0;
            // Requests that were begun before the measured time count as a whole.
            assert!(seen < 1.1 * ceiling_gb_s(), "{policy}: {seen}");
        }
    }

    #[test]
    fn changes_of_the_machine_change_the_figures() {
        let go = AtomicBool::new(false);
        let one = &cells()[2];
        let unbound = "ucrypt:unbound".parse().expect("a contender");
        let mb_s = |changes| run(one, unbound, (Scale::Quick, changes), &go).expect("a run").mb_s;
        let none = Changes::default();
        let as_published = mb_s(none);
        assert!(mb_s(Changes { cipher_ns: Some(10.0), ..none }) < 0.5 * as_published);
        assert!(mb_s(Changes { cores: Some(1), ..none }) < 0.9 * as_published);
        assert!(mb_s(Changes { wake_ns: Some(1_000_000), ..none }) < 0.9 * as_published);
        let many = |changes| {
            let inline = "ucrypt:inline".parse().expect("a contender");
            run(&cells()[0], inline, (Scale::Quick, changes), &go).expect("a run")
        };
        let full = many(none).mb_s;
        let shared = many(Changes { threads_per_core: Some(2), ..none }).mb_s;
        assert!(shared < 0.6 * full, "{shared} of {full}");
        // A longer run measures more, at the same speed.
        let longer = many(Changes { virtual_ms: Some(20), cores: Some(8), ..none });
        let shorter = many(Changes { virtual_ms: Some(10), cores: Some(8), ..none });
        assert!(longer.requests > shorter.requests * 3 / 2);
        assert!((longer.mb_s / shorter.mb_s - 1.0).abs() < 0.05, "{}", longer.mb_s);
        assert!(longer.mb_s < 0.3 * full, "as many clients as cores");
        assert_eq!(
            many(Changes { drives: Some(3), ..none }),
            many(Changes { drives: Some(3), ..none })
        );
        assert!(is_fitted(&cells()[0], "unbound") && !is_fitted(&cells()[0], "inline"));
        assert!(is_fitted(one, "inline") && !is_fitted(&cells()[1], "inline"));
    }

    #[test]
    fn one_writer_without_work_queues_runs_at_the_speed_of_one_cores_cipher() {
        let machine = Machine { cores: 8, drives: 1, ..machine(5_000_000) };
        let cells = cells();
        let go = AtomicBool::new(false);
        let mb_s = |policy: &str| {
            machine.run(&cells[2], policy.parse().unwrap(), &go).expect("a run").mb_s
        };
        let inline = mb_s("inline");
        assert!((inline - 1400.0).abs() < 70.0, "{inline}");
        assert!(mb_s("unbound") > 2.0 * inline, "the cores of others help");
    }
}
