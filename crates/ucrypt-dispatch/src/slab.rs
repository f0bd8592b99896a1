//! A table of fixed size whose entries are named by index: memory is taken once, at start.

/// A fixed table with a free list. Entries are filled in where they stand, and keep what the last user
/// left there: lists in them are used again and again.
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

    /// Frees an entry and returns what is left in it; `None` when it was free already.
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
