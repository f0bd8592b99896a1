//! Fields of tables in which a backslash and three octal digits stand for a byte: fstab(5), and the kernel's
//! table of mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// What the field stands for.
pub(crate) fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\').and_then(octal);
        bytes.push(digits.unwrap_or(byte));
        rest = if digits.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes)
}

/// The byte that three octal digits write.
fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_octal_digits_are_a_byte_and_nothing_else_is() {
        let text = |field: &[u8]| unescaped(field).into_encoded_bytes();
        assert_eq!(text(b"a\\040b\\134\\377"), b"a b\\\xff");
        for same in [&b"\\04"[..], b"\\400", b"\\+12", b"\\089", b"\\", b"\\x20", b"\xff"] {
            assert_eq!(text(same), same);
        }
    }
}
