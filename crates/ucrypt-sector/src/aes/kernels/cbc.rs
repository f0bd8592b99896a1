//! AES-CBC over a run of sectors.

use super::{Run, Schedule};
use crate::{
    arch::OneBlock,
    vector::{Decrypt, Direction, Encrypt, GROUP, Vector, round},
};

/// Decrypts a run of sectors under their IVs, `G` groups of vectors at a time.
///
/// # Safety
///
/// The processor must have `V`'s instructions; `ivs` must hold one per sector of `run`.
#[inline(always)]
pub(super) unsafe fn decrypt<V: Vector, const G: usize>(
    keys: &Schedule,
    ivs: &[[u8; 16]],
    run: Run,
) {
    debug_assert_eq!(ivs.len() * run.sector_size, run.len);
    let per_sector = run.sector_size / V::GROUP_BYTES;
    let groups = run.len / V::GROUP_BYTES;
    // SAFETY: the caller promises the instructions; each step covers groups of the run.
    unsafe {
        // The last ciphertext block before this step; in memory it may be overwritten already.
        let mut before = V::broadcast(ivs[0].as_ptr());
        let mut done = 0;
        while done < groups {
            let iv = |g: usize| {
                let index = done + g;
                index.is_multiple_of(per_sector).then(|| &ivs[index / per_sector])
            };
            let offset = done * V::GROUP_BYTES;
            let (src, dst) = (run.src.add(offset), run.dst.add(offset));
            if groups - done >= G {
                let after = V::broadcast(src.add(G * V::GROUP_BYTES - 16));
                decrypt_step::<V, G>(keys, before, iv, src, dst);
                before = after;
                done += G;
            } else {
                let after = V::broadcast(src.add(V::GROUP_BYTES - 16));
                decrypt_step::<V, 1>(keys, before, iv, src, dst);
                before = after;
                done += 1;
            }
        }
    }
}

/// Decrypts `G` groups. Each is chained to an IV or, if `iv` returns none, to the preceding
/// ciphertext block, which for the first group is in every lane of `before`.
#[inline(always)]
unsafe fn decrypt_step<'a, V: Vector, const G: usize>(
    keys: &Schedule,
    before: V,
    iv: impl Fn(usize) -> Option<&'a [u8; 16]>,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller promises the instructions and `G` groups at each pointer.
    unsafe {
        let at = |g: usize, i: usize| g * V::GROUP_BYTES + i * V::BYTES;
        let key = V::key(keys.first());
        let mut x = [[key; GROUP]; G];
        for (g, group) in x.iter_mut().enumerate() {
            for (i, x) in group.iter_mut().enumerate() {
                *x = V::load(src.add(at(g, i))).begin(key);
            }
        }
        for key in keys.middle() {
            for group in &mut x {
                round::<V, Decrypt>(group, key);
            }
        }
        // From the last to the first: in place, each store overwrites the ciphertext to which the
        // next vector is chained.
        let (before_last, key) = (V::key(keys.before_last()), V::key(keys.last()));
        for g in (0..G).rev() {
            for i in (1..GROUP).rev() {
                let chained = V::load(src.add(at(g, i) - 16));
                Decrypt::last(x[g][i], before_last, chained.xor(key)).store(dst.add(at(g, i)));
            }
            let first = match iv(g) {
                Some(iv) => V::broadcast(iv.as_ptr()),
                None if g == 0 => before,
                None => V::broadcast(src.add(at(g, 0) - 16)),
            };
            let chained = V::load(src.add(at(g, 0))).shift_in(first);
            Decrypt::last(x[g][0], before_last, chained.xor(key)).store(dst.add(at(g, 0)));
        }
    }
}

/// Encrypts a run of sectors under their IVs. A chain is serial, so as many sectors as fill the AES
/// units are encrypted side by side, one per lane.
///
/// # Safety
///
/// The processor must have the instructions of `V` and of [`OneBlock`]; `ivs` must hold one per sector
/// of `run`.
#[inline(always)]
pub(super) unsafe fn encrypt<V: Vector>(keys: &Schedule, ivs: &[[u8; 16]], run: Run) {
    debug_assert_eq!(ivs.len() * run.sector_size, run.len);
    let few_conflicts = run.sector_size == 512 || V::LANES == 1;
    let mut first = 0;
    for ivs in ivs.chunks(V::GROUP_BLOCKS) {
        let offset = first * run.sector_size;
        let len = ivs.len() * run.sector_size;
        // SAFETY: the caller promises the instructions; the sectors are within the run.
        unsafe {
            let part = Run { src: run.src.add(offset), dst: run.dst.add(offset), len, ..run };
            match ivs.len().div_ceil(V::LANES) {
                1 => side_by_side::<V, 1, LINE>(keys, ivs, part),
                2 => side_by_side::<V, 2, LINE>(keys, ivs, part),
                3 | 4 => side_by_side::<V, 4, LINE>(keys, ivs, part),
                _ if few_conflicts => side_by_side::<V, GROUP, 1>(keys, ivs, part),
                _ => side_by_side::<V, GROUP, LINE>(keys, ivs, part),
            }
        }
        first += ivs.len();
    }
}

/// Blocks of a sector that are encrypted before the next sector's turn: a cache line.
///
/// Large sectors all compete for the same few places in the cache, and would evict a line that is
/// only half done. Small or few sectors do not, and one block at a time needs fewer registers.
const LINE: usize = 4;

/// Encrypts up to `N` vectors of sectors, `B` blocks of each in turn. Unused lanes repeat the last
/// sector.
#[inline(always)]
unsafe fn side_by_side<V: Vector, const N: usize, const B: usize>(
    keys: &Schedule,
    ivs: &[[u8; 16]],
    run: Run,
) {
    let sector = |i: usize, lane: usize| (i * V::LANES + lane).min(ivs.len() - 1);
    // SAFETY: the caller promises the instructions; every sector is within the run.
    unsafe {
        let mut chain = [V::key(keys.first()); N];
        for (i, x) in chain.iter_mut().enumerate() {
            *x = V::gather(|lane| ivs[sector(i, lane)].as_ptr());
        }
        for position in (0..run.sector_size).step_by(B * OneBlock::BYTES) {
            let at = |i: usize, lane: usize, block: usize| {
                sector(i, lane) * run.sector_size + position + block * OneBlock::BYTES
            };
            let mut x = [[V::key(keys.first()); N]; B];
            for i in 0..N {
                for (block, x) in x.iter_mut().enumerate() {
                    x[i] = V::gather(|lane| run.src.add(at(i, lane, block)));
                }
            }
            for x in &mut x {
                link(keys, &chain, x);
                chain = *x;
            }
            for i in 0..N {
                for (block, x) in x.iter().enumerate() {
                    x[i].scatter(|lane| run.dst.add(at(i, lane, block)));
                }
            }
        }
    }
}

/// Encrypts one block of each sector, chained to the previous block.
#[inline(always)]
unsafe fn link<V: Vector, const N: usize>(keys: &Schedule, before: &[V; N], x: &mut [V; N]) {
    // SAFETY: the caller promises the instructions.
    unsafe {
        let key = V::key(keys.first());
        for (x, before) in x.iter_mut().zip(before) {
            *x = x.begin_masked(*before, key);
        }
        for key in keys.middle() {
            let key = V::key(key);
            for x in &mut *x {
                *x = Encrypt::round(*x, key);
            }
        }
        let (before_last, key) = (V::key(keys.before_last()), V::key(keys.last()));
        for x in x {
            *x = Encrypt::last(*x, before_last, key);
        }
    }
}
