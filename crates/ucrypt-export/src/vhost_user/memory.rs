//! The guest's memory: maps what the front end has given us.
//!
//! A [`GuestMap`] never changes; a new table is a new map that shares the mappings which stay. A
//! mapping ends when no map and no request in flight uses it any more, even if the front end forgot
//! it long ago.
//!
//! The guest and the front end may write to the memory at any time. Values are read once and checked
//! afterwards; the data of requests is moved and never looked at. The front end may also cut its
//! files off: from then on, the part behind the new end reads as zeroes and belongs to nobody.

#![expect(unsafe_code, reason = "pieces of the mapping are handed out as buffers")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::FsWord;
use ucrypt_engine::{Access, Buf, Watch};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap,
    MmapRegion, VolatileMemory, VolatileSlice,
};

use super::config::SEGMENTS_MAX;

/// Most regions of one map; each is one mapping of this process.
pub(super) const REGIONS_MAX: usize = 509;

/// Most bytes of all regions. A process has 128 TiB of addresses, which other clients and the stacks of
/// threads need, too; a table that replaces another is there beside it for a moment.
const BYTES_MAX: u64 = 16 << 40;

/// A region as the front end describes it. Addresses and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// Where the guest sees it.
    pub(super) guest: u64,
    pub(super) len: u64,
    /// Where the front end has it mapped: rings are located by these addresses.
    pub(super) user: u64,
    /// Where it starts in its file.
    pub(super) file_offset: u64,
}

/// Most pieces of a request. Each descriptor is one, and those that lie across regions are more.
const PIECES_MAX: usize = 2 * SEGMENTS_MAX as usize;

/// A mapping of a file of the front end. Fields are dropped in their order.
#[derive(Debug)]
pub(super) struct Mapped {
    watch: Watch,
    memory: Arc<MmapRegion>,
}

impl Mapped {
    /// Maps `len` bytes of a file from `offset` on. The file must have them.
    pub(super) fn new(file: File, offset: u64, len: u64) -> io::Result<Self> {
        let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidInput, reason);
        let meta = file.metadata()?;
        let end = offset.checked_add(len);
        if !meta.is_file() || end.is_none_or(|end| end > meta.len()) {
            return Err(invalid("memory is no file, or not as long as is said"));
        }
        let len = usize::try_from(len).map_err(|_| invalid("too large"))?;
        let page = page_size(&file)?;
        if !len.is_multiple_of(page) && page != rustix::param::page_size() {
            return Err(invalid("memory of huge pages ends inside of one"));
        }
        let memory = MmapRegion::from_file(FileOffset::new(file, offset), len)
            .map_err(|error| io::Error::other(format!("cannot map memory: {error}")))?;
        let base = NonNull::new(memory.as_ptr()).ok_or_else(|| invalid("empty"))?;
        // SAFETY: this is the mapping just made, which stays as long as `memory`. The front end may
        // write anything there: whatever is read from it is checked, or treated as data.
        let watch = unsafe { Watch::new(base, len, page, Access::ReadWrite) };
        let watch = watch.ok_or_else(|| io::Error::other("too many regions of memory"))?;
        Ok(Self { watch, memory: Arc::new(memory) })
    }

    /// The bytes of the mapping.
    pub(super) fn bytes(&self) -> VolatileSlice<'_> {
        self.memory.as_volatile_slice()
    }
}

/// `f_type` of hugetlbfs in `statfs`(2), which files of `memfd_create` with huge pages lie on, too
/// (linux/magic.h).
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;

/// Bytes of the pages of a file's mapping.
fn page_size(file: &File) -> io::Result<usize> {
    let found = rustix::fs::fstatfs(file)?;
    if found.f_type != HUGETLBFS_MAGIC {
        return Ok(rustix::param::page_size());
    }
    usize::try_from(found.f_bsize).map_err(io::Error::other)
}

/// All regions.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestMap {
    memory: GuestMemoryMmap,
    /// By the guest's addresses.
    regions: Vec<(Region, Arc<Mapped>)>,
    /// Addresses of the guest that were removed from the map so far: they may come back.
    gone: Vec<Range<u64>>,
}

/// A piece of a request, or its descriptors, lie outside of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outside {
    /// There is no such memory, or the descriptors make no sense: no guest needs as many pieces.
    Nowhere,
    /// There was such memory: see [`Gone`].
    Gone,
}

/// A part of a request lies in a region that was removed. A front end changes a region by removing
/// and adding it while the guest goes on: the request waits for the next map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl GuestMap {
    /// This map plus one region.
    pub(super) fn with(&self, region: Region, file: File) -> io::Result<Self> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
        if self.regions.len() >= REGIONS_MAX {
            return Err(invalid(format!("more than {REGIONS_MAX} regions of memory")));
        }
        let others: u64 = self.regions.iter().map(|(other, _)| other.len).sum();
        if others.checked_add(region.len).is_none_or(|sum| sum > BYTES_MAX) {
            return Err(invalid(format!("more than {} TiB of memory", BYTES_MAX >> 40)));
        }
        let mapped = Mapped::new(file, region.file_offset, region.len)?;
        let guest = GuestAddress(region.guest);
        let placed = GuestRegionMmap::with_arc(mapped.memory.clone(), guest)
            .ok_or_else(|| invalid("a region ends beyond 2^64".into()))?;
        let memory = self
            .memory
            .insert_region(Arc::new(placed))
            .map_err(|error| invalid(format!("a region does not fit: {error}")))?;
        let mut regions = self.regions.clone();
        let at = regions.partition_point(|(other, _)| other.guest < region.guest);
        regions.insert(at, (region, Arc::new(mapped)));
        Ok(Self { memory, regions, gone: self.gone.clone() })
    }

    /// This map without a region; `None` if it has no such region.
    pub(super) fn without(&self, guest: u64, len: u64, user: u64) -> Option<Self> {
        let is_it = |(region, _): &(Region, _)| {
            (region.guest, region.len, region.user) == (guest, len, user)
        };
        let at = self.regions.iter().position(is_it)?;
        let (memory, _) = self.memory.remove_region(GuestAddress(guest), len).ok()?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        let mut gone = self.gone.clone();
        gone.retain(|range| range.start < guest || range.end > guest.saturating_add(len));
        if gone.len() == REGIONS_MAX {
            gone.remove(0);
        }
        gone.push(guest..guest.saturating_add(len));
        Some(Self { memory, regions, gone })
    }

    /// Whether `len` bytes from `at` are memory.
    pub(super) fn check(&self, at: GuestAddress, len: usize) -> Result<(), Outside> {
        if self.memory.check_range(at, len) {
            return Ok(());
        }
        let mut pieces = Vec::new();
        self.append(at.0, len, &mut pieces)
    }

    /// Reads the bytes from `at`.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Outside> {
        let at = GuestAddress(at);
        let read = self.memory.read_slice(bytes, at);
        read.map_err(|_| self.check(at, bytes.len()).err().unwrap_or(Outside::Nowhere))
    }

    /// The error for an address where there is no memory.
    fn outside(&self, at: u64) -> Outside {
        if self.gone.iter().any(|range| range.contains(&at)) {
            Outside::Gone
        } else {
            Outside::Nowhere
        }
    }

    /// Whether the front end has cut memory off that was in use.
    pub(super) fn is_cut_off(&self) -> bool {
        self.regions.iter().any(|(_, mapped)| mapped.watch.is_broken())
    }

    /// For access to single values.
    pub(super) fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// The guest's address of an address of the front end.
    pub(super) fn translate(&self, user: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|(region, _)| {
            let offset = user.checked_sub(region.user).filter(|&offset| offset < region.len)?;
            Some(GuestAddress(region.guest + offset))
        })
    }

    /// Appends `len` bytes from `at` as buffers: one for each region that they touch. Bytes that
    /// continue the last buffer are joined to it.
    pub(super) fn append(&self, at: u64, len: usize, pieces: &mut Vec<Buf>) -> Result<(), Outside> {
        let (mut at, mut left) = (at, len);
        while left > 0 {
            let behind = self.regions.partition_point(|(region, _)| region.guest <= at);
            let (region, mapped) = behind
                .checked_sub(1)
                .map(|last| &self.regions[last])
                .ok_or_else(|| self.outside(at))?;
            let offset = at - region.guest;
            let room = region.len.checked_sub(offset).filter(|&room| room > 0);
            let room = room.ok_or_else(|| self.outside(at))?;
            let here = left.min(usize::try_from(room).unwrap_or(left));
            let piece = piece(mapped, offset as usize, here).ok_or(Outside::Nowhere)?;
            let alone = match pieces.last_mut() {
                Some(last) => last.join(piece).err(),
                None => Some(piece),
            };
            pieces.extend(alone);
            if pieces.len() > PIECES_MAX {
                return Err(Outside::Nowhere);
            }
            left -= here;
            if left > 0 {
                at = at.checked_add(here as u64).ok_or(Outside::Nowhere)?;
            }
        }
        Ok(())
    }
}

/// `len` bytes from `offset` of a region.
fn piece(mapped: &Arc<Mapped>, offset: usize, len: usize) -> Option<Buf> {
    if offset.checked_add(len)? > mapped.memory.size() {
        return None;
    }
    let base = NonNull::new(mapped.memory.as_ptr())?;
    // SAFETY: the range lies in the mapping, which is readable and writable and stays as long as
    // the buffer has `mapped`. All other code in this process uses `vm-memory`, whose accesses are
    // volatile. The engine treats the bytes as data and only copies between them and a pool.
    unsafe { Some(Buf::foreign(mapped.clone(), base.add(offset), len)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn file(len: u64) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(len).expect("as long as that");
        file
    }

    fn region(guest: u64, len: u64, user: u64) -> Region {
        Region { guest, len, user, file_offset: 0 }
    }

    #[test]
    fn pieces_follow_the_regions_and_never_leave_them() {
        let map = GuestMap::default()
            .with(region(0x1_0000, 0x2000, 0x7000_0000), file(0x2000))
            .and_then(|map| map.with(region(0x1_2000, 0x1000, 0x8000_0000), file(0x1000)))
            .expect("two regions");
        let mut pieces = Vec::new();
        map.append(0x1_1ff0, 0x20, &mut pieces).expect("across the border");
        assert_eq!(pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(), [0x10, 0x10]);
        pieces[1].fill(9);
        assert_eq!(map.memory().read_obj::<u8>(GuestAddress(0x1_200f)).ok(), Some(9));
        map.append(0x1_2010, 0x10, &mut pieces).expect("inside");
        assert_eq!(pieces.len(), 2, "what continues the last piece is one with it");
        for (at, len) in [(0, 1), (0xffff, 2), (0x1_2fff, 2), (0x1_3000, 1), (u64::MAX, 2)] {
            assert_eq!(
                map.append(at, len, &mut Vec::new()),
                Err(Outside::Nowhere),
                "{at:#x}+{len}"
            );
        }
        assert_eq!(map.translate(0x7000_0010), Some(GuestAddress(0x1_0010)));
        assert_eq!(map.translate(0x8000_0fff), Some(GuestAddress(0x1_2fff)));
        assert_eq!((map.translate(0x7000_2000), map.translate(0)), (None, None));
    }

    #[test]
    fn a_request_in_more_pieces_than_any_guest_needs_is_refused() {
        const COUNT: u64 = 400;
        let mut map = GuestMap::default();
        for number in 0..COUNT {
            map = map.with(region(number * 0x1000, 0x1000, 0), file(0x1000)).expect("a region");
        }
        let mut pieces = Vec::new();
        map.append(0, PIECES_MAX * 0x1000, &mut pieces).expect("as many as there may be");
        let before = pieces.capacity();
        assert_eq!(map.append(0, 0x1000, &mut pieces), Err(Outside::Nowhere));
        assert_eq!(map.append(0, COUNT as usize * 0x1000, &mut Vec::new()), Err(Outside::Nowhere));
        assert!(pieces.capacity() <= 2 * before);
    }

    #[test]
    fn memory_that_leaves_others_no_addresses_is_refused() {
        const LEN: u64 = 6 << 40;
        let sparse = || file(LEN);
        let two = GuestMap::default()
            .with(region(0, LEN, 0), sparse())
            .and_then(|map| map.with(region(LEN, LEN, 0), sparse()))
            .expect("12 TiB");
        let refused = two.with(region(2 * LEN, LEN, 0), sparse()).expect_err("18 TiB");
        assert!(refused.to_string().contains("more than 16 TiB"), "{refused}");
        assert!(two.with(region(2 * LEN, u64::MAX, 0), sparse()).is_err());
    }

    #[test]
    fn huge_pages_that_are_not_there_read_as_zeroes() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
        let file = File::from(memfd_create("huge", flags).expect("huge pages"));
        let page = page_size(&file).expect("a size");
        assert!(page > rustix::param::page_size());
        file.set_len(4 * page as u64).expect("as long as that");
        let all = region(0, 4 * page as u64, 0);
        let half = Region { len: page as u64 / 2, ..all };
        let ends_inside = GuestMap::default().with(half, file.try_clone().expect("a copy"));
        assert!(ends_inside.is_err());
        let map = GuestMap::default().with(all, file.try_clone().expect("a copy")).expect("mapped");
        // Whether or not there are free pages: from now on there is no file.
        file.set_len(0).expect("cut off");
        for at in [3 * page + 5, 0, page + 9] {
            let mut byte = [1];
            assert_eq!(map.read(at as u64, &mut byte), Ok(()));
            assert_eq!(byte, [0], "{at}");
        }
        assert!(map.is_cut_off());
        let mut pieces = Vec::new();
        map.append(page as u64 - 8, 16, &mut pieces).expect("inside");
        pieces[0].fill(7);
        assert_eq!(pieces[0][..], [7; 16]);
    }

    #[test]
    fn a_mapping_outlives_its_region_while_a_request_uses_it() {
        let map = GuestMap::default().with(region(0, 0x1000, 0), file(0x1000)).expect("a region");
        let mut pieces = Vec::new();
        map.append(0, 16, &mut pieces).expect("inside");
        assert!(map.without(0, 0x1000, 1).is_none() && map.without(0, 0x800, 0).is_none());
        let map = map.without(0, 0x1000, 0).expect("none left");
        assert_eq!(map.append(0, 16, &mut Vec::new()), Err(Outside::Gone));
        assert_eq!(map.read(0x1000, &mut [0]), Err(Outside::Nowhere));
        pieces[0].fill(1);
        let map = map.with(region(0, 0x800, 0), file(0x800)).expect("a part of it");
        assert_eq!(map.check(GuestAddress(0x7ff), 1), Ok(()));
        assert_eq!(map.check(GuestAddress(0x7ff), 2), Err(Outside::Gone));
    }

    #[test]
    fn regions_that_overlap_or_exceed_their_file_are_refused() {
        let map = GuestMap::default().with(region(0, 0x2000, 0), file(0x2000)).expect("a region");
        assert!(map.with(region(0x1000, 0x1000, 0), file(0x1000)).is_err());
        assert!(map.with(region(0x2000, 0x2000, 0), file(0x1000)).is_err());
        let beyond = Region { file_offset: u64::MAX - 0xfff, ..region(0x2000, 0x1000, 0) };
        assert!(map.with(beyond, file(0x1000)).is_err());
        assert!(map.with(region(u64::MAX - 0xfff, 0x2000, 0), file(0x2000)).is_err());
    }
}
