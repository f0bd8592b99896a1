//! The cores that the queues of a volume leave to its workers.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::tuning::TOGETHER_LOOKS;

/// Counts the queues that are awake. A queue that was awake beside others a moment ago counts too
/// while it sleeps: its next request is on its way, and a worker would take its core.
pub(crate) struct Cores {
    /// All that the process may use.
    count: u32,
    awake: AtomicU32,
    /// The most queues that were awake at the same time, and how many looks this counts for.
    together: AtomicU32,
}

impl Cores {
    pub(crate) fn new(count: u32) -> Self {
        Self { count, awake: AtomicU32::new(0), together: AtomicU32::new(0) }
    }

    /// Counts a queue that wakes up.
    pub(crate) fn awake(&self) {
        self.awake.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a queue that goes to sleep.
    pub(crate) fn asleep(&self) {
        let awake = self.awake.fetch_sub(1, Ordering::Relaxed);
        let (together, looks) = self.together();
        if awake > 1 && (awake >= together || looks == 0) {
            self.note_together(awake, TOGETHER_LOOKS);
        }
    }

    /// Cores that no queue needs now, and no client if one more is busy. On a machine with two cores,
    /// a worker would take the core of a busy client, which costs the client more than the worker
    /// gains.
    pub(crate) fn spare(&self, busy_client: bool) -> u32 {
        let mut needed = self.awake.load(Ordering::Relaxed).max(1);
        let (together, looks) = self.together();
        if needed < together && looks > 0 {
            needed = together;
            self.note_together(together, looks - 1);
        }
        self.count.saturating_sub(needed + u32::from(busy_client))
    }

    fn together(&self) -> (u32, u32) {
        let both = self.together.load(Ordering::Relaxed);
        (both >> 16, both & 0xffff)
    }

    /// Two queues may do this at the same time: what one of them has set is lost, which does no harm.
    fn note_together(&self, queues: u32, looks: u32) {
        self.together.store(queues.min(0xffff) << 16 | looks, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_queue_leaves_all_cores_but_its_own_and_its_clients() {
        let cores = Cores::new(4);
        assert_eq!((cores.spare(false), cores.spare(true)), (3, 2), "the first is about to wake");
        for _ in 0..3 {
            cores.awake();
            assert_eq!((cores.spare(false), cores.spare(true)), (3, 2));
            cores.asleep();
            assert_eq!(cores.spare(false), 3);
        }
    }

    #[test]
    fn more_queues_than_cores_leave_none() {
        let cores = Cores::new(2);
        (0..5).for_each(|_| cores.awake());
        assert_eq!(cores.spare(true), 0);
    }

    #[test]
    fn queues_that_take_turns_leave_each_others_cores_alone_for_a_while() {
        let cores = Cores::new(4);
        (0..3).for_each(|_| cores.awake());
        // Two sleep for one look after each other, again and again.
        for _ in 0..10 * TOGETHER_LOOKS {
            cores.asleep();
            cores.asleep();
            assert_eq!(cores.spare(false), 1);
            cores.awake();
            cores.awake();
        }
        // From now on two are awake, later one.
        cores.asleep();
        let looks_until = |spare| (1..1000).find(|_| cores.spare(false) == spare).unwrap();
        assert_eq!(looks_until(2), TOGETHER_LOOKS + 1);
        cores.asleep();
        assert_eq!(looks_until(3), TOGETHER_LOOKS + 1);
        assert_eq!(cores.spare(false), 3);
    }
}
