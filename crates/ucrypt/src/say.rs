//! What a server has to say, wherever standard error goes.

use std::io::{self, Write};

/// One line on standard error. A terminal that has gone, or a log on a full disk, is no reason to end.
pub(crate) fn say(line: &str) {
    // At once, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("ucrypt: {line}\n").as_bytes());
}
