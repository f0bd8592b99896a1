//! AES on independent blocks: tweaks, IVs and ECB.

use super::{Run, Schedule};
use crate::{
    arch::OneBlock,
    vector::{Direction, GROUP, Vector, round},
};

/// Transforms each block of a run independently; the sector size has no effect.
///
/// # Safety
///
/// The processor must have the instructions of `V` and of [`OneBlock`].
#[inline(always)]
pub(super) unsafe fn ecb<V: Vector, D: Direction>(keys: &Schedule, run: Run) {
    let (mut src, mut dst, mut left) = (run.src, run.dst, run.len);
    // SAFETY: the caller promises the instructions; each step covers only remaining bytes of the
    // run.
    unsafe {
        while left >= V::GROUP_BYTES {
            let key = V::key(keys.first());
            let mut x = [key; GROUP];
            for (i, x) in x.iter_mut().enumerate() {
                *x = V::load(src.add(i * V::BYTES)).begin(key);
            }
            for key in keys.middle() {
                round::<V, D>(&mut x, key);
            }
            let (before, key) = (V::key(keys.before_last()), V::key(keys.last()));
            for (i, x) in x.iter().enumerate() {
                D::last(*x, before, key).store(dst.add(i * V::BYTES));
            }
            (src, dst) = (src.add(V::GROUP_BYTES), dst.add(V::GROUP_BYTES));
            left -= V::GROUP_BYTES;
        }
        while left >= V::BYTES {
            one::<V, D>(keys, src, dst);
            (src, dst) = (src.add(V::BYTES), dst.add(V::BYTES));
            left -= V::BYTES;
        }
        while left >= OneBlock::BYTES {
            one::<OneBlock, D>(keys, src, dst);
            (src, dst) = (src.add(OneBlock::BYTES), dst.add(OneBlock::BYTES));
            left -= OneBlock::BYTES;
        }
    }
}

/// Transforms one vector. Successive vectors overlap in the processor.
#[inline(always)]
unsafe fn one<V: Vector, D: Direction>(keys: &Schedule, src: *const u8, dst: *mut u8) {
    // SAFETY: the caller promises the instructions and a vector at each pointer.
    unsafe {
        let mut x = V::load(src).begin(V::key(keys.first()));
        for key in keys.middle() {
            x = D::round(x, V::key(key));
        }
        D::last(x, V::key(keys.before_last()), V::key(keys.last())).store(dst);
    }
}
