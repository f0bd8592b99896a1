//! Lines about clients, which anybody who can connect could cause without end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most lines in [`PERIOD`].
const LINES_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// Lets so many lines of a period through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Visits(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    since: Option<Instant>,
    lines: u32,
    kept_back: u64,
}

impl Visits {
    /// Passes a line to `tell`, unless there were too many of late. The next one that passes says how
    /// many did not.
    pub(crate) fn tell(&self, tell: impl FnOnce(&str), line: impl FnOnce() -> String) {
        // Not under the lock: the line is written before `tell` returns.
        let passes = self.passes(Instant::now());
        match passes {
            None => {}
            Some(0) => tell(&line()),
            Some(count) => tell(&format!("{} ({count} more lines before it)", line())),
        }
    }

    fn passes(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (told.since, told.lines) = (Some(now), 0);
        }
        if told.lines == LINES_MAX {
            told.kept_back += 1;
            return None;
        }
        told.lines += 1;
        Some(std::mem::take(&mut told.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_a_minute_pass_and_the_next_one_counts_the_others() {
        let (visits, start) = (Visits::default(), Instant::now());
        let passed = |seconds: u64| visits.passes(start + Duration::from_secs(seconds));
        let first: Vec<_> = (0..100).map(|_| passed(0)).collect();
        assert_eq!(first.iter().flatten().count(), LINES_MAX as usize);
        assert_eq!(passed(59), None);
        assert_eq!([passed(60), passed(60)], [Some(81), Some(0)]);
    }
}
