//! The key lengths that a cipher specification takes.

use std::fmt;

/// The key lengths that a cipher specification takes, in bytes, ascending.
///
/// Displays as `32, 48 or 64`, or as `4 to 56` if the list would be long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySizes(Vec<usize>);

impl KeySizes {
    pub(crate) fn new(mut sizes: Vec<usize>) -> Self {
        sizes.sort_unstable();
        sizes.dedup();
        Self(sizes)
    }

    /// Whether a key of `len` bytes is accepted.
    pub fn contains(&self, len: usize) -> bool {
        self.0.binary_search(&len).is_ok()
    }

    /// Every accepted length in bytes, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The lengths in bits, as the list that is displayed.
    pub fn in_bits(&self) -> impl fmt::Display + use<> {
        self.map(|bytes| bytes * 8)
    }

    /// Applies `f` to each length: doubled for XTS, plus a tweak key for LRW, …
    pub(crate) fn map(&self, f: impl Fn(usize) -> usize) -> Self {
        Self::new(self.iter().map(f).collect())
    }
}

impl fmt::Display for KeySizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = &self.0;
        if let [first, second, .., last] = sizes[..]
            && sizes.len() > 8
            && sizes.windows(2).all(|pair| pair[1] - pair[0] == second - first)
        {
            write!(f, "{first} to {last}")?;
            return if second - first > 1 {
                write!(f, " in steps of {}", second - first)
            } else {
                Ok(())
            };
        }
        for (index, size) in sizes.iter().enumerate() {
            let before = match index {
                0 => "",
                _ if index + 1 == sizes.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}{size}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::KeySizes;

    #[test]
    fn lists_and_ranges_read_as_a_sentence() {
        assert_eq!(KeySizes::new(vec![16]).to_string(), "16");
        assert_eq!(KeySizes::new(vec![64, 32, 48]).to_string(), "32, 48 or 64");
        assert_eq!(KeySizes::new((4..=56).collect()).to_string(), "4 to 56");
        assert_eq!(KeySizes::new(vec![64, 32]).in_bits().to_string(), "256 or 512");
        let blowfish = KeySizes::new((4..=56).collect());
        assert_eq!(blowfish.in_bits().to_string(), "32 to 448 in steps of 8");
    }
}
