//! The memory of a virtual machine, in pieces that a queue reads and writes.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ucrypt_backend::Buf;

use crate::random::Random;

/// Most bytes between two pieces.
const GAP_MAX: u64 = 100;

/// Memory that others may write to at any time. Clones share it.
#[derive(Debug, Clone)]
pub struct ForeignMemory(Arc<[AtomicU8]>);

/// Where the bytes of some pieces are, in the order of the pieces.
pub type Places = Vec<Range<usize>>;

impl ForeignMemory {
    /// `len` bytes of zeroes.
    pub fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU8::new(0)).collect())
    }

    /// The bytes from `at` on, as a buffer.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn buf(&self, at: usize, len: usize) -> Buf {
        let start = NonNull::from(&self.0[at..at + len]).cast();
        // SAFETY: the clone of `self` keeps the bytes mapped; all other code accesses them
        // atomically; the engine and the backends use them as data only.
        #[expect(unsafe_code, reason = "foreign memory is what is tested")]
        unsafe {
            Buf::foreign(Arc::new(self.clone()), start, len)
        }
    }

    /// Pieces with a total length of `len` bytes, at random places that do not overlap. `align`:
    /// lengths are multiples of it. `None` if they do not fit.
    pub fn pieces(
        &self,
        random: &mut Random,
        len: usize,
        align: usize,
    ) -> Option<(Vec<Buf>, Places)> {
        let (mut pieces, mut places, mut at, mut left) = (Vec::new(), Vec::new(), 0, len);
        while left > 0 {
            let longest = left.min(1 + random.below(20_000) as usize);
            let piece = longest.next_multiple_of(align).min(left);
            at += random.below(GAP_MAX) as usize;
            if at + piece > self.0.len() {
                return None;
            }
            pieces.push(self.buf(at, piece));
            places.push(at..at + piece);
            at += piece;
            left -= piece;
        }
        Some((pieces, places))
    }

    /// Stores one byte.
    pub fn put(&self, at: usize, byte: u8) {
        self.0[at].store(byte, Ordering::Relaxed);
    }

    /// Stores bytes from `at` on.
    pub fn fill(&self, at: usize, bytes: &[u8]) {
        bytes.iter().enumerate().for_each(|(index, &byte)| self.put(at + index, byte));
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// The bytes at these places.
    pub fn at(&self, places: &[Range<usize>]) -> Vec<u8> {
        let bytes = places.iter().flat_map(|place| &self.0[place.clone()]);
        bytes.map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// Whether no buffer of this memory is left, nor a clone.
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}
