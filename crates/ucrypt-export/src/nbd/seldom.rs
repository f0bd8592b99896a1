//! Lines of the log that anybody who can connect could cause without end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a line of one kind is reported.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Lets one line of a kind through in [`SAY_EVERY`], and counts the others.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    last: Option<Instant>,
    /// Lines since then.
    kept_back: u64,
}

impl Seldom {
    /// Whether to report such a line now, and how many were kept back since the last one; `None`: keep
    /// it back.
    pub(super) fn passes(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.last.is_some_and(|last| now.saturating_duration_since(last) < SAY_EVERY) {
            said.kept_back += 1;
            return None;
        }
        said.last = Some(now);
        Some(std::mem::take(&mut said.kept_back))
    }
}

/// What a line says about those that were kept back before it.
pub(super) fn and_before(kept_back: u64) -> String {
    match kept_back {
        0 => String::new(),
        count => format!(" ({count} more since the last such line)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_passes_with_the_number_of_the_others() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        let after = |seconds| seldom.passes(start + Duration::from_secs(seconds));
        assert_eq!(after(0), Some(0));
        assert_eq!([after(0), after(30), after(59)], [None; 3]);
        assert_eq!([after(60), after(61), after(500)], [Some(3), None, Some(1)]);
        assert_eq!(and_before(3), " (3 more since the last such line)");
        assert_eq!(and_before(0), "");
    }
}
