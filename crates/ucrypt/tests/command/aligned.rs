//! Memory for direct I/O.

/// An alignment that every device and file system of a test accepts, in bytes.
const ALIGNMENT: usize = 4096;

/// Bytes that begin at a page boundary.
#[derive(Debug)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeroes.
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, len }
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Self::new(bytes.len());
        copy.bytes().copy_from_slice(bytes);
        copy
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
