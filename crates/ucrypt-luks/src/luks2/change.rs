//! Changing a LUKS2 header.
//!
//! A [`Change`] edits the JSON as it is stored, so that members and types that this program does
//! not know survive. [`Change::finish`] returns the writes: new key material and wiped areas first,
//! then both header copies with the next sequence id, then what the change has made useless. The
//! copy that is damaged or out of date is written first, so that one good copy is there at every
//! instant.

use super::binary::Binary;
use super::copies::{Copy, Damage, Header, Kept};
use super::format::label;
use super::metadata::{DigestKind, KeyslotKind, Metadata, Priority, SegmentKind};
use crate::error::{Error, Result};
use crate::json::Json;
use crate::medium::{Random, Write};
use crate::uuid;
use crate::volume::Flag;

/// Changes to a header that reach the medium together.
#[derive(Debug)]
pub struct Change {
    pub(super) binary: Binary,
    pub(super) json: Json,
    /// What `json` says.
    pub(super) metadata: Metadata,
    /// The copy that is written first.
    first: Copy,
    pub(super) before: Vec<Write>,
    pub(super) after: Vec<Write>,
}

impl Header {
    /// Begins a change. `damage` is what [`Header::read`] returned beside the header.
    ///
    /// Refused by name: a header of a newer program, one in the middle of a reencryption, and one
    /// whose other copy must not be overwritten.
    pub fn change(&self, damage: Option<&Damage>) -> Result<Change> {
        self.check_known()?;
        if let Some(found) = damage.and_then(Damage::foreign) {
            return Err(Error::Unchangeable(format!("there is {found}; see repair")));
        }
        let first = match damage {
            None => Copy::Secondary,
            Some(damage) => match damage.kept() {
                None | Some(Kept::Older) => damage.copy,
                Some(kept) => {
                    let problem = format!("{damage}, and {kept}; see repair");
                    return Err(Error::Unchangeable(problem));
                }
            },
        };
        Ok(Change {
            binary: self.binary.clone(),
            json: self.json.clone(),
            metadata: self.metadata.clone(),
            first,
            before: Vec::new(),
            after: Vec::new(),
        })
    }

    /// Refuses what only another program knows how to change.
    pub(crate) fn check_known(&self) -> Result<()> {
        let metadata = &self.metadata;
        metadata.check_requirements()?;
        for segment in metadata.segments.values() {
            if let SegmentKind::Other(name) = &segment.kind {
                return Err(Error::unsupported("segment type", name));
            }
        }
        for keyslot in metadata.keyslots.values() {
            if let KeyslotKind::Other(name) = &keyslot.kind {
                return Err(Error::unsupported("keyslot type", name));
            }
        }
        for digest in metadata.digests.values() {
            if let DigestKind::Other(name) = &digest.kind {
                return Err(Error::unsupported("digest type", name));
            }
        }
        Ok(())
    }
}

impl Change {
    /// The changed header, and the writes that put it on the medium
    /// ([`write_verified`](crate::write_verified)).
    pub fn finish(mut self, random: Random<'_>) -> Result<(Header, Vec<Write>)> {
        let next = self.binary.sequence_id.checked_add(1);
        self.binary.sequence_id =
            next.ok_or_else(|| Error::damaged("sequence id", "it cannot grow any more"))?;
        // What was made has to be readable.
        let header = Header::new(&self.binary, &self.json)?;
        let second = match self.first {
            Copy::Primary => Copy::Secondary,
            Copy::Secondary => Copy::Primary,
        };
        let mut writes = self.before;
        writes.push(header.write_of(self.first, random)?);
        writes.push(header.write_of(second, random)?);
        writes.append(&mut self.after);
        Ok((header, writes))
    }

    /// Sets the order in which a keyslot is tried.
    pub fn set_priority(&mut self, keyslot: u32, priority: Priority) -> Result<()> {
        let json = self.keyslot_json(keyslot)?;
        match priority {
            Priority::Ignore => json.set("priority", 0_u32.into()),
            Priority::Normal => json.remove("priority"),
            Priority::Prefer => json.set("priority", 2_u32.into()),
        }
        self.update()
    }

    /// Sets the label, to the first 47 bytes of the text; an empty one removes it.
    pub fn set_label(&mut self, text: &str) -> Result<()> {
        self.binary.label = label("label", text)?;
        Ok(())
    }

    /// Sets the subsystem label, to the first 47 bytes of the text; an empty one removes it.
    pub fn set_subsystem(&mut self, text: &str) -> Result<()> {
        self.binary.subsystem = label("subsystem", text)?;
        Ok(())
    }

    /// Sets the UUID, or a random one.
    pub fn set_uuid(&mut self, text: Option<&str>, random: Random<'_>) -> Result<()> {
        let text = text.map_or_else(|| uuid::generate(random), uuid::normalize)?;
        self.binary.uuid = text.as_str().into();
        Ok(())
    }

    /// Sets the flags with which the volume is opened. Flags that this program does not know stay.
    pub fn set_flags(&mut self, flags: &[Flag]) -> Result<()> {
        let unknown = self.metadata.config.flags.iter();
        let unknown = unknown.filter(|name| Flag::from_header_name(name).is_none());
        let names = flags.iter().map(|flag| flag.header_name());
        let names: Vec<&str> = names.chain(unknown.map(String::as_str)).collect();
        let names = Json::strings(&names);
        if let Some(config) = self.json.get_mut("config") {
            config.set("flags", names);
        }
        self.update()
    }

    /// The JSON of a keyslot.
    pub(super) fn keyslot_json(&mut self, number: u32) -> Result<&mut Json> {
        let keyslots = self.json.get_mut("keyslots");
        let keyslot = keyslots.and_then(|keyslots| keyslots.get_mut(&number.to_string()));
        keyslot.ok_or(Error::InactiveKeyslot(number))
    }

    /// The object that holds all keyslots, tokens or digests. The parser has seen it.
    pub(super) fn objects(&mut self, name: &'static str) -> Result<&mut Json> {
        self.json.get_mut(name).ok_or_else(|| Error::damaged("JSON", format!("no \"{name}\"")))
    }

    /// Reads the metadata again after the JSON was edited, and checks it.
    pub(super) fn update(&mut self) -> Result<()> {
        self.metadata = Metadata::parse(&self.json, self.binary.header_size)?;
        Ok(())
    }
}

/// Adds `number` to the array `list` of an object, if it is not there.
pub(super) fn add_reference(object: &mut Json, list: &str, number: u32) {
    if let Some(Json::Array(items)) = object.get_mut(list) {
        let item = Json::from(number.to_string());
        if !items.contains(&item) {
            items.push(item);
        }
    }
}

/// Removes `number` from the array `list` of an object. Returns whether it was there.
pub(super) fn remove_reference(object: &mut Json, list: &str, number: u32) -> bool {
    let Some(Json::Array(items)) = object.get_mut(list) else { return false };
    let (before, item) = (items.len(), Json::from(number.to_string()));
    items.retain(|other| *other != item);
    items.len() < before
}
