//! The tweaks of XTS, one after the other, in general-purpose registers.
//!
//! The AES instructions leave those registers and their units idle, while every vector instruction
//! may keep an AES unit from its work. A group's tweaks come from two chains, one for each half of
//! the group, because a chain alone may take longer than the AES rounds.

use std::arch::{asm, x86_64::_addcarry_u64};

use crate::x86::POLYNOMIAL;

/// An element of the field of XTS: the tweak of one block.
#[derive(Clone, Copy)]
struct Tweak {
    low: u64,
    high: u64,
}

impl Tweak {
    /// Emits no instruction, but keeps the compiler from making vectors of several tweaks.
    #[inline(always)]
    fn new(mut low: u64, mut high: u64) -> Self {
        // SAFETY: there is nothing to execute.
        unsafe {
            asm!(
                "/* {} {} */", inout(reg) low, inout(reg) high,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        Self { low, high }
    }

    #[inline(always)]
    fn load(bytes: &[u8; 16]) -> Self {
        let value = u128::from_le_bytes(*bytes);
        Self::new(value as u64, (value >> 64) as u64)
    }

    /// Times x.
    #[inline(always)]
    fn doubled(self) -> Self {
        let reduction = (self.high.cast_signed() >> 63 & POLYNOMIAL).cast_unsigned();
        // What a shift of 128 bits is compiled to is slow on some processors.
        let (mut low, mut high) = (0, 0);
        let carry = _addcarry_u64(0, self.low, self.low, &mut low);
        _addcarry_u64(carry, self.high, self.high, &mut high);
        Self::new(low ^ reduction, high)
    }

    /// Times x to the `power`, which is 1 to 57.
    #[inline(always)]
    fn times(self, power: usize) -> Self {
        let Self { low, high } = self;
        let out = high >> (64 - power);
        let reduction = out ^ out << 1 ^ out << 2 ^ out << 7;
        Self::new(low << power ^ reduction, high << power | low >> (64 - power))
    }
}

/// Where the halves of a sector's next group begin.
#[derive(Clone, Copy)]
pub(super) struct Chains {
    halves: [Tweak; 2],
    /// Blocks in half a group.
    blocks: usize,
}

impl Chains {
    /// At a sector's first group, from the tweak of its first block.
    #[inline(always)]
    pub(super) fn new(first: &[u8; 16], group_blocks: usize) -> Self {
        let (first, blocks) = (Tweak::load(first), group_blocks / 2);
        Self { halves: [first, first.times(blocks)], blocks }
    }

    /// The tweak of the group's first block, as long as none was made.
    #[inline(always)]
    pub(super) fn first(&self) -> [u64; 2] {
        [self.halves[0].low, self.halves[0].high]
    }

    /// Over half a group: to the next group when all tweaks of one have been made, because each
    /// chain has gone through its own half and skips the other one.
    #[inline(always)]
    pub(super) fn skip_half(&mut self) {
        self.halves = self.halves.map(|tweak| tweak.times(self.blocks));
    }

    /// Makes a tweak of each half, and goes on to the next ones.
    #[inline(always)]
    pub(super) fn make(&mut self) -> [[u64; 2]; 2] {
        let halves = self.halves;
        self.halves = halves.map(Tweak::doubled);
        halves.map(|tweak| [tweak.low, tweak.high])
    }
}
