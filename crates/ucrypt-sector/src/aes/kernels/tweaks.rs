//! The tweaks of XTS, one after the other, in general-purpose registers.
//!
//! The AES instructions leave these registers and their units idle, while every vector instruction
//! may occupy an AES unit. A group's tweaks come from two chains, one for each half of the group,
//! because a single chain may take longer than the AES rounds.

use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::_addcarry_u64;

use crate::vector::POLYNOMIAL;

/// An element of the field of XTS: the tweak of one block.
#[derive(Clone, Copy)]
struct Tweak {
    low: u64,
    high: u64,
}

impl Tweak {
    /// Emits no instruction, but keeps the compiler from vectorizing several tweaks.
    #[inline(always)]
    fn new(mut low: u64, mut high: u64) -> Self {
        // SAFETY: the template is only a comment; nothing is executed.
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
        // The compiler's code for a 128-bit shift is slow on some processors.
        #[cfg(target_arch = "x86_64")]
        let (low, high) = {
            let (mut low, mut high) = (0, 0);
            let carry = _addcarry_u64(0, self.low, self.low, &mut low);
            _addcarry_u64(carry, self.high, self.high, &mut high);
            (low, high)
        };
        // AArch64 shifts a register and takes in bits of another in one instruction.
        #[cfg(not(target_arch = "x86_64"))]
        let (low, high) = (self.low << 1, self.high << 1 | self.low >> 63);
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

/// The first tweaks of both halves of a sector's next group.
#[derive(Clone, Copy)]
pub(super) struct Chains {
    halves: [Tweak; 2],
    /// Blocks in half a group.
    blocks: usize,
}

impl Chains {
    /// Starts at a sector's first group, from the tweak of its first block.
    #[inline(always)]
    pub(super) fn new(first: &[u8; 16], group_blocks: usize) -> Self {
        let (first, blocks) = (Tweak::load(first), group_blocks / 2);
        Self { halves: [first, first.times(blocks)], blocks }
    }

    /// The tweak of the group's first block, if no tweak of the group was made yet.
    #[inline(always)]
    pub(super) fn first(&self) -> [u64; 2] {
        [self.halves[0].low, self.halves[0].high]
    }

    /// Skips half a group. Once all tweaks of a group are made, this leads to the next group: each
    /// chain has gone through its own half and skips the other one.
    #[inline(always)]
    pub(super) fn skip_half(&mut self) {
        self.halves = self.halves.map(|tweak| tweak.times(self.blocks));
    }

    /// Makes one tweak of each half and advances both chains.
    #[inline(always)]
    pub(super) fn make(&mut self) -> [[u64; 2]; 2] {
        let halves = self.halves;
        self.halves = halves.map(Tweak::doubled);
        halves.map(|tweak| [tweak.low, tweak.high])
    }
}
