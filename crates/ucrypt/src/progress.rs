//! What takes longer than a second shows on a terminal that it goes on, and how long it may still
//! take. Nothing is shown elsewhere.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ucrypt_backend::was_closed_at_start;
use ucrypt_luks::{Kdf, watch_derivations};

use crate::background::duration;
use crate::size::human;

/// What is done earlier shows nothing.
const QUIET: Duration = Duration::from_secs(1);

/// How often the line is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// A line on standard error while this lives, unless there is one already.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

/// There is a line.
static IS_THERE: AtomicBool = AtomicBool::new(false);

impl Waiting {
    /// Something begins that may take long: `what` in a few words.
    pub(crate) fn begin(what: &str) -> Self {
        Self::with_estimate(what, None)
    }

    /// As [`Waiting::begin`], for what will probably take so long.
    fn with_estimate(what: &str, estimate: Option<Duration>) -> Self {
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
                bar.set_message(line(&what, begun.elapsed(), estimate));
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

fn line(what: &str, elapsed: Duration, estimate: Option<Duration>) -> String {
    let mut line = format!("{what}: {}", duration(elapsed.as_secs()));
    if let Some(estimate) = estimate {
        // An estimate that has passed tells nothing.
        let left = estimate.saturating_sub(elapsed);
        let share = elapsed.as_secs_f64() / estimate.as_secs_f64().max(1e-3) * 100.0;
        // Writing to a string cannot fail.
        let _ = match left {
            Duration::ZERO => write!(line, ", longer than expected"),
            left => write!(line, ", {share:.0} %, about {} left", duration(left.as_secs() + 1)),
        };
    }
    line
}

/// How long a unit of cost has taken in this process, by what is computed.
static SPEEDS: Mutex<Option<HashMap<String, Duration>>> = Mutex::new(None);

/// Shows key derivations that take long, with the time that is left if the speed is known: that of a
/// new keyslot is measured first.
pub(crate) fn show_derivations() {
    if is_shown() {
        watch_derivations(|kdf| Box::new(Derivation::begin(kdf)));
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
    fn begin(kdf: &Kdf) -> Self {
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
        let estimate = speed.map(|unit| unit.mul_f64(cost));
        let what = format!("deriving a key ({}, {detail})", kdf.name());
        Self { of, cost, begun: Instant::now(), _waiting: Waiting::with_estimate(&what, estimate) }
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
        assert_eq!(line("closing", seconds(75), None), "closing: 1 min 15 s");
        let halfway = line("deriving", seconds(2), Some(seconds(8)));
        assert_eq!(halfway, "deriving: 2 s, 25 %, about 7 s left");
        assert_eq!(
            line("deriving", seconds(9), Some(seconds(8))),
            "deriving: 9 s, longer than expected"
        );
    }

    #[test]
    fn a_second_derivation_is_estimated_by_the_first() {
        let kdf = Kdf::Pbkdf2 { hash: "of this test".into(), iterations: 1000 };
        let first = Derivation::begin(&kdf);
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
        let speeds = SPEEDS.lock().unwrap();
        let unit = speeds.as_ref().unwrap()["pbkdf2 of this test"];
        assert!(unit >= Duration::from_micros(20), "{unit:?}");
    }
}
