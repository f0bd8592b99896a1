//! Names of systemd's units (systemd.unit(5), "String Escaping for Inclusion in Unit Names").

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name as the instance of a unit.
pub(super) fn instance(name: &str) -> String {
    escaped(name.as_bytes())
}

/// A path as the name of a unit, without its suffix.
pub(super) fn path(path: &Path) -> String {
    let parts =
        path.components().map(|part| part.as_os_str().as_bytes()).filter(|part| *part != b"/");
    let joined = parts.collect::<Vec<_>>().join(&b'/');
    if joined.is_empty() { "-".into() } else { escaped(&joined) }
}

fn escaped(text: &[u8]) -> String {
    let mut name = String::new();
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => name.push(byte.into()),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(name, "\\x{byte:02x}");
            }
        }
    }
    name
}

/// A path in a setting of a unit: quoted, and without specifiers.
pub(super) fn quoted(path: &Path) -> String {
    let text = path.display().to_string().replace('%', "%%");
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_systemd_escape_does() {
        assert_eq!(instance("my-vol.1"), "my\\x2dvol.1");
        assert_eq!(instance("a b"), "a\\x20b");
        assert_eq!(
            path(Path::new("/dev/disk/by-uuid/4d9f-2c")),
            "dev-disk-by\\x2duuid-4d9f\\x2d2c"
        );
        assert_eq!(path(Path::new("/.x//y/")), "\\x2ex-y");
        assert_eq!(path(Path::new("/")), "-");
        assert_eq!(quoted(Path::new("/a b%\"")), "\"/a b%%\\\"\"");
    }
}
