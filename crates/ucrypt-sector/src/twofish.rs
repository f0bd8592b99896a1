//! Twofish (Schneier, Kelsey, Whiting, Wagner, Hall, Ferguson: "Twofish: a 128-bit block cipher",
//! 1998): the key schedule, and a table-based cipher.
//!
//! The `twofish` crate computes its S-boxes anew for every byte, also from tables. Here each S-box
//! is a table made from the key and multiplied by the MDS matrix, as in every other fast
//! implementation. The time of a block depends on which parts of the tables are cached, and so on
//! key and data. If the processor has the instructions, [`vector`] avoids lookups in memory.

#[cfg(target_arch = "x86_64")]
pub(crate) mod vector;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::block::BlockCipher;

/// Blocks that are processed side by side: a single one would wait for its table lookups.
const LANES: usize = 2;

const ROUNDS: usize = 16;

/// The key schedule.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(C, align(64))]
pub(crate) struct Schedule {
    /// Indexed by the byte's position in a word.
    sboxes: [[u8; 256]; 4],
    /// Four words of whitening at each end, then two per round.
    subkeys: [u32; 8 + 2 * ROUNDS],
}

impl Schedule {
    /// `None` if the key is not 16, 24 or 32 bytes long.
    fn new(key: &[u8]) -> Option<Box<Self>> {
        if !matches!(key.len(), 16 | 24 | 32) {
            return None;
        }
        let mut schedule = Box::new(Self { sboxes: [[0; 256]; 4], subkeys: [0; 8 + 2 * ROUNDS] });
        let (words, _) = key.as_chunks::<4>();
        let count = key.len() / 8;
        let (mut even, mut odd, mut sbox) = ([[0; 4]; 4], [[0; 4]; 4], [[0; 4]; 4]);
        for (index, bytes) in key.as_chunks::<8>().0.iter().enumerate() {
            even[index] = words[2 * index];
            odd[index] = words[2 * index + 1];
            sbox[count - 1 - index] = reed_solomon(*bytes);
        }
        for (index, pair) in schedule.subkeys.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let a = h([2 * index as u8; 4], &even[..count]);
            let b = h([2 * index as u8 + 1; 4], &odd[..count]).rotate_left(8);
            pair[0] = a.wrapping_add(b);
            pair[1] = a.wrapping_add(b).wrapping_add(b).rotate_left(9);
        }
        for (column, table) in schedule.sboxes.iter_mut().enumerate() {
            for (byte, substitute_of_byte) in (0..=255).zip(table) {
                *substitute_of_byte = substitute(byte, column, &sbox[..count]);
            }
        }
        for secret in [&mut even, &mut odd, &mut sbox] {
            secret.zeroize();
        }
        Some(schedule)
    }

    /// The two subkeys of each round.
    fn of_rounds(&self) -> &[[u32; 2]] {
        self.subkeys[8..].as_chunks().0
    }
}

/// A keyed Twofish.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Twofish {
    /// Indexed by the byte's position in a word: its S-box, multiplied by its column of the MDS
    /// matrix.
    tables: [[u32; 256]; 4],
    schedule: Box<Schedule>,
}

impl Twofish {
    /// `None` if the key is not 16, 24 or 32 bytes long.
    pub(crate) fn new(key: &[u8]) -> Option<Box<Self>> {
        let mut twofish = Box::new(Self { tables: [[0; 256]; 4], schedule: Schedule::new(key)? });
        for (column, table) in twofish.tables.iter_mut().enumerate() {
            for (word, byte) in table.iter_mut().zip(twofish.schedule.sboxes[column]) {
                *word = MDS[column][usize::from(byte)];
            }
        }
        Some(twofish)
    }

    fn g(&self, word: u32) -> u32 {
        let [a, b, c, d] = word.to_le_bytes().map(usize::from);
        self.tables[0][a] ^ self.tables[1][b] ^ self.tables[2][c] ^ self.tables[3][d]
    }

    /// The round function F, whose result the other half is combined with by XOR.
    fn f(&self, left: u32, right: u32, subkeys: [u32; 2]) -> (u32, u32) {
        let (a, b) = (self.g(left), self.g(right.rotate_left(8)));
        let sum = a.wrapping_add(b);
        (sum.wrapping_add(subkeys[0]), sum.wrapping_add(b).wrapping_add(subkeys[1]))
    }

    fn encrypt<const N: usize>(&self, blocks: &mut [[u8; 16]; N]) {
        let mut states = blocks.map(|block| load(block, &self.schedule.subkeys[..4]));
        for keys in self.schedule.of_rounds() {
            for [a, b, c, d] in &mut states {
                let (x, y) = self.f(*a, *b, *keys);
                let (x, y) = ((*c ^ x).rotate_right(1), d.rotate_left(1) ^ y);
                (*a, *b, *c, *d) = (x, y, *a, *b);
            }
        }
        *blocks = states.map(|[a, b, c, d]| store([c, d, a, b], &self.schedule.subkeys[4..8]));
    }

    fn decrypt<const N: usize>(&self, blocks: &mut [[u8; 16]; N]) {
        let mut states = blocks.map(|block| {
            let [c, d, a, b] = load(block, &self.schedule.subkeys[4..8]);
            [a, b, c, d]
        });
        for keys in self.schedule.of_rounds().iter().rev() {
            for [a, b, c, d] in &mut states {
                let (x, y) = self.f(*c, *d, *keys);
                let (x, y) = (a.rotate_left(1) ^ x, (*b ^ y).rotate_right(1));
                (*a, *b, *c, *d) = (*c, *d, x, y);
            }
        }
        *blocks = states.map(|words| store(words, &self.schedule.subkeys[..4]));
    }
}

impl BlockCipher for Twofish {
    fn block_len(&self) -> usize {
        16
    }

    fn encrypt_blocks(&self, data: &mut [u8]) {
        let (groups, rest) = data.as_chunks_mut::<16>().0.as_chunks_mut::<LANES>();
        for group in groups {
            self.encrypt(group);
        }
        for block in rest.as_chunks_mut::<1>().0 {
            self.encrypt(block);
        }
    }

    fn decrypt_blocks(&self, data: &mut [u8]) {
        let (groups, rest) = data.as_chunks_mut::<16>().0.as_chunks_mut::<LANES>();
        for group in groups {
            self.decrypt(group);
        }
        for block in rest.as_chunks_mut::<1>().0 {
            self.decrypt(block);
        }
    }
}

fn load(block: [u8; 16], whitening: &[u32]) -> [u32; 4] {
    let mut words = [0; 4];
    for ((word, bytes), key) in words.iter_mut().zip(block.as_chunks().0).zip(whitening) {
        *word = u32::from_le_bytes(*bytes) ^ key;
    }
    words
}

fn store(words: [u32; 4], whitening: &[u32]) -> [u8; 16] {
    let mut block = [0; 16];
    for ((bytes, word), key) in block.as_chunks_mut().0.iter_mut().zip(words).zip(whitening) {
        *bytes = (word ^ key).to_le_bytes();
    }
    block
}

/// The function `h` of the paper, section 4.3.5: `list` is a list of key words.
fn h(word: [u8; 4], list: &[[u8; 4]]) -> u32 {
    let mut result = 0;
    for (column, byte) in word.into_iter().enumerate() {
        result ^= MDS[column][usize::from(substitute(byte, column, list))];
    }
    result
}

/// Substitutes one byte with the permutations and the key bytes of its column.
fn substitute(byte: u8, column: usize, list: &[[u8; 4]]) -> u8 {
    // The permutation before the key word of each index, by column, and the last permutation.
    const BEFORE: [[usize; 4]; 4] = [[0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 1]];
    const LAST: [usize; 4] = [1, 0, 1, 0];
    let mut y = byte;
    for (index, key) in list.iter().enumerate().rev() {
        y = Q[BEFORE[index][column]][usize::from(y)] ^ key[column];
    }
    Q[LAST[column]][usize::from(y)]
}

/// The fixed permutations `q0` and `q1`, indexed by byte.
static Q: [[u8; 256]; 2] = [
    permutation([
        0x817d_6f32_0b59_eca4,
        0xecb8_1235_f4a6_709d,
        0xba5e_6d90_c8f3_2471,
        0xd7f4_126e_9b30_85ca,
    ]),
    permutation([
        0x28bd_f76e_3194_0ac5,
        0x1e2b_4c37_6da5_f908,
        0x4c75_169a_0ed8_2b3f,
        0xb951_c3de_647f_208a,
    ]),
];

/// Builds a byte permutation from four nibble permutations, each given as hexadecimal digits.
const fn permutation(nibbles: [u64; 4]) -> [u8; 256] {
    const fn look_up(digits: u64, nibble: usize) -> usize {
        (digits >> (60 - 4 * nibble) & 15) as usize
    }
    /// `a ^ b` and `a ^ ROR4(b, 1) ^ 8a`.
    const fn mix(a: usize, b: usize) -> (usize, usize) {
        (a ^ b, (a ^ (b >> 1 | b << 3) ^ (8 * a)) & 15)
    }
    let mut table = [0; 256];
    let mut x = 0;
    while x < 256 {
        let (a, b) = mix(x >> 4, x & 15);
        let (a, b) = mix(look_up(nibbles[0], a), look_up(nibbles[1], b));
        table[x] = (look_up(nibbles[3], b) << 4 | look_up(nibbles[2], a)) as u8;
        x += 1;
    }
    table
}

/// The value of x^8 in the field of the MDS matrix: x^6 + x^5 + x^3 + 1.
const MDS_REDUCTION: u8 = 0x69;

/// The columns of the MDS matrix, times each byte.
static MDS: [[u32; 256]; 4] = {
    const ROWS: [[u8; 4]; 4] = [
        [0x01, 0xef, 0x5b, 0x5b],
        [0x5b, 0xef, 0xef, 0x01],
        [0xef, 0x5b, 0x01, 0xef],
        [0xef, 0x01, 0xef, 0x5b],
    ];
    let mut tables = [[0; 256]; 4];
    let mut index = 0;
    while index < 1024 {
        let (column, byte) = (index / 256, index % 256);
        let mut bytes = [0; 4];
        let mut row = 0;
        while row < 4 {
            bytes[row] = multiply(ROWS[row][column], byte as u8, MDS_REDUCTION);
            row += 1;
        }
        tables[column][byte] = u32::from_le_bytes(bytes);
        index += 1;
    }
    tables
};

/// Turns eight bytes of the key into one word for the S-boxes, with a Reed-Solomon code.
fn reed_solomon(key: [u8; 8]) -> [u8; 4] {
    const ROWS: [[u8; 8]; 4] = [
        [0x01, 0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e],
        [0xa4, 0x56, 0x82, 0xf3, 0x1e, 0xc6, 0x68, 0xe5],
        [0x02, 0xa1, 0xfc, 0xc1, 0x47, 0xae, 0x3d, 0x19],
        [0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e, 0x03],
    ];
    ROWS.map(|row| row.iter().zip(key).fold(0, |sum, (a, b)| sum ^ multiply(*a, b, 0x4d)))
}

/// The product in GF(2^8), where x^8 is `reduction`.
const fn multiply(a: u8, b: u8, reduction: u8) -> u8 {
    let mut product = 0;
    let mut bit = 8;
    while bit > 0 {
        bit -= 1;
        product = (product << 1) ^ ((product >> 7) * reduction) ^ ((b >> bit & 1) * a);
    }
    product
}
