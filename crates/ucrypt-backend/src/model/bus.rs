//! A bus that carries one transfer at a time.
//!
//! Transfers are booked when their request arrives, some for a later time. The gaps before those
//! stay free for others: a later transfer fills every gap from its own start on, in pieces, like
//! the frames of several transfers on a real bus. So the bus never idles while a transfer waits.

use std::collections::VecDeque;

/// Booked times of a bus, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Bus {
    /// Sorted, neither overlapping nor touching. At most one entry for each transfer that is not
    /// over.
    busy: VecDeque<(u64, u64)>,
}

/// When a transfer uses the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Booking {
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Bus {
    /// Books `need` ns of the bus, as early as possible from `from` on. Bookings that were over at
    /// `now` are dropped; `from` is not before `now`.
    pub(super) fn book(&mut self, now: u64, from: u64, need: u64) -> Booking {
        while self.busy.front().is_some_and(|&(_, end)| end <= now) {
            self.busy.pop_front();
        }
        if need == 0 {
            return Booking { begin: from, end: from };
        }
        let first = self.busy.partition_point(|&(_, end)| end < from);
        let (mut begin, mut at, mut left) = (None, from, need);
        let mut next = first;
        while let Some(&(busy_from, busy_to)) = self.busy.get(next) {
            if busy_from > at {
                begin.get_or_insert(at);
                let gap = busy_from - at;
                if gap >= left {
                    break;
                }
                left -= gap;
            }
            at = at.max(busy_to);
            next += 1;
        }
        let end = at + left;
        self.replace(first, next, from, end);
        Booking { begin: begin.unwrap_or(at), end }
    }

    /// Merges the bookings `first..next` and the time from `from` to `end` into one: all free time
    /// between them has just been used. A booking that begins at `end` is merged too.
    fn replace(&mut self, first: usize, mut next: usize, from: u64, mut end: u64) {
        let from = if first < next { self.busy[first].0.min(from) } else { from };
        if let Some(&(_, touching_end)) = self.busy.get(next).filter(|&&(begin, _)| begin == end) {
            end = touching_end;
            next += 1;
        }
        self.busy.drain(first..next);
        self.busy.insert(first, (from, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_fills_the_gaps_before_those_that_were_booked_ahead() {
        let mut bus = Bus::default();
        assert_eq!(bus.book(0, 100, 50), Booking { begin: 100, end: 150 });
        assert_eq!(bus.book(0, 0, 40), Booking { begin: 0, end: 40 });
        assert_eq!(bus.book(0, 10, 60), Booking { begin: 40, end: 100 });
        assert_eq!(bus.busy, [(0, 150)]);
        assert_eq!(bus.book(10, 10, 5), Booking { begin: 150, end: 155 });
        assert_eq!(bus.book(10, 200, 0), Booking { begin: 200, end: 200 });
    }

    #[test]
    fn a_transfer_that_does_not_fit_a_gap_goes_on_behind_it() {
        let mut bus = Bus::default();
        bus.book(0, 100, 50);
        bus.book(0, 200, 50);
        assert_eq!(bus.book(0, 80, 40), Booking { begin: 80, end: 170 });
        assert_eq!(bus.busy, [(80, 170), (200, 250)]);
    }

    #[test]
    fn every_nanosecond_is_booked_once() {
        let (mut bus, mut free) = (Bus::default(), vec![true; 4000]);
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..60 {
            let (from, need) = (random.u64(..2000), random.u64(1..=40));
            let booked = bus.book(0, from, need);
            // The same by counting free nanoseconds one by one.
            let taken = (from as usize..4000).filter(|&at| free[at]).take(need as usize);
            let taken: Vec<_> = taken.collect();
            assert_eq!(booked.begin, taken[0] as u64);
            assert_eq!(booked.end, *taken.last().unwrap() as u64 + 1);
            for at in taken {
                free[at] = false;
            }
        }
        for &(begin, end) in &bus.busy {
            assert!((begin..end).all(|at| !free[at as usize]));
        }
        let booked: u64 = bus.busy.iter().map(|&(begin, end)| end - begin).sum();
        assert_eq!(booked as usize, free.iter().filter(|free| !**free).count());
    }
}
