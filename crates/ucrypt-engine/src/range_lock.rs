//! Keeps a read-modify-write of part of a sector apart from every other access to that sector.
//!
//! Clients may read and write single bytes; the cipher works on whole sectors. A write of part of a
//! sector reads the sector, changes it and writes it back. In between no other request may write
//! there (the change would be lost) or read there (ciphertext that is half old and half new
//! decrypts to noise). Such writes lock the ends of their range **exclusively**; everything else is
//! **shared**.
//!
//! The volume is divided into stripes of 1 MiB, which are mapped onto a fixed table. No thread
//! blocks: a queue that cannot lock a range calls [`RangeLock::lock_or_sleep`], which sets
//! `AWAITED` on the stripe that refused. The unlock that frees this stripe clears the mark and
//! wakes all sleepers. So a waiter runs when its stripe may be free, and at no other time. A failed
//! exclusive attempt also sets `WANTED`, which keeps new sharers out until the present ones have
//! ended and the attempt succeeds. A queue that gives its attempt up clears `WANTED`.
//!
//! A volume that is suspended marks every stripe `HALTED`, which refuses all attempts. So the lock
//! that every request takes is the gate as well, and costs nothing more.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::workers::signal;

/// Sleeping queues that the list has room for; it grows if there are more.
const SLEEPERS: usize = 64;

const STRIPE_SHIFT: u32 = 20;
const STRIPES: u64 = 1024;

/// The stripe is held exclusively.
const EXCLUSIVE: u32 = 1 << 31;
/// An exclusive attempt waits for the sharers to end.
const WANTED: u32 = 1 << 30;
/// A sleeping queue was refused this stripe.
const AWAITED: u32 = 1 << 29;
/// Nobody may take the stripe, whatever for, until the mark is gone.
const HALTED: u32 = 1 << 28;
const SHARERS: u32 = HALTED - 1;

/// The way a range is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    /// The first byte of the range, its last, or both are in sectors that are written in part: their
    /// stripes are locked exclusively, those between are shared.
    Ends {
        first: bool,
        last: bool,
    },
}

impl Mode {
    /// Both ends are exclusive.
    #[cfg(test)]
    const BOTH_ENDS: Self = Self::Ends { first: true, last: true };
}

/// The way one stripe is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Shared,
    /// Shared, between exclusive ends. It does not wait for those who only want the stripe: they may
    /// be waiting for these ends.
    Between,
    Exclusive,
}

impl Hold {
    /// Whether a stripe in this state refuses it.
    fn is_refused(self, state: u32) -> bool {
        match self {
            Self::Shared => state & (EXCLUSIVE | WANTED | HALTED) != 0,
            Self::Between => state & (EXCLUSIVE | HALTED) != 0,
            Self::Exclusive => state & (EXCLUSIVE | SHARERS | HALTED) != 0,
        }
    }

    /// The state of a stripe after it was locked. An exclusive owner clears `WANTED`, for other
    /// waiters as well; they set it again when they are woken.
    fn taken(self, state: u32) -> u32 {
        match self {
            Self::Shared | Self::Between => state + 1,
            Self::Exclusive => state & AWAITED | EXCLUSIVE,
        }
    }
}

#[derive(Debug)]
pub(crate) struct RangeLock {
    stripes: Box<[AtomicU32]>,
    sleepers: Mutex<Vec<Arc<OwnedFd>>>,
}

/// The stripes of a byte range, each once, and how they are held. The range is a cyclic run of the
/// table.
fn stripes(range: &Range<u64>, mode: Mode) -> impl Iterator<Item = (usize, Hold)> + Clone + use<> {
    let first = range.start >> STRIPE_SHIFT;
    let last = range.end.saturating_sub(1).max(range.start) >> STRIPE_SHIFT;
    let count = (last - first + 1).min(STRIPES);
    let (ends, rest) = match mode {
        Mode::Shared => ([None, None], Hold::Shared),
        Mode::Ends { first: with_first, last: with_last } => {
            let ends = [with_first.then_some(first % STRIPES), with_last.then_some(last % STRIPES)];
            (ends, Hold::Between)
        }
    };
    (0..count).map(move |index| {
        let stripe = (first + index) % STRIPES;
        let hold = if ends.contains(&Some(stripe)) { Hold::Exclusive } else { rest };
        (stripe as usize, hold)
    })
}

impl RangeLock {
    pub(crate) fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            sleepers: Mutex::new(Vec::with_capacity(SLEEPERS)),
        }
    }

    /// Locks the whole range, or nothing.
    pub(crate) fn try_lock(&self, range: &Range<u64>, mode: Mode) -> bool {
        self.attempt(range, mode).is_ok()
    }

    /// As [`RangeLock::try_lock`], but signals `waker` once when a refused range may be free.
    pub(crate) fn lock_or_sleep(
        &self,
        range: &Range<u64>,
        mode: Mode,
        waker: &Arc<OwnedFd>,
    ) -> bool {
        while let Err((stripe, hold)) = self.attempt(range, mode) {
            // First the list, then the mark: whoever clears the mark finds the waker.
            self.add_sleeper(waker);
            let marked =
                self.stripes[stripe].fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| {
                    hold.is_refused(state).then_some(state | AWAITED)
                });
            if marked.is_ok() {
                return false;
            }
            // The stripe became free meanwhile.
        }
        true
    }

    /// Locks the whole range, or returns the stripe that refused.
    fn attempt(&self, range: &Range<u64>, mode: Mode) -> Result<(), (usize, Hold)> {
        let wanted = stripes(range, mode);
        if mode != Mode::Shared {
            for (stripe, _) in wanted.clone().filter(|(_, hold)| *hold == Hold::Exclusive) {
                self.stripes[stripe].fetch_or(WANTED, Ordering::SeqCst);
            }
        }
        // Check before locking anything: stripes that are locked and released again may refuse
        // others, which would then be woken for nothing.
        let refused = |(stripe, hold): &(usize, Hold)| {
            hold.is_refused(self.stripes[*stripe].load(Ordering::SeqCst))
        };
        if let Some(stripe) = wanted.clone().find(refused) {
            return Err(stripe);
        }
        for (taken, (stripe, hold)) in wanted.clone().enumerate() {
            let got =
                self.stripes[stripe].fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| {
                    (!hold.is_refused(state)).then(|| hold.taken(state))
                });
            if got.is_err() {
                // Other queues came in between.
                for (stripe, hold) in wanted.take(taken) {
                    self.release(stripe, hold);
                }
                return Err((stripe, hold));
            }
        }
        Ok(())
    }

    /// Releases one stripe, and wakes the sleepers if one of them waits for it.
    fn release(&self, stripe: usize, hold: Hold) {
        let stripe = &self.stripes[stripe];
        let left = match hold {
            Hold::Shared | Hold::Between => {
                let before = stripe.fetch_sub(1, Ordering::SeqCst);
                debug_assert!(before & SHARERS != 0, "unlock of a range that was not held");
                before - 1
            }
            Hold::Exclusive => {
                let before = stripe.fetch_and(!EXCLUSIVE, Ordering::SeqCst);
                debug_assert!(before & EXCLUSIVE != 0, "unlock of a range that was not held");
                before & !EXCLUSIVE
            }
        };
        if left & AWAITED != 0 && left & (SHARERS | EXCLUSIVE) == 0 {
            self.wake(stripe);
        }
    }

    /// Unlocks a range that was locked.
    pub(crate) fn unlock(&self, range: &Range<u64>, mode: Mode) {
        for (stripe, hold) in stripes(range, mode) {
            self.release(stripe, hold);
        }
    }

    /// Gives up a failed attempt that wanted ends. This also clears the marks of others that wait for
    /// the same stripes; they set them again when they are woken.
    pub(crate) fn give_up(&self, range: &Range<u64>, mode: Mode) {
        for (stripe, _) in stripes(range, mode).filter(|(_, hold)| *hold == Hold::Exclusive) {
            let stripe = &self.stripes[stripe];
            if stripe.fetch_and(!WANTED, Ordering::SeqCst) & AWAITED != 0 {
                self.wake(stripe);
            }
        }
    }

    /// Refuses every attempt from now on, until [`RangeLock::unhalt`]. What is locked stays locked.
    pub(crate) fn halt(&self) {
        for stripe in &self.stripes {
            stripe.fetch_or(HALTED, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.stripes[0].load(Ordering::SeqCst) & HALTED != 0
    }

    /// Whether nothing is locked. If the lock is halted, this stays so.
    pub(crate) fn is_quiet(&self) -> bool {
        let held = |stripe: &AtomicU32| stripe.load(Ordering::SeqCst) & (EXCLUSIVE | SHARERS) != 0;
        !self.stripes.iter().any(held)
    }

    /// Takes [`RangeLock::halt`] back, and wakes all who sleep.
    pub(crate) fn unhalt(&self) {
        for stripe in &self.stripes {
            stripe.fetch_and(!(HALTED | AWAITED), Ordering::SeqCst);
        }
        self.wake_all();
    }

    fn add_sleeper(&self, waker: &Arc<OwnedFd>) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if !sleepers.iter().any(|known| Arc::ptr_eq(known, waker)) {
            sleepers.push(waker.clone());
        }
    }

    /// Clears a stripe's `AWAITED` and wakes all sleepers.
    fn wake(&self, stripe: &AtomicU32) {
        stripe.fetch_and(!AWAITED, Ordering::SeqCst);
        self.wake_all();
    }

    /// Wakes all sleepers; they try again.
    pub(crate) fn wake_all(&self) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        for waker in sleepers.drain(..) {
            signal(&waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn waker() -> Arc<OwnedFd> {
        Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
    }

    /// Whether the waker was signalled since the last call.
    fn is_woken(waker: &OwnedFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let readable = poll(&mut [PollFd::new(waker, PollFlags::IN)], Some(&now)).unwrap() > 0;
        if readable {
            rustix::io::read(waker, &mut [0; 8]).unwrap();
        }
        readable
    }

    #[test]
    fn who_waits_for_a_range_is_woken_when_it_is_free_and_not_by_itself_or_by_others() {
        let lock = RangeLock::new();
        for (held, wanted) in [
            (Mode::Shared, Mode::BOTH_ENDS),
            (Mode::BOTH_ENDS, Mode::BOTH_ENDS),
            (Mode::BOTH_ENDS, Mode::Shared),
        ] {
            let (one, other) = (waker(), waker());
            assert!(lock.try_lock(&(0..4 * MIB), held));
            for waker in [&one, &other] {
                assert!(!lock.lock_or_sleep(&(3 * MIB..5 * MIB), wanted, waker));
            }
            // Neither their own attempts nor traffic elsewhere wake them.
            assert!(!is_woken(&one) && !is_woken(&other), "{held:?}, {wanted:?}");
            assert!(!lock.lock_or_sleep(&(3 * MIB..5 * MIB), wanted, &one));
            for mode in [Mode::Shared, Mode::BOTH_ENDS] {
                assert!(lock.try_lock(&(7 * MIB..8 * MIB), mode));
                lock.unlock(&(7 * MIB..8 * MIB), mode);
            }
            assert!(!is_woken(&one) && !is_woken(&other), "{held:?}, {wanted:?}");
            lock.unlock(&(0..4 * MIB), held);
            assert!(is_woken(&one) && is_woken(&other), "{held:?}, {wanted:?}");
            assert!(lock.lock_or_sleep(&(3 * MIB..5 * MIB), wanted, &one));
            let got = lock.lock_or_sleep(&(3 * MIB..5 * MIB), wanted, &other);
            assert_eq!(got, wanted == Mode::Shared);
            lock.unlock(&(3 * MIB..5 * MIB), wanted);
            if got {
                lock.unlock(&(3 * MIB..5 * MIB), wanted);
            } else {
                assert!(is_woken(&other), "{held:?}, {wanted:?}");
                lock.give_up(&(3 * MIB..5 * MIB), Mode::BOTH_ENDS);
            }
            assert!(!is_woken(&one), "{held:?}, {wanted:?}");
        }
    }

    #[test]
    fn threads_that_sleep_for_a_range_are_never_forgotten() {
        let lock = RangeLock::new();
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (lock, patience) = (&lock, &patience);
                scope.spawn(move || {
                    let waker = waker();
                    for round in 0..3000u64 {
                        let exclusive = (round + thread) % 3 == 0;
                        let mode = if exclusive { Mode::BOTH_ENDS } else { Mode::Shared };
                        let start = (round * 7 + thread) % 4 * MIB;
                        let range = start..start + (round % 3 + 1) * MIB;
                        while !lock.lock_or_sleep(&range, mode, &waker) {
                            let woken =
                                poll(&mut [PollFd::new(&*waker, PollFlags::IN)], Some(patience));
                            assert_eq!(woken, Ok(1), "nobody woke thread {thread} for {range:?}");
                            rustix::io::read(&*waker, &mut [0; 8]).unwrap();
                        }
                        lock.unlock(&range, mode);
                    }
                });
            }
        });
        let held = |stripe: &AtomicU32| stripe.load(Ordering::SeqCst) & (EXCLUSIVE | SHARERS);
        assert!(lock.stripes.iter().all(|stripe| held(stripe) == 0));
    }

    #[test]
    fn an_exclusive_range_keeps_everyone_out_until_it_is_unlocked() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(MIB..3 * MIB), Mode::BOTH_ENDS));
        assert!(!lock.try_lock(&(2 * MIB..2 * MIB + 1), Mode::Shared));
        assert!(!lock.try_lock(&(0..MIB + 1), Mode::BOTH_ENDS));
        assert!(lock.try_lock(&(3 * MIB..4 * MIB), Mode::Shared));
        lock.unlock(&(MIB..3 * MIB), Mode::BOTH_ENDS);
        assert!(lock.try_lock(&(0..MIB + 1), Mode::BOTH_ENDS));
    }

    #[test]
    fn a_refused_exclusive_attempt_keeps_new_sharers_out_and_gets_its_turn() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(0..10), Mode::Shared));
        assert!(!lock.try_lock(&(0..10), Mode::BOTH_ENDS));
        assert!(!lock.try_lock(&(5..6), Mode::Shared), "it would never get its turn");
        lock.unlock(&(0..10), Mode::Shared);
        assert!(lock.try_lock(&(0..10), Mode::BOTH_ENDS));
        lock.unlock(&(0..10), Mode::BOTH_ENDS);
        assert!(lock.try_lock(&(0..10), Mode::Shared));
    }

    #[test]
    fn a_halted_lock_lets_what_is_locked_end_and_nothing_begin() {
        let lock = RangeLock::new();
        let (sharer, writer, newcomer) = (0..5 * MIB, 7 * MIB..8 * MIB, 3 * MIB..9 * MIB);
        assert!(lock.try_lock(&sharer, Mode::Shared) && lock.try_lock(&writer, Mode::BOTH_ENDS));
        lock.halt();
        let waker = waker();
        for mode in [Mode::Shared, Mode::BOTH_ENDS] {
            assert!(!lock.lock_or_sleep(&newcomer, mode, &waker));
            assert!(!lock.try_lock(&(100 * MIB..101 * MIB), mode), "a free range");
        }
        assert!(!lock.is_quiet());
        lock.unlock(&sharer, Mode::Shared);
        assert!(!lock.is_quiet());
        lock.unlock(&writer, Mode::BOTH_ENDS);
        assert!(lock.is_quiet());
        is_woken(&waker);
        assert!(!lock.lock_or_sleep(&newcomer, Mode::Shared, &waker));
        assert!(!is_woken(&waker));
        lock.give_up(&newcomer, Mode::BOTH_ENDS);
        lock.unhalt();
        assert!(is_woken(&waker));
        assert!(lock.lock_or_sleep(&newcomer, Mode::Shared, &waker));
        lock.unlock(&newcomer, Mode::Shared);
    }

    #[test]
    fn who_gives_up_its_turn_keeps_nobody_out() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(0..10), Mode::Shared));
        assert!(!lock.try_lock(&(0..2 * MIB), Mode::BOTH_ENDS));
        lock.give_up(&(0..2 * MIB), Mode::BOTH_ENDS);
        assert!(lock.try_lock(&(5..6), Mode::Shared));
        assert!(!lock.try_lock(&(0..10), Mode::BOTH_ENDS), "two share it");
    }

    #[test]
    fn a_range_larger_than_the_table_takes_each_stripe_once() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(5 * MIB..5000 * MIB), Mode::BOTH_ENDS));
        lock.unlock(&(5 * MIB..5000 * MIB), Mode::BOTH_ENDS);
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
                        while !lock.try_lock(&(0..3 * MIB), Mode::BOTH_ENDS) {
                            std::thread::yield_now();
                        }
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        inside.store(false, Ordering::SeqCst);
                        lock.unlock(&(0..3 * MIB), Mode::BOTH_ENDS);
                        while !lock.try_lock(&(MIB..2 * MIB), Mode::Shared) {
                            std::thread::yield_now();
                        }
                        assert!(!inside.load(Ordering::SeqCst));
                        lock.unlock(&(MIB..2 * MIB), Mode::Shared);
                    }
                });
            }
        });
        assert!(lock.stripes.iter().all(|stripe| stripe.load(Ordering::SeqCst) & !WANTED == 0));
    }

    #[test]
    fn between_exclusive_ends_others_go_on() {
        const MIB: u64 = 1 << 20;
        let locks = RangeLock::new();
        for (first, last) in [(true, true), (true, false), (false, true)] {
            let mode = Mode::Ends { first, last };
            for range in [MIB + 5..4 * MIB + 7, 5 * MIB + 5..3000 * MIB + 7] {
                assert!(locks.try_lock(&range, mode));
                let free = |at: u64| {
                    let one = at..at + 1;
                    let free = locks.try_lock(&one, Mode::Shared);
                    if free {
                        locks.unlock(&one, Mode::Shared);
                    }
                    free
                };
                assert_eq!(free(range.start), !first, "{mode:?} {range:?}");
                assert_eq!(free(range.end - 1), !last, "{mode:?} {range:?}");
                assert!(free(range.start + MIB) && free(range.end - MIB), "{mode:?} {range:?}");
                locks.unlock(&range, mode);
                assert!(free(range.start) && free(range.end - 1));
            }
        }
    }
}
