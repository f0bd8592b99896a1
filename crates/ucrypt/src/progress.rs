//! What takes longer than a second shows on a terminal that it goes on, and how long it may still
//! take. Nothing is shown elsewhere.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ucrypt_backend::was_closed_at_start;
use ucrypt_luks::{Kdf, Medium, Purpose, Write, watch_derivations, write_verified};

use crate::background::duration;
use crate::size::human;

/// What is done earlier shows nothing.
const QUIET: Duration = Duration::from_secs(1);

/// How often the line is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// A line on standard error while this lives, unless there is one already.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

/// How much there is, if that is known.
#[derive(Clone)]
enum Whole {
    Unknown,
    /// Probably this time.
    Time(Duration),
    /// This many bytes, and how many of them are done.
    Bytes(u64, Arc<AtomicU64>),
}

/// There is a line.
static IS_THERE: AtomicBool = AtomicBool::new(false);

impl Waiting {
    /// Something begins that may take long: `what` in a few words.
    pub(crate) fn begin(what: &str) -> Self {
        Self::of(what, Whole::Unknown)
    }

    fn of(what: &str, whole: Whole) -> Self {
        if !is_shown() || IS_THERE.swap(true, Ordering::SeqCst) {
            return Self(None);
        }
        let (what, begun) = (what.to_owned(), Instant::now());
        let (ended, end) = mpsc::channel();
        let show = move || {
            let is_over = |time| end.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
            if is_over(QUIET) {
                return;
            }
            let bar = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            loop {
                bar.set_message(line(&what, begun.elapsed(), &whole));
                bar.tick();
                if is_over(DRAW_EVERY) {
                    return bar.finish_and_clear();
                }
            }
        };
        // Without a thread, nothing is shown.
        let thread = std::thread::Builder::new().name("progress".into()).spawn(show).ok();
        IS_THERE.store(thread.is_some(), Ordering::SeqCst);
        Self(thread.map(|thread| (ended, thread)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.0.take() {
            drop(ended);
            // The line is gone before anything else is said.
            let _ = thread.join();
            IS_THERE.store(false, Ordering::SeqCst);
        }
    }
}

fn is_shown() -> bool {
    !was_closed_at_start(2) && std::io::stderr().is_terminal()
}

fn line(what: &str, elapsed: Duration, whole: &Whole) -> String {
    let mut line = format!("{what}: {}", duration(elapsed.as_secs()));
    // Writing to a string cannot fail.
    let _ = match whole {
        Whole::Unknown => Ok(()),
        Whole::Time(estimate) => match estimate.saturating_sub(elapsed) {
            // An estimate that has passed tells nothing.
            Duration::ZERO => write!(line, ", longer than expected"),
            left => {
                let share = elapsed.as_secs_f64() / estimate.as_secs_f64().max(1e-3) * 100.0;
                write!(line, ", {share:.0} %, about {} left", duration(left.as_secs() + 1))
            }
        },
        Whole::Bytes(all, done) => {
            let left = all.saturating_sub(done.load(Ordering::Relaxed));
            write!(line, ", {} of {} left", human(left), human(*all))
        }
    };
    line
}

/// Carries out writes as [`write_verified`] does, and shows how much of them is left.
pub(crate) fn write_shown(
    what: &str,
    medium: &dyn Medium,
    writes: &[Write],
) -> ucrypt_luks::Result<()> {
    Counted::of(what, writes).each(writes, |write| write_verified(medium, from_ref(write)))
}

/// Writes of which each is counted when it is done.
pub(crate) struct Counted {
    done: Arc<AtomicU64>,
    _waiting: Waiting,
}

impl Counted {
    /// Begins with `what`, which consists of these writes.
    pub(crate) fn of(what: &str, writes: &[Write]) -> Self {
        let all = writes.iter().map(|write| write.bytes.len() as u64).sum();
        let done = Arc::new(AtomicU64::new(0));
        Self { _waiting: Waiting::of(what, Whole::Bytes(all, done.clone())), done }
    }

    /// Carries out each, up to the first that fails.
    pub(crate) fn each<E>(
        &self,
        writes: &[Write],
        carry_out: impl FnMut(&Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut carry_out = carry_out;
        writes.iter().try_for_each(|write| {
            carry_out(write)?;
            self.done.fetch_add(write.bytes.len() as u64, Ordering::Relaxed);
            Ok(())
        })
    }
}

/// How long a unit of cost has taken in this process, by what is computed.
static SPEEDS: Mutex<Option<HashMap<String, Duration>>> = Mutex::new(None);

/// Shows key derivations that take long, with the time that is left: by the speed of those before, of which that of a
/// new keyslot has some that measure it, or else by a short one.
pub(crate) fn show_derivations() {
    if is_shown() {
        watch_derivations(|kdf, purpose| Box::new(Derivation::begin(kdf, purpose)));
    }
}

/// A key derivation under way.
struct Derivation {
    of: String,
    /// In units whose time is proportional: iterations, or passes over a MiB.
    cost: f64,
    begun: Instant,
    _waiting: Waiting,
}

impl Derivation {
    fn begin(kdf: &Kdf, purpose: Purpose) -> Self {
        let (of, cost, detail) = match kdf {
            Kdf::Pbkdf2 { hash, iterations } => {
                (format!("pbkdf2 {hash}"), f64::from(*iterations), hash.clone())
            }
            Kdf::Argon2 { time, memory_kib, lanes, .. } => {
                let memory = human(u64::from(*memory_kib) << 10);
                let cost = f64::from(*time) * f64::from(*memory_kib) / 1024.0;
                (format!("{} {lanes}", kdf.name()), cost, format!("{memory}, {time} times"))
            }
            Kdf::Unknown(name) => (name.clone(), 1.0, String::new()),
        };
        let speed = {
            let speeds = SPEEDS.lock().unwrap_or_else(PoisonError::into_inner);
            speeds.as_ref().and_then(|speeds| speeds.get(&of).copied())
        };
        let known = speed.map(|unit| unit.mul_f64(cost));
        let is_key = purpose == Purpose::Key;
        let estimate = known.or_else(|| is_key.then(|| kdf.estimate()).flatten());
        let what = format!("deriving a key ({}, {detail})", kdf.name());
        let whole = estimate.map_or(Whole::Unknown, Whole::Time);
        Self { of, cost, begun: Instant::now(), _waiting: Waiting::of(&what, whole) }
    }
}

impl Drop for Derivation {
    fn drop(&mut self) {
        // Short ones tell more of the caches than of the speed.
        let elapsed = self.begun.elapsed();
        if self.cost >= 1.0 && elapsed > Duration::from_millis(10) {
            let unit = elapsed.div_f64(self.cost);
            let mut speeds = SPEEDS.lock().unwrap_or_else(PoisonError::into_inner);
            speeds.get_or_insert_default().insert(std::mem::take(&mut self.of), unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_is_left_only_where_that_is_known() {
        let seconds = Duration::from_secs;
        assert_eq!(line("closing", seconds(75), &Whole::Unknown), "closing: 1 min 15 s");
        let whole = Whole::Time(seconds(8));
        let halfway = line("deriving", seconds(2), &whole);
        assert_eq!(halfway, "deriving: 2 s, 25 %, about 7 s left");
        assert_eq!(line("deriving", seconds(9), &whole), "deriving: 9 s, longer than expected");
    }

    #[test]
    fn of_writes_the_bytes_that_are_left_are_told() {
        let write = |length| Write { offset: 0, bytes: vec![0; length] };
        let writes = [write(1 << 20), write(3 << 20), write(4 << 20)];
        let counted = Counted::of("restoring", &writes);
        let mut refused = 3;
        let ended = counted.each(&writes, |_| {
            refused -= 1;
            if refused > 0 { Ok(()) } else { Err("the third") }
        });
        assert_eq!(ended, Err("the third"));
        let whole = Whole::Bytes(8 << 20, counted.done.clone());
        let text = line("restoring", Duration::from_secs(2), &whole);
        assert_eq!(text, "restoring: 2 s, 4M of 8M left");
    }

    #[test]
    fn a_second_derivation_is_estimated_by_the_first() {
        let kdf = Kdf::Pbkdf2 { hash: "of this test".into(), iterations: 1000 };
        let first = Derivation::begin(&kdf, Purpose::Key);
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
        let speeds = SPEEDS.lock().unwrap();
        let unit = speeds.as_ref().unwrap()["pbkdf2 of this test"];
        assert!(unit >= Duration::from_micros(20), "{unit:?}");
    }
}
