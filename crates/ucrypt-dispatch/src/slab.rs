//! A table of fixed size whose entries are identified by index. Memory is allocated once, at start.

use std::ops::{Index, IndexMut};

/// A fixed table with a free list. Entries are overwritten in place and keep what the last user
/// left in them, so that their lists are reused.
///
/// Indexing panics if the entry is free.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    is_live: bool,
    value: T,
}

impl<T> Slab<T> {
    /// A table of `capacity` entries, all free.
    pub fn new(capacity: u32, entry: impl Fn() -> T) -> Self {
        Self {
            entries: (0..capacity).map(|_| Entry { is_live: false, value: entry() }).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    /// Takes a free entry, or `None` when the table is full.
    #[inline]
    pub fn take(&mut self) -> Option<(u32, &mut T)> {
        let index = self.free.pop()?;
        let entry = &mut self.entries[index as usize];
        entry.is_live = true;
        Some((index, &mut entry.value))
    }

    /// Frees an entry and returns its content; `None` if it was free already.
    #[inline]
    pub fn give_back(&mut self, index: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut(index as usize)?;
        if !std::mem::take(&mut entry.is_live) {
            return None;
        }
        self.free.push(index);
        Some(&mut entry.value)
    }

    /// The entry, unless it is free.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize).filter(|entry| entry.is_live).map(|entry| &entry.value)
    }

    /// All entries in use, with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_live);
        live.map(|(index, entry)| (index as u32, &entry.value))
    }

    /// Number of entries in use.
    #[inline]
    pub fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether no entry is free.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Number of entries.
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        self.get(index).expect("an entry in use")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        let entry = self.entries.get_mut(index as usize).filter(|entry| entry.is_live);
        &mut entry.expect("an entry in use").value
    }
}
