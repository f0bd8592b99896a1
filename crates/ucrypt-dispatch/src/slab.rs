//! A table of fixed size whose entries are identified by index. Memory is allocated once, at start.

/// A fixed table with a free list. Entries are overwritten in place and keep what the last user
/// left in them, so that their lists are reused.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<T>,
    live: Vec<bool>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// A table of `capacity` entries, all free.
    pub(crate) fn new(capacity: u32, entry: impl Fn() -> T) -> Self {
        Self {
            entries: (0..capacity).map(|_| entry()).collect(),
            live: vec![false; capacity as usize],
            free: (0..capacity).rev().collect(),
        }
    }

    /// Takes a free entry, or `None` when the table is full.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u32, &mut T)> {
        let index = self.free.pop()?;
        self.live[index as usize] = true;
        Some((index, &mut self.entries[index as usize]))
    }

    /// Frees an entry and returns its content; `None` if it was free already.
    #[inline]
    pub(crate) fn give_back(&mut self, index: u32) -> Option<&mut T> {
        if !std::mem::take(self.live.get_mut(index as usize)?) {
            return None;
        }
        self.free.push(index);
        self.entries.get_mut(index as usize)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        if *self.live.get(index as usize)? { self.entries.get(index as usize) } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        if *self.live.get(index as usize)? { self.entries.get_mut(index as usize) } else { None }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }
}
