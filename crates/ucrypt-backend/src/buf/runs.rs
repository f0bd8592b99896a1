//! The free pages of a pool.
//!
//! The crate `offset-allocator` could do this, but it is at version 0.2 with few users, and it
//! chooses runs by bins of sizes, while this allocator reuses the run that was freed last.

/// Free runs of pages: a buddy allocator that frees surplus pages at once, so that an allocation
/// takes only the pages it needs. Runs freed last are reused first, without being split or merged:
/// the caches still hold them.
pub(super) struct Runs {
    /// First page and number of pages of recently freed runs, the last one last.
    recent: Vec<(u32, u32)>,
    /// Heads of the free lists by order (runs of `1 << order` pages).
    heads: [u32; ORDERS],
    /// Per page: links of the free list, valid for the first page of a free run.
    next: Box<[u32]>,
    prev: Box<[u32]>,
    /// Per page: order of the free run that starts there, or `TAKEN`.
    order: Box<[u8]>,
}

/// Maximum number of recently freed runs that are kept unmerged.
const RECENT_MAX: usize = 64;
/// Orders of runs: the longest has 2^18 pages, 1 GiB.
const ORDERS: usize = 19;
const NONE: u32 = u32::MAX;
const TAKEN: u8 = u8::MAX;

impl Runs {
    pub(super) fn new(pages: u32) -> Self {
        let table = || vec![NONE; pages as usize].into_boxed_slice();
        let mut runs = Self {
            recent: Vec::with_capacity(RECENT_MAX),
            heads: [NONE; ORDERS],
            next: table(),
            prev: table(),
            order: vec![TAKEN; pages as usize].into_boxed_slice(),
        };
        runs.give(0, pages);
        runs
    }

    pub(super) fn take(&mut self, pages: u32) -> Option<u32> {
        if let Some(at) = self.recent.iter().rposition(|&(_, count)| count == pages) {
            return Some(self.recent.remove(at).0);
        }
        self.take_new(pages).or_else(|| {
            self.merge_recent();
            self.take_new(pages)
        })
    }

    /// Frees a run.
    pub(super) fn give_back(&mut self, first: u32, pages: u32) {
        if self.recent.len() == RECENT_MAX {
            // Lengths may no longer be in use: merge the runs.
            self.merge_recent();
        }
        self.recent.push((first, pages));
    }

    fn merge_recent(&mut self) {
        while let Some((first, pages)) = self.recent.pop() {
            self.give(first, pages);
        }
    }

    fn take_new(&mut self, pages: u32) -> Option<u32> {
        let wanted = pages.next_power_of_two().trailing_zeros() as usize;
        let found = (wanted..ORDERS).find(|&order| self.heads[order] != NONE)?;
        let first = self.heads[found];
        self.unlink(first, found);
        self.give(first + pages, (1u32 << found) - pages);
        Some(first)
    }

    /// Frees `pages` pages from `first` as runs of aligned powers of two, merged with neighbours.
    fn give(&mut self, mut first: u32, mut pages: u32) {
        while pages > 0 {
            let aligned = if first == 0 { ORDERS - 1 } else { first.trailing_zeros() as usize };
            let order = aligned.min(pages.ilog2() as usize).min(ORDERS - 1);
            self.free_run(first, order);
            first += 1 << order;
            pages -= 1 << order;
        }
    }

    fn free_run(&mut self, mut first: u32, mut order: usize) {
        while order + 1 < ORDERS {
            let buddy = first ^ (1 << order);
            if self.order.get(buddy as usize).copied() != Some(order as u8) {
                break;
            }
            self.unlink(buddy, order);
            first &= !(1 << order);
            order += 1;
        }
        let head = self.heads[order];
        if head != NONE {
            self.prev[head as usize] = first;
        }
        self.next[first as usize] = head;
        self.prev[first as usize] = NONE;
        self.order[first as usize] = order as u8;
        self.heads[order] = first;
    }

    fn unlink(&mut self, first: u32, order: usize) {
        let (next, prev) = (self.next[first as usize], self.prev[first as usize]);
        if prev == NONE {
            self.heads[order] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != NONE {
            self.prev[next as usize] = prev;
        }
        self.order[first as usize] = TAKEN;
    }
}
