//! A table of fixed size whose entries are named by index: memory is taken once, at start.

/// A fixed table with a free list.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// A table of `capacity` entries, all free.
    pub(crate) fn new(capacity: u32) -> Self {
        Self { entries: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().collect() }
    }

    /// Takes a free entry, or `None` when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        let index = self.free.pop()?;
        self.entries[index as usize] = Some(value);
        Some(index)
    }

    /// Frees an entry and returns what it held; `None` when it was free already.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }
}
