//! The requests in flight in the engine: a table of fixed size, indexed by the engine's tag.

use ucrypt_engine::Slab;

/// A fixed number of slots for requests, each holding what the answer needs.
pub(crate) struct Table<T>(Slab<Option<T>>);

impl<T> Table<T> {
    pub(crate) fn new(depth: u32) -> Self {
        Self(Slab::new(depth, || None))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.in_use()
    }

    /// Stores a request and returns its tag; `None` if the table is full.
    pub(crate) fn insert(&mut self, request: T) -> Option<u64> {
        let (index, slot) = self.0.take()?;
        *slot = Some(request);
        Some(index.into())
    }

    /// The request of `tag`; `None` if there is none.
    pub(crate) fn get(&self, tag: u64) -> Option<&T> {
        self.0.get(u32::try_from(tag).ok()?)?.as_ref()
    }

    /// Takes the request of `tag` out; `None` if there is none.
    pub(crate) fn remove(&mut self, tag: u64) -> Option<T> {
        self.0.give_back(u32::try_from(tag).ok()?)?.take()
    }

    /// Takes all requests out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        (0..self.0.capacity()).filter_map(|tag| self.remove(tag.into()))
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
