//! The zones of a zoned device: what is asked of them, and appends.
//!
//! How a sector is encrypted depends on its number, so that the place of an append has to be known
//! before it is encrypted: an append is a write at the write pointer. One is under way in a zone at
//! a time; others stand in `parked` until it has ended. A zoned device has one queue, whose thread
//! is the only one that has this.
//!
//! Where a write pointer stands is known from the last append, or else the device is asked. It is
//! forgotten after whatever else may have moved it.

use rustix::io::Errno;
use ucrypt_engine::{VolumeZones, Zone, ZoneAction};

use super::abi::{Descriptor, ZONE_LEN, zone_to_bytes};

/// Zones that are reported at once.
const BATCH: usize = 32;

/// See the module. Positions in bytes of the volume.
pub(super) struct Zones {
    device: VolumeZones,
    states: Vec<State>,
    /// By tag: where its append goes.
    appends: Vec<Option<u64>>,
    /// Tags that wait for an append to end, in order of arrival, and their zones.
    parked: Vec<(u16, usize)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    write_pointer: Option<u64>,
    is_appended: bool,
}

impl Zones {
    /// For a queue of that depth.
    pub(super) fn new(device: VolumeZones, depth: u16) -> Self {
        let count = usize::try_from(device.count()).unwrap_or(0);
        let depth = usize::from(depth);
        Self {
            device,
            states: vec![State::default(); count],
            appends: vec![None; depth],
            parked: Vec::with_capacity(depth),
        }
    }

    /// Where to append to the zone that holds the byte `start`; `None` if the tag was parked, for
    /// somebody else appends there.
    pub(super) fn place(&mut self, tag: u16, start: u64) -> Result<Option<u64>, Errno> {
        let zone = self.index(start)?;
        if self.states[zone].is_appended {
            self.parked.push((tag, zone));
            return Ok(None);
        }
        if let Some(known) = self.states[zone].write_pointer {
            return Ok(Some(known));
        }
        let mut found = [Zone::default()];
        self.device.report(start, &mut found)?;
        let [zone_found] = found;
        if !zone_found.is_sequential() {
            return Err(Errno::INVAL);
        }
        if zone_found.condition == Zone::FULL {
            return Err(Errno::NOSPC);
        }
        self.states[zone].write_pointer = Some(zone_found.write_pointer);
        Ok(Some(zone_found.write_pointer))
    }

    /// The append of the tag is under way, to where [`Zones::place`] said.
    pub(super) fn appending(&mut self, tag: u16, offset: u64) {
        if let (Ok(zone), Some(append)) =
            (self.index(offset), self.appends.get_mut(usize::from(tag)))
        {
            *append = Some(offset);
            self.states[zone].is_appended = true;
        }
    }

    /// A write or an append of `len` bytes has ended, the former at byte `start`. Returns where, for
    /// an append, and the tag that may append next.
    pub(super) fn wrote(
        &mut self,
        tag: u16,
        start: u64,
        len: u64,
        is_ok: bool,
    ) -> (Option<u64>, Option<u16>) {
        let append = self.appends.get_mut(usize::from(tag)).and_then(Option::take);
        let Ok(zone) = self.index(append.unwrap_or(start)) else { return (None, None) };
        self.states[zone].write_pointer = append.filter(|_| is_ok).map(|offset| offset + len);
        if append.is_none() {
            return (None, None);
        }
        self.states[zone].is_appended = false;
        let next = self.parked.iter().position(|&(_, waits_for)| waits_for == zone);
        (append, next.map(|index| self.parked.remove(index).0))
    }

    /// Carries out what is asked of zones by the operation `op`; `start`: the first byte of one.
    pub(super) fn act(&mut self, op: u8, start: u64) -> Result<(), Errno> {
        let action = match op {
            Descriptor::ZONE_OPEN => ZoneAction::Open,
            Descriptor::ZONE_CLOSE => ZoneAction::Close,
            Descriptor::ZONE_FINISH => ZoneAction::Finish,
            Descriptor::ZONE_RESET => ZoneAction::Reset,
            Descriptor::ZONE_RESET_ALL => {
                self.states.iter_mut().for_each(|state| state.write_pointer = None);
                return self.device.reset_all();
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        let zone = self.index(start)?;
        self.states[zone].write_pointer = None;
        self.device.act(action, start)
    }

    /// Hands `give` a report on `count` zones from byte `start` on, as the kernel wants it: bytes,
    /// and where in the report they belong.
    pub(super) fn report(
        &self,
        start: u64,
        count: u32,
        mut give: impl FnMut(&[u8], u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (mut at, mut left, mut done) = (start, count as usize, 0);
        while left > 0 {
            let mut zones = [Zone::default(); BATCH];
            let found = self.device.report(at, &mut zones[..left.min(BATCH)])?;
            if found == 0 {
                return Err(Errno::IO);
            }
            let mut bytes = [0; BATCH * ZONE_LEN];
            for (zone, bytes) in zones[..found].iter().zip(bytes.chunks_exact_mut(ZONE_LEN)) {
                bytes.copy_from_slice(&zone_to_bytes(zone));
            }
            give(&bytes[..found * ZONE_LEN], done)?;
            (at, left) = (at + found as u64 * self.device.limits().len, left - found);
            done += (found * ZONE_LEN) as u64;
        }
        Ok(())
    }

    fn index(&self, offset: u64) -> Result<usize, Errno> {
        let zone = usize::try_from(offset / self.device.limits().len).unwrap_or(usize::MAX);
        if zone < self.states.len() { Ok(zone) } else { Err(Errno::INVAL) }
    }
}
