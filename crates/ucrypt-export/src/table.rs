//! The requests in flight in the engine: a table of fixed size, indexed by the engine's tag.

/// A fixed number of slots for requests, each holding what the answer needs.
pub(crate) struct Table<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    pub(crate) fn new(depth: usize) -> Self {
        Self { slots: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores a request and returns its tag; `None` if the table is full.
    pub(crate) fn insert(&mut self, request: T) -> Option<u64> {
        let slot = self.free.pop()?;
        self.slots[slot] = Some(request);
        Some(slot as u64)
    }

    /// The request of `tag`; `None` if there is none.
    pub(crate) fn get(&self, tag: u64) -> Option<&T> {
        self.slots.get(usize::try_from(tag).ok()?)?.as_ref()
    }

    /// Takes the request of `tag` out; `None` if there is none.
    pub(crate) fn remove(&mut self, tag: u64) -> Option<T> {
        let slot = usize::try_from(tag).ok()?;
        let request = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(request)
    }

    /// Takes all requests out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.free.extend((0..self.slots.len()).rev());
        self.slots.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_takes_no_more_and_a_tag_is_good_once() {
        let mut table = Table::new(2);
        let tags = [table.insert('a'), table.insert('b')];
        assert_eq!(table.insert('c'), None);
        assert_eq!(table.len(), 2);
        assert_eq!((table.get(tags[0].expect("a tag")), table.get(2)), (Some(&'a'), None));
        assert_eq!(table.remove(tags[0].expect("a tag")), Some('a'));
        assert_eq!(table.remove(tags[0].expect("a tag")), None);
        assert_eq!(table.remove(u64::MAX), None);
        assert_eq!(table.len(), 1);
        assert_eq!(table.drain().collect::<Vec<_>>(), ['b']);
        assert_eq!(table.len(), 0);
        assert!(table.insert('d').is_some() && table.insert('e').is_some());
    }
}
