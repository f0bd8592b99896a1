//! The requests in flight in the engine: a table of bounded size, indexed by the engine's tag.

use slab::Slab;

/// At most a fixed number of requests, each holding what the answer needs.
pub(crate) struct Table<T> {
    requests: Slab<T>,
    depth: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Self { requests: Slab::with_capacity(depth), depth }
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Stores a request and returns its tag; `None` if the table is full.
    pub(crate) fn insert(&mut self, request: T) -> Option<u64> {
        (self.len() < self.depth).then(|| self.requests.insert(request) as u64)
    }

    /// The request of `tag`; `None` if there is none.
    pub(crate) fn get(&self, tag: u64) -> Option<&T> {
        self.requests.get(usize::try_from(tag).ok()?)
    }

    /// Takes the request of `tag` out; `None` if there is none.
    pub(crate) fn remove(&mut self, tag: u64) -> Option<T> {
        self.requests.try_remove(usize::try_from(tag).ok()?)
    }

    /// Takes all requests out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.requests.drain()
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
