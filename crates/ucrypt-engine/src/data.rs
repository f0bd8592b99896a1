//! The buffers of one request while its chunks travel separately.

use ucrypt_backend::Buf;

/// A request's data, cut into chunks from the front and put together again at the end.
#[derive(Debug)]
pub(crate) struct Data {
    /// What is in no chunk yet, the last piece first.
    rest: Vec<Buf>,
    /// Bytes cut off so far, and of them those that came back.
    cut: usize,
    back: usize,
    /// Chunks that came back, by their offset in the request. Kept between requests, as `rest` is,
    /// so that they allocate no more once they have grown.
    parts: Vec<(usize, Buf)>,
    /// The pieces are the client's own memory: they are let go where they are.
    scattered: bool,
}

/// A request's data at its end.
#[derive(Debug)]
pub(crate) enum Whole {
    /// In one buffer.
    One(Buf),
    /// Where the client wanted it.
    Scattered,
}

impl Whole {
    /// The buffer, unless the client has it already.
    pub(crate) fn into_buf(self) -> Option<Buf> {
        match self {
            Self::One(buf) => Some(buf),
            Self::Scattered => None,
        }
    }
}

/// Chunks of the largest request (32 MiB in transfers of 1 MiB); more make the table grow.
const PARTS: usize = 33;

impl Default for Data {
    fn default() -> Self {
        Self {
            rest: Vec::with_capacity(1),
            cut: 0,
            back: 0,
            parts: Vec::with_capacity(PARTS),
            scattered: false,
        }
    }
}

impl Data {
    /// Starts over with a new request's buffer.
    pub(crate) fn set(&mut self, buf: Option<Buf>) {
        self.clear();
        self.rest.extend(buf);
    }

    /// Starts over with a read into the client's own memory, piece by piece. What does not come
    /// back decrypted is wiped.
    pub(crate) fn set_scattered(&mut self, pieces: &mut Vec<Buf>) {
        self.clear();
        self.scattered = true;
        self.rest.extend(pieces.drain(..).rev());
        self.rest.iter_mut().for_each(|piece| piece.wipe_when_dropped(true));
    }

    fn clear(&mut self) {
        self.rest.clear();
        self.parts.clear();
        (self.cut, self.back, self.scattered) = (0, 0, false);
    }

    /// Moves the next `len` bytes to `chunk`: several buffers of scattered data, otherwise one.
    /// Returns whether there were as many.
    #[must_use]
    pub(crate) fn cut(&mut self, len: usize, chunk: &mut Vec<Buf>) -> bool {
        let mut missing = len;
        while missing > 0 {
            let Some(mut piece) = self.rest.pop() else { return false };
            if piece.len() > missing {
                self.rest.push(piece.split_off(missing));
            }
            missing -= piece.len();
            self.cut += piece.len();
            chunk.push(piece);
        }
        true
    }

    /// Fills what is in no chunk yet with what follows in `source`, the request's plaintext.
    pub(crate) fn fill_rest(&mut self, source: &[u8]) {
        if let (Some(rest), Some(left)) = (self.rest.last_mut(), source.get(self.cut..)) {
            let len = rest.len().min(left.len());
            rest[..len].copy_from_slice(&left[..len]);
        }
    }

    /// Takes decrypted bytes back that were cut at `offset` bytes of the request.
    pub(crate) fn put_back(&mut self, offset: usize, mut part: Buf) {
        self.back += part.len();
        if self.scattered {
            part.wipe_when_dropped(false);
        } else {
            self.parts.push((offset, part));
        }
    }

    /// All of it; `None` unless every chunk came back.
    pub(crate) fn join(&mut self) -> Option<Whole> {
        if !self.rest.is_empty() || self.back != self.cut {
            return None;
        }
        if self.scattered {
            return Some(Whole::Scattered);
        }
        if self.parts.len() > 1 {
            self.parts.sort_unstable_by_key(|&(offset, _)| offset);
        }
        let mut parts = self.parts.drain(..);
        let (_, mut whole) = parts.next()?;
        for (_, part) in parts {
            whole.join(part).ok()?;
        }
        Some(Whole::One(whole))
    }
}
