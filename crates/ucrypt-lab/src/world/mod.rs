//! The engine in virtual time: the shipped [`ucrypt_engine::Queue`], on simulated cores over a
//! simulated disk.
//!
//! There is no thread and no clock. Time is a number of nanoseconds that advances between the steps
//! of the queues ([`Queue::step`]) and where the engine reports work: the cipher takes the time of
//! its [`CipherModel`](ucrypt_engine::CipherModel), the rest that of [`Costs`]. The same calls give
//! the same run, event by event. If no event is left while requests are under way, the world is in
//! a deadlock.
//!
//! # What is modelled
//! - Cores run one thread at a time: queues (bound to cores), workers of the pool, and one worker
//!   for each queue on its own core. Sleeping threads take time to wake; changing threads costs
//!   time; a thread keeps its core for a slice while others wait; a woken queue preempts a worker.
//! - The effects of a queue's step are visible to others from its beginning; the step occupies the
//!   core until its end.
//! - The engine's own code decides whether a queue may sleep and what wakes it: a sleeping queue
//!   runs when its descriptor is readable, or its disk answers.
//! - Data that a worker has transformed lies in its core's cache: copying it from there takes
//!   longer.
//! - A disk in memory can be used in place; that takes no time but the cipher's.
//! - Threads of one core share its cipher unit ([`World::set_threads_per_core`]), which carries out one
//!   transform after the other. All else of a core each thread has for itself.
//! - Memory bandwidth and frequency changes are not modelled.
//!
//! # What of the engine does not run here
//! What blocks a thread: `Queue::wait` with the sleep in it (its decisions do run: [`Queue::may_sleep`], what wakes
//! a queue, and `World::queue_turn` gives a queue others' jobs as `wait` does), the threads of the worker pool, and the
//! spinning and waiting for two descriptors of the exports.

mod caches;
mod content;
mod cores;
mod costs;
mod disk;
mod host;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use ucrypt_backend::model::Profile;
use ucrypt_engine::{Calibration, DoneJob, Executor, Queue, QueueConfig, Volume};

use caches::addresses;
use cores::Role;
pub use costs::{Copying, Costs};
pub use disk::VirtualDisk;
pub use host::Stalls;
use host::{Host, SharedHost};

/// The clients of a queue, on the queue's own thread.
pub(crate) trait Clients {
    /// Takes answers and sends requests. Returns whether there was anything to do.
    fn turn(&mut self, queue: &mut Queue, present: &mut Present<'_>) -> bool;
}

/// The time of a turn, which advances with the work done in it.
pub(crate) struct Present<'a> {
    host: &'a SharedHost,
    queue: usize,
}

impl Present<'_> {
    pub(crate) fn now_ns(&self) -> u64 {
        self.host.lock().now_ns
    }

    /// Counts the cost of accepting a request.
    pub(crate) fn accept(&mut self) {
        let mut host = self.host.lock();
        host.now_ns += host.costs.accept;
    }

    /// Counts the cost of answering a client, with the data that it has read.
    pub(crate) fn finish(&mut self, data: Option<&[u8]>) {
        let mut host = self.host.lock();
        let at = addresses(data.unwrap_or_default());
        let (core, bytes) = (host.core_of(self.queue), at.len() as u64);
        let carried = host.caches.take(at, core);
        host.now_ns += host.costs.finish_ns(bytes, carried);
    }

    /// Counts the cost of a round of the loop.
    pub(crate) fn round(&mut self) {
        let mut host = self.host.lock();
        host.now_ns += host.costs.round;
    }
}

/// A machine, its disk, and its queues.
pub struct World {
    host: Arc<SharedHost>,
    queues: Vec<Rc<RefCell<Queue>>>,
    /// By queue; `None`: the caller that drives the world submits requests.
    clients: Vec<Option<Box<dyn Clients>>>,
    /// The descriptors that end the queues' sleep, each with its queue: one call asks for all.
    signals: OwnedFd,
    /// Room for the answer.
    signalled: Vec<epoll::Event>,
}

impl World {
    /// A machine of `cores` cores with `workers` workers in its pool, and room for `queues` queues.
    ///
    /// # Panics
    /// If there is no core or queue, or this process may open no more files.
    pub fn new(cores: usize, queues: usize, workers: usize, costs: Costs) -> Self {
        let host = Arc::new(SharedHost::new(Host::new(cores, queues, workers, costs)));
        let signals = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
        let clients = (0..queues).map(|_| None).collect();
        let signalled = Vec::with_capacity(queues);
        Self { host, queues: Vec::new(), clients, signals, signalled }
    }

    /// From now on each `threads` of the machine's cores are the threads of one core: their
    /// transforms take turns on its cipher unit. They are numbered as Linux does on most machines:
    /// first one thread of every core, then the next one of every core.
    pub fn set_threads_per_core(&self, threads: u32) {
        self.host.lock().set_threads_per_core(threads);
    }

    /// From now on cores are taken away from their threads.
    pub fn set_stalls(&self, stalls: Stalls, seed: u64) {
        self.host.lock().set_stalls(stalls, seed);
    }

    /// The executor for a volume of this world. `cores`: the cores that workers and queues share;
    /// `None` if workers are used whatever that costs others.
    pub fn executor(&self, cores: Option<u32>, calibration: Calibration) -> Executor {
        let workers = self.host.lock().has_workers();
        Executor {
            clock: self.host.clone(),
            workers: workers.then(|| self.host.clone() as Arc<dyn ucrypt_engine::WorkerPool>),
            cores,
            calibration,
        }
    }

    /// A disk of `len` bytes with that model's timing and with content, initially zeroes.
    pub fn disk(&self, profile: &'static Profile, len: u64, seed: u64) -> Arc<VirtualDisk> {
        Arc::new(VirtualDisk::new(self.host.clone(), profile, len, true, seed))
    }

    /// A disk without content: it has the timing only.
    pub fn empty_disk(&self, profile: &'static Profile, len: u64, seed: u64) -> Arc<VirtualDisk> {
        Arc::new(VirtualDisk::new(self.host.clone(), profile, len, false, seed))
    }

    /// A disk of `len` bytes of memory, initially holes, which can be used in place until the
    /// mapping breaks at its `breaks_at`-th use; `None`: it never breaks.
    ///
    /// # Panics
    /// If there is no model of memory.
    pub fn memory(&self, len: u64, breaks_at: Option<u64>) -> Arc<VirtualDisk> {
        let profile = Profile::by_name("null").expect("a model that takes no time");
        let disk = VirtualDisk::new(self.host.clone(), profile, len, true, 0);
        Arc::new(disk.mapped(breaks_at))
    }

    /// Creates the next of the world's queues, over a volume on any of its disks.
    ///
    /// # Errors
    /// The errors of the volume.
    ///
    /// # Panics
    /// If none is left.
    pub fn queue(
        &mut self,
        volume: &Arc<Volume>,
        config: QueueConfig,
    ) -> std::io::Result<Rc<RefCell<Queue>>> {
        assert!(self.queues.len() < self.host.lock().queues(), "no more queues were announced");
        self.host.lock().making = self.queues.len();
        let queue = volume.queue(config)?;
        let data = epoll::EventData::new_u64(self.queues.len() as u64);
        epoll::add(&self.signals, queue.wait_fd(), data, epoll::EventFlags::IN)?;
        let queue = Rc::new(RefCell::new(queue));
        self.queues.push(queue.clone());
        Ok(queue)
    }

    /// Attaches the clients of a queue, which begin at once.
    pub(crate) fn attach(&mut self, queue: usize, clients: Box<dyn Clients>) {
        self.clients[queue] = Some(clients);
        self.call(queue);
    }

    /// Something was submitted to a queue: its thread is woken if it sleeps.
    pub fn call(&self, queue: usize) {
        self.host.lock().wake(queue, 0);
    }

    /// Until the world advances, all actions are those of this queue's thread.
    pub fn act_for(&self, queue: usize) {
        self.host.lock().set_running(queue);
    }

    /// The present, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.host.lock().now_ns
    }

    /// The share of the cores' time in which something ran on them, 0 to 1.
    pub fn busy(&self) -> f64 {
        self.host.lock().busy()
    }

    /// Carries out the next event. Returns whether there was one.
    pub fn advance(&mut self) -> bool {
        let Some(event) = self.host.lock().next_event() else { return false };
        match event {
            host::Event::Core(core) => self.core_event(core),
            host::Event::Wake(thread) => self.host.lock().awake(thread),
            host::Event::Disk(operation) => {
                let mut host = self.host.lock();
                if let Some(queue) = host.disk_answers(operation) {
                    let latency_ns = host.costs.interrupt;
                    host.wake(queue, latency_ns);
                }
            }
        }
        true
    }

    /// The state of each thread, to report a hang.
    pub fn describe(&self) -> String {
        self.host.lock().describe()
    }

    /// A core's thread has finished its work, or has just got the core.
    fn core_event(&mut self, core: usize) {
        let Some((thread, done)) = self.host.lock().finish_work(core) else { return };
        if let Some((queue, done)) = done {
            done.deliver();
            self.host.lock().returned[queue] += 1;
            // Before the thread yields to another.
            self.wake_signalled();
        }
        let Some((role, start_ns)) = self.host.lock().take_turn(core, thread) else { return };
        let (goes_on, done) = match role {
            None => (true, None),
            Some(Role::Queue(queue)) => self.queue_turn(queue),
            Some(role) => self.worker_turn(role, core),
        };
        self.wake_signalled();
        let mut host = self.host.lock();
        host.begin_work(core, thread, start_ns, goes_on, done);
        // The queue's descriptor may have become readable before it went to sleep.
        if host.is_asleep(thread)
            && self.queues.get(thread).is_some_and(|queue| is_signalled(queue))
        {
            host.wake(thread, 0);
        }
    }

    /// Runs one step of a queue. Returns whether the queue continues, and a job that it does for
    /// the workers.
    fn queue_turn(&mut self, index: usize) -> (bool, Option<(usize, DoneJob)>) {
        let Some(queue) = self.queues.get(index) else { return (false, None) };
        let mut queue = queue.borrow_mut();
        {
            let mut host = self.host.lock();
            let returned = std::mem::take(&mut host.returned[index]);
            host.now_ns += returned * host.costs.enqueue;
        }
        match queue.step() {
            Ok(true) => return (true, None),
            Ok(false) => {}
            Err(error) => panic!("the queue's backend is broken: {error}"),
        }
        let mut present = Present { host: &self.host, queue: index };
        if let Some(clients) = &mut self.clients[index]
            && clients.turn(&mut queue, &mut present)
        {
            return (true, None);
        }
        let job = self.host.lock().take_job(Role::Queue(index));
        if let Some((of, job)) = job {
            return (true, Some((of, queue.run(job))));
        }
        // A queue with an answer for its client continues when the client has taken it and called.
        (!queue.has_done() && !queue.may_sleep(), None)
    }

    fn worker_turn(&mut self, role: Role, core: usize) -> (bool, Option<(usize, DoneJob)>) {
        let mut host = self.host.lock();
        let Some((queue, job)) = host.take_job(role) else {
            host.spin_in_vain(role);
            return (false, None);
        };
        for bytes in job.memory() {
            host.caches.put(addresses(bytes), core);
        }
        host.now_ns += host.costs.enqueue;
        drop(host);
        (true, Some((queue, job.run())))
    }

    /// Wakes the sleeping queues whose descriptor became readable.
    fn wake_signalled(&mut self) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.signalled.clear();
        let room = rustix::buffer::spare_capacity(&mut self.signalled);
        if epoll::wait(&self.signals, room, Some(&at_once)).is_err() || self.signalled.is_empty() {
            return;
        }
        // The order in which the kernel names them is not that of another run.
        self.signalled.sort_unstable_by_key(|event| event.data.u64());
        for event in &self.signalled {
            let index = event.data.u64() as usize;
            let has_done = self.queues.get(index).is_none_or(|queue| queue.borrow().has_done());
            let mut host = self.host.lock();
            if !has_done && host.is_asleep(index) {
                host.rouse(index);
            }
        }
    }
}

/// Whether the descriptor that ends a queue's sleep is readable. A queue with an answer for its
/// client ignores the descriptor and waits for the client.
fn is_signalled(queue: &RefCell<Queue>) -> bool {
    let queue = queue.borrow();
    if queue.has_done() {
        return false;
    }
    let mut fds = [PollFd::from_borrowed_fd(queue.wait_fd(), PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}
