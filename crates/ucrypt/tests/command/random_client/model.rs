//! The expected content of a part of a file, byte for byte.

use std::ops::Range;

/// The expected content. Positions are bytes of the file.
#[derive(Debug)]
pub(crate) struct Model {
    start: u64,
    /// `None` is any value.
    bytes: Vec<Option<u8>>,
}

impl Model {
    /// A part with this content.
    pub(crate) fn new(start: u64, content: &[u8]) -> Self {
        Self { start, bytes: content.iter().copied().map(Some).collect() }
    }

    fn range(&self, at: u64, len: usize) -> Range<usize> {
        let from = usize::try_from(at - self.start).expect("a position in the part");
        from..from + len
    }

    pub(crate) fn write(&mut self, at: u64, content: &[u8]) {
        let range = self.range(at, content.len());
        for (byte, new) in self.bytes[range].iter_mut().zip(content) {
            *byte = Some(*new);
        }
    }

    pub(crate) fn zero(&mut self, at: u64, len: u64) {
        let range = self.range(at, len as usize);
        self.bytes[range].fill(Some(0));
    }

    /// From now on the range may hold anything.
    pub(crate) fn forget(&mut self, at: u64, len: u64) {
        let range = self.range(at, len as usize);
        self.bytes[range].fill(None);
    }

    /// The second range becomes equal to the first.
    pub(crate) fn copy(&mut self, from: u64, to: u64, len: usize) {
        let (from, to) = (self.range(from, len), self.range(to, len));
        self.bytes.copy_within(from, to.start);
    }

    /// The position of the first wrong byte among those read, if any.
    pub(crate) fn first_difference(&self, at: u64, found: &[u8]) -> Option<u64> {
        let expected = &self.bytes[self.range(at, found.len())];
        let mut pairs = expected.iter().zip(found);
        let index = pairs.position(|(byte, found)| byte.is_some_and(|byte| byte != *found))?;
        Some(at + index as u64)
    }

    /// Describes what is wrong with bytes that were read, if anything.
    pub(crate) fn difference(&self, at: u64, found: &[u8]) -> Option<String> {
        let first = (self.first_difference(at, found)? - at) as usize;
        let expected = &self.bytes[self.range(at, found.len())];
        let differs = |index: &usize| expected[*index].is_some_and(|byte| byte != found[*index]);
        let wrong = (first..found.len()).filter(differs).count();
        let shown = first..(first + 8).min(found.len());
        let (range, expected) = (shown.clone(), &expected[shown]);
        Some(format!(
            "{wrong} of {} bytes from {at} on are wrong, the first at {}: {:?} instead of \
             {expected:?}",
            found.len(),
            at + first as u64,
            &found[range]
        ))
    }
}
