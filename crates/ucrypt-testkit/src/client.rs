//! The random client: submits operations through one or more ports, and checks every answer against
//! the model.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use ucrypt_backend::Errno;

use crate::fault::{Fate, Faults};
use crate::model::{Initial, Mismatch, Model, Tag, Whole, fill};
use crate::operation::{Generator, Kind, Operation, Shape};
use crate::port::{Completion, Port, Submitted};
use crate::random::Random;

/// When a run without answers counts as failed.
#[derive(Debug, Clone, Copy)]
pub enum Watchdog {
    /// After this many polls of all ports: for backends that make progress when they are polled.
    Steps(u64),
    /// After this time.
    Time(Duration),
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Determines the whole run.
    pub seed: u64,
    /// The operations to submit.
    pub shape: Shape,
    /// Total number of operations.
    pub operations: u64,
    /// Maximum requests in flight on one port; may exceed what the port's pools have room for.
    pub depth: usize,
    /// Requests to cancel, in percent.
    pub cancels: u64,
    /// The initial content of the disk.
    pub initial: Initial,
    /// Bytes of a sector: a fault concerns whole sectors.
    pub sector: u64,
    /// The units that are old or new as a whole.
    pub whole: Whole,
    /// Whether [`Client::model`] will be checked after crashes.
    pub crashes: bool,
    /// The injected faults, whose errors are the only ones allowed, and the disk's offset in the
    /// backend.
    pub faults: Option<(Faults, u64)>,
    /// The disk may have no write cache, so that any write has to be durable.
    pub writes_through: bool,
    /// See [`Watchdog`].
    pub watchdog: Watchdog,
}

impl Plan {
    /// A run without faults.
    pub fn new(seed: u64, shape: Shape) -> Self {
        Self {
            seed,
            shape,
            operations: 500,
            depth: 16,
            cancels: 0,
            initial: Initial::Anything,
            sector: 512,
            whole: Whole::sectors(512),
            crashes: false,
            faults: None,
            writes_through: false,
            watchdog: Watchdog::Time(Duration::from_secs(10)),
        }
    }

    /// Writes and flushes until the power fails, on a disk of 512-byte sectors. A long write may be
    /// torn at any sector.
    pub fn until_a_crash(seed: u64, disk_len: u64, watchdog: Watchdog) -> Self {
        let shape = Shape {
            transfer_max: 32 << 10,
            zeroes_max: 64 << 10,
            mix: [10, 55, 10, 5, 20],
            ..Shape::everything(disk_len)
        };
        let operations = u64::MAX;
        Self { depth: 8, crashes: true, operations, watchdog, ..Self::new(seed, shape) }
    }
}

/// Why a run failed.
#[derive(Debug)]
pub struct Failure {
    seed: u64,
    what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

/// Counts of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Requests that were answered.
    pub answered: u64,
    /// Answered requests that failed.
    pub failed: u64,
    /// Answered requests that were cancelled.
    pub cancelled: u64,
    /// Submissions refused for lack of room.
    pub busy: u64,
    /// Submissions refused permanently.
    pub refused: u64,
}

struct Asked {
    operation: Operation,
    port: usize,
    cancelled: bool,
    /// A flush failed before this request was submitted.
    after_failed_flush: bool,
}

/// The random client; see the module's comment.
pub struct Client {
    plan: Plan,
    random: Random,
    generator: Generator,
    model: Model,
    asked: BTreeMap<Tag, Asked>,
    under_way: Vec<usize>,
    /// By port: an operation refused for lack of room, to be submitted again.
    held: Vec<Option<(Tag, Operation)>>,
    next: Tag,
    flush_failed: bool,
    report: Report,
    quiet_since: Instant,
    quiet_polls: u64,
    data: Vec<u8>,
    done: Vec<Completion>,
}

impl Client {
    /// A client for this many ports.
    pub fn new(plan: Plan, ports: usize) -> Self {
        let model = Model::new(plan.shape.disk_len, plan.whole, plan.initial, plan.crashes);
        Self {
            random: Random::new(plan.seed),
            generator: Generator::new(plan.shape.clone()),
            model,
            asked: BTreeMap::new(),
            under_way: vec![0; ports],
            held: vec![None; ports],
            next: 1,
            flush_failed: false,
            report: Report::default(),
            quiet_since: Instant::now(),
            quiet_polls: 0,
            data: Vec::new(),
            done: Vec::new(),
            plan,
        }
    }

    /// Runs the plan to its end, then reads the whole disk.
    ///
    /// # Errors
    /// An invalid answer, a wrong byte, or no answer at all.
    pub fn run(&mut self, ports: &mut [Box<dyn Port + '_>]) -> Result<Report, Failure> {
        while !self.is_done() {
            self.step(ports)?;
        }
        self.end(ports)
    }

    /// Whether all operations of the plan were submitted.
    pub fn is_done(&self) -> bool {
        self.next > self.plan.operations
    }

    /// Waits for the requests in flight, then reads the whole disk.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub fn end(&mut self, ports: &mut [Box<dyn Port + '_>]) -> Result<Report, Failure> {
        self.finish(ports)?;
        self.read_all(ports)?;
        Ok(self.report)
    }

    /// Checks bytes found on the disk in another way against the model, with nothing in flight.
    ///
    /// # Errors
    /// The disk holds content that it must not hold.
    pub fn check_at_rest(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let (kind, len) = (Kind::Read, bytes.len() as u64);
        let read = Operation { kind, offset, len };
        self.model.begin(self.next, &read);
        self.model.end_read(self.next, &read, Some(bytes))
    }

    /// The model of the disk.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Does one step: submits, cancels, or takes answers.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub fn step(&mut self, ports: &mut [Box<dyn Port + '_>]) -> Result<(), Failure> {
        let port = self.random.below(ports.len() as u64) as usize;
        // Bursts: submit many operations before looking for answers.
        let burst = if self.random.percent(3) { 2 * self.plan.depth as u64 } else { 1 };
        for _ in 0..self.random.below(burst + 1) {
            if self.under_way[port] < self.plan.depth {
                self.submit(port, &mut *ports[port])?;
            }
        }
        if self.random.percent(self.plan.cancels) {
            self.cancel(ports);
        }
        if self.under_way[port] > 0 && self.random.percent(60) {
            let full = self.under_way[port] >= self.plan.depth || self.held[port].is_some();
            self.poll(port, &mut *ports[port], full)?;
        }
        Ok(())
    }

    /// Waits for all requests in flight.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub fn finish(&mut self, ports: &mut [Box<dyn Port + '_>]) -> Result<(), Failure> {
        while !self.asked.is_empty() || self.held.iter().any(Option::is_some) {
            for (port, way) in ports.iter_mut().enumerate() {
                if self.held[port].is_some() {
                    self.submit(port, &mut **way)?;
                }
                if self.under_way[port] > 0 {
                    self.poll(port, &mut **way, true)?;
                }
            }
        }
        Ok(())
    }

    /// Handles the death of the server: takes the answers that the server still gave, and drops the
    /// other requests, which may have been carried out or not. Acknowledged requests are done: the
    /// kernel outlives a server. The client can continue with ports to a new server.
    ///
    /// # Errors
    /// As [`Client::run`], and a port that does not break.
    pub fn lose(&mut self, ports: &mut [Box<dyn Port + '_>]) -> Result<(), Failure> {
        self.quiet_since = Instant::now();
        for (port, way) in ports.iter_mut().enumerate() {
            while self.take_answers(port, &mut **way, true)?.is_ok() {}
        }
        for (tag, asked) in std::mem::take(&mut self.asked) {
            if asked.operation.kind == Kind::Read {
                // A read without an answer has no data to check.
                let _ = self.model.end_read(tag, &asked.operation, None);
            } else {
                self.model.end(tag, &asked.operation, false);
            }
        }
        self.under_way.fill(0);
        self.held.fill(None);
        Ok(())
    }

    /// Reads the whole disk.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub fn read_all(&mut self, ports: &mut [Box<dyn Port + '_>]) -> Result<(), Failure> {
        let (len, most) = (self.plan.shape.disk_len, self.plan.shape.transfer_max);
        let most = (most / 4096 * 4096).max(4096);
        let mut at = 0;
        while at < len {
            let operation = Operation { kind: Kind::Read, offset: at, len: most.min(len - at) };
            self.held[0] = Some((self.next, operation));
            self.next += 1;
            self.finish(ports)?;
            at += operation.len;
        }
        Ok(())
    }

    fn submit(&mut self, port: usize, way: &mut dyn Port) -> Result<(), Failure> {
        let (tag, operation) = if let Some(held) = self.held[port].take() {
            held
        } else {
            self.next += 1;
            (self.next - 1, self.generator.operation(&mut self.random))
        };
        self.data.clear();
        if matches!(operation.kind, Kind::Write { .. }) {
            self.data.resize(operation.len as usize, 0);
            fill(tag, operation.offset, &mut self.data);
        }
        match way.submit(tag, &operation, &self.data) {
            Submitted::Accepted => {
                self.model.begin(tag, &operation);
                let after_failed_flush = self.flush_failed;
                let asked = Asked { operation, port, cancelled: false, after_failed_flush };
                self.asked.insert(tag, asked);
                if self.under_way.iter().all(|&count| count == 0) {
                    self.quiet_since = Instant::now();
                }
                self.under_way[port] += 1;
            }
            Submitted::Busy => {
                self.report.busy += 1;
                if self.under_way[port] == 0 {
                    return self.fail(format!("{operation} is refused with nothing under way"));
                }
                self.held[port] = Some((tag, operation));
            }
            Submitted::Refused => self.report.refused += 1,
        }
        Ok(())
    }

    fn cancel(&mut self, ports: &mut [Box<dyn Port + '_>]) {
        let Some(nth) =
            (!self.asked.is_empty()).then(|| self.random.below(self.asked.len() as u64) as usize)
        else {
            return;
        };
        if let Some((&tag, asked)) = self.asked.iter_mut().nth(nth) {
            asked.cancelled = true;
            ports[asked.port].cancel(tag);
        }
    }

    fn poll(&mut self, port: usize, way: &mut dyn Port, wait: bool) -> Result<(), Failure> {
        match self.take_answers(port, way, wait)? {
            Ok(()) => Ok(()),
            Err(error) => self.fail(format!("port {port} is broken: {error}")),
        }
    }

    /// Whether the port is still there; the answers that have come count in any case.
    fn take_answers(
        &mut self,
        port: usize,
        way: &mut dyn Port,
        wait: bool,
    ) -> Result<io::Result<()>, Failure> {
        let mut done = std::mem::take(&mut self.done);
        let polled = way.poll(wait, &mut done);
        self.quiet_polls += 1;
        if !done.is_empty() {
            (self.quiet_polls, self.quiet_since) = (0, Instant::now());
        }
        for completion in done.drain(..) {
            self.complete(port, completion)?;
        }
        self.done = done;
        let hangs = match self.plan.watchdog {
            Watchdog::Steps(most) => self.quiet_polls > most,
            Watchdog::Time(most) => self.quiet_since.elapsed() > most,
        };
        if polled.is_ok() && hangs {
            return self.fail(self.describe_hang(way));
        }
        Ok(polled)
    }

    fn describe_hang(&self, way: &dyn Port) -> String {
        let mut text = String::from("nothing is answered any more. Under way:");
        for (tag, asked) in &self.asked {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {tag} on port {}: {}", asked.port, asked.operation);
        }
        text + "\n" + &way.describe()
    }

    fn complete(&mut self, port: usize, completion: Completion) -> Result<(), Failure> {
        let Completion { tag, result, data } = completion;
        let Some(asked) = self.asked.remove(&tag) else {
            return self.fail(format!("an answer to {tag}, which is not under way"));
        };
        self.under_way[port] -= 1;
        self.report.answered += 1;
        let operation = asked.operation;
        match result {
            Err(Errno::CANCELED) if asked.cancelled => self.report.cancelled += 1,
            Err(error) => {
                self.report.failed += 1;
                self.check_error(&asked, error)?;
            }
            Ok(()) => self.check_success(&asked)?,
        }
        if operation.kind == Kind::Flush && result.is_err_and(|error| error != Errno::CANCELED) {
            self.flush_failed = true;
        }
        if operation.kind != Kind::Read {
            self.model.end(tag, &operation, result.is_ok());
            return Ok(());
        }
        let bytes = match (&data, result) {
            (Some(data), Ok(())) if data.len() as u64 == operation.len => Some(&data[..]),
            (_, Err(_)) => None,
            (data, _) => {
                let len = data.as_ref().map(Vec::len);
                return self.fail(format!("{operation} is answered with {len:?} bytes"));
            }
        };
        match self.model.end_read(tag, &operation, bytes) {
            Ok(()) => Ok(()),
            Err(mismatch) => self.fail(format!("{operation} ({tag}): {mismatch}")),
        }
    }

    /// An error must come from a fault that concerns the request.
    fn check_error(&self, asked: &Asked, error: Errno) -> Result<(), Failure> {
        let operation = asked.operation;
        let Some((faults, offset)) = &self.plan.faults else {
            return self.fail(format!("{operation} fails without reason: {error}"));
        };
        let reads = operation.kind == Kind::Read;
        let durable = operation.kind == Kind::Flush
            || operation.kind.is_fua()
            || self.plan.writes_through && !reads;
        if durable && self.flush_failed {
            return Ok(());
        }
        let sectors = self.sectors(&operation, *offset);
        let concerned = faults.met().iter().any(|met| {
            let told = match met.fate {
                Fate::Fail(told) | Fate::Tear(told) => told == error,
                Fate::Hang => error == Errno::IO,
            };
            let here = met.range.start < sectors.end && sectors.start < met.range.end;
            // Data that was not made durable concerns every later request that must be durable.
            told && (here || durable && met.durable)
        });
        if concerned {
            return Ok(());
        }
        let met = faults.met();
        self.fail(format!(
            "{operation} (bytes {sectors:?} of the backend) fails ({error}) for a fault elsewhere: \
             {met:?}"
        ))
    }

    /// A durable request must not succeed if a flush failed before it was submitted.
    fn check_success(&self, asked: &Asked) -> Result<(), Failure> {
        let operation = asked.operation;
        let durable = operation.kind == Kind::Flush || operation.kind.is_fua();
        if durable && asked.after_failed_flush {
            let met = self.plan.faults.as_ref().map(|(faults, _)| faults.met());
            return self
                .fail(format!("{operation} succeeds after a flush has failed; met: {met:?}"));
        }
        Ok(())
    }

    /// The bytes of the backend that an operation touches, as whole sectors.
    fn sectors(&self, operation: &Operation, offset: u64) -> Range<u64> {
        let (range, sector) = (operation.range(), self.plan.sector);
        offset + range.start / sector * sector..offset + range.end.next_multiple_of(sector)
    }

    fn fail<T>(&self, what: String) -> Result<T, Failure> {
        Err(Failure { seed: self.plan.seed, what })
    }
}
