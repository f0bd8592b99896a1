//! The buffers of one request while its chunks travel separately.

use ucrypt_backend::Buf;

/// A request's data: cut into chunks, and joined again at the end. Offsets are bytes of the
/// request.
#[derive(Debug)]
pub(crate) struct Data {
    /// Data that is in no chunk yet; the last piece first if chunks are cut in order.
    rest: Vec<(usize, Buf)>,
    /// Bytes cut so far, and the bytes of them that came back.
    cut: usize,
    back: usize,
    /// Chunks that came back, neighbours joined, in no order. The tables `rest` and `parts` are kept
    /// between requests, so that most allocate nothing.
    parts: Vec<(usize, Buf)>,
    /// The pieces are the client's own memory: they are dropped, not joined.
    scattered: bool,
}

/// A request's data at its end.
#[derive(Debug)]
pub(crate) enum Whole {
    /// In one buffer.
    One(Buf),
    /// In the client's own memory.
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

/// Gaps between the chunks that came back, in any order. The tables grow if there are more.
const PARTS: usize = 16;

impl Default for Data {
    fn default() -> Self {
        Self {
            rest: Vec::with_capacity(PARTS),
            cut: 0,
            back: 0,
            parts: Vec::with_capacity(PARTS),
            scattered: false,
        }
    }
}

impl Data {
    /// Starts over with a new request's buffer.
    #[inline]
    pub(crate) fn set(&mut self, buf: Option<Buf>) {
        self.clear();
        if let Some(buf) = buf {
            self.rest.push((0, buf));
        }
    }

    /// Starts over with a read into the client's own memory, in pieces. A piece that is dropped
    /// before it came back decrypted is wiped.
    pub(crate) fn set_scattered(&mut self, pieces: &mut Vec<Buf>) {
        self.clear();
        self.scattered = true;
        let mut end = pieces.iter().map(|piece| piece.len()).sum();
        for mut piece in pieces.drain(..).rev() {
            end -= piece.len();
            piece.wipe_when_dropped(true);
            if !piece.is_empty() {
                self.rest.push((end, piece));
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.rest.clear();
        self.rest.shrink_to(PARTS);
        self.parts.clear();
        self.parts.shrink_to(PARTS);
        (self.cut, self.back, self.scattered) = (0, 0, false);
    }

    /// Moves `len` bytes at `offset` to `chunk`: as one buffer, or as several if the data is
    /// scattered. Returns whether all of the bytes were there.
    #[must_use]
    pub(crate) fn cut(&mut self, offset: usize, len: usize, chunk: &mut Vec<Buf>) -> bool {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let holds = |(start, piece): &(usize, Buf)| *start <= at && at - start < piece.len();
            let Some(index) = self.rest.iter().rposition(holds) else { return false };
            let (start, mut piece) = self.rest.swap_remove(index);
            if start < at {
                let cut = piece.split_off(at - start);
                self.rest.push((start, piece));
                piece = cut;
            }
            if at + piece.len() > end {
                self.rest.push((end, piece.split_off(end - at)));
            }
            at += piece.len();
            self.cut += piece.len();
            chunk.push(piece);
        }
        true
    }

    /// Copies `source`, the request's plaintext, to the data that is in no chunk yet.
    pub(crate) fn fill_rest(&mut self, source: &[u8]) {
        for (start, piece) in &mut self.rest {
            if let Some(left) = source.get(*start..) {
                let len = piece.len().min(left.len());
                piece[..len].copy_from_slice(&left[..len]);
            }
        }
    }

    /// Takes back decrypted bytes that were cut at `offset`.
    #[inline]
    pub(crate) fn put_back(&mut self, offset: usize, mut part: Buf) {
        self.back += part.len();
        if self.scattered {
            part.wipe_when_dropped(false);
            return;
        }
        // Joined at once, so that the table is not as long as the request has chunks.
        let mut joined = (offset, part);
        let before = self.parts.iter().position(|(start, piece)| start + piece.len() == offset);
        if let Some(index) = before {
            let (start, mut piece) = self.parts.swap_remove(index);
            match piece.join(joined.1) {
                Ok(()) => joined = (start, piece),
                Err(part) => {
                    self.parts.push((start, piece));
                    joined.1 = part;
                }
            }
        }
        let end = joined.0 + joined.1.len();
        if let Some(index) = self.parts.iter().position(|(start, _)| *start == end) {
            let (start, piece) = self.parts.swap_remove(index);
            if let Err(piece) = joined.1.join(piece) {
                self.parts.push((start, piece));
            }
        }
        self.parts.push(joined);
    }

    /// Joins the chunks; `None` unless every chunk came back.
    pub(crate) fn join(&mut self) -> Option<Whole> {
        if !self.rest.is_empty() || self.back != self.cut {
            return None;
        }
        if self.scattered {
            self.rest.shrink_to(PARTS);
            return Some(Whole::Scattered);
        }
        match self.parts.pop() {
            Some((_, whole)) if self.parts.is_empty() => Some(Whole::One(whole)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucrypt_backend::Pool;
    use ucrypt_testkit::Random;

    const LEN: usize = 10_000;
    const CHUNK: usize = 2500;

    fn source() -> Vec<u8> {
        (0..LEN).map(|byte| (byte % 251) as u8).collect()
    }

    #[test]
    fn chunks_cut_in_any_order_hold_their_own_bytes_and_become_the_whole_again() {
        let pool = Pool::new(1 << 20).expect("memory");
        let source = source();
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let mut data = Data::default();
            data.set(pool.alloc(LEN));
            data.fill_rest(&source);
            let mut chunk = Vec::new();
            for offset in order.map(|index| index * CHUNK) {
                assert!(data.cut(offset, CHUNK, &mut chunk), "it was not cut before");
                assert!(!data.cut(offset, 1, &mut Vec::new()), "cut twice");
                let [cut] = std::mem::take(&mut chunk).try_into().expect("one buffer");
                assert_eq!(cut[..], source[offset..offset + CHUNK]);
                data.put_back(offset, cut);
            }
            let whole = data.join().and_then(Whole::into_buf).expect("every chunk came back");
            assert_eq!(whole[..], source[..]);
        }
    }

    #[test]
    fn chunks_that_come_back_need_no_more_room_than_the_gaps_between_them() {
        const COUNT: usize = LEN / 10;
        let pool = Pool::new(1 << 20).expect("memory");
        let source = source();
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut data = Data::default();
            data.set(pool.alloc(LEN));
            data.fill_rest(&source);
            let (mut chunk, mut under_way, mut next) = (Vec::new(), Vec::new(), 0);
            while next < COUNT || !under_way.is_empty() {
                while next < COUNT && under_way.len() < PARTS {
                    assert!(data.cut(next * 10, 10, &mut chunk), "it was not cut before");
                    under_way.push((next * 10, chunk.pop().expect("one buffer")));
                    next += 1;
                }
                let index = random.below(under_way.len() as u64) as usize;
                let (offset, part) = under_way.swap_remove(index);
                data.put_back(offset, part);
                assert!(data.parts.len() <= PARTS, "seed {seed}");
            }
            let whole = data.join().and_then(Whole::into_buf).expect("every chunk came back");
            assert_eq!(whole[..], source[..], "seed {seed}");
            assert_eq!((data.parts.capacity(), data.rest.capacity()), (PARTS, PARTS));
        }
    }

    #[test]
    fn scattered_data_is_cut_across_its_pieces() {
        let pool = Pool::new(1 << 20).expect("memory");
        let (source, mut at) = (source(), 0);
        let pieces = [700, 4000, 1, 5299].map(|len| {
            let mut piece = pool.alloc(len).expect("room");
            piece.copy_from_slice(&source[at..at + len]);
            at += len;
            piece
        });
        let mut data = Data::default();
        data.set_scattered(&mut pieces.into());
        let mut chunk = Vec::new();
        for offset in [CHUNK, 0, 3 * CHUNK, 2 * CHUNK] {
            assert!(data.cut(offset, CHUNK, &mut chunk));
            let mut at = offset;
            for cut in chunk.drain(..) {
                assert_eq!(cut[..], source[at..at + cut.len()]);
                at += cut.len();
            }
            assert_eq!(at, offset + CHUNK);
        }
        assert!(!data.cut(0, 1, &mut chunk), "nothing is left");
    }
}
