//! AES-XTS over a run of sectors.
//!
//! The run is worked through in groups of eight vectors, `G` of them at a time. While the rounds of
//! one step go through the AES units, the tweaks of the next step are made from its first ones by
//! instructions that use the other units: shifts, carry-less multiplication and XOR. A sector
//! border is only a tweak that is loaded instead of multiplied, so that nothing waits for it.

use std::mem::MaybeUninit;

use super::{Run, Schedule};
use crate::x86::{Direction, GROUP, Vector, round};

/// The first tweaks of successive groups.
struct Groups<'a, V> {
    /// Of the sectors after this one.
    sectors: std::slice::Iter<'a, [u8; 16]>,
    current: V,
    /// Groups of this sector that are left, the current one among them.
    left: usize,
    per_sector: usize,
}

impl<'a, V: Vector> Groups<'a, V> {
    /// `tweaks` holds the encrypted IV of each sector and is not empty.
    #[inline(always)]
    unsafe fn new(tweaks: &'a [[u8; 16]], sector_size: usize) -> Self {
        let per_sector = sector_size / V::GROUP_BYTES;
        // SAFETY: the caller promises the instructions; the pointer is a block's.
        let current = unsafe { V::broadcast(tweaks[0].as_ptr()) };
        Self { sectors: tweaks[1..].iter(), current, left: per_sector, per_sector }
    }

    /// The first tweak of a group, in every lane. After the last sector it stays as it is.
    #[inline(always)]
    unsafe fn next(&mut self) -> V {
        let first = self.current;
        self.left -= 1;
        // SAFETY: the caller promises the instructions; the pointer is a block's.
        unsafe {
            if self.left > 0 {
                self.current = first.next_group();
            } else if let Some(tweak) = self.sectors.next() {
                self.current = V::broadcast(tweak.as_ptr());
                self.left = self.per_sector;
            } else {
                self.left = 1;
            }
        }
        first
    }
}

/// Crypts a run of sectors under their encrypted IVs.
///
/// # Safety
///
/// The processor must have `V`'s instructions; `tweaks` must hold one per sector of `run`.
#[inline(always)]
pub(super) unsafe fn xts<V: Vector, D: Direction, const G: usize>(
    keys: &Schedule,
    tweaks: &[[u8; 16]],
    run: Run,
) {
    debug_assert_eq!(tweaks.len() * run.sector_size, run.len);
    // SAFETY: the caller promises the instructions; a step covers `G` groups of the run, of which
    // so many are left.
    unsafe {
        let mut groups = Groups::<V>::new(tweaks, run.sector_size);
        let (mut src, mut dst, mut left) = (run.src, run.dst, run.len / V::GROUP_BYTES);
        let mut tweaks = [const { MaybeUninit::<[[V; GROUP]; G]>::uninit() }; 2];
        let [now, next] = &mut tweaks;
        let (mut now, mut next) = (now.as_mut_ptr(), next.as_mut_ptr());
        for g in 0..left.min(G) {
            let first = groups.next();
            let swapped = first.swap_halves();
            for index in 0..GROUP {
                (*now)[g][index] = first.tweaks(swapped, index);
            }
        }
        while left >= G {
            step::<V, D, G>(keys, &mut groups, now, next, src, dst);
            std::mem::swap(&mut now, &mut next);
            (src, dst) = (src.add(G * V::GROUP_BYTES), dst.add(G * V::GROUP_BYTES));
            left -= G;
        }
        for g in 0..left {
            let unused = next.cast();
            step::<V, D, 1>(keys, &mut groups, (&raw mut (*now)[g]).cast(), unused, src, dst);
            (src, dst) = (src.add(V::GROUP_BYTES), dst.add(V::GROUP_BYTES));
        }
    }
}

/// Crypts `G` groups under the tweaks `now`, and makes those of the `next` step.
///
/// The tweaks are behind pointers to be read twice: kept in registers in between they would be
/// spilled, to another place.
#[inline(always)]
unsafe fn step<V: Vector, D: Direction, const G: usize>(
    keys: &Schedule,
    groups: &mut Groups<'_, V>,
    now: *const [[V; GROUP]; G],
    next: *mut [[V; GROUP]; G],
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller promises the instructions and `G` groups behind each pointer.
    unsafe {
        let at = |g: usize, i: usize| g * V::GROUP_BYTES + i * V::BYTES;
        let key = V::key(keys.first());
        let mut x = [[key; GROUP]; G];
        let mut first = [key; G];
        let mut swapped = [key; G];
        for g in 0..G {
            for i in 0..GROUP {
                x[g][i] = V::load(src.add(at(g, i))).xor3((*now)[g][i], key);
            }
            first[g] = groups.next();
            swapped[g] = first[g].swap_halves();
        }
        // There are nine middle rounds at least, and eight vectors in a group.
        let (with_tweaks, rest) = keys.middle().split_at(GROUP);
        for (index, key) in with_tweaks.iter().enumerate() {
            for group in &mut x {
                round::<V, D>(group, key);
            }
            for g in 0..G {
                (*next)[g][index] = first[g].tweaks(swapped[g], index);
            }
        }
        for key in rest {
            for group in &mut x {
                round::<V, D>(group, key);
            }
        }
        let key = V::key(keys.last());
        for g in 0..G {
            for i in 0..GROUP {
                D::last(x[g][i], (*now)[g][i].xor(key)).store(dst.add(at(g, i)));
            }
        }
    }
}
