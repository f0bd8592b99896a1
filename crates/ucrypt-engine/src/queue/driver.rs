//! The loop: carries out the machine's outputs and reports results to the machine.

use std::io;

use ucrypt_backend::{Done as Answer, Errno};
use ucrypt_dispatch::{ChunkId, Environment, Op as MachineOp, Output, Target};

use super::Queue;
use super::chunk_io::{Borrowed, sectors};
use crate::residue;
use crate::tuning::LONG_SECTORS;
use crate::workers::Transformed;

/// The state of the loop.
#[derive(Default)]
pub(super) struct Round {
    /// The workers that the queue may use; updated when a round begins and when answers arrive.
    pub(super) environment: Environment,
    /// The machine was asked for a plan, and the resulting outputs are not all carried out.
    pub(super) planned: bool,
    /// An output was carried out since the machine was last asked for a plan.
    carried_out: bool,
}

/// The queue's access to the backend.
pub(super) struct BackendQueue {
    /// `None` only while the queue is being dropped.
    queue: Option<Box<dyn ucrypt_backend::Queue>>,
    answers: Vec<Answer>,
    /// The backend carries out each operation within `submit`.
    pub(super) synchronous: bool,
}

impl BackendQueue {
    /// `depth`: most operations under way.
    pub(super) fn new(
        queue: Box<dyn ucrypt_backend::Queue>,
        depth: u32,
        synchronous: bool,
    ) -> Self {
        Self { queue: Some(queue), answers: Vec::with_capacity(depth as usize), synchronous }
    }

    pub(super) fn queue(&mut self) -> &mut dyn ucrypt_backend::Queue {
        self.queue.as_deref_mut().expect("only a dropped queue has none")
    }

    /// Waits for the operations under way, and takes no more.
    pub(super) fn close(&mut self) {
        drop(self.queue.take());
    }
}

impl Queue {
    /// Decides whether the queue keeps the time: always over an asynchronous backend, never over a
    /// synchronous one without workers. With workers, no decision depends on the time while none of
    /// them has a chunk: for short requests the time is then kept only now and then. Once on, it is
    /// kept until nothing is in flight.
    pub(super) fn choose_clock(&mut self, bytes: u64) {
        let synchronous = self.backend.synchronous;
        if !synchronous || self.volume.workers.is_none() {
            return self.time.keep(!synchronous);
        }
        if self.machine.in_flight() == 0 {
            self.time.sample();
        }
        if bytes >= LONG_SECTORS * 512 || self.machine.in_flight() == 0 && self.machine.needs_time()
        {
            self.time.keep(true);
        }
    }

    /// Makes as much progress as possible. Blocks for the backend only if `wait` is set, there is
    /// no answer yet, and no other party could have something for this queue.
    pub(super) fn advance(&mut self, wait: bool) -> io::Result<()> {
        self.begin_round()?;
        loop {
            self.carry_out_all(&mut None);
            if !self.take_results(wait)? {
                return Ok(());
            }
        }
    }

    fn begin_round(&mut self) -> io::Result<()> {
        if self.in_flight() > 0 {
            self.set_awake(true);
        }
        self.read_waker()?;
        self.poll_own_ring()?;
        self.time.read();
        self.round.environment = self.look_at_workers();
        Ok(())
    }

    /// One step of [`Queue::poll`]: carries out one output of the machine, or takes the results of
    /// workers and of the backend. Returns whether there was anything to do. For simulators, in
    /// which time passes between steps.
    ///
    /// # Errors
    /// As [`Queue::poll`].
    pub fn step(&mut self) -> io::Result<bool> {
        self.begin_round()?;
        Ok(self.carry_out_next(&mut None) || self.take_results(false)?)
    }

    /// Takes the results of workers and of the backend. Returns whether there were any.
    fn take_results(&mut self, wait: bool) -> io::Result<bool> {
        let transformed = self.take_transformed();
        // Chunks that workers have encrypted go to the backend before this thread waits, and the
        // queue's owner takes foreign completions.
        let wait = wait && !transformed && self.awaits_backend_only() && !self.has_foreign();
        if wait {
            self.publish_rest();
        }
        let any = wait && self.spin()? || self.take_completions(wait)? || transformed;
        if any {
            self.round.environment = self.look_at_workers();
        } else {
            self.publish();
        }
        Ok(any)
    }

    /// Takes the signals that may have arrived while the queue slept.
    fn read_waker(&mut self) -> io::Result<()> {
        if self.wakers.may_be_signalled() {
            self.offloads.inbox.awake();
            self.wakers.take_signals()?;
            self.retry_parked();
        }
        Ok(())
    }

    /// Takes the chunks that workers have transformed. Returns whether there were any.
    #[inline]
    fn take_transformed(&mut self) -> bool {
        self.offloads.count > 0 && self.empty_inbox()
    }

    fn empty_inbox(&mut self) -> bool {
        let mut any = false;
        while self.offloads.count > 0
            && let Some(Transformed { chunk, bufs, result, spent_ns, taken_back }) =
                self.offloads.inbox.answers.pop()
        {
            if !any {
                any = true;
                self.time.read();
            }
            self.offloads.count -= 1;
            let decrypts = self.machine.op(chunk) == Some(MachineOp::Read);
            self.counting.counters.cells.transformed(!taken_back, decrypts, spent_ns);
            if taken_back {
                self.machine.taken_back(chunk);
            } else {
                for part in self.machine.parts(chunk) {
                    let client = self.machine_requests[part.request.index()].client;
                    self.requests[client].offloaded = true;
                }
            }
            let result = self.settle(chunk, bufs, result);
            self.machine.cipher_done(chunk, result, Some(spent_ns), self.time.now_ns());
        }
        any
    }

    /// Whether only the backend, or foreign entries on its ring, can end a wait.
    pub(super) fn awaits_backend_only(&self) -> bool {
        self.done.is_empty() && self.offloads.count == 0 && self.parked.is_empty()
    }

    /// Whether a foreign entry's completion waits for the queue's owner.
    pub(super) fn has_foreign(&mut self) -> bool {
        self.ring().is_some_and(|ring| ring.has_next())
    }

    /// Takes the backend's answers, blocking for one if `wait` is set. Returns whether there were
    /// any.
    pub(super) fn take_completions(&mut self, wait: bool) -> io::Result<bool> {
        let mut answers = std::mem::take(&mut self.backend.answers);
        let polled = if !wait {
            self.backend.queue().poll(&mut answers)
        } else if self.backend.synchronous {
            self.backend.queue().wait(&mut answers)
        } else {
            self.set_awake(false);
            residue::scrub();
            let waited = self.backend.queue().wait(&mut answers);
            self.set_awake(true);
            waited
        };
        let any = !answers.is_empty();
        if any {
            self.time.read();
            for answer in answers.drain(..) {
                self.answered(answer);
            }
        }
        self.backend.answers = answers;
        polled.map(|()| any)
    }

    /// Carries out the outputs of the machine.
    pub(super) fn carry_out_all(&mut self, source: &mut Borrowed<'_>) {
        while self.carry_out_next(source) {}
    }

    /// Carries out one output of the machine. Returns whether there was one.
    #[inline]
    fn carry_out_next(&mut self, source: &mut Borrowed<'_>) -> bool {
        loop {
            if !self.round.planned {
                self.round.planned = true;
                self.machine.plan(self.time.now_ns(), self.round.environment);
            }
            if let Some(output) = self.machine.next_output() {
                self.round.carried_out = true;
                self.carry_out(output, source);
                return true;
            }
            self.round.planned = false;
            // The outputs carried out may have made room for more.
            if !std::mem::take(&mut self.round.carried_out) {
                return false;
            }
        }
    }

    fn carry_out(&mut self, output: Output<Errno>, source: &mut Borrowed<'_>) {
        match output {
            Output::Transform { chunk, target } => {
                self.look_around(chunk, target);
                self.transform(chunk, target, *source);
            }
            Output::DecryptMapped { chunk, target } => {
                self.look_around(chunk, target);
                self.decrypt_mapped(chunk, target);
            }
            Output::EncryptMapped { chunk } => {
                self.look_around(chunk, Target::Inline);
                self.encrypt_mapped(chunk, *source);
            }
            Output::SubmitIo { chunk, kind } => self.submit_io(chunk, kind),
            Output::Drop { chunk } => self.drop_chunk(chunk),
            Output::Finish { request, result } => {
                source.take_if(|(id, _)| *id == request);
                self.finish(request, result);
            }
        }
    }

    /// Before an inline transform: takes the workers' results, and before a long one also submits
    /// staged operations to the backend and takes its answers.
    fn look_around(&mut self, chunk: ChunkId, target: Target) {
        if target != Target::Inline {
            return;
        }
        // The work that workers still have decides which chunks they get next.
        self.take_transformed();
        if sectors(self.machine.parts(chunk)) < LONG_SECTORS {
            return;
        }
        // A broken queue fails again at the next poll, which reports the error.
        let _ = self.take_completions(false);
    }

    /// The workers that this queue may use now.
    pub(super) fn look_at_workers(&self) -> Environment {
        let Some(pool) = &self.volume.workers else { return Environment::default() };
        // A client with one request in flight waits for it; a client with more is busy with the
        // others, on another core or on this thread.
        let elsewhere = !self.owner.clients_here && self.in_flight() > 1;
        let cores = self.volume.spare_cores(elsewhere);
        let workers = pool.count().min(cores);
        let awake = pool.count().saturating_sub(pool.idle());
        let idle_workers = workers.saturating_sub(awake);
        Environment { workers, idle_workers, reads_in_place: self.owner.reads_in_place }
    }

    /// Tells the volume, and by that its other queues, whether this queue keeps a core busy.
    pub(super) fn set_awake(&mut self, awake: bool) {
        let was = std::mem::replace(&mut self.presence.is_awake, awake);
        self.volume.count_awake(was, awake);
    }
}
