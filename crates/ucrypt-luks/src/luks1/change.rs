//! Changing a LUKS1 header, of which there is only one copy.
//!
//! The header crosses a sector border inside keyslot 6, and a crash may write only one of the
//! sectors. A keyslot therefore becomes active, and stops being active, by a write that changes
//! nothing else of it: its salt and its iterations are there before and until after.

use super::header::{Header, KEYSLOTS, Keyslot, SALT_BYTES, State};
use super::keyslot::{Sealed, seal};
use crate::area::material_len;
use crate::backup::BACKUP_MAX;
use crate::convert;
use crate::error::{Error, Result};
use crate::keys::{NewKey, OpenedKey};
use crate::medium::{Random, ReadAt, Write, wipe, wipe_range};
use crate::new_volume::Tools;
use crate::uuid;

/// A number, the header afterwards, and the writes.
type Changed = (u32, Header, Vec<Write>);

impl Header {
    /// The numbers of the active keyslots.
    pub fn active_keyslots(&self) -> Vec<u32> {
        let active = |number: &u32| self.keyslots[*number as usize].is_active();
        (0..KEYSLOTS as u32).filter(active).collect()
    }

    /// The numbers of inactive keyslots whose salt is still there: a change was interrupted.
    pub(crate) fn unfinished_keyslots(&self) -> Vec<u32> {
        let unfinished = |number: &u32| {
            let keyslot = &self.keyslots[*number as usize];
            keyslot.is_free() && keyslot.iterations != 0
        };
        (0..KEYSLOTS as u32).filter(unfinished).collect()
    }

    pub(crate) fn add_key(
        &self,
        volume_key: &[u8],
        number: Option<u32>,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<Changed> {
        let number = self.free_number(number)?;
        let sealed = seal(self, volume_key, new, tools)?;
        let mut steps = Steps::new(self);
        steps.fill(number, &sealed);
        Ok((number, steps.header, steps.writes))
    }

    pub(crate) fn change_key(
        &self,
        opened: &OpenedKey,
        keep_number: bool,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<Changed> {
        let old = opened.keyslot;
        self.check_active(old)?;
        let spare = self.free_number(None).map_err(|_| {
            Error::request(
                "all 8 keyslots of LUKS1 are full, and the old key is not overwritten before the \
                 new one is known to be good; remove a keyslot first",
            )
        })?;
        let mut sealed = seal(self, &opened.key, new, tools)?;
        let mut steps = Steps::new(self);
        steps.fill(spare, &sealed);
        steps.remove(old, tools.random)?;
        if !keep_number {
            return Ok((spare, steps.header, steps.writes));
        }
        // Back to the old number, with stripes of its own. The spare keyslot opens meanwhile.
        sealed.split_again(self, &opened.key, tools.random)?;
        steps.fill(old, &sealed);
        steps.remove(spare, tools.random)?;
        Ok((old, steps.header, steps.writes))
    }

    pub(crate) fn remove_key(&self, number: u32, random: Random<'_>) -> Result<(Self, Vec<Write>)> {
        self.check_active(number)?;
        let mut steps = Steps::new(self);
        steps.remove(number, random)?;
        Ok((steps.header, steps.writes))
    }

    /// As [`remove_key`](Self::remove_key), in an order after which
    /// [`unfinished_keyslots`](Self::unfinished_keyslots) tells of an interruption: the keyslot
    /// becomes inactive first. Takes also what is unfinished already.
    pub(crate) fn retire_keys(
        &self,
        numbers: &[u32],
        random: Random<'_>,
    ) -> Result<(Self, Vec<Write>)> {
        numbers.iter().try_for_each(|number| self.check_state(*number))?;
        let mut steps = Steps::new(self);
        for number in numbers {
            steps.set_state(*number, State::Inactive);
            steps.wipe(*number, random)?;
            steps.forget(*number);
        }
        Ok((steps.header, steps.writes))
    }

    /// Also overwrites what an interrupted conversion has left, and removes its mark.
    pub(crate) fn erase(
        &self,
        image: &dyn ReadAt,
        random: Random<'_>,
    ) -> Result<(Self, Vec<Write>)> {
        let mut steps = Steps::new(self);
        let begin = self.keyslots.iter().map(Keyslot::material_start).min().unwrap_or(0);
        let areas = begin..self.areas_end();
        // Between the areas may lie what an interrupted change has forgotten. Areas that are farther
        // apart than any program puts them may have something else between them.
        if areas.end - areas.start <= BACKUP_MAX {
            steps.writes.extend(wipe_range(areas, random)?);
        } else {
            (0..KEYSLOTS as u32).try_for_each(|number| steps.wipe(number, random))?;
        }
        let left = convert::left_beside_luks1(self, image)?;
        if let Some(left) = &left {
            steps.writes.extend(wipe_range(left.clone(), random)?);
        }
        for keyslot in &mut steps.header.keyslots {
            keyslot.state = State::Inactive;
        }
        steps.write_header();
        for number in 0..KEYSLOTS as u32 {
            let keyslot = &mut steps.header.keyslots[number as usize];
            (keyslot.iterations, keyslot.salt) = (0, [0; SALT_BYTES]);
        }
        steps.write_header();
        steps.writes.extend(left.map(|_| convert::mark_removal()));
        Ok((steps.header, steps.writes))
    }

    pub(crate) fn change_uuid(
        &self,
        text: Option<&str>,
        random: Random<'_>,
    ) -> Result<(Self, Vec<Write>)> {
        let text = text.map_or_else(|| uuid::generate(random), uuid::normalize)?;
        let mut steps = Steps::new(self);
        steps.header.uuid = text.as_str().into();
        steps.write_header();
        Ok((steps.header, steps.writes))
    }

    /// Refuses the number of a keyslot that holds no key, or of which nobody knows whether it does.
    pub(crate) fn check_active(&self, number: u32) -> Result<()> {
        self.check_state(number)?;
        let keyslot = self.keyslots.get(number as usize);
        let active = keyslot.is_some_and(Keyslot::is_active);
        if active { Ok(()) } else { Err(Error::InactiveKeyslot(number)) }
    }

    fn free_number(&self, number: Option<u32>) -> Result<u32> {
        match number {
            None => (0..KEYSLOTS as u32)
                .find(|number| self.keyslots[*number as usize].is_free())
                .ok_or_else(|| Error::request("all keyslots are full; remove one first")),
            Some(number) => match self.keyslots.get(number as usize) {
                Some(keyslot) if keyslot.is_free() => Ok(number),
                Some(_) => {
                    self.check_state(number)?;
                    Err(Error::request(format!("keyslot {number} is full, select another one")))
                }
                None => Err(Error::request(format!(
                    "keyslot {number} is invalid, select one between 0 and {}",
                    KEYSLOTS - 1
                ))),
            },
        }
    }
}

/// The writes of a change, and the header after them.
struct Steps {
    header: Header,
    writes: Vec<Write>,
}

impl Steps {
    fn new(header: &Header) -> Self {
        Self { header: header.clone(), writes: Vec::new() }
    }

    fn write_header(&mut self) {
        self.writes.push(Write { offset: 0, bytes: self.header.to_bytes() });
    }

    fn keyslot(&mut self, number: u32) -> &mut Keyslot {
        &mut self.header.keyslots[number as usize]
    }

    fn set_state(&mut self, number: u32, state: State) {
        if self.keyslot(number).state != state {
            self.keyslot(number).state = state;
            self.write_header();
        }
    }

    /// Writes the key material, then salt and iterations, then makes the keyslot active.
    fn fill(&mut self, number: u32, sealed: &Sealed) {
        let keyslot = self.keyslot(number);
        (keyslot.iterations, keyslot.salt) = (sealed.iterations, sealed.salt);
        let offset = keyslot.material_start();
        self.writes.push(Write { offset, bytes: sealed.material.clone() });
        self.write_header();
        self.set_state(number, State::Active);
    }

    /// Wipes the key material, then makes the keyslot inactive, then removes the rest of it.
    fn remove(&mut self, number: u32, random: Random<'_>) -> Result<()> {
        self.wipe(number, random)?;
        self.set_state(number, State::Inactive);
        self.forget(number);
        Ok(())
    }

    fn wipe(&mut self, number: u32, random: Random<'_>) -> Result<()> {
        let offset = self.keyslot(number).material_start();
        let length = material_len(self.header.key_bytes, self.keyslot(number).stripes);
        self.writes.push(wipe(offset, length, random)?);
        Ok(())
    }

    fn forget(&mut self, number: u32) {
        let keyslot = self.keyslot(number);
        (keyslot.iterations, keyslot.salt) = (0, [0; SALT_BYTES]);
        self.write_header();
    }
}
