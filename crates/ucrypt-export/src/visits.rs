//! The number of clients, and log lines about them. The rate of these lines is limited, because a program that
//! connects again and again would fill the log.

use std::sync::Arc;
use std::time::Instant;

use crate::seldom::Seldom;

/// Gets lines about clients, one at a time, from any thread.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Clients of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Those that are served now.
    pub now: u64,
    /// All since the server was started.
    pub since_start: u64,
}

/// Most lines in a minute.
const LINES_MAX: u32 = 20;

/// Lets so many lines of a minute through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Visits(Seldom<LINES_MAX>);

impl Visits {
    /// Passes a line to `tell`, unless there were too many of late. The next one that passes says how
    /// many did not.
    pub(crate) fn tell(&self, tell: impl FnOnce(&str), line: impl FnOnce() -> String) {
        match self.0.passes(Instant::now()) {
            None => {}
            Some(0) => tell(&line()),
            Some(count) => tell(&format!("{} ({count} more lines before it)", line())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn so_many_lines_a_minute_pass_and_the_next_one_counts_the_others() {
        let (Visits(visits), start) = (Visits::default(), Instant::now());
        let passed = |seconds: u64| visits.passes(start + Duration::from_secs(seconds));
        let first: Vec<_> = (0..100).map(|_| passed(0)).collect();
        assert_eq!(first.iter().flatten().count(), LINES_MAX as usize);
        assert_eq!(passed(59), None);
        assert_eq!([passed(60), passed(60)], [Some(81), Some(0)]);
    }
}
