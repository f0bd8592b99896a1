//! Words of command lines, as a user can paste them.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A word as a shell reads it. A name that is no text is written as bash, ksh and zsh read bytes.
pub fn quoted(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.into(),
        Some(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            let mut quoted = String::from("$'");
            for byte in word.as_bytes() {
                let c = char::from(*byte);
                if c.is_ascii() && plain(c) {
                    quoted.push(c);
                } else {
                    // Writing to a string cannot fail.
                    let _ = write!(quoted, "\\x{byte:02x}");
                }
            }
            quoted.push('\'');
            quoted
        }
    }
}

/// A path as a word of a command line that no program takes for an option.
pub fn path(path: &Path) -> String {
    let word = path.as_os_str();
    if word.as_bytes().starts_with(b"-") {
        quoted(Path::new(".").join(path).as_os_str())
    } else {
        quoted(word)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const WORDS: [(&[u8], &str); 7] = [
        (b"--on=/tmp/a", "--on=/tmp/a"),
        (b"", "''"),
        (b"a b", "'a b'"),
        (b"it's", r"'it'\''s'"),
        ("größe".as_bytes(), "'größe'"),
        (b"a \xff'b", r"$'a\x20\xff\x27b'"),
        (b"two\nlines", r"$'two\x0alines'"),
    ];

    #[test]
    fn a_word_is_quoted_as_a_shell_reads_it_whatever_it_holds() {
        for (word, expected) in WORDS {
            let word = OsStr::from_bytes(word);
            assert_eq!(quoted(word), expected);
            let mut bash = Command::new("bash");
            bash.arg("-c").arg(format!("printf %s {}", quoted(word)));
            assert_eq!(bash.output().expect("bash").stdout, word.as_bytes());
        }
    }

    #[test]
    fn a_path_is_no_option() {
        assert_eq!(path(Path::new("-rf")), "./-rf");
        assert_eq!(path(Path::new("/a b")), "'/a b'");
        assert_eq!(path(Path::new("disk.img")), "disk.img");
    }
}
