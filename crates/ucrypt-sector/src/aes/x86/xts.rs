//! AES-XTS over a run of sectors.
//!
//! The run is worked through in groups of eight vectors. While the rounds of one group go through
//! the AES units, the tweaks of the next one are made by other units ([`Making`]) and stored, for
//! vectors to load them. A sector border is only a tweak that is loaded instead of multiplied, so
//! that nothing waits for it.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::mem::MaybeUninit;

use super::{Run, Schedule, tweaks::Chains};
use crate::x86::{Direction, GROUP, Vector, round};

/// How the tweaks of the groups after the first one are made, which is where the AES units are not.
pub(super) trait Making {
    /// Whether vectors make them.
    const BY_VECTORS: bool;

    /// The tweaks of vector `index` of a group, from the tweak of its first block.
    ///
    /// # Safety
    ///
    /// The processor must have `V`'s instructions; a block must be behind `first`.
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V;
}

/// In general-purpose registers: best where vectors of any kind keep the AES units from work.
pub(super) struct InRegisters;

/// By shifts of vectors: best where there are more blocks in a group than those registers keep up
/// with.
pub(super) struct ByShifts;

/// By products of vectors: best where they are free.
pub(super) struct ByProducts;

impl Making for InRegisters {
    const BY_VECTORS: bool = false;

    #[inline(always)]
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweaks(first, index) }
    }
}

impl Making for ByShifts {
    const BY_VECTORS: bool = true;

    #[inline(always)]
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweaks(first, index) }
    }
}

impl Making for ByProducts {
    const BY_VECTORS: bool = true;

    #[inline(always)]
    unsafe fn tweaks<V: Vector>(first: *const u8, index: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweaks_by_products(first, index) }
    }
}

/// How what was crypted is stored.
pub(super) trait Storing {
    /// Whether addresses must be multiples of a vector.
    const ALIGNED: bool;

    /// # Safety
    ///
    /// That of [`Vector::store`] or [`Vector::stream`].
    unsafe fn store<V: Vector>(x: V, to: *mut u8);
}

/// Into the cache, anywhere.
pub(super) struct Cached;

/// Past the caches: what goes to memory that nobody reads soon need not be fetched from there first.
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

/// Bytes of a cache line, to which every vector is aligned that the line is.
pub(super) const LINE: usize = 64;

/// How far ahead of the cipher the data of a long run is asked for, in bytes. Processors do that by
/// themselves, but not across a page, so that each page of what is in no cache would begin with a wait.
/// It goes beyond the run's end, where the next one begins.
const AHEAD: usize = 4096;

/// The same within a run that is no longer than that: behind it is nothing that anybody wants.
const AHEAD_SHORT: usize = 2048;

/// What the tweaks of successive groups are made from.
struct Groups<'a> {
    /// Encrypted IVs of the sectors after this one.
    sectors: std::slice::Iter<'a, [u8; 16]>,
    /// At the next group of this sector.
    next: Chains,
    /// Groups of this sector that are left, the one before the next among them.
    left: usize,
    per_sector: usize,
    group_blocks: usize,
}

impl<'a> Groups<'a> {
    /// `tweaks` holds the encrypted IV of each sector and is not empty. The first group is left
    /// out.
    #[inline(always)]
    fn new(tweaks: &'a [[u8; 16]], sector_size: usize, group_blocks: usize) -> Self {
        let per_sector = sector_size / (16 * group_blocks);
        let mut next = Chains::new(&tweaks[0], group_blocks);
        next.skip_half();
        next.skip_half();
        Self { sectors: tweaks[1..].iter(), next, left: per_sector, per_sector, group_blocks }
    }

    /// The chains at the next group. After the last sector they go on in it.
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

/// Crypts a run of sectors under their encrypted IVs.
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
    // SAFETY: the caller promises the instructions; a step covers a group of the run, of which so
    // many are there.
    unsafe {
        // These are waited for. Vectors are faster then, and can be loaded at once.
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

/// Crypts a group under the tweaks `now`, makes those of the `next` one if there is one, and asks for
/// what is `ahead` bytes behind the group's.
///
/// The tweaks are behind pointers to be read twice: kept in registers in between they would be
/// spilled, to another place.
#[inline(always)]
unsafe fn step<V: Vector, D: Direction, M: Making, S: Storing>(
    keys: &Schedule,
    now: *const [V; GROUP],
    mut next: Option<(&mut Chains, *mut [u64; 2])>,
    src: *const u8,
    dst: *mut u8,
    ahead: usize,
) {
    // SAFETY: the caller promises the instructions, a group behind each pointer, and what `S` needs.
    unsafe {
        let key = V::key(keys.first());
        let mut x = [key; GROUP];
        for i in 0..GROUP {
            x[i] = V::load(src.add(i * V::BYTES)).xor3((*now)[i], key);
            if (i * V::BYTES).is_multiple_of(LINE) {
                // A hint, which may name any address.
                _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(i * V::BYTES + ahead).cast());
            }
        }
        // There are nine middle rounds at least; the tweaks are made in four or eight.
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
        let key = V::key(keys.last());
        for i in 0..GROUP {
            S::store(D::last(x[i], (*now)[i].xor(key)), dst.add(i * V::BYTES));
        }
    }
}
