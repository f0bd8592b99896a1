//! The timing of one device: given when an operation arrives, it returns when the operation is
//! complete.

use fastrand::Rng;

use super::disk::Disk;
use super::flash::Flash;
use super::profile::{Media, Profile};
use super::zones::{Refusal, Zones};

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Transfers data from the device.
    Read,
    /// Transfers data to the device.
    Write {
        /// Not answered from a cache.
        fua: bool,
    },
    /// Makes cached writes durable; offset and length are ignored.
    Flush,
    /// The range is no longer needed; on a zoned device, whole zones are reset.
    Discard,
    /// Zeroes the range, without data on the bus.
    WriteZeroes,
}

/// An operation as a device sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceOp {
    /// Kind of the operation.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// When an operation is complete, in ns of the clock passed to [`Device::submit`]; or why it is
/// refused.
pub type Outcome = Result<u64, Refusal>;

/// Counts of a device's operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were accepted.
    pub requests: u64,
    /// Commands of which they consisted; a device that charges per request charges these.
    pub commands: u64,
    /// Operations that were refused.
    pub refused: u64,
}

/// See the module. A clone continues from the same state.
#[derive(Debug, Clone)]
pub struct Device {
    mechanics: Mechanics,
    zones: Option<Zones>,
    random: Rng,
    counts: Counts,
}

#[derive(Debug, Clone)]
enum Mechanics {
    Flash(Flash),
    Disk(Disk),
}

impl Device {
    /// A device that has done nothing yet. `seed` determines the random parts: latencies, the
    /// position of the platter.
    pub fn new(profile: &Profile, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        Self {
            mechanics: match &profile.media {
                Media::Flash(flash) => Mechanics::Flash(Flash::new(flash)),
                Media::Disk(disk) => Mechanics::Disk(Disk::new(disk, &mut random)),
            },
            zones: profile.zones.map(Zones::new),
            random,
            counts: Counts::default(),
        }
    }

    /// Submits an operation that arrives at `now_ns`, which must not decrease from call to call.
    /// Any number may be under way; they complete in any order, but never before `now_ns`.
    pub fn submit(&mut self, now_ns: u64, op: DeviceOp) -> Outcome {
        if let Some(zones) = &mut self.zones {
            let taken = match op.kind {
                Kind::Write { .. } | Kind::WriteZeroes => zones.write(op.offset, op.len),
                Kind::Discard => {
                    zones.discard(op.offset, op.len);
                    Ok(())
                }
                Kind::Read | Kind::Flush => Ok(()),
            };
            taken.inspect_err(|_| self.counts.refused += 1)?;
        }
        let (done, commands) = match &mut self.mechanics {
            Mechanics::Flash(flash) => flash.submit(now_ns, op, &mut self.random),
            Mechanics::Disk(disk) => (disk.submit(now_ns, op), 1),
        };
        self.counts.requests += 1;
        self.counts.commands += commands;
        Ok(done)
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
