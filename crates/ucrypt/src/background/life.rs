//! Runs an open volume until its end: answers requests, waits for users, and limits the time of the
//! end.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use ucrypt_engine::meters::{Latencies, Meters, Transforms};
use ucrypt_engine::{Decisions, Measured, OPERATION_NS, Poll, Polled};

use super::control::{self, Asked, OPEN, Request};
use super::link::Link;
use super::name_lock::NameLock;
use super::resilience::Resilience;
use super::resize::{self, Resizing};
use super::show::{CLOSING, DEFERRED, ENDING, SUSPENDED, SUSPENDING};
use super::suspend::{self, Suspension};
use crate::ending::{END_LIMIT, Ending, LastFlush, SIGNAL_LIMIT, Step, Troubles, Watchdog};
use crate::events::{Event, Events};
use crate::failure::Failure;
use crate::log::{Level, event};
use crate::metrics::Metrics;
use crate::notify::{Heartbeat, Notifier};
use crate::runtime::RuntimePaths;
use crate::serve::Exports;
use crate::users::Users;
use crate::volume::Opened;

/// How long `close` waits for users that cannot be seen: the kernel releases a device some time
/// after its last user has gone, and device managers open it when something changes.
const UNSEEN_PATIENCE: Duration = Duration::from_secs(10);

/// How long `close` waits for users that can be seen: one that has just ended may still be there.
const USERS_PATIENCE: Duration = Duration::from_millis(500);

/// How long a client that has connected before the end may take to ask, to hear that the end has failed.
const LATE_PATIENCE: Duration = Duration::from_secs(1);

/// Everything that an open volume has.
pub(super) struct Life {
    pub(super) paths: RuntimePaths,
    pub(super) claim: NameLock,
    pub(super) opened: Opened,
    pub(super) exports: Exports,
    /// The link of a device.
    pub(super) link: Option<Link>,
    /// The path or URI by which users reach the volume.
    pub(super) device: String,
    pub(super) last_flush: LastFlush,
    pub(super) resilience: Resilience,
    pub(super) suspension: Suspension,
    pub(super) troubles: Troubles,
    /// Limits the time of the end.
    pub(super) watchdog: Watchdog,
    /// A `resize` that waits for the image.
    pub(super) resizing: Option<Resizing>,
    /// For the watchdog of the service that this is, if it is one.
    pub(super) heartbeat: Heartbeat,
    /// Where `mount` mounts the volume, if it has opened it.
    pub(super) mounted: Option<PathBuf>,
    /// The table whose line `attach` has opened.
    pub(super) table: Option<PathBuf>,
    pub(super) metrics: Option<Metrics>,
    /// Where the server logs, for `status`.
    pub(super) log: String,
    pub(super) started: Instant,
}

/// What has been asked of a volume that goes on.
#[derive(Default)]
struct Course {
    /// Its name is gone, and it ends with its last user.
    deferred: bool,
    /// The client that asked for the end, and when.
    closing: Option<(UnixStream, Instant)>,
    /// A signal asked for the end.
    ending: Option<Ending>,
}

impl Course {
    /// Whether something is waited for of which nobody tells.
    fn looks(&self) -> bool {
        self.deferred || self.closing.is_some() || self.ending.is_some()
    }
}

/// Why the volume ends.
enum End {
    /// A client asked for it.
    Closed,
    /// The last user has gone, or the exports were ended from outside.
    Unused,
    /// A signal came, and nobody uses the volume any more.
    Signal,
    /// A signal came, and the users did not go.
    InUse(Failure),
}

impl Life {
    /// Answers until the volume is closed, a signal comes or all exports were ended from outside.
    ///
    /// # Errors
    /// Why the end was none in order, which the log has been told.
    pub(super) fn run(
        mut self,
        mut events: Events<Asked>,
        notifier: &Notifier,
    ) -> Result<(), Failure> {
        let mut course = Course::default();
        let end = self.serve(&mut events, &mut course, notifier);
        notifier.stopping();
        // Who asks during the end waits for its result: `events` is there until then.
        self.end(end, course.closing.map(|(stream, _)| stream), &mut events)
    }

    /// Returns why it ends. Who has asked for it waits in `course`.
    fn serve(
        &mut self,
        events: &mut Events<Asked>,
        course: &mut Course,
        notifier: &Notifier,
    ) -> End {
        let name = self.paths.name().to_owned();
        let wake = events.sender();
        let mut due = self.heartbeat.beat(notifier, &self.opened.volume);
        loop {
            let looks = course.looks() || self.suspension.is_ending();
            match events.next(looks, due) {
                Some(Event::Asked(asked)) => self.answer(asked, course, &wake),
                Some(Event::Signal(signal)) => match &mut course.ending {
                    None => course.ending = Some(self.begin_to_end(&name, signal)),
                    Some(ending) => {
                        if ending.is_asked_again(signal) {
                            return End::InUse(ending.left(&name));
                        }
                    }
                },
                Some(Event::Look) | None => {}
            }
            self.suspension.step(&name, &self.opened.volume);
            self.finish_resize();
            let beat = self.heartbeat.beat(notifier, &self.opened.volume);
            due = self.troubles.look(&self.opened).into_iter().chain(beat).min();
            let deferred = course.deferred;
            if let Some((stream, since)) = course.closing.take() {
                if self.is_unused(deferred) {
                    course.closing = Some((stream, since));
                    return End::Closed;
                }
                let users = self.exports.users();
                let patience = if users.seen.is_empty() { UNSEEN_PATIENCE } else { USERS_PATIENCE };
                if since.elapsed() < patience {
                    course.closing = Some((stream, since));
                } else if self.give_up_what_waits() {
                    course.closing = Some((stream, Instant::now()));
                } else {
                    self.wait_again(deferred);
                    let failure = self.in_use(&name, &users, deferred);
                    control::reply(stream, &control::refusal(&failure));
                    self.suspension.begin(&self.opened.volume);
                }
            }
            if self.exports.have_ended() {
                return if course.closing.is_some() { End::Closed } else { End::Unused };
            }
            match course.ending.as_mut().map(|it| it.step(&mut self.exports, &name, deferred)) {
                None | Some(Step::Wait) => {}
                Some(Step::Unused) => return End::Signal,
                Some(Step::InUse(failure)) => return End::InUse(failure),
            }
        }
    }

    /// Carries a request out, or begins to.
    fn answer(&mut self, asked: Asked, course: &mut Course, wake: &Sender<Event<Asked>>) {
        let Asked { request, stream, key } = asked;
        let name = self.paths.name().to_owned();
        let refuse = |stream, failure| control::reply(stream, &control::refusal(&failure));
        match request {
            Request::Status => {
                let state = match course {
                    Course { ending: Some(_), .. } => ENDING,
                    Course { closing: Some(_), .. } => CLOSING,
                    Course { deferred: true, .. } => DEFERRED,
                    _ if self.suspension.is_suspended() => SUSPENDED,
                    _ if self.suspension.is_ending() => SUSPENDING,
                    _ => OPEN,
                };
                control::reply(stream, &self.status(state));
            }
            // The thread of a `resize` has the image open.
            Request::Close | Request::Suspend if self.resizing.is_some() => {
                refuse(stream, Failure::busy(format!("{name} is being resized; try again")));
            }
            Request::Close if course.closing.is_some() => {
                refuse(stream, Failure::busy(format!("{name} is being closed already")));
            }
            Request::Close => course.closing = Some((stream, Instant::now())),
            Request::CloseDeferred => match self.exports.detach() {
                Ok(()) => {
                    course.deferred = true;
                    self.link = None;
                    event(Level::Info, "deferred", "closes with its last user");
                    control::reply(stream, &json!({ "deferred": true }));
                }
                Err(failure) => refuse(stream, failure),
            },
            Request::Resize { .. } if course.looks() => {
                refuse(stream, Failure::busy(format!("{name} is about to end; it is not resized")));
            }
            Request::Resize { bytes } => self.begin_resize(bytes, wake, stream),
            Request::Suspend if course.ending.is_some() => refuse(stream, suspend::ends(&name)),
            Request::Suspend => {
                self.suspension.ask(&name, &self.opened, stream);
                // A `close` may yet be refused, and then the key must not stay.
                if course.closing.is_none() {
                    self.suspension.begin(&self.opened.volume);
                }
            }
            Request::Resume { .. } => {
                let had_given_up = self.opened.volume.is_abandoned();
                let resumed = self.suspension.end(&name, &self.opened, &key.0);
                if resumed.is_ok() {
                    event(Level::Info, "resumed", "has its key again");
                    // A `close` that waits may yet be refused.
                    if had_given_up && !course.deferred {
                        self.exports.reopen();
                    }
                }
                control::reply(stream, &control::answer(&resumed, "resumed"));
            }
        }
    }

    /// Has what waits for the key of a suspended volume fail if nobody waits for the answers. Returns
    /// whether that is so.
    fn give_up_what_waits(&self) -> bool {
        let volume = &self.opened.volume;
        let can = self.suspension.is_suspended()
            && !volume.is_abandoned()
            && self.exports.close_if_gone();
        if can {
            volume.abandon();
        }
        can
    }

    /// Takes [`Life::give_up_what_waits`] back, for a volume that goes on.
    fn wait_again(&self, deferred: bool) {
        let volume = &self.opened.volume;
        if volume.is_abandoned() {
            volume.unabandon();
            if !deferred {
                self.exports.reopen();
            }
        }
    }

    /// The first signal: users are waited for, who may still write meanwhile.
    fn begin_to_end(&mut self, name: &str, signal: i32) -> Ending {
        self.suspension.cancel(name, &self.opened.volume);
        Ending::by(signal)
    }

    /// Whether nobody uses the volume; if so, nobody can start to. A volume whose name is gone ends
    /// by itself with its last user and must not be stopped before.
    fn is_unused(&mut self, deferred: bool) -> bool {
        if deferred { self.exports.have_ended() } else { self.exports.try_stop() }
    }

    /// The refusal of a `close` because of these users.
    fn in_use(&self, name: &str, users: &Users, deferred: bool) -> Failure {
        let by = match self.exports.unanswered_clients() {
            _ if !users.are_none() => users.by(),
            0 => " (by a program that cannot be seen from here)".into(),
            _ => " (clients are gone, but the image has not answered their requests)".into(),
        };
        let remedy = if deferred {
            "it ends with its last user"
        } else {
            "unmount or close it first, or use --deferred"
        };
        Failure::busy(format!("{name} is in use{by}; {remedy}"))
    }

    /// Finishes accepted requests, flushes, and leaves nothing behind. Tells who waits for it how that went, and of a
    /// failure also who has asked for it meanwhile.
    fn end(
        mut self,
        end: End,
        closing: Option<UnixStream>,
        events: &mut Events<Asked>,
    ) -> Result<(), Failure> {
        let name = self.paths.name().to_owned();
        self.suspension.cancel(&name, &self.opened.volume);
        let is_resizing = self.resizing.is_some();
        if let Some(resizing) = self.resizing.take() {
            let failure = Failure::busy(format!("{name} is about to end; it is not resized"));
            control::reply(resizing.stream, &control::refusal(&failure));
        }
        let Self {
            paths,
            claim,
            opened,
            exports,
            link,
            mut last_flush,
            mut troubles,
            metrics,
            watchdog,
            ..
        } = self;
        if !matches!(self.suspension, Suspension::None) {
            opened.volume.abandon();
        }
        // The number of its device may be another's from now on.
        let link = link.filter(|_| matches!(end, End::InUse(_)));
        let limit = match &end {
            End::Closed | End::Unused => END_LIMIT,
            End::Signal | End::InUse(_) => SIGNAL_LIMIT,
        };
        let waiting = closing.as_ref().and_then(|stream| stream.try_clone().ok());
        // After an exit by the watchdog, the remains are removed like those of a killed server.
        watchdog.begin_end(limit, move |failure| {
            if let Some(stream) = waiting {
                control::reply(stream, &control::refusal(failure));
            }
        });
        let stopped = exports.stop(&mut last_flush);
        troubles.tell(&opened);
        let flushed = last_flush.run().and(stopped);
        watchdog.end_users();
        let written = written(&opened);
        if let (Err(lost), Err(_)) = (&written, &flushed) {
            event(Level::Error, "ended", lost);
        }
        let flushed = flushed.and(written);
        // Release the image and the name before telling anyone. The last flush and metrics have the image
        // open, too.
        drop(last_flush);
        drop(metrics);
        let volume = Arc::downgrade(&opened.volume);
        drop(opened);
        let is_released = volume.strong_count() == 0;
        debug_assert!(
            is_released || is_resizing || flushed.is_err() || matches!(end, End::InUse(_)),
            "somebody still has the image of a closed volume open"
        );
        drop(link);
        // While the log has its name: one that says nothing is removed now.
        if let Err(failure) = &flushed {
            event(Level::Error, "ended", failure);
        }
        if let End::InUse(failure) = &end {
            event(Level::Error, "ended", failure);
        }
        paths.clean_up();
        drop(claim);
        watchdog.lift();
        match &end {
            _ if flushed.is_err() => {}
            End::Closed => event(Level::Info, "closed", format_args!("{name} is closed")),
            End::Unused => {
                event(Level::Info, "ended", format_args!("{name} ended: nobody uses it"));
            }
            End::Signal => event(Level::Info, "ended", format_args!("{name} ended by a signal")),
            End::InUse(_) => {}
        }
        let (ended, answer) = if let End::InUse(failure) = end {
            // Not code 5: who tries again would find the volume closed.
            let lost = Failure::device(&failure.message);
            (Err(failure), control::refusal(&lost))
        } else {
            let answer = control::answer(&flushed, "closed");
            (flushed, answer)
        };
        if let Some(stream) = closing {
            control::reply(stream, &answer);
        }
        if ended.is_err() {
            // Who gets no answer takes a volume that is gone for one that somebody else has closed.
            let asked = events.asked(LATE_PATIENCE);
            let closes = asked
                .filter(|asked| matches!(asked.request, Request::Close | Request::CloseDeferred));
            closes.for_each(|asked| control::reply(asked.stream, &answer));
        }
        ended
    }

    /// Begins to change the length to so many bytes, or to that of the image. [`Life::finish_resize`]
    /// answers the client.
    fn begin_resize(
        &mut self,
        bytes: Option<u64>,
        wake: &Sender<Event<Asked>>,
        stream: UnixStream,
    ) {
        let volume = &self.opened.volume;
        if let Err(failure) = self.check_resizable() {
            return control::reply(stream, &control::refusal(&failure));
        }
        let bytes = bytes.or(self.opened.fixed_len);
        let (before, tell) = (self.opened.facts.size, self.exports.size_taker());
        match resize::begin(volume, before, bytes, tell, wake.clone()) {
            Ok(resized) => self.resizing = Some(Resizing { stream, resized }),
            Err(error) => {
                let failure =
                    Failure::device(format!("cannot ask the image for its size: {error}"));
                control::reply(stream, &control::refusal(&failure));
            }
        }
    }

    fn check_resizable(&self) -> Result<(), Failure> {
        let name = self.paths.name();
        if self.resizing.is_some() {
            return Err(Failure::busy(format!("{name} is being resized already")));
        }
        // The kernel would ask for the new size behind requests that wait for the key.
        if self.suspension.is_suspended() {
            return Err(Failure::busy(format!(
                "{name} is suspended; ucrypt luksResume {name} gives it its key again"
            )));
        }
        if self.suspension.is_ending() {
            return Err(Failure::busy(format!("{name} is being suspended; try again")));
        }
        self.exports.check_resizable()
    }

    /// Once the users know the new length, tells the client.
    fn finish_resize(&mut self) {
        let Some(resized) = self.resizing.as_ref().and_then(Resizing::result) else { return };
        let Some(Resizing { stream, .. }) = self.resizing.take() else { return };
        if let Ok(len) = resized {
            self.opened.facts.size = len;
            event(Level::Info, "resized", format_args!("has {len} bytes now"));
        }
        control::reply(stream, &control::answer(&resized.map(drop), "resized"));
    }

    /// The status of the open volume.
    fn status(&self, state: &str) -> Value {
        let totals = self.opened.volume.totals();
        let mut server = self.resilience.status();
        server["uptime_seconds"] = self.started.elapsed().as_secs().into();
        json!({
            "active": true,
            "name": self.paths.name(),
            "state": state,
            "suspended": self.suspension.is_suspended(),
            "device": self.device,
            "mounted": self.mounted.as_ref().map(|dir| dir.display().to_string()),
            "ucrypttab": self.table.as_ref().map(|table| table.display().to_string()),
            "volume": self.opened.facts,
            "counters": {
                "reads": totals.reads,
                "read_bytes": totals.read_bytes,
                "writes": totals.writes,
                "written_bytes": totals.written_bytes,
                "flushes": totals.flushes,
                "discards": totals.discards,
                "errors": totals.errors,
                "last_error": totals.last_error.map(|error| error.to_string()),
                "flush_error": self.opened.volume.flush_error().map(|error| error.to_string()),
            },
            "polling": polling(self.opened.volume.poll(), self.opened.volume.polled()),
            "queues": self.opened.volume.decisions().iter().map(queue).collect::<Vec<_>>(),
            "export": self.exports.facts(),
            "clients": self.exports.nbd_clients(),
            "activity": activity(&self.opened.volume.meters()),
            "log": self.log,
            "metrics": self.metrics.as_ref().map(Metrics::place),
            "server": server,
        })
    }
}

/// Fails if writes were waiting for the key of a suspended volume that has ended.
fn written(opened: &Opened) -> Result<(), Failure> {
    match opened.volume.unwritten() {
        (0, _) => Ok(()),
        (count, bytes) => Err(Failure::device(format!(
            "the volume ended while it was suspended: writes that waited for the key are lost \
             ({count}, {bytes} bytes)"
        ))),
    }
}

/// Sums since the volume was opened, from which a reader of two of them learns what happened between.
fn activity(meters: &Meters) -> Value {
    let of = |all: &[&Latencies]| {
        let sum = |of: fn(&Latencies) -> u64| all.iter().map(|one| of(one)).sum::<u64>();
        json!({ "samples": sum(Latencies::count), "ns": sum(|latencies| latencies.sum) })
    };
    let cipher_ns = |it: &Transforms| it.encrypt_ns + it.decrypt_ns;
    let chunks = |it: &Transforms| it.encrypted + it.decrypted;
    json!({
        "in_flight": meters.in_flight,
        "read_latency": of(&meters.reads.each_ref()),
        "write_latency": of(&meters.writes.each_ref()),
        "flush_latency": of(&[&meters.flushes]),
        "chunks_inline": chunks(&meters.inline),
        "chunks_offloaded": chunks(&meters.workers),
        "cipher_ns": cipher_ns(&meters.inline) + cipher_ns(&meters.workers),
    })
}

/// How queues wait for the backend while requests come one at a time.
fn polling(poll: Poll, polled: Polled) -> Value {
    let Polled { spins, asleep_ns, spinning_ns, caught, missed } = polled;
    json!({
        "poll": match poll {
            Poll::Off => "off".to_owned(),
            Poll::Auto => "auto".to_owned(),
            // In microseconds, as the option takes it.
            Poll::Spin(ns) => (ns / 1000).to_string(),
        },
        "spins": spins,
        "asleep_ns": asleep_ns,
        "spinning_ns": spinning_ns,
        "caught": caught,
        "missed": missed,
    })
}

/// The decisions of one queue, and the measurements behind them.
fn queue(decisions: &Decisions) -> Value {
    let Decisions { stats, explored, measured, wake_latency_applied_ns, workers } = *decisions;
    let [wake_latency, wake_latency_100us, wake_latency_1ms] = measured.wake_latencies_ns;
    let figures = [
        ("decrypt_ns_per_byte", measured.decrypt_ns_per_byte),
        ("encrypt_ns_per_byte", measured.encrypt_ns_per_byte),
        ("worker_decrypt_ns_per_byte", measured.worker_decrypt_ns_per_byte),
        ("worker_encrypt_ns_per_byte", measured.worker_encrypt_ns_per_byte),
        ("wake_latency_ns", wake_latency),
        ("wake_latency_after_100us_ns", wake_latency_100us),
        ("wake_latency_after_1ms_ns", wake_latency_1ms),
        ("wake_cost_ns", measured.wake_cost_ns),
    ];
    let at_open = [
        ("enqueue_cost_ns", measured.enqueue_cost_ns),
        ("copy_penalty_ns_per_byte", measured.copy_penalty_ns_per_byte),
        ("copy_ns_per_byte", measured.copy_ns_per_byte),
    ];
    let samples = figures.map(|(name, figure)| (name, figure.samples()));
    let once = at_open.map(|(name, figure)| (name, u64::from(figure.is_some())));
    let samples: Map<_, _> =
        samples.into_iter().chain(once).map(|(name, count)| (name.into(), count.into())).collect();
    let mut shown = json!({
        "requests_whole": stats.whole,
        "requests_split": stats.split,
        "requests_joined": stats.joined,
        "chunks_inline": stats.inline,
        "chunks_offloaded": stats.offloaded,
        "chunks_taken_back": stats.taken_back,
        "chunks_all_inline": explored.all_inline,
        "chunks_all_offload": explored.all_offload,
        "chunks_coarse": explored.coarse,
        "chunks_whole": explored.whole,
        "operation_ns_assumed": OPERATION_NS,
        "wake_latency_applied_ns": wake_latency_applied_ns,
        "samples": samples,
        "measured_at_open": at_open.map(|(name, _)| name),
        "workers": workers,
    });
    for (name, figure) in figures {
        shown[name] = json!(figure.get());
    }
    let writes = measured.writes_ns.iter().enumerate().filter_map(|(class, figure)| {
        let bytes = Measured::write_bytes_min(class);
        figure.get().map(|ns| json!({ "bytes_min": bytes, "ns": ns, "samples": figure.samples() }))
    });
    shown["writes"] = writes.collect();
    for (name, figure) in at_open {
        shown[name] = json!(figure);
    }
    shown
}
