//! Decides whether a queue whose only request is at the backend spins for the answer, or sleeps.
//!
//! To sleep and to be woken takes 5 to 100 microseconds, which a spinning thread saves; it takes its
//! core from others instead, in a virtual machine also from the host's own threads. Which of them is
//! faster no estimate tells: so the two are tried in turns ([`Pairs`]), and judged by what the client gets.
//! That contains all that spinning takes from others.

use std::io;
use std::sync::{MutexGuard, PoisonError};

use super::Queue;
use super::pairs::Pairs;
use crate::tuning::POLL_SPIN_NS_MAX;
use crate::volume::Volume;

/// How a queue waits for an answer of the backend while a request is alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Poll {
    /// It sleeps at once.
    #[default]
    Off,
    /// It spins if that is measured to be faster, and no other thread wants the core.
    Auto,
    /// It spins for at most this many nanoseconds, then sleeps.
    Spin(u64),
}

/// What a volume has learned of spinning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Polled {
    /// Whether its queues spin at present.
    pub spins: bool,
    /// Median time from a lone request to the next in nanoseconds, where they slept.
    pub asleep_ns: Option<u64>,
    /// The same where they spun.
    pub spinning_ns: Option<u64>,
    /// How often an answer came while a queue spun.
    pub caught: u64,
    /// How often a queue spun in vain.
    pub missed: u64,
}

/// The way the queues of a volume wait, from what was measured with all of them.
#[derive(Debug)]
pub(crate) struct Polling {
    poll: Poll,
    /// Spinning is the other way.
    pairs: Pairs,
    /// When the last lone request came.
    last_ns: Option<u64>,
    /// Since then, there was no core to spin on.
    denied: bool,
    caught: u64,
    missed: u64,
}

impl Polling {
    pub(crate) fn new(poll: Poll) -> Self {
        Self { poll, pairs: Pairs::default(), last_ns: None, denied: false, caught: 0, missed: 0 }
    }

    /// How long to spin now, in nanoseconds; 0: not at all.
    fn budget_ns(&mut self, has_spare_core: bool) -> u64 {
        match self.poll {
            Poll::Spin(ns) => ns,
            Poll::Auto if self.pairs.other() => {
                self.denied |= !has_spare_core;
                if has_spare_core { POLL_SPIN_NS_MAX } else { 0 }
            }
            _ => 0,
        }
    }

    /// Counts a spin that has ended.
    fn spun(&mut self, caught: bool) {
        let count = if caught { &mut self.caught } else { &mut self.missed };
        *count += 1;
    }

    /// A request came that is alone in flight; the one before it was, too. Where there was no core to spin
    /// on, nothing is learned of spinning.
    fn lone_request(&mut self, now_ns: u64) {
        let denied = std::mem::take(&mut self.denied);
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return };
        if denied {
            self.pairs.interrupt();
        } else {
            self.pairs.time(now_ns, now_ns.saturating_sub(last_ns));
        }
    }

    /// The client's requests are no longer alone: times that span this say nothing.
    fn interrupted(&mut self) {
        self.last_ns = None;
    }

    fn state(&self) -> Polled {
        let spins = match self.poll {
            Poll::Off => false,
            Poll::Auto => self.pairs.other(),
            Poll::Spin(_) => true,
        };
        let [asleep_ns, spinning_ns] = self.pairs.medians_ns();
        Polled { spins, asleep_ns, spinning_ns, caught: self.caught, missed: self.missed }
    }
}

impl Volume {
    /// How queues wait for the backend while requests come one at a time.
    pub fn poll(&self) -> Poll {
        self.poll
    }

    /// What is known of spinning for the backend's answers.
    pub fn polled(&self) -> Polled {
        self.polling().state()
    }

    fn polling(&self) -> MutexGuard<'_, Polling> {
        self.polling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// A request was accepted. `was_alone`: the ones before it came one at a time.
    pub(super) fn note_arrival(&self, was_alone: bool) {
        if self.backend.synchronous || self.volume.poll != Poll::Auto {
            return;
        }
        if self.alone().is_some() {
            self.volume.polling().lone_request(self.time.exact_ns());
        } else if was_alone {
            self.volume.polling().interrupted();
        }
    }

    /// Spins for an answer of the backend, if that pays. The caller has just polled, and sleeps
    /// otherwise. Returns whether there is something to do.
    ///
    /// # Errors
    /// As [`Queue::poll`].
    #[inline]
    pub(super) fn spin(&mut self) -> io::Result<bool> {
        if self.volume.poll == Poll::Off || self.backend.synchronous {
            return Ok(false);
        }
        self.spin_if_alone()
    }

    fn spin_if_alone(&mut self) -> io::Result<bool> {
        if self.in_flight() == 0 || self.alone().is_none() || !self.awaits_backend_only() {
            return Ok(false);
        }
        let budget_ns = self.volume.polling().budget_ns(self.volume.has_spare_core());
        if budget_ns == 0 {
            return Ok(false);
        }
        let until_ns = self.time.exact_ns().saturating_add(budget_ns);
        let caught = loop {
            if self.take_completions(false)? {
                break true;
            }
            self.poll_own_ring()?;
            if self.has_foreign() {
                return Ok(true);
            }
            if self.time.exact_ns() >= until_ns {
                break false;
            }
            std::hint::spin_loop();
        };
        self.volume.polling().spun(caught);
        Ok(caught)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_which_requests_came_together_do_not_count() {
        let mut polling = Polling::new(Poll::Auto);
        for at in 1..=1000 {
            polling.lone_request(at * 1_000_000);
            polling.interrupted();
        }
        assert_eq!(polling.state(), Polled::default());
    }

    #[test]
    fn a_core_that_others_want_is_not_spun_on_unless_told_to() {
        let mut polling = Polling::new(Poll::Auto);
        let mut now_ns = 0;
        while !polling.pairs.other() {
            now_ns += 100_000;
            polling.lone_request(now_ns);
        }
        assert_eq!((polling.budget_ns(true), polling.budget_ns(false)), (POLL_SPIN_NS_MAX, 0));
        assert_eq!(Polling::new(Poll::Spin(7)).budget_ns(false), 7);
        assert_eq!(Polling::new(Poll::Off).budget_ns(true), 0);
        let mut polling = Polling::new(Poll::Auto);
        for at in 1..=100_000 {
            assert_eq!(polling.budget_ns(false), 0);
            polling.lone_request(at * 100_000);
        }
        let Polled { spins, asleep_ns, spinning_ns, .. } = polling.state();
        assert!(!spins && asleep_ns.is_some());
        assert_eq!(spinning_ns, None, "nothing is known of it");
    }
}
