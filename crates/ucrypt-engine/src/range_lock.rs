//! Keeps a read-modify-write of part of a sector away from everything else on that sector.
//!
//! Clients may read and write single bytes; the cipher works on whole sectors. A write of part of
//! a sector reads the sector, changes it and writes it back, and in between nobody else may write
//! there (the change would be lost) or read there (ciphertext half old, half new decrypts to
//! noise). Such writes take their range **exclusively**, all other requests **share** it.
//!
//! The volume is divided into stripes of 1 MiB, folded onto a fixed table. Nobody blocks: who
//! cannot have a range registers to be woken, tries once more, and waits. A failed exclusive
//! attempt leaves a mark that keeps new sharers out, so it gets its turn when the present ones end.
//! Who no longer wants its turn takes the mark away.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::workers::signal;

const STRIPE_SHIFT: u32 = 20;
const STRIPES: u64 = 1024;

/// Held exclusively.
const EXCLUSIVE: u32 = 1 << 31;
/// An exclusive attempt waits for the sharers to end.
const WANTED: u32 = 1 << 30;
const SHARERS: u32 = WANTED - 1;

/// How a range is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

#[derive(Debug)]
pub(crate) struct RangeLock {
    stripes: Box<[AtomicU32]>,
    sleepers: Mutex<Vec<Arc<OwnedFd>>>,
    sleeping: AtomicUsize,
}

/// The stripes of a byte range, each once. Folding makes a range a cyclic run of the table.
fn stripes(range: &Range<u64>) -> impl DoubleEndedIterator<Item = usize> + Clone + use<> {
    let first = range.start >> STRIPE_SHIFT;
    let last = range.end.saturating_sub(1).max(range.start) >> STRIPE_SHIFT;
    let count = (last - first + 1).min(STRIPES);
    (0..count).map(move |index| ((first + index) % STRIPES) as usize)
}

impl RangeLock {
    pub(crate) fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            sleepers: Mutex::new(Vec::new()),
            sleeping: AtomicUsize::new(0),
        }
    }

    /// Takes the whole range or nothing.
    pub(crate) fn try_lock(&self, range: &Range<u64>, mode: Mode) -> bool {
        let wanted = stripes(range);
        for (taken, stripe) in wanted.clone().enumerate() {
            let got = match mode {
                Mode::Shared => self.try_share(stripe),
                Mode::Exclusive => self.try_exclude(stripe),
            };
            if !got {
                for stripe in wanted.take(taken) {
                    self.give_back(stripe, mode);
                }
                // Someone may have been refused only because of what was just given back.
                self.wake();
                return false;
            }
        }
        true
    }

    fn try_share(&self, stripe: usize) -> bool {
        let stripe = &self.stripes[stripe];
        let before = stripe.fetch_add(1, Ordering::SeqCst);
        if before & (EXCLUSIVE | WANTED) != 0 {
            stripe.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        true
    }

    fn try_exclude(&self, stripe: usize) -> bool {
        let stripe = &self.stripes[stripe];
        let before = stripe.fetch_or(WANTED, Ordering::SeqCst);
        if before & (EXCLUSIVE | SHARERS) != 0 {
            return false;
        }
        stripe.compare_exchange(WANTED, EXCLUSIVE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Undoes part of a failed attempt; an exclusive one stays marked as wanted.
    fn give_back(&self, stripe: usize, mode: Mode) {
        let stripe = &self.stripes[stripe];
        match mode {
            Mode::Shared => stripe.fetch_sub(1, Ordering::SeqCst),
            Mode::Exclusive => {
                stripe.fetch_or(WANTED, Ordering::SeqCst);
                stripe.fetch_and(!EXCLUSIVE, Ordering::SeqCst)
            }
        };
    }

    /// Gives a range back that [`RangeLock::try_lock`] took.
    pub(crate) fn unlock(&self, range: &Range<u64>, mode: Mode) {
        for stripe in stripes(range) {
            let stripe = &self.stripes[stripe];
            let before = match mode {
                Mode::Shared => stripe.fetch_sub(1, Ordering::SeqCst) & SHARERS,
                Mode::Exclusive => stripe.fetch_and(!EXCLUSIVE, Ordering::SeqCst) & EXCLUSIVE,
            };
            debug_assert!(before != 0, "unlock of a range that was not held");
        }
        self.wake();
    }

    /// After a failed exclusive attempt: it will not be tried again. The marks of others that wait for
    /// the same range go with it; they mark it anew when they are woken.
    pub(crate) fn give_up(&self, range: &Range<u64>) {
        for stripe in stripes(range) {
            self.stripes[stripe].fetch_and(!WANTED, Ordering::SeqCst);
        }
        self.wake();
    }

    /// Asks for a wake-up at the next unlock. The caller tries once more afterwards: an unlock
    /// before this call wakes nobody.
    pub(crate) fn sleep(&self, waker: &Arc<OwnedFd>) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if !sleepers.iter().any(|known| Arc::ptr_eq(known, waker)) {
            sleepers.push(waker.clone());
        }
        self.sleeping.store(sleepers.len(), Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.sleeping.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        for waker in sleepers.drain(..) {
            signal(&waker);
        }
        self.sleeping.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_exclusive_range_keeps_everyone_out_until_it_is_unlocked() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(MIB..3 * MIB), Mode::Exclusive));
        assert!(!lock.try_lock(&(2 * MIB..2 * MIB + 1), Mode::Shared));
        assert!(!lock.try_lock(&(0..MIB + 1), Mode::Exclusive));
        assert!(lock.try_lock(&(3 * MIB..4 * MIB), Mode::Shared));
        lock.unlock(&(MIB..3 * MIB), Mode::Exclusive);
        assert!(lock.try_lock(&(0..MIB + 1), Mode::Exclusive));
    }

    #[test]
    fn a_refused_exclusive_attempt_keeps_new_sharers_out_and_gets_its_turn() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(0..10), Mode::Shared));
        assert!(!lock.try_lock(&(0..10), Mode::Exclusive));
        assert!(!lock.try_lock(&(5..6), Mode::Shared), "it would never get its turn");
        lock.unlock(&(0..10), Mode::Shared);
        assert!(lock.try_lock(&(0..10), Mode::Exclusive));
        lock.unlock(&(0..10), Mode::Exclusive);
        assert!(lock.try_lock(&(0..10), Mode::Shared));
    }

    #[test]
    fn who_gives_up_its_turn_keeps_nobody_out() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(0..10), Mode::Shared));
        assert!(!lock.try_lock(&(0..2 * MIB), Mode::Exclusive));
        lock.give_up(&(0..2 * MIB));
        assert!(lock.try_lock(&(5..6), Mode::Shared));
        assert!(!lock.try_lock(&(0..10), Mode::Exclusive), "two share it");
    }

    #[test]
    fn a_range_larger_than_the_table_takes_each_stripe_once() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(5 * MIB..5000 * MIB), Mode::Exclusive));
        lock.unlock(&(5 * MIB..5000 * MIB), Mode::Exclusive);
        assert!(lock.try_lock(&(0..u64::MAX), Mode::Shared));
        lock.unlock(&(0..u64::MAX), Mode::Shared);
        assert!(lock.stripes.iter().all(|stripe| stripe.load(Ordering::SeqCst) == 0));
    }

    #[test]
    fn threads_that_exclude_each_other_never_meet() {
        use std::sync::atomic::AtomicBool;
        let lock = RangeLock::new();
        let inside = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        while !lock.try_lock(&(0..3 * MIB), Mode::Exclusive) {
                            std::thread::yield_now();
                        }
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        inside.store(false, Ordering::SeqCst);
                        lock.unlock(&(0..3 * MIB), Mode::Exclusive);
                        while !lock.try_lock(&(MIB..2 * MIB), Mode::Shared) {
                            std::thread::yield_now();
                        }
                        assert!(!inside.load(Ordering::SeqCst));
                        lock.unlock(&(MIB..2 * MIB), Mode::Shared);
                    }
                });
            }
        });
        assert!(lock.stripes.iter().all(|stripe| stripe.load(Ordering::SeqCst) & SHARERS == 0));
    }
}
