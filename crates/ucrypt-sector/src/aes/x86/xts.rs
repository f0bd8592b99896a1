//! AES-XTS over a run of sectors.
//!
//! The run is worked through in groups of eight vectors. While the rounds of one group go through
//! the AES units, the tweaks of the next one are made by instructions that use other units, or the
//! same ones rarely. A sector border is only a tweak that is loaded instead of multiplied, so that
//! nothing waits for it.

use std::mem::MaybeUninit;

use super::{Run, Schedule};
use crate::x86::{Direction, GROUP, Vector, round};

/// What the tweaks of successive groups are made from.
struct Groups<'a, V: Vector> {
    /// Encrypted IVs of the sectors after this one.
    sectors: std::slice::Iter<'a, [u8; 16]>,
    current: V::Tweaks,
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
        let current = unsafe { V::first_group(tweaks[0].as_ptr()) };
        Self { sectors: tweaks[1..].iter(), current, left: per_sector, per_sector }
    }

    /// Goes on to the next group. After the last sector the last tweak is multiplied further.
    #[inline(always)]
    unsafe fn advance(&mut self) {
        self.left -= 1;
        // SAFETY: the caller promises the instructions; the pointer is a block's.
        unsafe {
            match self.sectors.as_slice() {
                [tweak, ..] if self.left == 0 => {
                    self.sectors.next();
                    self.current = V::first_group(tweak.as_ptr());
                    self.left = self.per_sector;
                }
                _ => self.current = V::next_group(self.current),
            }
        }
    }
}

/// Crypts a run of sectors under their encrypted IVs.
///
/// # Safety
///
/// The processor must have `V`'s instructions; `tweaks` must hold one per sector of `run`.
#[inline(always)]
pub(super) unsafe fn xts<V: Vector, D: Direction>(keys: &Schedule, tweaks: &[[u8; 16]], run: Run) {
    debug_assert_eq!(tweaks.len() * run.sector_size, run.len);
    // SAFETY: the caller promises the instructions; a step covers a group of the run, of which so
    // many are there.
    unsafe {
        let mut groups = Groups::<V>::new(tweaks, run.sector_size);
        let (mut src, mut dst) = (run.src, run.dst);
        let mut tweaks = [const { MaybeUninit::<[V; GROUP]>::uninit() }; 2];
        let [now, next] = &mut tweaks;
        let (mut now, mut next) = (now.as_mut_ptr(), next.as_mut_ptr());
        for index in 0..GROUP {
            (*now)[index] = V::tweaks(&groups.current, index);
        }
        for _ in 1..run.len / V::GROUP_BYTES {
            groups.advance();
            step::<V, D>(keys, now, Some((&groups.current, next)), src, dst);
            std::mem::swap(&mut now, &mut next);
            (src, dst) = (src.add(V::GROUP_BYTES), dst.add(V::GROUP_BYTES));
        }
        step::<V, D>(keys, now, None, src, dst);
    }
}

/// Crypts a group under the tweaks `now`, and makes those of the `next` one if there is one.
///
/// The tweaks are behind pointers to be read twice: kept in registers in between they would be
/// spilled, to another place.
#[inline(always)]
unsafe fn step<V: Vector, D: Direction>(
    keys: &Schedule,
    now: *const [V; GROUP],
    next: Option<(&V::Tweaks, *mut [V; GROUP])>,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller promises the instructions and a group behind each pointer.
    unsafe {
        let key = V::key(keys.first());
        let mut x = [key; GROUP];
        for i in 0..GROUP {
            x[i] = V::load(src.add(i * V::BYTES)).xor3((*now)[i], key);
        }
        // There are nine middle rounds at least, and eight vectors in a group.
        let (with_tweaks, rest) = keys.middle().split_at(GROUP);
        for (index, key) in with_tweaks.iter().enumerate() {
            round::<V, D>(&mut x, key);
            if let Some((tweaks, next)) = next {
                (*next)[index] = V::tweaks(tweaks, index);
            }
        }
        for key in rest {
            round::<V, D>(&mut x, key);
        }
        let key = V::key(keys.last());
        for i in 0..GROUP {
            D::last(x[i], (*now)[i].xor(key)).store(dst.add(i * V::BYTES));
        }
    }
}
