//! Timing of a device without moving parts: lanes, a bus, a medium behind a write cache.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use super::bus::Bus;
use super::device::{DeviceOp, Kind};
use super::profile::FlashProfile;

/// Number of recent write positions kept, and how near to one of them a write must be to reach the
/// medium with it: a few streams, each a little out of order, are not random writes.
const RECENT: usize = 8;
const NEAR_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub(super) struct Flash {
    profile: FlashProfile,
    bus: Bus,
    /// When each lane is free.
    lanes: BinaryHeap<Reverse<u64>>,
    /// When all writes are on the medium.
    programmed: u64,
    /// Ends of the recent writes, in bytes, the most recent first.
    recent: [u64; RECENT],
}

impl Flash {
    pub(super) fn new(profile: &FlashProfile) -> Self {
        Self {
            bus: Bus::default(),
            lanes: (0..profile.lanes.max(1)).map(|_| Reverse(0)).collect(),
            programmed: 0,
            recent: [0; RECENT],
            profile: profile.clone(),
        }
    }

    /// Returns when `op` is complete, and its number of commands.
    pub(super) fn submit(&mut self, now: u64, op: DeviceOp, random: &mut Rng) -> (u64, u64) {
        match op.kind {
            Kind::Read => self.by_command(op, |flash, _, len| flash.read(now, len, random)),
            Kind::Write { fua } => {
                self.by_command(op, |flash, offset, len| flash.write(now, offset, len, fua))
            }
            Kind::Discard | Kind::WriteZeroes => {
                let end = self.bus.book(now, now, self.profile.command_ns).end;
                (end + self.profile.write_ns, 1)
            }
            Kind::Flush if self.profile.cache == 0 => (now, 1),
            Kind::Flush => {
                let end = self.bus.book(now, now, self.profile.command_ns).end;
                (end.max(self.programmed) + self.profile.flush_ns, 1)
            }
        }
    }

    /// Carries out the commands of a request, which run concurrently.
    fn by_command(
        &mut self,
        op: DeviceOp,
        mut command: impl FnMut(&mut Self, u64, u64) -> u64,
    ) -> (u64, u64) {
        let (mut offset, mut left, mut done, mut commands) = (op.offset, op.len, 0, 0);
        loop {
            let len = left.min(self.profile.command_max.max(1));
            done = command(self, offset, len).max(done);
            commands += 1;
            left -= len;
            if left == 0 {
                return (done, commands);
            }
            offset = offset.saturating_add(len);
        }
    }

    fn read(&mut self, now: u64, len: u64, random: &mut Rng) -> u64 {
        let profile = &self.profile;
        let busy =
            spread(random, profile.read_ns, profile.spread_percent) + profile.lane.time_ns(len);
        let need = profile.command_ns + profile.bus.time_ns(len);
        let lanes = self.lanes.len() as u64;
        let mut lane = self.lanes.peek_mut().expect("there is a lane");
        let end = now.max(lane.0) + busy;
        *lane = Reverse(end);
        if self.programmed > now {
            // A read overtakes programming, which it delays.
            self.programmed += busy / lanes;
        }
        self.bus.book(now, end.saturating_sub(need).max(now), need).end
    }

    fn write(&mut self, now: u64, offset: u64, len: u64, fua: bool) -> u64 {
        let near = self.is_near(offset, len);
        let profile = &self.profile;
        let booked = self.bus.book(now, now, profile.command_ns + profile.bus.time_ns(len));
        let far_ns = if near { 0 } else { profile.program_far_ns };
        let program_ns = profile.program_ns + far_ns + profile.program.time_ns(len);
        self.programmed = (self.programmed.max(booked.begin) + program_ns).max(booked.end);
        let cached_ns = if fua { 0 } else { profile.program.time_ns(profile.cache) };
        (booked.end + profile.write_ns).max(self.programmed.saturating_sub(cached_ns))
    }

    /// Whether a write is near a recent one; the write becomes a recent one itself.
    fn is_near(&mut self, offset: u64, len: u64) -> bool {
        let found = self.recent.iter().position(|end| end.abs_diff(offset) <= NEAR_BYTES);
        let place = found.unwrap_or(RECENT - 1);
        self.recent[place] = offset.saturating_add(len);
        self.recent[..=place].rotate_right(1);
        found.is_some()
    }
}

/// A time of `mean` ns that varies by `percent` to either side.
fn spread(random: &mut Rng, mean: u64, percent: u64) -> u64 {
    let reach = mean * percent.min(100) / 100;
    random.u64(mean - reach..=mean + reach)
}
