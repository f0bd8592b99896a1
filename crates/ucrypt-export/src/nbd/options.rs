//! The data of the handshake's longer options: parsed without a copy, checked to the last byte.

use super::handshake::Export;
use super::protocol::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, STRING_BYTES_MAX, get_u16, get_u32, info,
};

/// Takes a string with its 32-bit length off the front of `data`; `None` if the data ends early or
/// the string is longer than the protocol allows.
fn take_string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = get_u32(data, 0)? as usize;
    let rest = data.get(4..)?;
    if length > STRING_BYTES_MAX {
        return None;
    }
    let (string, rest) = rest.split_at_checked(length)?;
    *data = rest;
    Some(string)
}

/// The data of `INFO` and `GO`.
pub(super) struct InfoQuery<'a> {
    /// Name of the export.
    pub(super) name: &'a [u8],
    /// The types of the facts that the client asks for, two bytes each.
    wanted: &'a [u8],
}

impl<'a> InfoQuery<'a> {
    /// `None` if the lengths do not add up to the length of `data`.
    pub(super) fn parse(mut data: &'a [u8]) -> Option<Self> {
        let name = take_string(&mut data)?;
        let count = usize::from(get_u16(data, 0)?);
        let wanted = data.get(2..)?;
        (wanted.len() == count * 2).then_some(Self { name, wanted })
    }

    fn wants(&self, fact: u16) -> bool {
        self.wanted.chunks_exact(2).any(|two| two == fact.to_be_bytes())
    }

    /// The payloads of the `REP_INFO` replies. The size constraints are sent to everyone, because
    /// the maximum is not the protocol's default.
    pub(super) fn facts(&self, export: &Export, flags: u16) -> Vec<Vec<u8>> {
        let fact = |kind: u16| kind.to_be_bytes().to_vec();
        let mut facts = Vec::with_capacity(4);

        let mut about = fact(info::EXPORT);
        about.extend(export.size.to_be_bytes());
        about.extend(flags.to_be_bytes());
        facts.push(about);

        let mut sizes = fact(info::BLOCK_SIZE);
        for size in [export.block_min, export.block_preferred, export.block_max] {
            sizes.extend(size.to_be_bytes());
        }
        facts.push(sizes);

        let strings = [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)];
        for (kind, string) in strings {
            if self.wants(kind) {
                let mut text = fact(kind);
                text.extend(string.as_bytes());
                facts.push(text);
            }
        }
        facts
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub(super) struct MetaQuery<'a> {
    /// Name of the export.
    pub(super) name: &'a [u8],
    queries: Vec<&'a [u8]>,
}

impl<'a> MetaQuery<'a> {
    /// `None` if the lengths do not add up to the length of `data`, or a query has no namespace.
    pub(super) fn parse(mut data: &'a [u8]) -> Option<Self> {
        let name = take_string(&mut data)?;
        let count = get_u32(data, 0)?;
        data = data.get(4..)?;
        // Does not reserve `count`: each query takes at least four bytes of `data`, which bounds
        // the list.
        let mut queries = Vec::new();
        for _ in 0..count {
            let query = take_string(&mut data)?;
            if !query.contains(&b':') {
                return None;
            }
            queries.push(query);
        }
        data.is_empty().then_some(Self { name, queries })
    }

    /// Whether `base:allocation` is meant. A list with no query asks for everything, and `base:`
    /// is a wildcard in a list only.
    pub(super) fn chooses_base_allocation(&self, list: bool) -> bool {
        let wildcard = |query: &&[u8]| list && **query == *b"base:";
        (list && self.queries.is_empty())
            || self.queries.iter().any(|q| **q == *BASE_ALLOCATION.as_bytes() || wildcard(q))
    }
}

/// The payload of the `REP_META_CONTEXT` reply; the identifier of a listed context is zero.
pub(super) fn base_allocation(list: bool) -> Vec<u8> {
    let id = if list { 0 } else { BASE_ALLOCATION_ID };
    [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat()
}
