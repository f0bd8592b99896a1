//! The tweaks of a group of XTS, without carry-less multiplications.
//!
//! Those share their units with the AES instructions on some processors, and one for each vector
//! costs a tenth of the time. A multiplication by x^8 moves every byte of a tweak up by one place,
//! and what the highest byte becomes is added to the two lowest ones. So after `k` times the tweak
//! is a window, `k` places lower, of one row of bytes: those of the tweak, and below them what the
//! highest bytes have become. Four vectors are windows of one row.

use std::arch::x86_64::*;

use super::Zmm;
use crate::x86::{
    matrix,
    vector::{Counts, POLYNOMIAL},
};

static UP: Counts<8> = Counts::UP;
static DOWN: Counts<8> = Counts::DOWN;

/// The two rows of a group: its first two vectors, of which one holds the tweaks of blocks 0 to 3
/// and the other those of blocks 4 to 7. Vectors two apart are x^8 apart.
#[derive(Clone, Copy)]
pub(crate) struct Tweaks([Row; 2]);

/// Four tweaks, and what their highest four bytes become.
#[derive(Clone, Copy)]
struct Row {
    tweaks: __m512i,
    /// Byte 8 + `i` of each block: what byte 12 + `i` of the tweak adds to the lowest byte. Byte
    /// 12 + `i`: what it adds to the one above, and the next higher byte to that one; for the
    /// highest byte this is where the lowest byte of the tweak has come to.
    reduced: __m512i,
}

// SAFETY throughout: the caller promises the instructions of `Zmm`, and every vector that is loaded
// is a whole one.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the one reason above holds for all")]
impl Tweaks {
    /// From the first tweak of a sector, which is in every lane.
    #[inline(always)]
    pub(super) unsafe fn of_sector(first: Zmm) -> Self {
        unsafe { Self([Row::new(shifted(first.0, 0)), Row::new(shifted(first.0, 1))]) }
    }

    /// Of the next group: 32 blocks further, which is four windows.
    #[inline(always)]
    pub(super) unsafe fn next(self) -> Self {
        let Self([even, odd]) = self;
        unsafe { Self([Row::new(even.window(4)), Row::new(odd.window(4))]) }
    }

    /// The tweaks of a vector of the group.
    #[inline(always)]
    pub(super) unsafe fn of_vector(&self, index: usize) -> Zmm {
        unsafe { Zmm(self.0[index % 2].window(index / 2)) }
    }
}

#[expect(clippy::undocumented_unsafe_blocks, reason = "as above")]
impl Row {
    #[inline(always)]
    unsafe fn new(tweaks: __m512i) -> Self {
        const HIGHEST_FOUR: u64 = 0xf000_f000_f000_f000;
        unsafe {
            let low = _mm512_gf2p8affine_epi64_epi8::<0>(tweaks, _mm512_set1_epi64(LOW));
            let high = _mm512_set1_epi64(HIGH);
            let high = _mm512_maskz_gf2p8affine_epi64_epi8::<0>(HIGHEST_FOUR, tweaks, high);
            let lower = _mm512_permutex2var_epi8(low, load(&LOWER), tweaks);
            Self { tweaks, reduced: _mm512_xor_si512(lower, high) }
        }
    }

    /// The tweaks times x to the 8 `k`; `k` is 4 at most.
    #[inline(always)]
    unsafe fn window(self, k: usize) -> __m512i {
        if k == 0 {
            return self.tweaks;
        }
        unsafe { _mm512_permutex2var_epi8(self.tweaks, load(&WINDOWS[k]), self.reduced) }
    }
}

#[inline(always)]
unsafe fn load(places: &Places) -> __m512i {
    // SAFETY: the caller promises the instructions; the places are as long as a vector.
    unsafe { _mm512_loadu_si512(places.0.as_ptr().cast()) }
}

/// The tweaks of vector `index` from the first one, which is in every lane.
#[inline(always)]
unsafe fn shifted(first: __m512i, index: usize) -> __m512i {
    // SAFETY: the caller promises the instructions; the counts are as long as a vector.
    unsafe {
        let swapped = _mm512_shuffle_epi32::<0x4e>(first);
        let up = _mm512_sllv_epi64(first, _mm512_loadu_epi64(UP.0[index].as_ptr().cast()));
        let down = _mm512_loadu_epi64(DOWN.0[index].as_ptr().cast());
        // What left the low half comes into the high one; what left the block is reduced, its
        // lowest term being in the right place already.
        let carry = _mm512_srlv_epi64(swapped, down);
        let reduced = _mm512_clmulepi64_epi128::<0>(carry, _mm512_set1_epi64(POLYNOMIAL - 1));
        _mm512_ternarylogic_epi64::<0x96>(up, carry, reduced)
    }
}

/// What a byte that leaves the block adds to the lowest byte.
const LOW: i64 = matrix(by_polynomial(0));

/// And to the one above.
const HIGH: i64 = matrix(by_polynomial(8));

/// Eight bits, from `shift` on, of each bit of a byte times the polynomial.
const fn by_polynomial(shift: u32) -> [u8; 8] {
    let mut columns = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        columns[bit] = (POLYNOMIAL.cast_unsigned() << bit >> shift) as u8;
        bit += 1;
    }
    columns
}

/// For each byte the place that it comes from, in two vectors: 64 and above is the second one.
#[repr(C, align(64))]
struct Places([u8; 64]);

impl Places {
    /// The same places in each block; 16 and above is the second vector's block.
    const fn new(of_block: [u8; 16]) -> Self {
        let mut places = [0; 64];
        let mut index = 0;
        while index < 64 {
            let place = of_block[index % 16];
            places[index] = 64 * (place / 16) + place % 16 + (index as u8 & 0x30);
            index += 1;
        }
        Self(places)
    }
}

/// What [`Row::reduced`] takes of the lowest bytes' shares and of the tweak.
static LOWER: Places = Places::new([0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 13, 14, 15, 16]);

/// Each window's places in the tweak and in [`Row::reduced`].
static WINDOWS: [Places; 5] =
    [window_places(0), window_places(1), window_places(2), window_places(3), window_places(4)];

const fn window_places(k: u8) -> Places {
    let mut places = [0; 16];
    let mut byte = 0;
    while byte < 16 {
        places[byte as usize] = if byte > k {
            byte - k
        } else if byte > 0 {
            16 + 15 - k + byte
        } else {
            16 + 12 - k
        };
        byte += 1;
    }
    Places::new(places)
}
