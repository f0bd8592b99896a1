//! The buffer of one request while its chunks travel separately.

use ucrypt_backend::Buf;

/// A request's data, cut into chunks from the front and put together again at the end.
#[derive(Debug)]
pub(crate) struct Data {
    /// What is in no chunk yet.
    rest: Option<Buf>,
    /// Bytes cut off so far.
    cut: usize,
    /// Chunks that came back, by their offset in the request. Kept between requests, so that it
    /// allocates no more once it has grown.
    parts: Vec<(usize, Buf)>,
}

/// Chunks of the largest request (32 MiB in transfers of 1 MiB); more make the table grow.
const PARTS: usize = 33;

impl Default for Data {
    fn default() -> Self {
        Self { rest: None, cut: 0, parts: Vec::with_capacity(PARTS) }
    }
}

impl Data {
    /// Starts over with a new request's buffer.
    pub(crate) fn set(&mut self, buf: Option<Buf>) {
        self.rest = buf;
        self.cut = 0;
        self.parts.clear();
    }

    /// The next `len` bytes; `None` if there are fewer.
    pub(crate) fn cut(&mut self, len: usize) -> Option<Buf> {
        let mut chunk = self.rest.take()?;
        if chunk.len() < len {
            self.rest = Some(chunk);
            return None;
        }
        if chunk.len() > len {
            self.rest = Some(chunk.split_off(len));
        }
        self.cut += len;
        Some(chunk)
    }

    /// Fills what is in no chunk yet with what follows in `source`, the request's plaintext.
    pub(crate) fn fill_rest(&mut self, source: &[u8]) {
        if let (Some(rest), Some(left)) = (&mut self.rest, source.get(self.cut..)) {
            let len = rest.len().min(left.len());
            rest[..len].copy_from_slice(&left[..len]);
        }
    }

    /// Takes a chunk back that was cut at `offset` bytes of the request.
    pub(crate) fn put_back(&mut self, offset: usize, part: Buf) {
        self.parts.push((offset, part));
    }

    /// The whole buffer; `None` unless every chunk came back.
    pub(crate) fn join(&mut self) -> Option<Buf> {
        if self.parts.len() > 1 {
            self.parts.sort_unstable_by_key(|&(offset, _)| offset);
        }
        let mut parts = self.parts.drain(..);
        let (_, mut whole) = parts.next()?;
        for (_, part) in parts {
            whole.join(part).ok()?;
        }
        (whole.len() == self.cut && self.rest.is_none()).then_some(whole)
    }
}
