//! The key schedule of Camellia (RFC 3713, section 2.2), in the layout that the kernel reads.

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{Subkey, feistel_once};
use crate::x86::Features;

/// The subkeys of one direction.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Schedule {
    first: [Subkey; 2],
    /// For each six rounds: two subkeys of FL, then the six of the rounds.
    rounds: [[Subkey; 8]; 4],
    last: [Subkey; 2],
    /// Number of groups of six rounds: 3 or 4.
    len: usize,
}

/// Section 2.2, Sigma1 to Sigma6.
const SIGMA: [u64; 6] = [
    0xa09e_667f_3bcc_908b,
    0xb67a_e858_4caa_73b2,
    0xc6ef_372f_e94f_82be,
    0x54ff_53a5_f1d3_6f1c,
    0x10e5_27fa_de68_2d1d,
    0xb056_88c2_b3e6_c1fd,
];

/// The source of a pair of subkeys, one of `KL`, `KR`, `KA` and `KB`, and its rotation to the left
/// in bits.
type Source = (usize, u32);

const KL: usize = 0;
const KR: usize = 1;
const KA: usize = 2;
const KB: usize = 3;

/// Before the first rounds and after the last rounds.
const WHITENING_128: [Source; 2] = [(KL, 0), (KA, 111)];
const WHITENING_256: [Source; 2] = [(KL, 0), (KB, 111)];

/// For each six rounds: the pair of FL (unused at the start), then one pair for every two rounds.
/// With short keys, the pair of rounds 9 and 10 comes from two sources.
const ROUNDS_128: [[Source; 4]; 3] = [
    [(KL, 0), (KA, 0), (KL, 15), (KA, 15)],
    [(KA, 30), (KL, 45), (KA, 45), (KA, 60)],
    [(KL, 77), (KL, 94), (KA, 94), (KL, 111)],
];
const ROUNDS_256: [[Source; 4]; 4] = [
    [(KL, 0), (KB, 0), (KR, 15), (KA, 15)],
    [(KR, 30), (KB, 30), (KL, 45), (KA, 45)],
    [(KL, 60), (KR, 60), (KB, 60), (KL, 77)],
    [(KA, 77), (KR, 94), (KA, 94), (KL, 111)],
];

impl Schedule {
    /// For encryption; `None` if Camellia takes no key of that length.
    ///
    /// Built on the heap, because a move would leave copies of the keys behind.
    pub(super) fn encryption(features: Features, key: &[u8]) -> Option<Box<Self>> {
        let (left, right) = key.split_at_checked(16)?;
        let mut keys = [0; 4];
        keys[KL] = u128::from_be_bytes(left.try_into().ok()?);
        keys[KR] = match right.len() {
            0 => 0,
            8 => {
                let half = u64::from_be_bytes(right.try_into().ok()?);
                join(half, !half)
            }
            _ => u128::from_be_bytes(right.try_into().ok()?),
        };
        let two_rounds = |x: u128, sigma: usize| {
            let (mut high, mut low) = split(x);
            feistel_once(features, high, &spread(SIGMA[sigma]), &mut low);
            feistel_once(features, low, &spread(SIGMA[sigma + 1]), &mut high);
            join(high, low)
        };
        keys[KA] = two_rounds(two_rounds(keys[KL] ^ keys[KR], 0) ^ keys[KL], 2);
        keys[KB] = two_rounds(keys[KA] ^ keys[KR], 4);

        let pair = |(key, bits): Source| {
            let (high, low) = split(keys[key].rotate_left(bits));
            [spread(high), spread(low)]
        };
        let short = right.is_empty();
        let (whitening, rounds) =
            if short { (WHITENING_128, &ROUNDS_128[..]) } else { (WHITENING_256, &ROUNDS_256[..]) };
        let mut schedule = Box::new(Self::ZERO);
        schedule.first = pair(whitening[0]);
        schedule.last = pair(whitening[1]);
        schedule.len = rounds.len();
        for (subkeys, sources) in schedule.rounds.iter_mut().zip(rounds) {
            for (subkeys, source) in subkeys.as_chunks_mut().0.iter_mut().zip(sources) {
                *subkeys = pair(*source);
            }
        }
        if short {
            schedule.rounds[1][5] = pair((KL, 60))[1];
        }
        keys.zeroize();
        Some(schedule)
    }

    /// For decryption: the same subkeys in reverse.
    pub(super) fn decryption(&self) -> Box<Self> {
        let mut schedule = Box::new(Self::ZERO);
        schedule.first = self.last;
        schedule.last = self.first;
        schedule.len = self.len;
        for index in 0..self.len {
            let backwards = self.len - 1 - index;
            schedule.rounds[index][2..].copy_from_slice(&self.rounds[backwards][2..]);
            schedule.rounds[index][2..].reverse();
            if index > 0 {
                schedule.rounds[index][..2].copy_from_slice(&self.rounds[backwards + 1][..2]);
                schedule.rounds[index][..2].reverse();
            }
        }
        schedule
    }

    const ZERO: Self =
        Self { first: [[0; 8]; 2], rounds: [[[0; 8]; 8]; 4], last: [[0; 8]; 2], len: 0 };

    /// The subkeys before, in and after the rounds.
    #[inline]
    pub(super) fn parts(&self) -> (&[Subkey; 2], &[[Subkey; 8]], &[Subkey; 2]) {
        (&self.first, &self.rounds[..self.len], &self.last)
    }
}

fn split(x: u128) -> (u64, u64) {
    ((x >> 64) as u64, x as u64)
}

fn join(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Repeats each byte to fill a word.
fn spread(subkey: u64) -> Subkey {
    subkey.to_be_bytes().map(|byte| u32::from(byte) * 0x0101_0101)
}
