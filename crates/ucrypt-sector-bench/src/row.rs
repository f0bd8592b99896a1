//! The work of one group of the benchmark, and one row of it.

use std::{fmt, hint::black_box};

use crate::buffer::Buffer;

/// Encryption or decryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From plaintext to ciphertext.
    Encrypt,
    /// From ciphertext to plaintext.
    Decrypt,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Encrypt { "encrypt" } else { "decrypt" })
    }
}

/// The work that every row of a group does in its own way.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The specification, used with its longest key.
    pub spec: &'static str,
    /// Bytes that are encrypted as one unit.
    pub sector_size: usize,
    /// Bytes per call: one sector or a run of sectors.
    pub len: usize,
    /// The direction.
    pub direction: Direction,
}

impl Work {
    /// A key without two equal parts.
    pub(crate) fn key(len: usize) -> Vec<u8> {
        (0..len as u8).collect()
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, sector_size, len, direction } = self;
        write!(f, "{spec}, {} x {sector_size} bytes, {direction}", len / sector_size)
    }
}

/// One way to do the work of a group.
pub struct Row {
    /// The name of the implementation.
    pub name: String,
    /// Does the whole work once.
    pub run: Box<dyn FnMut()>,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>, run: impl FnMut() + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// A row that works from one buffer of `len` bytes to another.
    pub(crate) fn copying(
        name: impl Into<String>,
        len: usize,
        mut crypt: impl FnMut(&[u8], &mut [u8]) + 'static,
    ) -> Self {
        let (src, mut dst) = (Buffer::new(len), Buffer::new(len));
        Self::new(name, move || crypt(black_box(src.get()), black_box(dst.get_mut())))
    }

    /// As [`copying`](Self::copying), sector by sector, for implementations without runs.
    pub(crate) fn by_sector(
        name: impl Into<String>,
        work: Work,
        mut crypt: impl FnMut(u64, &[u8], &mut [u8]) + 'static,
    ) -> Self {
        Self::copying(name, work.len, move |src, dst| {
            let sectors = src.chunks_exact(work.sector_size);
            let sectors = sectors.zip(dst.chunks_exact_mut(work.sector_size));
            for (number, (src, dst)) in (0..).zip(sectors) {
                crypt(number, src, dst);
            }
        })
    }
}
