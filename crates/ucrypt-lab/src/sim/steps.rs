//! What threads do: the loop of a queue, the loop of a worker.

use ucrypt_dispatch::{ChunkId, Op, Output, Place, RequestId, Surroundings};

use super::cores::{CryptJob, Role, State, Then, Work};
use super::disk::Failure;
use super::queue::{Input, Staged};
use super::world::World;

/// Before a crypt of so many sectors, what is staged reaches the disk and answers are taken; the
/// engine's figure.
const LONG_SECTORS: u64 = 32;

impl World<'_> {
    /// A core's thread has done what it was at, or has just got the core.
    pub(super) fn core_event(&mut self, core: usize) {
        let Some(thread) = self.cores[core].running else { return };
        if let Some(work) = self.threads[thread].work.filter(|work| work.left_ns == 0) {
            self.threads[thread].work = None;
            self.carry_out(thread, work.then);
        }
        if self.cores[core].must_yield(self.threads[thread].role, self.now) {
            self.cores[core].put_back();
            return self.switch(core);
        }
        if self.threads[thread].work.is_none() {
            self.threads[thread].work = self.next_work(thread);
        }
        if self.threads[thread].work.is_none() && self.threads[thread].debt_ns > 0 {
            self.threads[thread].work = Some(Work { left_ns: 0, then: Then::Nothing });
        }
        let Some(mut work) = self.threads[thread].work else {
            self.threads[thread].state = State::Asleep(self.now);
            self.idle_workers += u32::from(self.threads[thread].role == Role::Pool);
            self.cores[core].running = None;
            return self.switch(core);
        };
        work.left_ns += std::mem::take(&mut self.threads[thread].debt_ns);
        let quantum = self.cores[core].quantum(work.left_ns);
        work.left_ns -= quantum;
        self.threads[thread].work = Some(work);
        self.cores[core].busy_ns += quantum;
        self.schedule(self.now + quantum, core);
    }

    fn next_work(&mut self, thread: usize) -> Option<Work> {
        let mut work = match self.threads[thread].role {
            Role::Queue(queue) => self.queue_work(queue),
            Role::Local(queue) => self.local_work(thread, queue),
            Role::Pool => self.jobs.pop_front().map(|job| self.help(job)),
        }?;
        let faults = self.experiment.faults;
        if self.random.chance(faults.stall) {
            let stall_ns = self.random.below(faults.stall_max_ns + 1);
            work.left_ns += stall_ns;
            // Who measures with a clock takes the stall for work.
            if let Then::Crypted { spent_ns, .. } = &mut work.then {
                *spent_ns += stall_ns;
            }
        }
        Some(work)
    }

    /// What the worker on a queue's own core does: it spins in vain, too, before it sleeps. (The others
    /// spin where nobody waits for their core, and are asleep here meanwhile.)
    fn local_work(&mut self, thread: usize, queue: usize) -> Option<Work> {
        if let Some(job) = self.local_jobs[queue].pop_front() {
            self.threads[thread].spins = false;
            return Some(self.help(job));
        }
        let costs = &self.experiment.costs;
        let spun = std::mem::replace(&mut self.threads[thread].spins, true);
        let left_ns = costs.spin + costs.sleep;
        (!spun).then_some(Work { left_ns, then: Then::Nothing })
    }

    /// A worker's job.
    fn help(&self, job: CryptJob) -> Work {
        let left_ns = job.cipher_ns + self.experiment.costs.enqueue;
        Work { left_ns, then: Then::Crypted { job, spent_ns: job.cipher_ns, handed: true } }
    }

    /// What a queue does next.
    fn queue_work(&mut self, queue: usize) -> Option<Work> {
        let experiment = self.experiment;
        let state = &mut self.queues[queue];
        if self.random.chance(experiment.faults.cancel) {
            state.cancel(self.random.below(u64::from(experiment.requests_max)) as usize);
        }
        if let Some(output) = state.next.take().or_else(|| state.machine.next_output()) {
            let long = match output {
                Output::Crypt { chunk, place: Place::Here } => state.span(chunk).1 >= LONG_SECTORS,
                _ => false,
            };
            if long && !(state.staged.is_empty() && state.answers.is_empty()) {
                state.next = Some(output);
                return Some(if state.staged.is_empty() {
                    self.take(queue, self.queues[queue].answers.len(), 0)
                } else {
                    self.enter_work(queue)
                });
            }
            return Some(self.output_work(queue, output));
        }
        if !state.staged.is_empty() {
            return Some(self.enter_work(queue));
        }
        let state = &self.queues[queue];
        let answers = state.answers.len();
        let room = experiment.requests_max as usize - state.machine.in_flight();
        let arrivals = state.arrivals.len().min(room);
        if answers + arrivals > 0 {
            return Some(self.take(queue, answers, arrivals));
        }
        if let Some((_, left_ns)) = self.queues[queue].copies.pop_front() {
            return Some(Work { left_ns, then: Then::Nothing });
        }
        if experiment.queues_help { self.jobs.pop_front().map(|job| self.help(job)) } else { None }
    }

    fn enter_work(&self, queue: usize) -> Work {
        let left_ns = self.experiment.costs.enter.unwrap_or(0);
        Work { left_ns, then: Then::Enter { queue } }
    }

    fn take(&self, queue: usize, answers: usize, arrivals: usize) -> Work {
        let costs = &self.experiment.costs;
        let each = |input: &Input| match input {
            Input::Crypted { .. } => costs.enqueue,
            Input::Stored { .. } => costs.answer,
        };
        let left_ns: u64 = self.queues[queue].answers.iter().take(answers).map(each).sum();
        let left_ns = costs.round + left_ns + arrivals as u64 * costs.accept;
        Work { left_ns, then: Then::Take { queue, answers, arrivals } }
    }

    fn output_work(&mut self, queue: usize, output: Output<Failure>) -> Work {
        let costs = &self.experiment.costs;
        match output {
            Output::Crypt { chunk, place } => {
                let (_, sectors) = self.queues[queue].span(chunk);
                let cipher_ns = self.experiment.cipher.ns(sectors);
                self.queues[queue].crypt_asked(chunk);
                let job = CryptJob { queue, chunk, cipher_ns };
                if place == Place::Here {
                    let then = Then::Crypted { job, spent_ns: cipher_ns, handed: false };
                    Work { left_ns: cipher_ns, then }
                } else {
                    Work { left_ns: costs.enqueue, then: Then::Hand { job, place } }
                }
            }
            Output::Store { chunk, kind } => {
                Work { left_ns: costs.submit, then: Then::Stage { queue, chunk, kind } }
            }
            Output::Drop { .. } => {
                Work { left_ns: 0, then: Then::Take { queue, answers: 0, arrivals: 0 } }
            }
            Output::Finish { request, result } => {
                let (sectors, carried) = self.queues[queue].read_by_client(request);
                let left_ns = costs.finish_ns(sectors, carried);
                Work { left_ns, then: Then::Finish { queue, request, result } }
            }
        }
    }

    fn carry_out(&mut self, thread: usize, then: Then) {
        match then {
            Then::Crypted { job, spent_ns, handed } => self.crypted(thread, job, spent_ns, handed),
            Then::Hand { job, place: Place::SameCore } => {
                self.local_jobs[job.queue].push_back(job);
                // It gets the core when the queue sleeps or its slice is over.
                if self.wake(self.queues[job.queue].local, 0) {
                    let costs = self.experiment.costs;
                    // The queue spins in vain before it sleeps.
                    self.threads[thread].debt_ns += costs.wake_call + costs.spin + costs.sleep;
                }
            }
            Then::Hand { job, place } => self.hand_on(thread, job, place == Place::Worker),
            Then::Stage { queue, chunk, kind } => match self.queues[queue].leave(chunk, kind) {
                Ok(staged) => self.stage(thread, queue, staged),
                Err(complaint) => self.complain(&complaint),
            },
            Then::Enter { queue } => {
                for staged in std::mem::take(&mut self.queues[queue].staged) {
                    let (operation, at) = self.submit(queue, staged);
                    self.schedule_answer(at, operation);
                }
            }
            Then::Nothing => {}
            Then::Stored { operation } => self.disk_answers(operation, false),
            Then::Finish { queue, request, result } => self.finish(queue, request, result),
            Then::Take { queue, answers, arrivals } => {
                for _ in 0..answers {
                    let Some(input) = self.queues[queue].answers.pop_front() else { break };
                    self.input(queue, input);
                }
                for _ in 0..arrivals {
                    self.queues[queue].accept();
                }
                self.plan(queue);
            }
        }
    }

    /// An operation goes to the backend, or waits for the call that takes it there.
    fn stage(&mut self, thread: usize, queue: usize, staged: Staged) {
        let costs = &self.experiment.costs;
        let synchronous = self.experiment.device.about().synchronous;
        if costs.enter.is_some() && !synchronous {
            return self.queues[queue].staged.push(staged);
        }
        let copy_ns = costs.copy_ns(staged.kind, staged.span.1, staged.carried);
        let (operation, at) = self.submit(queue, staged);
        if copy_ns > 0 && !synchronous {
            self.queues[queue].copies.push_back((operation, copy_ns));
        }
        if synchronous {
            let left_ns = at - self.now + copy_ns;
            self.threads[thread].work = Some(Work { left_ns, then: Then::Stored { operation } });
        } else {
            self.schedule_answer(at, operation);
        }
    }

    /// Returns the operation, and when it will be answered.
    fn submit(&mut self, queue: usize, staged: Staged) -> (usize, u64) {
        let Staged { chunk, kind, span, pieces, .. } = staged;
        let pieces = if self.experiment.verify { pieces } else { Vec::new() };
        self.disk.submit(self.now, (queue, chunk), kind, span, pieces)
    }

    fn plan(&mut self, queue: usize) {
        let most = if self.experiment.free_cores_only { self.free_cores() } else { u32::MAX };
        let workers = self.experiment.workers.min(most);
        let parked = |worker: &usize| self.slept_ns(*worker) >= Some(self.experiment.costs.spin);
        let awake = self.experiment.workers - self.pool.clone().filter(parked).count() as u32;
        let idle_workers = workers.saturating_sub(awake);
        let around = Surroundings { workers, idle_workers, reads_in_place: false };
        self.queues[queue].machine.plan(self.now, around);
    }

    /// Cores on which no queue is awake.
    fn free_cores(&self) -> u32 {
        let sleeps = |thread: usize| matches!(self.threads[thread].state, State::Asleep(_));
        let awake = self.queues.iter().filter(|queue| !sleeps(queue.thread)).count() as u32;
        self.experiment.cores.saturating_sub(awake)
    }

    fn input(&mut self, queue: usize, input: Input) {
        if let Err(complaint) = self.queues[queue].input(input, &self.judge, self.now) {
            self.complain(&complaint);
        }
    }

    fn crypted(&mut self, thread: usize, job: CryptJob, spent_ns: u64, handed: bool) {
        let CryptJob { queue, chunk, .. } = job;
        let target = self.queues[queue].thread;
        let carried = self.threads[thread].core != self.threads[target].core;
        let input = Input::Crypted { chunk, spent_ns, carried };
        if !handed {
            self.input(queue, input);
            return self.plan(queue);
        }
        self.queues[queue].answers.push_back(input);
        if carried {
            self.rouse(thread, target);
        } else if self.wake(target, 0) {
            self.threads[target].waits = true;
            self.threads[thread].debt_ns += self.experiment.costs.wake_call;
        }
    }

    /// Gives a job to the pool, and wakes a worker if one sleeps: rather one that still spins,
    /// then one whose core is free. If it is not to wake any, only if none spins or runs.
    fn hand_on(&mut self, thread: usize, job: CryptJob, wakes: bool) {
        self.jobs.push_back(job);
        if self.idle_workers == 0 {
            return;
        }
        let spins = |worker| self.slept_ns(worker) < Some(self.experiment.costs.spin);
        let spins = |worker| self.slept_ns(worker).is_some() && spins(worker);
        let runs = self.idle_workers < self.experiment.workers;
        if !wakes && runs && !self.pool.clone().any(spins) {
            return;
        }
        let asleep = self.pool.clone().filter_map(|worker| {
            let slept_ns = self.slept_ns(worker)?;
            Some((!self.cores[self.threads[worker].core].is_idle(), slept_ns, worker))
        });
        if let Some((.., worker)) = asleep.min() {
            self.rouse(thread, worker);
        }
    }

    fn slept_ns(&self, thread: usize) -> Option<u64> {
        match self.threads[thread].state {
            State::Asleep(since) => Some(self.now - since),
            _ => None,
        }
    }

    /// `thread` tells `target` on another core that there is something to do.
    fn rouse(&mut self, thread: usize, target: usize) {
        let costs = self.experiment.costs;
        let Some(slept_ns) = self.slept_ns(target) else { return };
        let core = self.threads[target].core;
        if slept_ns < costs.spin && self.cores[core].is_idle() {
            self.cores[core].busy_ns += slept_ns;
            self.wake(target, costs.spin_wake);
        } else {
            self.wake(target, costs.wake);
            self.threads[thread].debt_ns += costs.wake_call;
        }
    }

    /// The disk has answered; `wakes`: not on the queue's own thread.
    pub(super) fn disk_answers(&mut self, operation: usize, wakes: bool) {
        let answer = self.disk.complete(operation);
        let (queue, chunk): (usize, ChunkId) = (answer.queue, answer.chunk);
        let input = Input::Stored { chunk, result: answer.result, found: answer.found };
        if wakes {
            let thread = self.queues[queue].thread;
            self.threads[thread].debt_ns += self.queues[queue].copy_up_to(operation);
            self.queues[queue].answers.push_back(input);
            self.wake(self.queues[queue].thread, self.experiment.costs.interrupt);
        } else {
            self.input(queue, input);
            self.plan(queue);
        }
    }

    fn finish(&mut self, queue: usize, id: RequestId, result: Result<(), Failure>) {
        let verify = self.experiment.verify;
        let asked = match self.queues[queue].finish(id, result.is_ok(), &mut self.judge, verify) {
            Ok(asked) => asked,
            Err(complaint) => return self.complain(&complaint),
        };
        let measured = &mut self.measured;
        measured.finished += 1;
        measured.failed += u64::from(result.is_err());
        let all = self.experiment.job.requests * u64::from(self.experiment.queues);
        if !measured.over && measured.finished > all / 4 {
            let latency_ns = self.now - asked.sent_ns;
            measured.bytes += asked.request.sectors * 512;
            measured.latencies_ns += latency_ns;
            let direction = match asked.request.op {
                Op::Read => &mut measured.reads,
                _ => &mut measured.writes,
            };
            direction.push(latency_ns);
        }
        self.send(queue);
        self.plan(queue);
    }
}
