//! Timing of a disk: a head that seeks, a platter that turns, a buffer, and no scheduler.
//!
//! Requests are carried out in the order in which they arrive. A request that begins where the last
//! one of its direction ended streams on (neighbours merge, as long as they come in order). Any
//! other costs a seek and the rotational delay.

use fastrand::Rng;

use super::device::{DeviceOp, Kind};
use super::profile::DiskProfile;

#[derive(Debug, Clone)]
pub(super) struct Disk {
    profile: DiskProfile,
    /// Bytes that pass under the head in one turn.
    track: u64,
    /// The position of the platter at time 0, in ns of a turn.
    phase: u64,
    /// First byte after the last transfer, and whether that was a read.
    head: u64,
    reading: bool,
    /// When the medium has finished all requests so far.
    free: u64,
}

impl Disk {
    pub(super) fn new(profile: &DiskProfile, random: &mut Rng) -> Self {
        Self {
            track: profile.rate.bytes(profile.rotation_ns).max(1),
            phase: random.u64(..profile.rotation_ns.max(1)),
            head: 0,
            reading: false,
            free: 0,
            profile: profile.clone(),
        }
    }

    /// Returns when `op` is complete.
    pub(super) fn submit(&mut self, now: u64, op: DeviceOp) -> u64 {
        let command_ns = self.profile.command_ns;
        let fua = match op.kind {
            Kind::Flush => return now.max(self.free) + command_ns,
            Kind::Discard => return now + command_ns,
            Kind::Read => {
                self.transfer(now, op, true);
                return now.max(self.free) + command_ns;
            }
            Kind::Write { fua } => fua,
            // The disk writes the zeroes; only the data need not be sent.
            Kind::WriteZeroes => false,
        };
        self.transfer(now, op, false);
        let behind = if fua { 0 } else { self.profile.buffer_ns };
        now.max(self.free.saturating_sub(behind)) + command_ns
    }

    /// Moves the head over the range; the transfer ends at `self.free`.
    fn transfer(&mut self, now: u64, op: DeviceOp, reads: bool) {
        let streams = op.offset == self.head && (reads == self.reading || now <= self.free);
        let begin = match (streams, reads) {
            // The disk has read ahead while idle, as far as its buffer reaches.
            (true, true) => self.free.max(now.saturating_sub(self.profile.buffer_ns)),
            (true, false) => self.free.max(now),
            (false, _) => self.position(now.max(self.free), op.offset),
        };
        self.free = begin + self.profile.rate.time_ns(op.len);
        self.head = op.offset.saturating_add(op.len);
        self.reading = reads;
    }

    /// When the head, leaving at `from`, can begin at `offset`.
    fn position(&self, from: u64, offset: u64) -> u64 {
        let turn = self.profile.rotation_ns.max(1);
        let there = from + self.seek_ns(self.head.abs_diff(offset));
        let target = self.profile.rate.time_ns(offset % self.track) % turn;
        let stands = (there + self.phase) % turn;
        there + (target + turn - stands) % turn
    }

    fn seek_ns(&self, distance: u64) -> u64 {
        if distance < self.track {
            return 0;
        }
        let DiskProfile { seek_min_ns, seek_max_ns, capacity, .. } = self.profile;
        let reach = distance.min(capacity).isqrt();
        seek_min_ns + seek_max_ns.saturating_sub(seek_min_ns) * reach / capacity.isqrt().max(1)
    }
}
