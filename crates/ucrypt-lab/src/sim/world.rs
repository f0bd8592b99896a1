//! The event loop: time, threads that wake and sleep, and the measured window.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::client::Client;
use super::cores::{Core, CryptJob, Role, State, Thread};
use super::disk::Disk;
use super::experiment::Experiment;
use super::judge::Judge;
use super::queue::Queue;
use super::random::Random;
use super::report::{Latency, Report};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The core's thread has done what it was at.
    Core(usize),
    /// A thread wants its core.
    Wake(usize),
    /// The disk answers.
    Disk(usize),
}

/// Complaints that are kept.
const VIOLATIONS_MAX: usize = 8;

/// A run that takes longer than this is stuck in a circle.
const EVENTS_MAX: u64 = 200_000_000;

/// What is counted for the report.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// A client's job is done: from here on the depth is not kept.
    pub(crate) over: bool,
    /// Of the requests in `reads` and `writes`.
    pub(crate) bytes: u64,
    pub(crate) latencies_ns: u64,
    pub(crate) reads: Vec<u64>,
    pub(crate) writes: Vec<u64>,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) lost: u64,
}

pub(crate) struct World<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) now: u64,
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    events: u64,
    trace: u64,
    pub(crate) random: Random,
    pub(crate) cores: Vec<Core>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) queues: Vec<Queue>,
    /// The workers of the pool, as threads.
    pub(crate) pool: std::ops::Range<usize>,
    /// Workers of the pool that sleep.
    pub(crate) idle_workers: u32,
    pub(crate) jobs: VecDeque<CryptJob>,
    pub(crate) local_jobs: Vec<VecDeque<CryptJob>>,
    pub(crate) disk: Disk,
    pub(crate) judge: Judge,
    pub(crate) measured: Measured,
    violations: Vec<String>,
}

impl<'a> World<'a> {
    pub(crate) fn new(experiment: &'a Experiment) -> Self {
        assert!(experiment.cores > 0 && experiment.queues > 0, "a machine without a core or queue");
        let (cores, queues) = (experiment.cores as usize, experiment.queues as usize);
        let workers = experiment.workers as usize;
        let mut threads = Vec::new();
        let mut add = |role, core| {
            threads.push(Thread {
                role,
                core,
                state: State::Asleep(0),
                work: None,
                debt_ns: 0,
                waits: false,
                spins: false,
            });
        };
        (0..queues).for_each(|queue| add(Role::Queue(queue), queue % cores));
        (0..queues).for_each(|queue| add(Role::Local(queue), queue % cores));
        (0..workers).for_each(|worker| add(Role::Pool, (queues + worker) % cores));
        let queue = |index: usize| {
            let of = (index as u64, queues as u64);
            let client =
                Client::new(experiment.job, experiment.sector_sectors, of, experiment.seed);
            Queue::new(experiment, client, index, queues + index)
        };
        let mut world = Self {
            experiment,
            now: 0,
            heap: BinaryHeap::new(),
            scheduled: 0,
            events: 0,
            trace: 0,
            random: Random::new(experiment.seed, 2),
            cores: (0..cores).map(|_| Core::default()).collect(),
            queues: (0..queues).map(queue).collect(),
            pool: 2 * queues..2 * queues + workers,
            idle_workers: experiment.workers,
            jobs: VecDeque::new(),
            local_jobs: vec![VecDeque::new(); queues],
            disk: Disk::new(experiment),
            judge: Judge::new(),
            measured: Measured::default(),
            violations: Vec::new(),
            threads,
        };
        world.count_threads();
        world
    }

    fn count_threads(&mut self) {
        let local = self.experiment.policy.uses_workers();
        for thread in &self.threads {
            let counts = local || !matches!(thread.role, Role::Local(_));
            self.cores[thread.core].threads += u32::from(counts);
        }
    }

    pub(crate) fn run(mut self) -> Report {
        self.start_clients();
        while let Some(Reverse((at, _, event))) = self.heap.pop() {
            self.now = at;
            self.events += 1;
            self.note(event);
            match event {
                Event::Core(core) => self.core_event(core),
                Event::Wake(thread) => self.awake(thread),
                Event::Disk(operation) => self.disk_answers(operation, true),
            }
            if self.experiment.faults.crash_at == Some(self.events) {
                self.crash();
            }
            if !self.violations.is_empty() || self.events > EVENTS_MAX {
                break;
            }
        }
        let done = self.queues.iter().all(Queue::is_done);
        if !done && self.violations.is_empty() {
            self.complain("a request never ends");
        }
        self.report()
    }

    fn start_clients(&mut self) {
        for queue in 0..self.queues.len() {
            for _ in 0..self.experiment.job.depth {
                self.send(queue);
            }
            self.wake(self.queues[queue].thread, 0);
        }
    }

    /// The clients of a queue send their next request, if the job is not done.
    pub(crate) fn send(&mut self, queue: usize) {
        let state = &mut self.queues[queue];
        match state.client.next() {
            Some(request) => state.send(request, &mut self.judge, self.now),
            None => self.measured.over = true,
        }
    }

    pub(crate) fn schedule(&mut self, at: u64, event_core: usize) {
        self.push(at, Event::Core(event_core));
    }

    pub(crate) fn schedule_answer(&mut self, at: u64, operation: usize) {
        self.push(at, Event::Disk(operation));
    }

    fn push(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((at, self.scheduled, event)));
    }

    /// Mixes the event into the trace.
    fn note(&mut self, event: Event) {
        let (kind, index) = match event {
            Event::Core(core) => (1, core),
            Event::Wake(thread) => (2, thread),
            Event::Disk(operation) => (3, operation),
        };
        for word in [self.now, kind, index as u64] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    pub(crate) fn complain(&mut self, what: &str) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(format!("at {} ns, event {}: {what}", self.now, self.events));
        }
    }

    /// Has a sleeping thread run after `latency_ns`. Returns whether it slept.
    pub(crate) fn wake(&mut self, thread: usize, latency_ns: u64) -> bool {
        let asleep = matches!(self.threads[thread].state, State::Asleep(_));
        if asleep {
            if self.threads[thread].role == Role::Pool {
                self.idle_workers -= 1;
            }
            self.threads[thread].state = State::Waking;
            self.push(self.now + latency_ns, Event::Wake(thread));
        }
        asleep
    }

    fn awake(&mut self, thread: usize) {
        let Thread { role, core, waits, .. } = self.threads[thread];
        (self.threads[thread].state, self.threads[thread].waits) = (State::Awake, false);
        self.cores[core].add(thread, role, waits);
        if self.cores[core].is_idle() {
            self.switch(core);
        }
    }

    /// Gives a free core to the next thread that wants it.
    pub(crate) fn switch(&mut self, core: usize) {
        if let Some(changed) = self.cores[core].pick(self.now) {
            let cost = if changed { self.experiment.costs.switch } else { 0 };
            self.cores[core].busy_ns += cost;
            self.schedule(self.now + cost, core);
        }
    }

    /// The power fails, and everything starts again from what the medium kept.
    fn crash(&mut self) {
        self.heap.clear();
        let content = self.disk.crash();
        let illegal = content
            .touched()
            .find(|&sector| !self.judge.may_survive(sector, content.read(sector)))
            .map(|sector| format!("sector {sector} survives as version {}", content.read(sector)));
        for (sector, version) in self.judge.restart(content.touched()) {
            content.rename(sector, version);
        }
        if let Some(illegal) = illegal {
            self.complain(&illegal);
        }
        for thread in &mut self.threads {
            (thread.state, thread.work, thread.debt_ns) = (State::Asleep(self.now), None, 0);
            (thread.waits, thread.spins) = (false, false);
        }
        self.cores.iter_mut().for_each(|core| *core = Core::default());
        self.count_threads();
        self.idle_workers = self.experiment.workers;
        self.jobs.clear();
        self.local_jobs.iter_mut().for_each(VecDeque::clear);
        for queue in &mut self.queues {
            self.measured.lost += queue.restart(self.experiment);
        }
        self.start_clients();
    }

    fn report(mut self) -> Report {
        let measured = &mut self.measured;
        // Clients that do not think keep their depth: what is in flight, over how long it takes
        // (Little's law). Unlike a count in a window, it does not depend on where bursts begin.
        let clients = self.experiment.queues * self.experiment.job.depth;
        let in_flight = f64::from(clients) * measured.bytes as f64;
        let busy_ns: u64 = self.cores.iter().map(|core| core.busy_ns).sum();
        let mut tally = ucrypt_dispatch::Tally::default();
        for of in self.queues.iter().map(|queue| queue.machine.tally()) {
            tally.whole += of.whole;
            tally.cut += of.cut;
            tally.joined += of.joined;
            tally.here += of.here;
            tally.handed += of.handed;
            tally.kept += of.kept;
            tally.given += of.given;
        }
        Report {
            mb_s: in_flight * 1000.0 / measured.latencies_ns.max(1) as f64,
            reads: Latency::of(&mut measured.reads),
            writes: Latency::of(&mut measured.writes),
            busy: busy_ns as f64 / (self.now.max(1) as f64 * self.cores.len() as f64),
            tally,
            end_ns: self.now,
            events: self.events,
            finished: measured.finished,
            failed: measured.failed,
            lost: measured.lost,
            trace: self.trace,
            violations: self.violations,
        }
    }
}
