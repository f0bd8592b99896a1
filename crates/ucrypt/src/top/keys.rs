//! Keys as a terminal sends them.

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    /// The order by the column to the left.
    Left,
    /// The order by the column to the right.
    Right,
    Reverse,
    /// Ask the servers now.
    Again,
    /// Stop the program, as Ctrl-Z does elsewhere.
    Stop,
    Quit,
}

/// Puts bytes together to keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    sequence: Vec<u8>,
}

/// Longest sequence in bytes that a key sends; what is longer is no key.
const SEQUENCE_MAX: usize = 8;

impl Keys {
    /// Takes a byte. Returns the key that it ends.
    pub(super) fn take(&mut self, byte: u8) -> Option<Key> {
        if byte == 0x1b {
            self.sequence = vec![byte];
            return None;
        }
        if self.sequence.is_empty() {
            return single(byte);
        }
        self.sequence.push(byte);
        // ESC, then `O` or `[` with numbers, then the last byte.
        let is_last = match self.sequence.len() {
            2 => !matches!(byte, b'[' | b'O'),
            _ => !matches!(byte, b'0'..=b'9' | b';'),
        };
        if !is_last && self.sequence.len() < SEQUENCE_MAX {
            return None;
        }
        let sequence = std::mem::take(&mut self.sequence);
        match &sequence[1..] {
            b"[A" | b"OA" => Some(Key::Up),
            b"[B" | b"OB" => Some(Key::Down),
            b"[C" | b"OC" => Some(Key::Right),
            b"[D" | b"OD" => Some(Key::Left),
            b"[5~" => Some(Key::PageUp),
            b"[6~" => Some(Key::PageDown),
            b"[H" | b"OH" | b"[1~" => Some(Key::First),
            b"[F" | b"OF" | b"[4~" => Some(Key::Last),
            // Somebody typed ESC, and then this.
            [byte] => single(*byte),
            _ => None,
        }
    }
}

fn single(byte: u8) -> Option<Key> {
    Some(match byte {
        b'q' | b'Q' | 3 => Key::Quit,
        26 => Key::Stop,
        b'k' => Key::Up,
        b'j' => Key::Down,
        b'<' | b'h' => Key::Left,
        b'>' | b'l' => Key::Right,
        b'r' | b'R' => Key::Reverse,
        b' ' => Key::Again,
        b'g' => Key::First,
        b'G' => Key::Last,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_however_their_bytes_arrive_and_the_rest_is_ignored() {
        let typed = |bytes: &[u8]| {
            let mut keys = Keys::default();
            bytes.iter().filter_map(|byte| keys.take(*byte)).collect::<Vec<_>>()
        };
        assert_eq!(typed(b"\x1b[A\x1bOB\x1b[5~"), [Key::Up, Key::Down, Key::PageUp]);
        assert_eq!(typed(b"xq\x03"), [Key::Quit, Key::Quit]);
        // A key of its own behind ESC, an unknown sequence, one without an end.
        assert_eq!(typed(b"\x1bq"), [Key::Quit]);
        assert_eq!(typed(b"\x1b[1;5Cr"), [Key::Reverse]);
        assert_eq!(typed(b"\x1b[1111111111q"), [Key::Quit]);
        assert_eq!(typed(b"\x1b\x1b[D"), [Key::Left]);
    }
}
