//! The operations on a vector register that the AES kernels need, for every width and architecture.
//!
//! The drivers are written once over [`Vector`]; those of other ciphers, over extensions of it in
//! `x86`. Everything here is inlined into functions that enable the instructions.

#![allow(unsafe_code, reason = "vector instructions are the point of it")]
#![allow(clippy::inline_always, reason = "the drivers must merge with the enabling function")]

use crate::aes::RoundKey;

/// Vectors that go through the rounds together.
///
/// AES instructions take four cycles and up to two start per cycle, so eight keep a core busy.
pub(crate) const GROUP: usize = 8;

/// A vector register that holds [`LANES`](Self::LANES) AES blocks.
///
/// # Safety
///
/// The processor must have the instructions that the implementing type names, for every function.
/// Pointers must be valid for one vector (`load`, `store`, `stream`) or one block per lane.
pub(crate) trait Vector: Copy {
    /// Blocks per vector.
    const LANES: usize;

    /// Blocks per group of vectors.
    const GROUP_BLOCKS: usize = GROUP * Self::LANES;

    /// Bytes per vector.
    const BYTES: usize = 16 * Self::LANES;

    /// Bytes per group of vectors.
    const GROUP_BYTES: usize = GROUP * Self::BYTES;

    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);

    /// Stores past the caches where the architecture has such a store, to an address that is a
    /// multiple of [`BYTES`](Self::BYTES). Others see the store in order only after a fence.
    unsafe fn stream(self, to: *mut u8);

    /// One block, repeated in every lane.
    unsafe fn broadcast(from: *const u8) -> Self;

    /// Blocks from anywhere, one per lane.
    unsafe fn gather(from: impl Fn(usize) -> *const u8) -> Self;

    /// The inverse of [`gather`](Self::gather). Lanes with the same address hold equal blocks.
    unsafe fn scatter(self, to: impl Fn(usize) -> *mut u8);

    /// Moves every block up one lane, drops the last one and shifts in the block of `first`.
    unsafe fn shift_in(self, first: Self) -> Self;

    unsafe fn xor(self, other: Self) -> Self;

    /// Adds the first key, unless the first round does.
    #[inline(always)]
    unsafe fn begin(self, key: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.xor(key) }
    }

    /// [`begin`](Self::begin), after adding `mask`.
    #[inline(always)]
    unsafe fn begin_masked(self, mask: Self, key: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.xor3(mask, key) }
    }

    /// Adds the key before the last, unless the round before did.
    #[inline(always)]
    unsafe fn end(self, _key: Self) -> Self {
        self
    }

    unsafe fn encrypt(self, key: Self) -> Self;
    unsafe fn encrypt_last(self, key: Self) -> Self;
    unsafe fn decrypt(self, key: Self) -> Self;
    unsafe fn decrypt_last(self, key: Self) -> Self;

    /// The XTS tweaks of vector `index` of a group, from the tweak of its first block, by shifts.
    unsafe fn tweaks(first: *const u8, index: usize) -> Self;

    /// For each block of vector `index` of a group, x to the power of its index in the group.
    #[cfg(target_arch = "x86_64")]
    unsafe fn powers(index: usize) -> Self;

    /// The reduction polynomial of XTS in both halves of every block.
    #[cfg(target_arch = "x86_64")]
    unsafe fn polynomial() -> Self;

    /// The carry-less product of one half of each block with the low half of `other`'s block: the
    /// low half if `HALF` is 0, the high half if it is 1.
    #[cfg(target_arch = "x86_64")]
    unsafe fn product<const HALF: i32>(self, other: Self) -> Self;

    /// Moves the low half of each block up and puts zero in its place.
    #[cfg(target_arch = "x86_64")]
    unsafe fn half_up(self) -> Self;

    /// Emits no instruction, but keeps the compiler from processing the vectors one by one, which
    /// would save registers but leave the AES units idle.
    unsafe fn fence(group: &mut [Self; GROUP]);

    /// `self ^ a ^ b`
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.xor(a).xor(b) }
    }

    /// As [`tweaks`](Self::tweaks), by products.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn tweaks_by_products(first: *const u8, index: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let (first, power) = (Self::broadcast(first), Self::powers(index));
            let (low, high) = (first.product::<0>(power), first.product::<1>(power));
            // The bits that left the block are the upper half of the high product.
            low.xor3(high.half_up(), high.product::<1>(Self::polynomial()))
        }
    }

    #[inline(always)]
    unsafe fn key(key: &RoundKey) -> Self {
        // SAFETY: a round key is as long as the longest vector.
        unsafe { Self::load(key.0.as_ptr().cast()) }
    }
}

/// Constants that make the tweaks of a group: lane `l` of vector `v` is for block `v * LANES + l`.
#[repr(C, align(64))]
pub(crate) struct Counts<const QWORDS: usize>(pub(crate) [[u64; QWORDS]; GROUP]);

impl<const QWORDS: usize> Counts<QWORDS> {
    /// The left shift of the first tweak.
    pub(crate) const UP: Self = Self::new(false);

    /// The right shift of the bits that the left shift moves out of a half.
    pub(crate) const DOWN: Self = Self::new(true);

    /// x to the power of the left shift of the first tweak.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const POWERS: Self = {
        let Self(mut powers) = Self::UP;
        let mut index = 0;
        while index < GROUP * QWORDS {
            let power = &mut powers[index / QWORDS][index % QWORDS];
            *power = 1 << *power;
            index += 1;
        }
        Self(powers)
    };

    const fn new(down: bool) -> Self {
        let mut counts = [[0; QWORDS]; GROUP];
        let mut index = 0;
        while index < GROUP * QWORDS {
            let block = index as u64 / 2;
            counts[index / QWORDS][index % QWORDS] = if down { 64 - block } else { block };
            index += 1;
        }
        Self(counts)
    }
}

/// x^128 = x^7 + x^2 + x + 1, the reduction of XTS.
pub(crate) const POLYNOMIAL: i64 = 0x87;

/// Encryption or decryption as a type: both share the drivers.
pub(crate) trait Direction {
    /// One round on one vector.
    unsafe fn round<V: Vector>(x: V, key: V) -> V;

    /// The last round on one vector, with the last two keys.
    unsafe fn last<V: Vector>(x: V, before: V, key: V) -> V;
}

pub(crate) struct Encrypt;
pub(crate) struct Decrypt;

impl Direction for Encrypt {
    #[inline(always)]
    unsafe fn round<V: Vector>(x: V, key: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { x.encrypt(key) }
    }

    #[inline(always)]
    unsafe fn last<V: Vector>(x: V, before: V, key: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { x.end(before).encrypt_last(key) }
    }
}

impl Direction for Decrypt {
    #[inline(always)]
    unsafe fn round<V: Vector>(x: V, key: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { x.decrypt(key) }
    }

    #[inline(always)]
    unsafe fn last<V: Vector>(x: V, before: V, key: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { x.end(before).decrypt_last(key) }
    }
}

/// One round on a group of vectors.
#[inline(always)]
pub(crate) unsafe fn round<V: Vector, D: Direction>(group: &mut [V; GROUP], key: &RoundKey) {
    // SAFETY: the caller's promise.
    unsafe {
        let key = V::key(key);
        for x in &mut *group {
            *x = D::round(*x, key);
        }
        V::fence(group);
    }
}
