//! The engine in virtual time: the same [`ucrypt_engine::Queue`] that ships, on simulated cores over a
//! simulated disk.
//!
//! There is no thread and no clock: time is a number of nanoseconds that passes between the steps of
//! the queues ([`Queue::step`]), and where the engine says what takes time: the cipher by its
//! [`CipherModel`](ucrypt_engine::CipherModel), the rest by [`Costs`]. The same calls give the same run,
//! event by event. A world in which no event is left while requests are under way is a deadlock.
//!
//! # What is modelled
//! - Cores run one thread at a time: queues (bound to cores), workers of the pool, and one worker
//!   for each queue on its own core. Sleeping threads take time to wake; changing threads costs
//!   time; a thread keeps its core for a slice while others wait; a queue that is woken preempts a worker.
//! - What a step of a queue does, others see from its beginning on; it takes the core until its end.
//! - Whether a queue may sleep, and what wakes it, is the engine's own code: a sleeping queue runs when
//!   its descriptor is readable, or its disk answers.
//! - Caches, memory bandwidth, hyperthreads and frequency changes are not modelled.

mod disk;
mod host;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ucrypt_backend::model::Profile;
use ucrypt_engine::{Calibration, DoneJob, Executor, Queue, QueueConfig, Volume};

pub use disk::VirtualDisk;
use host::{Host, SharedHost};

pub use crate::sim::Costs;
use crate::sim::Role;

/// A machine, its disk, and the queues that were made on it.
pub struct World {
    host: Arc<SharedHost>,
    queues: Vec<Rc<RefCell<Queue>>>,
}

impl World {
    /// A machine of `cores` cores with so many workers (of the pool), which is about to have `queues`
    /// queues.
    pub fn new(cores: usize, queues: usize, workers: usize, costs: Costs) -> Self {
        let host = Arc::new(SharedHost::new(Host::new(cores, queues, workers, costs)));
        Self { host, queues: Vec::new() }
    }

    /// What a volume of this world needs of it.
    pub fn executor(&self, calibration: Calibration) -> Executor {
        let workers = self.host.lock().has_workers();
        Executor {
            clock: self.host.clone(),
            workers: workers.then(|| self.host.clone() as Arc<dyn ucrypt_engine::WorkerPool>),
            cores: None,
            calibration,
        }
    }

    /// A disk of `len` bytes of that model, with content: zeroes at first.
    pub fn disk(&self, profile: &'static Profile, len: u64, seed: u64) -> Arc<VirtualDisk> {
        Arc::new(VirtualDisk::new(self.host.clone(), profile, len, seed))
    }

    /// The next of the queues that were announced.
    ///
    /// # Errors
    /// Those of the volume.
    ///
    /// # Panics
    /// If none is left.
    pub fn queue(
        &mut self,
        volume: &Arc<Volume>,
        config: QueueConfig,
    ) -> std::io::Result<Rc<RefCell<Queue>>> {
        assert!(self.queues.len() < self.host.lock().queues(), "no more queues were announced");
        let queue = Rc::new(RefCell::new(volume.queue(config)?));
        self.queues.push(queue.clone());
        Ok(queue)
    }

    /// Something was submitted to a queue: its thread looks, if it sleeps.
    pub fn call(&self, queue: usize) {
        self.host.lock().wake(queue, 0);
    }

    /// The present, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.host.lock().now_ns
    }

    /// Lets the next thing happen. Returns whether there was anything.
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
        self.wake_signalled();
        true
    }

    /// What each thread is at, for the report of a hang.
    pub fn describe(&self) -> String {
        self.host.lock().describe()
    }

    /// A core's thread has done what it was at, or has just got the core.
    fn core_event(&mut self, core: usize) {
        let Some((thread, done)) = self.host.lock().finish_work(core) else { return };
        if let Some(done) = done {
            done.deliver();
        }
        let Some((role, start_ns)) = self.host.lock().take_turn(core, thread) else { return };
        let (goes_on, done) = match role {
            None => (true, None),
            Some(Role::Queue(queue)) => self.queue_turn(queue),
            Some(role) => self.worker_turn(role),
        };
        self.host.lock().begin_work(core, thread, start_ns, goes_on, done);
    }

    /// One step of a queue. Returns whether it goes on, and a job that it does for the workers.
    fn queue_turn(&mut self, index: usize) -> (bool, Option<DoneJob>) {
        let Some(queue) = self.queues.get(index) else { return (false, None) };
        let mut queue = queue.borrow_mut();
        match queue.step() {
            Ok(true) => return (true, None),
            Ok(false) => {}
            Err(error) => panic!("the queue's backend is broken: {error}"),
        }
        let job = self.host.lock().jobs.pop_front();
        if let Some(job) = job {
            return (true, Some(job.run()));
        }
        // Who has an answer for its client goes on when that has taken it, and called.
        (!queue.has_done() && !queue.may_sleep(), None)
    }

    fn worker_turn(&mut self, role: Role) -> (bool, Option<DoneJob>) {
        let job = self.host.lock().take_job(role);
        match job {
            Some(job) => {
                let done = job.run();
                let mut host = self.host.lock();
                host.now_ns += host.costs.enqueue;
                (true, Some(done))
            }
            None => (false, None),
        }
    }

    /// Wakes the sleeping queues whose descriptor became readable.
    fn wake_signalled(&self) {
        for (index, queue) in self.queues.iter().enumerate() {
            if !self.host.lock().is_asleep(index) {
                continue;
            }
            let queue = queue.borrow();
            let mut fds = [PollFd::from_borrowed_fd(queue.wait_fd(), PollFlags::IN)];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0) {
                self.host.lock().rouse(index);
            }
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}
