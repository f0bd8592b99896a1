//! Paths in JSON: its strings hold only UTF-8, a path is any bytes.
//!
//! A path that is no UTF-8 stands there twice: as text for people, and byte for byte in a member whose
//! name ends with `_bytes`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The bytes of a path that is no UTF-8, for the second member.
pub(crate) fn bytes_of(path: &Path) -> Option<Vec<u8>> {
    path.to_str().is_none().then(|| path.as_os_str().as_bytes().to_vec())
}

/// The path in this member of an object.
pub(crate) fn path_in(object: &Value, member: &str) -> Option<PathBuf> {
    let bytes = object[format!("{member}_bytes")].as_array().and_then(|bytes| {
        let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
        bytes.iter().map(byte).collect::<Option<Vec<u8>>>()
    });
    match bytes {
        Some(bytes) => Some(OsString::from_vec(bytes).into()),
        None => object[member].as_str().map(PathBuf::from),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_of_any_bytes_comes_through_json() {
        for bytes in [&b"/a/disk.img"[..], b"/caf\xe9", "/café".as_bytes(), b"\xff"] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let mut object = json!({ "image": path.display().to_string() });
            if let Some(bytes) = bytes_of(&path) {
                object["image_bytes"] = bytes.into();
            }
            let text = object.to_string();
            let read: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(path_in(&read, "image"), Some(path), "{text}");
        }
        // A server may tell anything.
        for odd in [json!({}), json!({ "image": 1 }), json!({ "image_bytes": [256] })] {
            assert_eq!(path_in(&odd, "image"), None);
        }
    }
}
