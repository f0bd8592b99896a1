//! Keeps a read-modify-write of part of a sector apart from every other access to that sector.
//!
//! Clients may read and write single bytes; the cipher works on whole sectors. A write of part of a
//! sector reads the sector, changes it and writes it back. In between no other request may write
//! there (the change would be lost) or read there (ciphertext that is half old and half new
//! decrypts to noise). Such writes lock the ends of their range **exclusively**; everything else is
//! **shared**.
//!
//! The volume is divided into stripes of 1 MiB, which are mapped onto a fixed table. A request locks
//! all of its stripes or none, and no thread blocks: what is refused joins the list of waiters, in
//! order of arrival, and marks its stripes `AWAITED`.
//!
//! Contract:
//!
//! - First come, first served: a request is refused while an older waiter needs one of its stripes in
//!   a way that excludes it. So nobody waits for ever, whatever the others do. Nobody who holds a
//!   stripe waits for another, so the oldest waiter only waits for requests that end.
//! - Only a stripe that is `AWAITED` costs its users the list's mutex; the mark changes under that
//!   mutex.
//! - A waiter is woken when what excluded it has been unlocked or given up and it is its turn. It may
//!   be woken earlier: a wake-up is a hint. It must then try again, or give up: until it does, younger
//!   ones wait for it.
//!
//! A volume that is suspended marks every stripe `HALTED`, which refuses all attempts. So the lock
//! that every request takes is the gate as well, and costs nothing more.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::waker::Waker;

/// Waiters that the list has room for; it grows if there are more.
const WAITERS: usize = 64;

const STRIPE_SHIFT: u32 = 20;
const STRIPES: usize = 1024;
/// No index of the table.
const NO_STRIPE: usize = STRIPES;

/// The stripe is held exclusively.
const EXCLUSIVE: u32 = 1 << 31;
/// The list has a waiter that needs this stripe.
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
    Exclusive,
}

impl Hold {
    /// The marks that refuse it, apart from `AWAITED`.
    fn refusing(self) -> u32 {
        match self {
            Self::Shared => EXCLUSIVE | HALTED,
            Self::Exclusive => EXCLUSIVE | SHARERS | HALTED,
        }
    }

    /// The state of a stripe after it was locked.
    fn taken(self, state: u32) -> u32 {
        match self {
            Self::Shared => state + 1,
            Self::Exclusive => state | EXCLUSIVE,
        }
    }
}

/// The stripes of a byte range, each once: a cyclic run of the table.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: usize,
    count: usize,
    /// The stripes that are needed exclusively; [`NO_STRIPE`] in the others' place.
    exclusive: [usize; 2],
}

/// The first and the last stripe of a byte range, not mapped onto the table yet.
fn ends(range: &Range<u64>) -> (u64, u64) {
    let last = range.end.saturating_sub(1).max(range.start);
    (range.start >> STRIPE_SHIFT, last >> STRIPE_SHIFT)
}

/// The stripe of a range that has only one and is shared: most requests need nothing else.
fn one_shared(range: &Range<u64>, mode: Mode) -> Option<usize> {
    let (first, last) = ends(range);
    (mode == Mode::Shared && first == last).then_some((first % STRIPES as u64) as usize)
}

impl Run {
    fn new(range: &Range<u64>, mode: Mode) -> Self {
        let (first, last) = ends(range);
        let count = (last - first + 1).min(STRIPES as u64) as usize;
        let [first, last] = [first, last].map(|stripe| (stripe % STRIPES as u64) as usize);
        let exclusive = match mode {
            Mode::Shared => [NO_STRIPE; 2],
            Mode::Ends { first: with_first, last: with_last } => {
                [(with_first, first), (with_last, last)]
                    .map(|(is_exclusive, stripe)| if is_exclusive { stripe } else { NO_STRIPE })
            }
        };
        Self { first, count, exclusive }
    }

    fn stripes(self) -> impl Iterator<Item = (usize, Hold)> {
        (0..self.count).map(move |index| {
            let stripe = (self.first + index) % STRIPES;
            let is_exclusive = self.exclusive.contains(&stripe);
            (stripe, if is_exclusive { Hold::Exclusive } else { Hold::Shared })
        })
    }

    fn has(&self, stripe: usize) -> bool {
        (stripe + STRIPES - self.first) % STRIPES < self.count
    }

    /// Whether the two cannot be held at the same time.
    fn excludes(&self, other: &Self) -> bool {
        let wants_of = |one: &Self, other: &Self| {
            one.exclusive.iter().any(|&stripe| stripe != NO_STRIPE && other.has(stripe))
        };
        wants_of(self, other) || wants_of(other, self)
    }
}

/// The number of a waiter. Later ones are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    run: Run,
    waker: Arc<Waker>,
}

/// The requests that were refused, oldest first.
#[derive(Debug)]
struct Waiters {
    list: Vec<Waiter>,
    next: Ticket,
    /// How many of them need each stripe. Those that any needs are `AWAITED`.
    by_stripe: Box<[u32]>,
}

impl Waiters {
    fn position(&self, ticket: Ticket) -> Option<usize> {
        self.list.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    /// Whether no older waiter excludes the one at this position.
    fn is_its_turn(&self, position: usize) -> bool {
        let (older, run) = (&self.list[..position], &self.list[position].run);
        !older.iter().any(|older| older.run.excludes(run))
    }

    /// Wakes those whose turn it is now that `run` has been unlocked or given up.
    fn wake_after(&self, run: &Run) {
        for (position, waiter) in self.list.iter().enumerate() {
            if waiter.run.excludes(run) && self.is_its_turn(position) {
                waiter.waker.signal();
            }
        }
    }
}

/// An attempt was refused.
struct Refused {
    /// The attempt held a stripe for a moment, and another request may have been refused because of that.
    kept_out: bool,
}

#[derive(Debug)]
pub(crate) struct RangeLock {
    stripes: Box<[AtomicU32]>,
    waiters: Mutex<Waiters>,
}

impl RangeLock {
    pub(crate) fn new() -> Self {
        let waiters = Waiters {
            list: Vec::with_capacity(WAITERS),
            next: Ticket(0),
            by_stripe: vec![0; STRIPES].into(),
        };
        Self {
            stripes: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            waiters: Mutex::new(waiters),
        }
    }

    /// Locks the whole range, or nothing. Refuses while anybody waits for a part of it, even one who
    /// would share it: [`RangeLock::lock_or_wait`] makes the difference.
    pub(crate) fn try_lock(&self, range: &Range<u64>, mode: Mode) -> bool {
        if let Some(stripe) = one_shared(range, mode) {
            return self.take(stripe, Hold::Shared, AWAITED);
        }
        let run = Run::new(range, mode);
        match self.attempt(run, AWAITED) {
            Ok(()) => true,
            Err(Refused { kept_out }) => {
                if kept_out {
                    self.waiters().wake_after(&run);
                }
                false
            }
        }
    }

    /// Locks the whole range, or joins the waiters, unless `ticket` says that the request is one of
    /// them; signals `waker` when it is to try again. A ticket is for one range and mode, and is
    /// taken back when they are locked.
    pub(crate) fn lock_or_wait(
        &self,
        range: &Range<u64>,
        mode: Mode,
        ticket: &mut Option<Ticket>,
        waker: &Arc<Waker>,
    ) -> bool {
        let run = Run::new(range, mode);
        let mut waiters = self.waiters();
        // First the marks, then the attempt: whoever unlocks a stripe after the attempt finds its
        // mark.
        let ours = *ticket.get_or_insert_with(|| self.join(&mut waiters, run, waker));
        let is_locked = waiters.position(ours).is_some_and(|position| {
            waiters.is_its_turn(position)
                && match self.attempt(run, 0) {
                    Ok(()) => true,
                    Err(Refused { kept_out }) => {
                        if kept_out {
                            waiters.wake_after(&run);
                        }
                        false
                    }
                }
        });
        if is_locked {
            self.leave(&mut waiters, ours);
            *ticket = None;
        }
        is_locked
    }

    /// A waiter leaves without having locked its range.
    pub(crate) fn give_up(&self, ticket: Ticket) {
        let mut waiters = self.waiters();
        if let Some(run) = self.leave(&mut waiters, ticket) {
            waiters.wake_after(&run);
        }
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, waiters: &mut Waiters, run: Run, waker: &Arc<Waker>) -> Ticket {
        let ticket = waiters.next;
        waiters.next = Ticket(ticket.0 + 1);
        waiters.list.push(Waiter { ticket, run, waker: waker.clone() });
        for (stripe, _) in run.stripes() {
            waiters.by_stripe[stripe] += 1;
            self.stripes[stripe].fetch_or(AWAITED, Ordering::SeqCst);
        }
        ticket
    }

    fn leave(&self, waiters: &mut Waiters, ticket: Ticket) -> Option<Run> {
        let position = waiters.position(ticket)?;
        let run = waiters.list.remove(position).run;
        for (stripe, _) in run.stripes() {
            waiters.by_stripe[stripe] -= 1;
            if waiters.by_stripe[stripe] == 0 {
                self.stripes[stripe].fetch_and(!AWAITED, Ordering::SeqCst);
            }
        }
        Some(run)
    }

    /// Locks the whole run, or nothing. `AWAITED` in `also_refusing`: not even a stripe that nobody
    /// holds, if somebody waits for it.
    fn attempt(&self, run: Run, also_refusing: u32) -> Result<(), Refused> {
        // Check before locking anything: stripes that are locked and released again may refuse
        // others, which must then be woken. A single stripe is locked or not.
        if run.count > 1 {
            for (stripe, hold) in run.stripes() {
                let state = self.stripes[stripe].load(Ordering::SeqCst);
                if state & (hold.refusing() | also_refusing) != 0 {
                    return Err(Refused { kept_out: false });
                }
            }
        }
        for (taken, (stripe, hold)) in run.stripes().enumerate() {
            if !self.take(stripe, hold, also_refusing) {
                // Others came in between.
                let kept_out = self.release_all(run.stripes().take(taken));
                return Err(Refused { kept_out });
            }
        }
        Ok(())
    }

    /// Locks a stripe, unless it has a mark that refuses that, or one of `also_refusing`.
    #[inline]
    fn take(&self, stripe: usize, hold: Hold, also_refusing: u32) -> bool {
        let refusing = hold.refusing() | also_refusing;
        let taken = |state: u32| (state & refusing == 0).then(|| hold.taken(state));
        self.stripes[stripe].fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok()
    }

    /// Releases a stripe. Returns whether it is free now and somebody waits for it.
    #[inline]
    fn release(&self, stripe: usize, hold: Hold) -> bool {
        let stripe = &self.stripes[stripe];
        let left = match hold {
            Hold::Shared => {
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
        left & AWAITED != 0 && left & (SHARERS | EXCLUSIVE) == 0
    }

    /// Releases these stripes. Returns whether one of them is free now and somebody waits for it.
    fn release_all(&self, stripes: impl Iterator<Item = (usize, Hold)>) -> bool {
        stripes.fold(false, |awaited, (stripe, hold)| self.release(stripe, hold) | awaited)
    }

    /// Unlocks a range that was locked.
    pub(crate) fn unlock(&self, range: &Range<u64>, mode: Mode) {
        let is_awaited = match one_shared(range, mode) {
            Some(stripe) => self.release(stripe, Hold::Shared),
            None => self.release_all(Run::new(range, mode).stripes()),
        };
        if is_awaited {
            self.waiters().wake_after(&Run::new(range, mode));
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

    /// Takes [`RangeLock::halt`] back, and wakes all who wait.
    pub(crate) fn unhalt(&self) {
        for stripe in &self.stripes {
            stripe.fetch_and(!HALTED, Ordering::SeqCst);
        }
        self.wake_all();
    }

    /// Wakes all who wait; they try again, or give up.
    pub(crate) fn wake_all(&self) {
        for waiter in &self.waiters().list {
            waiter.waker.signal();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn waker() -> Arc<Waker> {
        Arc::new(Waker::new().unwrap())
    }

    /// A request that waits for its range.
    struct Waiting<'a> {
        lock: &'a RangeLock,
        range: Range<u64>,
        mode: Mode,
        ticket: Option<Ticket>,
        waker: Arc<Waker>,
    }

    impl<'a> Waiting<'a> {
        /// A request that is refused.
        fn new(lock: &'a RangeLock, range: Range<u64>, mode: Mode) -> Self {
            let mut new = Self { lock, range, mode, ticket: None, waker: waker() };
            assert!(!new.tries(), "{mode:?} {:?} is not refused", new.range);
            new
        }

        fn tries(&mut self) -> bool {
            self.lock.lock_or_wait(&self.range, self.mode, &mut self.ticket, &self.waker)
        }

        /// Whether the waker was signalled since the last call.
        fn is_woken(&self) -> bool {
            let readable = self.waker.is_readable(0);
            self.waker.take().unwrap();
            readable
        }

        fn unlock(&self) {
            self.lock.unlock(&self.range, self.mode);
        }

        fn gives_up(mut self) {
            self.lock.give_up(self.ticket.take().expect("it waits"));
        }
    }

    fn is_untouched(lock: &RangeLock) -> bool {
        let waiters = lock.waiters();
        waiters.list.is_empty()
            && waiters.by_stripe.iter().all(|&count| count == 0)
            && lock.stripes.iter().all(|stripe| stripe.load(Ordering::SeqCst) == 0)
    }

    #[test]
    fn who_waits_for_a_range_is_woken_when_it_is_its_turn_and_not_by_itself_or_by_others() {
        let lock = RangeLock::new();
        for (held, wanted) in [
            (Mode::Shared, Mode::BOTH_ENDS),
            (Mode::BOTH_ENDS, Mode::BOTH_ENDS),
            (Mode::BOTH_ENDS, Mode::Shared),
        ] {
            assert!(lock.try_lock(&(0..4 * MIB), held));
            let mut one = Waiting::new(&lock, 3 * MIB..5 * MIB, wanted);
            let mut other = Waiting::new(&lock, 3 * MIB..5 * MIB, wanted);
            // Neither their own attempts nor traffic elsewhere wake them.
            assert!(!one.is_woken() && !other.is_woken(), "{held:?}, {wanted:?}");
            assert!(!one.tries());
            for mode in [Mode::Shared, Mode::BOTH_ENDS] {
                assert!(lock.try_lock(&(7 * MIB..8 * MIB), mode));
                lock.unlock(&(7 * MIB..8 * MIB), mode);
            }
            assert!(!one.is_woken() && !other.is_woken(), "{held:?}, {wanted:?}");
            lock.unlock(&(0..4 * MIB), held);
            let both = wanted == Mode::Shared;
            assert!(one.is_woken() && other.is_woken() == both, "{held:?}, {wanted:?}");
            assert_eq!(other.tries(), both, "{held:?}, {wanted:?}: the other came first");
            assert!(one.tries());
            one.unlock();
            if !both {
                assert!(other.is_woken() && other.tries(), "{held:?}, {wanted:?}");
            }
            other.unlock();
            assert!(!one.is_woken() && is_untouched(&lock), "{held:?}, {wanted:?}");
        }
    }

    #[test]
    fn who_comes_first_is_served_first_whatever_it_wants() {
        let lock = RangeLock::new();
        let (stripe, exclusive) = (0..10, Mode::BOTH_ENDS);
        assert!(lock.try_lock(&stripe, exclusive));
        let mut second = Waiting::new(&lock, 5..6, exclusive);
        let mut reader = Waiting::new(&lock, 512..1024, Mode::Shared);
        let mut other_reader = Waiting::new(&lock, 0..MIB, Mode::Shared);
        let mut last = Waiting::new(&lock, 7..8, exclusive);
        lock.unlock(&stripe, exclusive);
        assert!(!lock.try_lock(&stripe, exclusive), "a newcomer");
        assert!(!reader.tries() && !last.tries(), "the second came before");
        assert!(second.is_woken() && second.tries());
        assert!(!reader.is_woken() && !last.is_woken());
        second.unlock();
        assert!(!last.is_woken() && reader.is_woken() && other_reader.is_woken());
        assert!(!last.tries() && reader.tries() && other_reader.tries());
        reader.unlock();
        assert!(!last.is_woken() && !last.tries());
        other_reader.unlock();
        assert!(last.is_woken() && last.tries());
        last.unlock();
        assert!(is_untouched(&lock));
    }

    #[test]
    fn waiters_for_several_stripes_wait_for_older_ones_and_never_in_a_circle() {
        let lock = RangeLock::new();
        let exclusive = Mode::BOTH_ENDS;
        assert!(lock.try_lock(&(3 * MIB..4 * MIB), exclusive));
        // Each has an end between the ends of the other, or beyond the end of the table.
        let mut one = Waiting::new(&lock, 0..6 * MIB, exclusive);
        assert!(lock.try_lock(&(6 * MIB..7 * MIB), exclusive), "nobody waits there");
        let mut two = Waiting::new(&lock, 3 * MIB..1025 * MIB, exclusive);
        let mut three = Waiting::new(&lock, 6 * MIB..7 * MIB, exclusive);
        lock.unlock(&(6 * MIB..7 * MIB), exclusive);
        assert!(!two.is_woken() && !three.is_woken(), "each waits for the one before");
        lock.unlock(&(3 * MIB..4 * MIB), exclusive);
        assert!(!two.tries() && one.is_woken() && one.tries());
        one.unlock();
        assert!(two.is_woken() && two.tries());
        two.unlock();
        assert!(three.is_woken() && three.tries());
        three.unlock();
        assert!(is_untouched(&lock));
    }

    #[test]
    fn threads_that_sleep_for_a_range_are_never_forgotten() {
        let lock = RangeLock::new();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let lock = &lock;
                scope.spawn(move || {
                    let waker = waker();
                    for round in 0..3000u64 {
                        let exclusive = (round + thread) % 3 == 0;
                        let mode = if exclusive { Mode::BOTH_ENDS } else { Mode::Shared };
                        let start = (round * 7 + thread) % 4 * MIB;
                        let range = start..start + (round % 3 + 1) * MIB;
                        let mut ticket = None;
                        while !lock.lock_or_wait(&range, mode, &mut ticket, &waker) {
                            let woken = waker.is_readable(60);
                            assert!(woken, "nobody woke thread {thread} for {range:?}");
                            waker.take().unwrap();
                        }
                        lock.unlock(&range, mode);
                    }
                });
            }
        });
        assert!(is_untouched(&lock));
    }

    #[test]
    fn a_halted_lock_lets_what_is_locked_end_and_nothing_begin() {
        let lock = RangeLock::new();
        let (sharer, writer, newcomer) = (0..5 * MIB, 7 * MIB..8 * MIB, 3 * MIB..9 * MIB);
        assert!(lock.try_lock(&sharer, Mode::Shared) && lock.try_lock(&writer, Mode::BOTH_ENDS));
        lock.halt();
        let mut waiting = Waiting::new(&lock, newcomer.clone(), Mode::Shared);
        let gives_up = Waiting::new(&lock, newcomer.clone(), Mode::BOTH_ENDS);
        for mode in [Mode::Shared, Mode::BOTH_ENDS] {
            assert!(!lock.try_lock(&(100 * MIB..101 * MIB), mode), "a free range");
        }
        assert!(!lock.is_quiet());
        lock.unlock(&sharer, Mode::Shared);
        assert!(!lock.is_quiet());
        lock.unlock(&writer, Mode::BOTH_ENDS);
        assert!(lock.is_quiet());
        waiting.is_woken();
        assert!(!waiting.tries());
        assert!(!waiting.is_woken());
        gives_up.gives_up();
        lock.unhalt();
        assert!(waiting.is_woken());
        assert!(waiting.tries());
        waiting.unlock();
        assert!(is_untouched(&lock));
    }

    #[test]
    fn who_gives_up_its_turn_keeps_nobody_out() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(0..10), Mode::Shared));
        let writer = Waiting::new(&lock, 0..2 * MIB, Mode::BOTH_ENDS);
        assert!(!lock.try_lock(&(5..6), Mode::Shared), "the writer would never get its turn");
        let mut reader = Waiting::new(&lock, 5..6, Mode::Shared);
        assert!(!reader.is_woken());
        writer.gives_up();
        assert!(reader.is_woken() && reader.tries());
        Waiting::new(&lock, 0..10, Mode::BOTH_ENDS).gives_up();
        lock.unlock(&(0..10), Mode::Shared);
        reader.unlock();
        assert!(is_untouched(&lock));
    }

    #[test]
    fn a_range_larger_than_the_table_takes_each_stripe_once() {
        let lock = RangeLock::new();
        assert!(lock.try_lock(&(5 * MIB..5000 * MIB), Mode::BOTH_ENDS));
        lock.unlock(&(5 * MIB..5000 * MIB), Mode::BOTH_ENDS);
        assert!(lock.try_lock(&(0..u64::MAX), Mode::Shared));
        lock.unlock(&(0..u64::MAX), Mode::Shared);
        assert!(is_untouched(&lock));
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
                        // The middle of the range is shared: only the ends keep others out.
                        while !lock.try_lock(&(2 * MIB..3 * MIB), Mode::Shared) {
                            std::thread::yield_now();
                        }
                        assert!(!inside.load(Ordering::SeqCst));
                        lock.unlock(&(2 * MIB..3 * MIB), Mode::Shared);
                    }
                });
            }
        });
        assert!(is_untouched(&lock));
    }

    #[test]
    fn between_exclusive_ends_others_go_on() {
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
