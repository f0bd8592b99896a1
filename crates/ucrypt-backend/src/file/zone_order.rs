//! Keeps the order of writes to zones: one write at a time in each zone.
//!
//! A zone has to be written at its write pointer. The kernel keeps the order of the operations that
//! it has, but io_uring and threads may pass operations on in another order: io_uring moves an
//! operation that would have to sleep to a thread of the kernel, and later ones overtake it. So a
//! write waits here until the earlier writes in its zones have been answered. The kernel carries
//! out one write at a time in a zone in any case; several zones are written in parallel.
//!
//! The order holds within a queue. Users that write to one zone through several queues must keep
//! the order themselves.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use super::zones::DeviceZones;
use crate::{Done, Io, Pool, Queue, SharedRing, Zone, Zones, total_len};

/// A queue of a zoned device. See the module's comment.
pub(super) struct ZoneOrder<K> {
    inner: Box<dyn Queue>,
    kinds: K,
    /// Writes to zones that the inner queue has: token and zones.
    under_way: Vec<(u64, RangeInclusive<u64>)>,
    /// Writes that wait for others, in order of submission, and their zones.
    held: VecDeque<(Io, RangeInclusive<u64>)>,
}

/// Tells which zones are written in order.
pub(super) trait ZoneKinds: Send {
    /// Bytes of a zone.
    fn len(&self) -> u64;

    /// Whether a zone, by its number, has to be written at a write pointer.
    fn is_sequential(&mut self, zone: u64) -> bool;
}

/// The zones of a device, which is asked about each zone once.
pub(super) struct Asked {
    zones: DeviceZones,
    known: Vec<Option<bool>>,
}

impl Asked {
    /// `bytes`: the device's length.
    pub(super) fn new(zones: DeviceZones, bytes: u64) -> Self {
        let count = bytes.div_ceil(zones.limits().len) as usize;
        Self { zones, known: vec![None; count] }
    }
}

impl ZoneKinds for Asked {
    fn len(&self) -> u64 {
        self.zones.limits().len
    }

    fn is_sequential(&mut self, zone: u64) -> bool {
        let len = self.len();
        let Some(known) = self.known.get_mut(zone as usize) else { return true };
        *known.get_or_insert_with(|| {
            let mut found = [Zone::default()];
            // A zone that the device does not report counts as sequential.
            !self.zones.report(zone * len, &mut found).is_ok_and(|count| count == 1)
                || found[0].is_sequential()
        })
    }
}

impl<K: ZoneKinds> ZoneOrder<K> {
    pub(super) fn new(inner: Box<dyn Queue>, kinds: K) -> Self {
        let depth = inner.room();
        Self {
            inner,
            kinds,
            under_way: Vec::with_capacity(depth),
            held: VecDeque::with_capacity(depth),
        }
    }

    /// The zones that a write touches; `None` if none of them is written in order.
    fn zones(&mut self, io: &Io) -> Option<RangeInclusive<u64>> {
        let Io::Write { offset, bufs, .. } = io else { return None };
        let (len, zone_len) = (total_len(bufs) as u64, self.kinds.len());
        let last = offset.saturating_add(len.saturating_sub(1)) / zone_len;
        let zones = offset / zone_len..=last;
        zones.clone().any(|zone| self.kinds.is_sequential(zone)).then_some(zones)
    }

    fn hand_on(&mut self, io: Io, zones: RangeInclusive<u64>) {
        if let Io::Write { token, .. } = &io {
            self.under_way.push((*token, zones));
        }
        self.inner.submit(io);
    }

    /// Takes answers into account, and submits the writes that waited only for them. Returns
    /// whether it submitted any.
    fn release(&mut self, answers: &[Done]) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        self.under_way.retain(|(token, _)| answers.iter().all(|answer| answer.token != *token));
        let mut any = false;
        let mut index = 0;
        while let Some((_, zones)) = self.held.get(index) {
            let waits = self.under_way.iter().any(|(_, others)| overlap(zones, others))
                || self.held.iter().take(index).any(|(_, others)| overlap(zones, others));
            if waits {
                index += 1;
            } else if let Some((io, zones)) = self.held.remove(index) {
                self.hand_on(io, zones);
                any = true;
            }
        }
        any
    }
}

fn overlap(one: &RangeInclusive<u64>, other: &RangeInclusive<u64>) -> bool {
    one.start() <= other.end() && other.start() <= one.end()
}

impl<K: ZoneKinds> Queue for ZoneOrder<K> {
    fn room(&self) -> usize {
        self.inner.room() - self.held.len()
    }

    fn submit(&mut self, io: Io) {
        assert!(self.room() > 0, "submit without room");
        let Some(zones) = self.zones(&io) else { return self.inner.submit(io) };
        let mut before = self
            .under_way
            .iter()
            .map(|(_, zones)| zones)
            .chain(self.held.iter().map(|(_, zones)| zones));
        if before.any(|others| overlap(&zones, others)) {
            self.held.push_back((io, zones));
        } else {
            self.hand_on(io, zones);
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let mut before = done.len();
        self.inner.poll(done)?;
        while self.release(&done[before..]) {
            before = done.len();
            self.inner.poll(done)?;
        }
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        self.inner.wait(done)?;
        if self.release(&done[before..]) { self.poll(done) } else { Ok(()) }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn register(&mut self, pool: &Pool) -> bool {
        self.inner.register(pool)
    }

    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        self.inner.shared_ring()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const ZONE: u64 = 4 << 12;

    /// The first zone is conventional, all others are sequential.
    struct Kinds;

    impl ZoneKinds for Kinds {
        fn len(&self) -> u64 {
            ZONE
        }

        fn is_sequential(&mut self, zone: u64) -> bool {
            zone > 0
        }
    }

    /// Answers in any order, one operation per poll, and records the order of writes to each zone.
    struct Disordered {
        random: fastrand::Rng,
        depth: usize,
        under_way: Vec<Io>,
        /// Writes in the order in which they were carried out: zone, and token.
        seen: Arc<Mutex<Vec<(u64, u64)>>>,
    }

    impl Queue for Disordered {
        fn room(&self) -> usize {
            self.depth - self.under_way.len()
        }

        fn submit(&mut self, io: Io) {
            assert!(self.room() > 0);
            self.under_way.push(io);
        }

        fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
            if self.under_way.is_empty() {
                return Ok(());
            }
            let io = self.under_way.swap_remove(self.random.usize(..self.under_way.len()));
            if let Io::Write { token, offset, bufs, .. } = &io {
                let len = total_len(bufs) as u64;
                let zones = offset / ZONE..=(offset + len - 1) / ZONE;
                self.seen.lock().unwrap().extend(zones.map(|zone| (zone, *token)));
            }
            let (token, bufs) = io.into_parts();
            done.push(Done { token, result: Ok(()), bufs });
            Ok(())
        }

        fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
            self.poll(done)
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn register(&mut self, _pool: &Pool) -> bool {
            false
        }

        fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
            None
        }
    }

    #[test]
    fn each_zone_is_written_in_the_order_of_submission_whatever_the_queue_does() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let inner = Disordered {
                random: fastrand::Rng::with_seed(seed + 1000),
                depth: 16,
                under_way: Vec::new(),
                seen: seen.clone(),
            };
            let mut queue = ZoneOrder::new(Box::new(inner), Kinds);
            let pool = Pool::new(1 << 20).unwrap();
            let (mut next, mut answered, mut done) = (0, 0, Vec::new());
            while answered < 300 {
                while next < 300 && queue.room() > 0 && random.bool() {
                    let buf = pool.alloc(4096 * random.usize(1..6)).expect("room");
                    let offset = 4096 * random.u64(..24);
                    queue.submit(match random.u8(..4) {
                        0 => Io::Read { token: next, offset, bufs: vec![buf] },
                        _ => Io::Write { token: next, offset, bufs: vec![buf], fua: false },
                    });
                    next += 1;
                }
                if random.bool() {
                    queue.poll(&mut done).unwrap();
                } else {
                    queue.wait(&mut done).unwrap();
                }
                answered += done.drain(..).count();
            }
            assert_eq!((queue.room(), queue.held.len(), queue.under_way.len()), (16, 0, 0));
            let seen = seen.lock().unwrap();
            for zone in 1..8 {
                let order: Vec<_> = seen.iter().filter(|(other, _)| *other == zone).collect();
                assert!(order.is_sorted(), "seed {seed}, zone {zone}: {order:?}");
            }
        }
    }

    #[test]
    fn zones_are_written_beside_each_other_and_conventional_ones_in_any_order() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let random = fastrand::Rng::with_seed(1);
        let inner = Disordered { random, depth: 8, under_way: Vec::new(), seen };
        let mut queue = ZoneOrder::new(Box::new(inner), Kinds);
        let pool = Pool::new(1 << 20).unwrap();
        for (token, zone) in [0, 0, 1, 2, 1].into_iter().enumerate() {
            let bufs = vec![pool.alloc(4096).unwrap()];
            queue.submit(Io::Write { token: token as u64, offset: zone * ZONE, bufs, fua: false });
        }
        assert_eq!((queue.held.len(), queue.inner.room()), (1, 4));
    }
}
