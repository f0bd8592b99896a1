//! The command line, with cryptsetup's old names of actions made into the present ones, and without
//! secrets: everybody on the machine can read the command line of every process.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

/// Bytes of a table line at most: what a pipe takes before it is read.
const TABLE_MAX: usize = 64 << 10;

/// Old names that stand for an action and an option.
const OLD_NAMES: [(&str, [&str; 3]); 2] =
    [("luksOpen", ["open", "--type", "luks"]), ("plainOpen", ["open", "--type", "plain"])];

/// The arguments of this process without its name.
pub(crate) fn arguments() -> Vec<OsString> {
    expand(std::env::args_os().skip(1))
}

/// Starts this program anew, in this process, if a table line is on its command line: there is a key in
/// it. It is in a pipe then. Returns only if it was not, or could not be.
pub(crate) fn hide_table() -> io::Result<()> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let Some((place, line)) = table(&words) else { return Ok(()) };
    if line.len() > TABLE_MAX {
        return Err(io::Error::other("it is too long"));
    }
    let (read, mut written) = io::pipe()?;
    written.write_all(line.as_bytes())?;
    drop(written);
    // It has to outlive the start.
    fcntl_setfd(&read, FdFlags::empty())?;
    let file = format!("--table-file=/proc/self/fd/{}", read.as_raw_fd());
    words.splice(place, [file.into()]);
    let mut again = Command::new("/proc/self/exe");
    again.arg0(&words[0]).args(&words[1..]);
    Err(again.exec())
}

/// Where a table line is on the command line, and which.
fn table(words: &[OsString]) -> Option<(std::ops::Range<usize>, OsString)> {
    let options = words.iter().take_while(|word| *word != "--");
    for (at, word) in options.enumerate().skip(1) {
        let (place, line) = match word.as_bytes().strip_prefix(b"--table") {
            Some([]) => (at..at + 2, words.get(at + 1)?.as_os_str()),
            Some([b'=', line @ ..]) => (at..at + 1, OsStr::from_bytes(line)),
            _ => continue,
        };
        return (line != "-").then(|| (place, line.to_owned()));
    }
    None
}

fn expand(mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let Some(action) = arguments.next() else { return Vec::new() };
    let known = OLD_NAMES.iter().find(|(old, _)| action == *old);
    let action = match known {
        Some((_, new)) => new.iter().map(OsString::from).collect(),
        None => vec![action],
    };
    action.into_iter().chain(arguments).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_line_is_found_wherever_it_stands() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let line = OsString::from("0 8 crypt");
        let found = |of: &[&str]| table(&words(of));
        assert_eq!(found(&["u", "open", "--table", "0 8 crypt", "i"]), Some((2..4, line.clone())));
        assert_eq!(found(&["u", "serve", "i", "--table=0 8 crypt"]), Some((3..4, line)));
        for none in [
            &["u", "open", "i", "n"][..],
            &["u", "open", "--table", "-"],
            &["u", "open", "--table=-"],
            &["u", "open", "--table-file", "f"],
            &["u", "open", "--", "--table", "n"],
            &["u", "open", "--table"],
            &["--table"],
        ] {
            assert_eq!(found(none), None, "{none:?}");
        }
    }

    #[test]
    fn an_old_name_is_an_action_and_its_type() {
        let expanded = |words: &[&str]| expand(words.iter().map(OsString::from));
        assert_eq!(
            expanded(&["plainOpen", "image", "name"]),
            ["open", "--type", "plain", "image", "name"]
        );
        assert_eq!(expanded(&["status", "luksOpen"]), ["status", "luksOpen"]);
        assert!(expanded(&[]).is_empty());
    }
}
