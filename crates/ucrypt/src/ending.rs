//! Ends a server: termination signals, the wait for users, the last flush, and the time limits.
//! Also reports failed requests before the end.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXCPU};
use signal_hook::iterator::Signals;
use ucrypt_engine::{Io, Queue, QueueConfig, Volume};
use ucrypt_export::fuse::Abort;
use ucrypt_image::transfer::{self, TransferError};

use crate::background::FLUSH_FAILED;
use crate::events::Event;
use crate::failure::Failure;
use crate::log::{Level, event};
use crate::serve::Exports;
use crate::terminal::leave_signals;
use crate::users::Users;
use crate::volume::Opened;

/// How long to wait for users after a termination signal. Shorter than the time after which senders
/// of signals kill: 10 s for Docker, 90 s for systemd.
pub(crate) const USERS_PATIENCE: Duration = Duration::from_secs(6);

/// How long the end may take once nobody uses the volume: the last flush to a slow disk takes
/// minutes.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(600);

/// The same limit after a signal.
pub(crate) const SIGNAL_LIMIT: Duration = Duration::from_secs(30);

/// Seconds of processor time that a hard limit leaves for the end, if it is that long: encrypting what users still write,
/// on several cores.
const END_PROCESSOR_S: u64 = 60;

/// How often failed requests are reported.
const TROUBLE_EVERY: Duration = Duration::from_secs(60);

/// An end requested by a signal, which gives the users a short time to go.
pub(crate) struct Ending {
    signal: i32,
    until: Instant,
    waited: bool,
    users: Users,
}

/// The progress of an [`Ending`].
pub(crate) enum Step {
    /// The volume is in use; wait longer.
    Wait,
    /// Nobody uses the volume, and nobody can start to.
    Unused,
    /// The wait is over and the volume is still in use. Holds the failure to report.
    InUse(Failure),
}

impl Ending {
    pub(crate) fn by(signal: i32) -> Self {
        Self {
            signal,
            until: Instant::now() + USERS_PATIENCE,
            waited: false,
            users: Users::default(),
        }
    }

    /// Whether this signal, which has come after the first, asks a second time. SIGHUP never does: service managers
    /// send it together with SIGTERM, in no order (`SendSIGHUP=`, which logind sets for sessions). Nor does SIGXCPU,
    /// which the kernel repeats every second.
    pub(crate) fn is_asked_again(&mut self, signal: i32) -> bool {
        let asks = |signal| ![SIGHUP, SIGXCPU].contains(&signal);
        asks(signal) && asks(std::mem::replace(&mut self.signal, signal))
    }

    /// Checks whether the volume can end now. A `detached` volume ends by itself.
    pub(crate) fn step(&mut self, exports: &mut Exports, name: &str, detached: bool) -> Step {
        // Ask only the kernel's exports. The others can end at any time: they reply to all accepted
        // requests first.
        let unused =
            if detached { exports.have_kernels_ended() } else { exports.try_stop_kernels() };
        if unused {
            return Step::Unused;
        }
        if Instant::now() >= self.until {
            self.users = exports.users();
            return Step::InUse(self.left(name));
        }
        if !self.waited {
            self.waited = true;
            self.users = exports.users();
            let what = format!(
                "{} while {name} is in use{}: waits for at most {} s; a second signal ends it at once",
                name_of(self.signal),
                self.users.by(),
                USERS_PATIENCE.as_secs()
            );
            event(Level::Warning, "signal", what);
        }
        Step::Wait
    }

    /// The failure that tells what the users have lost.
    pub(crate) fn left(&self, name: &str) -> Failure {
        let (was, is) = if self.users.seen.is_empty() && !self.users.unseen.is_empty() {
            ("may have been", "may be")
        } else {
            ("was", "is")
        };
        Failure::busy(format!(
            "{} ended {name} while it {was} in use{}: what its users had not synced {is} lost",
            name_of(self.signal),
            self.users.by()
        ))
    }
}

fn name_of(signal: i32) -> &'static str {
    match signal {
        SIGTERM => "SIGTERM",
        SIGINT => "SIGINT",
        SIGHUP => "SIGHUP",
        SIGXCPU => "SIGXCPU (its limit of processor time)",
        _ => "a signal",
    }
}

/// Exits the process if its end takes too long, whatever it waits for. Its thread begins with the server: at the end
/// there may be none to have.
#[derive(Clone, Default)]
pub(crate) struct Watchdog(Arc<(Mutex<Watched>, Condvar)>);

#[derive(Default)]
struct Watched {
    /// Of the whole time from a signal on. It begins with the signal, not when the main thread hears of it, which may
    /// be waiting for an image.
    since_signal: Option<Limit>,
    /// Of the end, once nobody is waited for.
    of_end: Option<Limit>,
    aborts: Vec<Abort>,
}

struct Limit {
    until: Instant,
    length: Duration,
    last_words: Box<dyn FnOnce(&Failure) + Send>,
}

impl Watched {
    fn next(&self) -> Option<Instant> {
        [&self.since_signal, &self.of_end].into_iter().flatten().map(|limit| limit.until).min()
    }

    fn take_over(&mut self, now: Instant) -> Option<Limit> {
        let Self { since_signal, of_end, .. } = self;
        [since_signal, of_end].into_iter().find_map(|limit| limit.take_if(|it| it.until <= now))
    }
}

impl Watchdog {
    /// Has termination signals begin the limit, and then be delivered to the main thread.
    pub(crate) fn of_signals<A: Send + 'static>(events: Sender<Event<A>>) -> Result<Self, Failure> {
        raise_processor_limit();
        let watchdog = Self::default();
        let begun = watchdog.clone();
        signals(move |signal| {
            begun.begin_signal();
            events.send(Event::Signal(signal)).is_ok()
        })?;
        let watching = watchdog.clone();
        let thread = thread::Builder::new().name("no-limit".into()).spawn(move || watching.watch());
        thread.map_err(|error| {
            Failure::device(format!("cannot limit the time of the end: {error}"))
        })?;
        Ok(watchdog)
    }

    /// Those who use the kernel's exports get errors by these before the process exits: the kernel keeps it until its
    /// image answers, and its exports with it.
    pub(crate) fn aborts(&self, aborts: Vec<Abort>) {
        self.watched().aborts = aborts;
    }

    /// The volume's users may keep it, and the end its limit, but nothing may take longer than both, not even the look
    /// for users.
    fn begin_signal(&self) {
        let length = USERS_PATIENCE + SIGNAL_LIMIT;
        let limit = Limit { until: Instant::now() + length, length, last_words: Box::new(|_| {}) };
        self.watched().since_signal.get_or_insert(limit);
        self.0.1.notify_all();
    }

    /// The end begins. `last_words` gets the failure if it takes longer, which is logged.
    pub(crate) fn begin_end(
        &self,
        length: Duration,
        last_words: impl FnOnce(&Failure) + Send + 'static,
    ) {
        let (until, last_words) = (Instant::now() + length, Box::new(last_words));
        self.watched().of_end = Some(Limit { until, length, last_words });
        self.0.1.notify_all();
    }

    /// Fails the requests of those who use the volume still. It is flushed by now, and the exit may wait for its image.
    pub(crate) fn end_users(&self) {
        // What has ended is not aborted. If it is not permitted, users get errors once the process has exited.
        self.watched().aborts.iter().for_each(|abort| _ = abort.now());
    }

    /// The end is complete.
    pub(crate) fn lift(&self) {
        let mut watched = self.watched();
        (watched.since_signal, watched.of_end) = (None, None);
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a limit, and exits.
    fn watch(&self) {
        let mut watched = self.watched();
        let limit = loop {
            let now = Instant::now();
            let wait = watched.next().map(|until| until.saturating_duration_since(now));
            if wait.is_some() {
                // Whoever looks at the process sees that its end has begun.
                let _ = rustix::thread::set_name(c"watchdog");
            }
            watched = match (watched.take_over(now), wait) {
                (Some(limit), _) => break limit,
                (None, Some(wait)) => {
                    let woken = self.0.1.wait_timeout(watched, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                (None, None) => self.0.1.wait(watched).unwrap_or_else(PoisonError::into_inner),
            };
        };
        // Who waits for the end is told, whichever limit is over.
        let of_end = watched.of_end.take();
        drop(watched);
        self.end_users();
        let failure = Failure::device(format!(
            "the image did not answer for {} s at the end: writes that were not flushed may be lost",
            limit.length.as_secs()
        ));
        event(Level::Error, "end-timed-out", &failure);
        [Some(limit), of_end].into_iter().flatten().for_each(|it| (it.last_words)(&failure));
        std::process::exit(failure.code.into());
    }
}

/// Reports failed requests: the first at once, later ones at intervals.
#[derive(Default)]
pub(crate) struct Troubles {
    told: u64,
    last: Option<Instant>,
    flush_told: bool,
}

impl Troubles {
    /// Returns when to look again, if there are failures to report later.
    pub(crate) fn look(&mut self, opened: &Opened) -> Option<Instant> {
        if let (Some(error), false) = (opened.volume.flush_error(), self.flush_told) {
            self.flush_told = true;
            let what = format!("a flush of {} failed: {error}; {FLUSH_FAILED}", opened.facts.image);
            event(Level::Error, "flush-failed", what);
        }
        if opened.volume.totals().errors == self.told {
            return None;
        }
        if let Some(due) = self.last.map(|last| last + TROUBLE_EVERY)
            && Instant::now() < due
        {
            return Some(due);
        }
        self.tell(opened);
        None
    }

    /// Reports what has not been reported yet.
    pub(crate) fn tell(&mut self, opened: &Opened) {
        let totals = opened.volume.totals();
        let count = totals.errors - self.told;
        if count == 0 {
            return;
        }
        (self.told, self.last) = (totals.errors, Some(Instant::now()));
        let why =
            totals.last_error.map_or_else(String::new, |error| format!(", the last: {error}"));
        let requests = if count == 1 { "request" } else { "requests" };
        let (image, cut) = (&opened.facts.image, cut_off(opened));
        event(
            Level::Error,
            "requests-failed",
            format!("{count} {requests} to {image} failed{why}{cut}"),
        );
    }
}

/// What explains errors of an image that has become shorter than its volume.
fn cut_off(opened: &Opened) -> String {
    let volume = &opened.volume;
    // An image that does not answer is not asked, which would take as long: it has given no errors. Requests that were
    // given up without a key have, whether it answers or not.
    let are_own = !volume.is_halted() && volume.unwritten().0 == 0;
    if volume.totals().last_error != Some(Errno::IO) || !are_own {
        return String::new();
    }
    let missing = volume.len_max().map_or(0, |len_max| volume.info().len.saturating_sub(len_max));
    if missing == 0 {
        return String::new();
    }
    format!("; the image was cut off: {missing} bytes of the volume are missing")
}

/// Lets this process use the processor for as long as it may: a limit of who has started it is not meant for the users of
/// its volume. At the soft limit the kernel sends SIGXCPU, by which a server ends in order, and at the hard one it kills.
fn raise_processor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Cpu);
    let current = maximum.map(|seconds| seconds - END_PROCESSOR_S.min(seconds / 2));
    // Should it be refused, the limit is as it was.
    let _ = setrlimit(Resource::Cpu, Rlimit { current, maximum });
}

/// Has `deliver` called with each termination signal, until it returns false. Call before any thread
/// is started.
pub(crate) fn signals(deliver: impl Fn(i32) -> bool + Send + 'static) -> Result<(), Failure> {
    let failed = |error| Failure::device(format!("cannot wait for signals: {error}"));
    let wanted = [SIGTERM, SIGINT, SIGHUP, SIGXCPU].into_iter().filter(|it| may_end(*it));
    let mut signals = Signals::new(wanted).map_err(failed)?;
    leave_signals();
    let wait = move || {
        for signal in signals.forever() {
            if !deliver(signal) {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
    Ok(())
}

/// Whether this signal is to end what this process does: not if whoever started it has it ignore the signal, as `nohup`
/// does, and shells without job control with SIGINT. SIGTERM does in any case: service managers have no other.
pub(crate) fn may_end(signal: i32) -> bool {
    signal == SIGTERM || !is_ignored(signal)
}

/// Whether this process was started with a signal that is ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
}

/// Makes all acknowledged writes durable.
pub(crate) fn flush(volume: &Arc<Volume>) -> Result<(), Failure> {
    LastFlush::prepare(volume)?.run()
}

/// The flush at the end. Allocates what it needs at the start, because memory and descriptors may
/// be used up at the end.
pub(crate) struct LastFlush(Option<Queue>);

impl LastFlush {
    pub(crate) fn prepare(volume: &Arc<Volume>) -> Result<Self, Failure> {
        if volume.info().read_only {
            return Ok(Self(None));
        }
        let config = QueueConfig::new(4096, 1);
        let failed = |error| Failure::device(format!("cannot prepare the last flush: {error}"));
        volume.queue(config).map(|queue| Self(Some(queue))).map_err(failed)
    }

    /// Flushes. After a failure all further ones fail.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let Some(queue) = &mut self.0 else { return Ok(()) };
        transfer::one(queue, "flush", 0, Io::Flush).map(drop).map_err(|error| {
            let why: &dyn std::fmt::Display = match &error {
                TransferError::Broken(error) => error,
                TransferError::Failed { error, .. } | TransferError::Refused { error, .. } => error,
                TransferError::ReadOnly => &error,
            };
            Failure::device(format!("the last flush failed, recent writes may be lost: {why}"))
        })
    }
}
