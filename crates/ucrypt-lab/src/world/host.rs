//! The machine: time, cores, threads, and the jobs that wait for workers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use ucrypt_engine::{Clock, DoneJob, Job, JobRings, WorkerPool, wakes_worker};

use super::caches::Caches;
use super::cores::{Core, Role, State, Thread, Work};
use super::costs::Costs;
use super::disk::Operation;

/// A core without work for so many nanoseconds sleeps deeply.
const DEEP_NS: u64 = 1_000_000;

/// The next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The core's thread has finished its current work.
    Core(usize),
    /// A thread is ready for its core.
    Wake(usize),
    /// The disk answers.
    Disk(u64),
}

/// How often, and for how long, a core is taken away from its thread: by the host of a virtual
/// machine, or by other programs' threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stalls {
    /// Delayed turns of a thread, per thousand.
    pub per_mille: u32,
    /// The longest stall, in nanoseconds.
    pub max_ns: u64,
}

/// A job and the queue that it came from.
type QueuesJob = (usize, Job);

/// See the module's comment. Threads are numbered: first the queues, then their local workers, then
/// the workers of the pool.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) costs: Costs,
    /// The present time; while a thread runs, that thread's own time.
    pub(super) now_ns: u64,
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    cores: Vec<Core>,
    threads: Vec<Thread>,
    queues: usize,
    workers: usize,
    /// The running thread.
    running: usize,
    /// The queue that is being made, which the disks ask for.
    pub(super) making: usize,
    /// With a lane for each queue's local worker.
    jobs: JobRings<QueuesJob>,
    /// By queue: chunks that workers returned since its last turn.
    pub(super) returned: Vec<u64>,
    pub(super) caches: Caches,
    /// Operations of the disk, by number. No number is used twice: an event may outlive its
    /// operation.
    pub(super) operations: BTreeMap<u64, Operation>,
    next_operation: u64,
    /// Answers of the disk by queue, with the number of the operation.
    pub(super) answers: Vec<Vec<(u64, ucrypt_backend::Done)>>,
    stalls: Stalls,
    random: Rng,
    threads_per_core: usize,
    /// By core: when the last transform on its cipher unit ends. Not used where each core has one
    /// thread.
    units: Vec<u64>,
}

impl Host {
    pub(super) fn new(cores: usize, queues: usize, workers: usize, costs: Costs) -> Self {
        assert!(cores > 0 && queues > 0, "a machine without a core or queue");
        let local = if workers > 0 { queues } else { 0 };
        let roles = (0..queues)
            .map(|queue| (Role::Queue(queue), queue))
            .chain((0..local).map(|queue| (Role::Local(queue), queue)))
            .chain((0..workers).map(|worker| (Role::Pool, queues + worker)));
        let threads: Vec<_> = roles.map(|(role, place)| Thread::new(role, place % cores)).collect();
        let mut all: Vec<_> = (0..cores).map(|_| Core::default()).collect();
        for thread in &threads {
            all[thread.core].threads += 1;
        }
        Self {
            costs,
            now_ns: 0,
            heap: BinaryHeap::new(),
            scheduled: 0,
            cores: all,
            threads,
            queues,
            workers,
            running: 0,
            making: 0,
            jobs: JobRings::new(local),
            returned: vec![0; queues],
            caches: Caches::default(),
            operations: BTreeMap::new(),
            next_operation: 0,
            answers: (0..queues).map(|_| Vec::new()).collect(),
            stalls: Stalls::default(),
            random: Rng::with_seed(0),
            threads_per_core: 1,
            units: Vec::new(),
        }
    }

    pub(super) fn set_threads_per_core(&mut self, threads: u32) {
        self.threads_per_core = (threads as usize).clamp(1, self.cores.len());
        self.units = vec![0; self.cores.len().div_ceil(self.threads_per_core)];
    }

    /// The running thread's transform would end at `until_ns` on a cipher unit of its own; returns
    /// when it ends on the one that it shares.
    fn transform_ends(&mut self, until_ns: u64) -> u64 {
        if self.threads_per_core == 1 {
            return until_ns;
        }
        let core = self.threads[self.running].core % self.units.len();
        let unit = &mut self.units[core];
        let takes_ns = until_ns.saturating_sub(self.now_ns);
        *unit = self.now_ns.max(*unit).saturating_add(takes_ns);
        *unit
    }

    /// Whether another thread of the same core runs.
    fn shares_unit(&self, thread: usize) -> bool {
        if self.threads_per_core == 1 {
            return false;
        }
        let (step, own) = (self.units.len(), self.threads[thread].core);
        let siblings = (own % step..self.cores.len()).step_by(step);
        siblings.filter(|core| *core != own).any(|core| !self.cores[core].is_idle())
    }

    pub(super) fn set_stalls(&mut self, stalls: Stalls, seed: u64) {
        (self.stalls, self.random) = (stalls, Rng::with_seed(seed));
    }

    pub(super) fn set_running(&mut self, queue: usize) {
        self.running = queue;
    }

    pub(super) fn queues(&self) -> usize {
        self.queues
    }

    pub(super) fn has_workers(&self) -> bool {
        self.workers > 0
    }

    /// The core of a queue.
    pub(super) fn core_of(&self, queue: usize) -> usize {
        self.threads[queue].core
    }

    /// The share of the cores' time in which something ran on them.
    pub(super) fn busy(&self) -> f64 {
        let busy_ns: u64 = self.cores.iter().map(|core| core.busy_ns).sum();
        busy_ns as f64 / (self.now_ns.max(1) as f64 * self.cores.len() as f64)
    }

    /// Registers an operation of the disk that ends at `at_ns`; returns its number.
    pub(super) fn operation(&mut self, at_ns: u64, operation: Operation) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        self.operations.insert(number, operation);
        self.schedule(at_ns, Event::Disk(number));
        number
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((at_ns, self.scheduled, event)));
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        let Reverse((at_ns, _, event)) = self.heap.pop()?;
        self.now_ns = at_ns;
        Some(event)
    }

    /// Makes a sleeping thread run after `latency_ns`. Returns whether it slept.
    pub(super) fn wake(&mut self, thread: usize, latency_ns: u64) -> bool {
        let asleep = self.is_asleep(thread);
        if asleep {
            self.threads[thread].state = State::Waking;
            self.schedule(self.now_ns + latency_ns, Event::Wake(thread));
        }
        asleep
    }

    pub(super) fn is_asleep(&self, thread: usize) -> bool {
        matches!(self.threads[thread].state, State::Asleep(_))
    }

    fn slept_ns(&self, thread: usize) -> Option<u64> {
        match self.threads[thread].state {
            State::Asleep(since_ns) => Some(self.now_ns.saturating_sub(since_ns)),
            _ => None,
        }
    }

    /// The running thread wakes the thread `target` if it sleeps.
    pub(super) fn rouse(&mut self, target: usize) {
        let Some(slept_ns) = self.slept_ns(target) else { return };
        let Costs { spin, spin_wake, wake, wake_deep, wake_call, .. } = self.costs;
        let (from, core) = (self.running, self.threads[target].core);
        if self.cores[core].running == Some(from) {
            // Both share a core: no wake-up across cores.
            self.threads[target].waits = true;
            self.threads[from].debt_ns += wake_call;
            self.wake(target, 0);
        } else if slept_ns < spin && self.cores[core].is_idle() {
            self.cores[core].busy_ns += slept_ns;
            self.wake(target, spin_wake);
        } else {
            self.threads[from].debt_ns += wake_call;
            let deep = slept_ns >= DEEP_NS;
            self.wake(target, if deep { wake + wake_deep } else { wake });
        }
    }

    pub(super) fn awake(&mut self, thread: usize) {
        let Thread { role, core, waits, .. } = self.threads[thread];
        (self.threads[thread].state, self.threads[thread].waits) = (State::Awake, false);
        self.cores[core].add(thread, role, waits);
        if self.cores[core].is_idle() {
            self.switch(core);
        }
    }

    /// Gives a free core to the next thread that wants it.
    fn switch(&mut self, core: usize) {
        let Some(changed) = self.cores[core].pick(self.now_ns) else { return };
        let cost_ns = if changed { self.costs.switch } else { 0 };
        self.cores[core].busy_ns += cost_ns;
        self.schedule(self.now_ns + cost_ns, Event::Core(core));
    }

    /// The thread of a core; and the job that it has just completed, if any.
    pub(super) fn finish_work(&mut self, core: usize) -> Option<(usize, Option<(usize, DoneJob)>)> {
        let thread = self.cores[core].running?;
        self.running = thread;
        let over = self.threads[thread].work.take_if(|work| work.left_ns == 0);
        Some((thread, over.and_then(|work| work.done)))
    }

    /// The role in which a core's thread starts its next work, and the time. The inner `None`: it
    /// continues its current work; the outer `None`: it has to yield.
    pub(super) fn take_turn(&mut self, core: usize, thread: usize) -> Option<(Option<Role>, u64)> {
        let role = self.threads[thread].role;
        if self.cores[core].must_yield(role, self.now_ns) {
            self.cores[core].put_back();
            self.switch(core);
            return None;
        }
        let is_free = self.threads[thread].work.is_none();
        Some((is_free.then_some(role), self.now_ns))
    }

    /// Ends a turn, which took until now.
    pub(super) fn begin_work(
        &mut self,
        core: usize,
        thread: usize,
        start_ns: u64,
        goes_on: bool,
        done: Option<(usize, DoneJob)>,
    ) {
        let spent_ns = self.now_ns.saturating_sub(start_ns);
        self.now_ns = start_ns;
        let stall_ns = if goes_on { self.stall_ns() } else { 0 };
        let this = &mut self.threads[thread];
        let spent_ns = spent_ns + stall_ns + std::mem::take(&mut this.debt_ns);
        match &mut this.work {
            Some(work) => work.left_ns += spent_ns,
            None if goes_on || spent_ns > 0 => this.work = Some(Work { left_ns: spent_ns, done }),
            None => {}
        }
        let Some(work) = &mut this.work else {
            this.state = State::Asleep(start_ns);
            self.cores[core].running = None;
            return self.switch(core);
        };
        let quantum_ns = self.cores[core].quantum(work.left_ns);
        work.left_ns -= quantum_ns;
        self.cores[core].busy_ns += quantum_ns;
        self.schedule(start_ns + quantum_ns, Event::Core(core));
    }

    fn stall_ns(&mut self) -> u64 {
        let Stalls { per_mille, max_ns } = self.stalls;
        if per_mille > 0 && self.random.u32(..1000) < per_mille {
            self.random.u64(..=max_ns)
        } else {
            0
        }
    }

    /// Takes a job for a worker.
    pub(super) fn take_job(&mut self, role: Role) -> Option<QueuesJob> {
        match role {
            Role::Local(queue) => self.jobs.take_from(queue),
            _ => self.jobs.take(),
        }
    }

    /// A worker found no job. Local workers spin in vain before they sleep, for the spin time.
    /// (Workers of the pool spin where nobody waits for their core; here they count as asleep
    /// meanwhile.)
    pub(super) fn spin_in_vain(&mut self, role: Role) {
        let this = &mut self.threads[self.running];
        if matches!(role, Role::Local(_)) && !std::mem::replace(&mut this.has_spun, true) {
            this.debt_ns += self.costs.spin + self.costs.sleep;
        }
    }

    fn pool(&self) -> std::ops::Range<usize> {
        self.threads.len() - self.workers..self.threads.len()
    }

    /// Wakes a sleeping worker, if the engine's pool would or if one still spins: preferably one
    /// whose core is free, and all threads of that; of these one that still spins.
    fn wake_worker(&mut self, wakes: bool) {
        let asleep: Vec<_> = self
            .pool()
            .filter_map(|worker| {
                let slept_ns = self.slept_ns(worker)?;
                let busy = !self.cores[self.threads[worker].core].is_idle();
                Some((busy, self.shares_unit(worker), slept_ns, worker))
            })
            .collect();
        let spins = asleep.iter().any(|&(_, _, slept_ns, _)| slept_ns < self.costs.spin);
        if !spins && !wakes_worker(wakes, asleep.len() as u32, self.workers as u32) {
            return;
        }
        if let Some(&(.., worker)) = asleep.iter().min() {
            self.rouse(worker);
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut text =
            format!("at {} ns, {} jobs wait for workers", self.now_ns, self.jobs.waiting());
        for (index, thread) in self.threads.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  thread {index}: {:?}, {:?}", thread.role, thread.state);
        }
        text
    }
}

/// The host, shared by its threads.
#[derive(Debug)]
pub(super) struct SharedHost(Mutex<Host>);

impl SharedHost {
    pub(super) fn new(host: Host) -> Self {
        Self(Mutex::new(host))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Host> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SharedHost {
    fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    fn spin_until(&self, until_ns: u64) {
        let mut host = self.lock();
        let until_ns = host.transform_ends(until_ns);
        host.now_ns = host.now_ns.max(until_ns);
    }
}

impl WorkerPool for SharedHost {
    fn count(&self) -> u32 {
        self.lock().workers as u32
    }

    fn idle(&self) -> u32 {
        let host = self.lock();
        let sleeps = |worker: &usize| host.slept_ns(*worker) >= Some(host.costs.spin);
        host.pool().filter(sleeps).count() as u32
    }

    fn offload(&self, job: Job, wakes: bool) -> Result<(), Job> {
        let mut host = self.lock();
        // Only queues offload.
        host.jobs.push((host.running, job)).map_err(|(_, job)| job)?;
        host.now_ns += host.costs.enqueue;
        host.wake_worker(wakes);
        Ok(())
    }

    fn offload_same_core(&self, job: Job) -> Result<(), Job> {
        let mut host = self.lock();
        let queue = host.running;
        host.jobs.push_to(queue, (queue, job)).map_err(|(_, job)| job)?;
        host.now_ns += host.costs.enqueue;
        let local = host.queues + queue;
        host.threads[local].has_spun = false;
        if host.wake(local, 0) {
            // The queue spins in vain before it sleeps.
            host.now_ns += host.costs.wake_call + host.costs.spin + host.costs.sleep;
        }
        Ok(())
    }

    fn take(&self) -> Option<Job> {
        // The simulator gives jobs to queues in turns of their own (`World::queue_turn`).
        None
    }
}
