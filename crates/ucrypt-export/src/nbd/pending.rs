//! The requests that the engine has: a table of fixed size, indexed by the engine's tag.

/// What a reply will need of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) cookie: u64,
    pub(super) kind: Kind,
}

/// What is to be done when the engine is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Send the data; the offset goes with it.
    Read { offset: u64 },
    /// Send the result.
    Plain,
    /// Flush, then send the result: the engine's discard has no FUA.
    TrimThenFlush,
}

/// At most a fixed number of requests.
pub(super) struct PendingTable {
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
}

impl PendingTable {
    pub(super) fn new(depth: usize) -> Self {
        Self { slots: vec![None; depth], free: (0..depth).rev().collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The tag for the request; `None` if the table is full.
    pub(super) fn insert(&mut self, pending: Pending) -> Option<u64> {
        let slot = self.free.pop()?;
        self.slots[slot] = Some(pending);
        Some(slot as u64)
    }

    /// Takes the request of `tag` out; `None` if there is none.
    pub(super) fn remove(&mut self, tag: u64) -> Option<Pending> {
        let slot = usize::try_from(tag).ok()?;
        let pending = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_takes_no_more_and_a_tag_is_good_once() {
        let mut table = PendingTable::new(2);
        let pending = Pending { cookie: 1, kind: Kind::Plain };
        let tags = [table.insert(pending), table.insert(pending)];
        assert_eq!(table.insert(pending).or(tags[1]), tags[1]);
        assert_eq!(table.len(), 2);
        assert!(table.remove(tags[0].expect("a tag")).is_some());
        assert!(table.remove(tags[0].expect("a tag")).is_none());
        assert!(table.remove(u64::MAX).is_none());
        assert_eq!(table.len(), 1);
    }
}
