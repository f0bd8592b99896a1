//! AES-XTS over a run of sectors.
//!
//! The run is processed in groups of eight vectors. While one group goes through the AES units,
//! other units make the tweaks of the next group ([`Making`]) and store them, for vectors to load.
//! At a sector border the tweak is loaded instead of multiplied, so nothing waits there.

use std::mem::MaybeUninit;

use super::{Run, Schedule, tweaks::Chains};
use crate::{
    arch::prefetch,
    vector::{Direction, GROUP, Vector, round},
};

/// How the tweaks of all groups but the first are made, off the AES units.
pub(super) trait Making {
    /// Whether vector instructions make them.
    const BY_VECTORS: bool;

    /// The tweaks of vector `index` of a group, from the tweak of its first block.
    ///
    /// # Safety
    ///
    /// The processor must have `V`'s instructions; `first` must point to a block.
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V;
}

/// In general-purpose registers: best if vector instructions of any kind occupy the AES units.
pub(super) struct InRegisters;

/// By vector shifts: best if general-purpose registers cannot keep up with the blocks of a group.
#[cfg(target_arch = "x86_64")]
pub(super) struct ByShifts;

/// By vector products: best if they do not occupy the AES units.
#[cfg(target_arch = "x86_64")]
pub(super) struct ByProducts;

impl Making for InRegisters {
    const BY_VECTORS: bool = false;

    #[inline(always)]
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweaks(first, index) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Making for ByShifts {
    const BY_VECTORS: bool = true;

    #[inline(always)]
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweaks(first, index) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Making for ByProducts {
    const BY_VECTORS: bool = true;

    #[inline(always)]
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweaks_by_products(first, index) }
    }
}

/// How the output is stored.
pub(super) trait Storing {
    /// Whether addresses must be aligned to a vector.
    const ALIGNED: bool;

    /// # Safety
    ///
    /// As for [`Vector::store`] or [`Vector::stream`].
    unsafe fn store<V: Vector>(x: V, to: *mut u8);
}

/// Through the cache, to any address.
pub(super) struct Cached;

/// Past the caches: memory that is not read soon need not be fetched before it is written.
pub(super) struct Streamed;

impl Storing for Cached {
    const ALIGNED: bool = false;

    #[inline(always)]
    unsafe fn store<V: Vector>(x: V, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { x.store(to) }
    }
}

impl Storing for Streamed {
    const ALIGNED: bool = true;

    #[inline(always)]
    unsafe fn store<V: Vector>(x: V, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { x.stream(to) }
    }
}

/// Bytes of a cache line. An address aligned to a line is aligned to every vector.
pub(super) const LINE: usize = 64;

/// Prefetch distance for a long run, in bytes. Processors prefetch by themselves, but not across
/// pages, so each page of uncached data would begin with a wait. The prefetch passes the end of the
/// run, where the next run begins.
const AHEAD: usize = 4096;

/// Prefetch distance for a run of at most [`AHEAD`] bytes. It stays within the run, because the
/// data after the run is not needed.
const AHEAD_SHORT: usize = 2048;

/// The source of the tweaks of successive groups.
struct Groups<'a> {
    /// Encrypted IVs of the sectors after this one.
    sectors: std::slice::Iter<'a, [u8; 16]>,
    /// The chains at the next group of this sector.
    next: Chains,
    /// Groups left in this sector, including the one before the next.
    left: usize,
    per_sector: usize,
    group_blocks: usize,
}

impl<'a> Groups<'a> {
    /// `tweaks` holds the encrypted IV of each sector and is not empty. The first group is
    /// skipped.
    #[inline(always)]
    fn new(tweaks: &'a [[u8; 16]], sector_size: usize, group_blocks: usize) -> Self {
        let per_sector = sector_size / (16 * group_blocks);
        let mut next = Chains::new(&tweaks[0], group_blocks);
        next.skip_half();
        next.skip_half();
        Self { sectors: tweaks[1..].iter(), next, left: per_sector, per_sector, group_blocks }
    }

    /// The chains at the next group. After the end of the last sector they simply continue.
    #[inline(always)]
    fn advance(&mut self) -> &mut Chains {
        self.left -= 1;
        if let ([tweak, ..], 0) = (self.sectors.as_slice(), self.left) {
            self.sectors.next();
            self.next = Chains::new(tweak, self.group_blocks);
            self.left = self.per_sector;
        }
        &mut self.next
    }
}

/// Transforms a run of sectors under their encrypted IVs.
///
/// # Safety
///
/// The processor must have `V`'s instructions; `tweaks` must hold one per sector of `run`.
///
/// # Panics
///
/// If the destination is not aligned as `S` needs it.
#[inline(always)]
pub(super) unsafe fn xts<V: Vector, D: Direction, M: Making, S: Storing>(
    keys: &Schedule,
    tweaks: &[[u8; 16]],
    run: Run,
) {
    debug_assert_eq!(tweaks.len() * run.sector_size, run.len);
    assert!(!S::ALIGNED || run.dst.addr().is_multiple_of(V::BYTES), "streamed to anywhere");
    let mut groups = Groups::new(tweaks, run.sector_size, V::GROUP_BLOCKS);
    let mut buffers = [const { MaybeUninit::<[V; GROUP]>::uninit() }; 2];
    let [now, next] = &mut buffers;
    let (mut now, mut next) = (now.as_mut_ptr(), next.as_mut_ptr());
    let (mut src, mut dst) = (run.src, run.dst);
    let ahead = |left: usize| match run.len {
        len if len > AHEAD => AHEAD,
        _ if left > AHEAD_SHORT => AHEAD_SHORT,
        _ => 0,
    };
    // SAFETY: the caller promises the instructions; each step covers one group, and there are as
    // many steps as groups in the run.
    unsafe {
        // The first group has to wait for its tweaks. Vectors are faster then, and can be loaded at
        // once.
        for index in 0..GROUP {
            (*now)[index] = M::tweaks(tweaks[0].as_ptr(), index);
        }
        for group in 1..run.len / V::GROUP_BYTES {
            let ahead = ahead(run.len - (group - 1) * V::GROUP_BYTES);
            step::<V, D, M, S>(keys, now, Some((groups.advance(), next.cast())), src, dst, ahead);
            std::mem::swap(&mut now, &mut next);
            (src, dst) = (src.add(V::GROUP_BYTES), dst.add(V::GROUP_BYTES));
        }
        step::<V, D, M, S>(keys, now, None, src, dst, ahead(V::GROUP_BYTES));
    }
}

/// Transforms a group under the tweaks `now`, makes the tweaks of the `next` group if there is one,
/// and prefetches the data `ahead` bytes after the group's.
///
/// The tweaks are read twice through a pointer. The compiler would otherwise keep them in registers
/// and spill them to another place.
#[inline(always)]
unsafe fn step<V: Vector, D: Direction, M: Making, S: Storing>(
    keys: &Schedule,
    now: *const [V; GROUP],
    mut next: Option<(&mut Chains, *mut [u64; 2])>,
    src: *const u8,
    dst: *mut u8,
    ahead: usize,
) {
    // SAFETY: the caller promises the instructions, a group at each pointer, and what `S` needs.
    unsafe {
        let key = V::key(keys.first());
        let mut x = [key; GROUP];
        for i in 0..GROUP {
            x[i] = V::load(src.add(i * V::BYTES)).begin_masked((*now)[i], key);
            if (i * V::BYTES).is_multiple_of(LINE) {
                prefetch(src.wrapping_add(i * V::BYTES + ahead));
            }
        }
        // There are at least nine middle rounds; the tweaks are made in four or eight of them.
        let half = V::GROUP_BLOCKS / 2;
        let in_round = V::LANES.div_ceil(2);
        let rounds = if M::BY_VECTORS { GROUP } else { half / in_round };
        let (with_tweaks, rest) = keys.middle().split_at(rounds);
        let first = next.as_ref().map_or([0; 2], |(chains, _)| chains.first());
        for (index, key) in with_tweaks.iter().enumerate() {
            round::<V, D>(&mut x, key);
            if let Some((chains, next)) = &mut next {
                if M::BY_VECTORS {
                    next.cast::<V>().add(index).write(M::tweaks(first.as_ptr().cast(), index));
                    continue;
                }
                for block in index * in_round..(index + 1) * in_round {
                    let [first, second] = chains.make();
                    *next.add(block) = first;
                    *next.add(half + block) = second;
                }
            }
        }
        if let Some((chains, _)) = next {
            chains.skip_half();
            if M::BY_VECTORS {
                chains.skip_half();
            }
        }
        for key in rest {
            round::<V, D>(&mut x, key);
        }
        let (before, key) = (V::key(keys.before_last()), V::key(keys.last()));
        for i in 0..GROUP {
            S::store(D::last(x[i], before, (*now)[i].xor(key)), dst.add(i * V::BYTES));
        }
    }
}
