//! Lines of the log that anybody who can connect could cause without end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time in which only so many lines of a kind are reported.
const PERIOD: Duration = Duration::from_secs(60);

/// Most users whose lines are counted apart: one may have as many user numbers as it likes.
const USERS_MAX: usize = 16;

/// Lets `MOST` lines of a kind through in [`PERIOD`], and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Seldom<const MOST: u32 = 1>(Mutex<Said<MOST>>);

/// As [`Seldom`] with one line, for each user. Those for whom there is no place share one.
#[derive(Debug, Default)]
pub(crate) struct SeldomByUser(Mutex<ByUser>);

#[derive(Debug, Default)]
struct ByUser {
    users: Vec<(Option<u32>, Said<1>)>,
    others: Said<1>,
}

#[derive(Debug, Default)]
struct Said<const MOST: u32> {
    /// When the period began, and the lines reported in it.
    since: Option<Instant>,
    lines: u32,
    kept_back: u64,
}

impl<const MOST: u32> Seldom<MOST> {
    /// Whether to report such a line now, and how many were kept back since the last one; `None`: keep
    /// it back.
    pub(crate) fn passes(&self, now: Instant) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).passes(now)
    }
}

impl SeldomByUser {
    /// As [`Seldom::passes`]. `None` is a user that cannot be told.
    pub(crate) fn passes(&self, user: Option<u32>, now: Instant) -> Option<u64> {
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ByUser { users, others } = &mut *lists;
        if let Some((_, said)) = users.iter_mut().find(|(known, _)| *known == user) {
            return said.passes(now);
        }
        if users.len() == USERS_MAX {
            users.retain(|(_, said)| said.is_recent(now));
        }
        if users.len() == USERS_MAX {
            return others.passes(now);
        }
        let mut said = Said::default();
        let passes = said.passes(now);
        users.push((user, said));
        passes
    }
}

impl<const MOST: u32> Said<MOST> {
    fn is_recent(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) < PERIOD)
    }

    fn passes(&mut self, now: Instant) -> Option<u64> {
        if !self.is_recent(now) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == MOST {
            self.kept_back += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.kept_back))
    }
}

/// What a line says about those that were kept back before it.
pub(crate) fn and_before(kept_back: u64) -> String {
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
        let (seldom, start) = (Seldom::<1>::default(), Instant::now());
        let after = |seconds| seldom.passes(start + Duration::from_secs(seconds));
        assert_eq!(after(0), Some(0));
        assert_eq!([after(0), after(30), after(59)], [None; 3]);
        assert_eq!([after(60), after(61), after(500)], [Some(3), None, Some(1)]);
        assert_eq!(and_before(3), " (3 more since the last such line)");
        assert_eq!(and_before(0), "");
    }

    #[test]
    fn the_lines_of_one_user_hide_no_others_and_many_users_cannot_fill_the_log() {
        let (seldom, start) = (SeldomByUser::default(), Instant::now());
        let after = |user, seconds| seldom.passes(user, start + Duration::from_secs(seconds));
        assert_eq!([after(Some(1), 0), after(Some(1), 1)], [Some(0), None]);
        assert_eq!([after(Some(2), 1), after(None, 1)], [Some(0), Some(0)]);
        let passed =
            |seconds| (0..1000).filter(|user| after(Some(*user), seconds).is_some()).count();
        assert_eq!([passed(2), passed(59)], [USERS_MAX - 3 + 1, 0]);
        assert_eq!(after(Some(1), 60), Some(2 + 1), "its own count");
        assert!((1..=USERS_MAX + 1).contains(&passed(200)));
    }
}
