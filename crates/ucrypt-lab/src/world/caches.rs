//! Tracks in which core's cache the chunks lie that workers have transformed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pieces of memory by their first address, with their length and the core that wrote them last.
#[derive(Debug, Default)]
pub(super) struct Caches(BTreeMap<usize, (usize, usize)>);

/// The addresses of some bytes.
pub(super) fn addresses(bytes: &[u8]) -> Range<usize> {
    let first = bytes.as_ptr().addr();
    first..first + bytes.len()
}

impl Caches {
    /// Records that a core has written these addresses.
    pub(super) fn put(&mut self, at: Range<usize>, core: usize) {
        if !at.is_empty() {
            self.0.insert(at.start, (at.len(), core));
        }
    }

    /// A core copies these addresses; returns how many bytes come from another core's cache.
    pub(super) fn take(&mut self, at: Range<usize>, core: usize) -> u64 {
        let mut carried = 0;
        while let Some((&first, &(len, of))) = self.0.range(at.clone()).next() {
            self.0.remove(&first);
            carried += if of == core { 0 } else { len as u64 };
        }
        carried
    }
}
