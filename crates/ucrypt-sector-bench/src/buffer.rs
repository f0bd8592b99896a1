//! Page-aligned buffers, as a server uses them.

/// Bytes that begin at a page, in pages that were already touched. Otherwise alignment or page
/// faults would differ between rows and look like differences between ciphers.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

const PAGE: usize = 4096;

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0x5a; len + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, start, len }
    }

    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}
