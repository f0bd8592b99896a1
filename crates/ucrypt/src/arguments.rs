//! Preprocesses the command line. Translates cryptsetup's old names and order of options, and
//! removes a table line, which contains a key: every user of the machine can read the command line
//! of every process.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

/// Longest table line in bytes: the capacity of a pipe, because the line is written before anyone
/// reads it.
const TABLE_MAX: usize = 64 << 10;

use crate::failure::Failure;

/// Old names, each of which stands for an action with an option.
const OLD_NAMES: [(&str, [&str; 3]); 2] =
    [("luksOpen", ["open", "--type", "luks"]), ("plainOpen", ["open", "--type", "plain"])];

/// Actions of cryptsetup that this command does not have yet, with their old names.
const NOT_YET: [&str; 14] = [
    "luksSuspend",
    "luksResume",
    "convert",
    "refresh",
    "reencrypt",
    "tcryptOpen",
    "tcryptDump",
    "bitlkOpen",
    "bitlkDump",
    "fvault2Open",
    "fvault2Dump",
    "loopaesOpen",
    "create",
    "reload",
];

/// The arguments of this process without the program name, rewritten by [`expand`].
pub(crate) fn arguments() -> Vec<OsString> {
    expand(std::env::args_os().skip(1))
}

/// Hides a table line on the command line, which contains a key: writes the line into a pipe and
/// executes this program again, in the same process. Returns `Ok` if there is no table line, and an
/// error if the restart failed.
pub(crate) fn hide_table() -> io::Result<()> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let Some((place, line)) = table(&words) else { return Ok(()) };
    if line.len() > TABLE_MAX {
        return Err(io::Error::other("it is too long"));
    }
    let (read, mut written) = io::pipe()?;
    written.write_all(line.as_bytes())?;
    drop(written);
    // The descriptor must survive the `exec`.
    fcntl_setfd(&read, FdFlags::empty())?;
    let file = format!("--table-file=/proc/self/fd/{}", read.as_raw_fd());
    words.splice(place, [file.into()]);
    let mut again = Command::new("/proc/self/exe");
    again.arg0(&words[0]).args(&words[1..]);
    Err(again.exec())
}

/// The position of a table line in the command line, and the line itself.
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

/// Refuses an action that cryptsetup has and this command lacks, by name.
pub(crate) fn check(arguments: &[OsString]) -> Result<(), Failure> {
    let Some(action) = arguments.first() else { return Ok(()) };
    match NOT_YET.iter().find(|known| action == **known) {
        None => Ok(()),
        Some(action) if ["create", "reload"].contains(action) => {
            Err(Failure::wrong(format!("{action} is not supported; use open --type plain")))
        }
        Some(action) if action.ends_with("Close") || action.ends_with("Open") => {
            Err(Failure::wrong(format!("{action} is not supported yet")))
        }
        Some(action) => Err(Failure::wrong(format!(
            "{action} is not supported yet; use cryptsetup's, which reads and writes the same \
             volumes"
        ))),
    }
}

/// Options without a value that may stand in front of the action, as in cryptsetup.
const FLAGS: [&str; 9] = [
    "-q",
    "--batch-mode",
    "-v",
    "--verbose",
    "--debug",
    "-r",
    "--readonly",
    "-y",
    "--verify-passphrase",
];

/// Whether a word is a complete option: a flag, or an option that includes its value.
fn is_whole_option(word: &OsString) -> bool {
    let Some(word) = word.to_str() else { return false };
    let has_value = match word.strip_prefix("--") {
        Some(long) => long.contains('='),
        None => word.starts_with('-') && word.len() > 2,
    };
    has_value || FLAGS.contains(&word)
}

fn expand(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = arguments.collect();
    // Move the action to the front, followed by the options that stood before it.
    let action = words.iter().position(|word| !is_whole_option(word)).unwrap_or(0);
    if words.get(action).is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        words[..=action].rotate_right(1);
    }
    let old = OLD_NAMES.iter().find(|(old, _)| words.first().is_some_and(|action| action == *old));
    if let Some((_, new)) = old {
        words.splice(..1, new.iter().map(OsString::from));
    }
    // Some actions have `-h HASH`. At the end of the line `-h` has no value, so it asks for help.
    let ends_options = words.iter().any(|word| word == "--");
    if let Some(last) = words.last_mut().filter(|last| *last == "-h" && !ends_options) {
        *last = "--help".into();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(words: &[&str]) -> Vec<OsString> {
        expand(words.iter().map(OsString::from))
    }

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
        assert_eq!(
            expanded(&["plainOpen", "image", "name"]),
            ["open", "--type", "plain", "image", "name"]
        );
        assert_eq!(expanded(&["status", "luksOpen"]), ["status", "luksOpen"]);
        assert!(expanded(&[]).is_empty());
    }

    #[test]
    fn options_may_stand_in_front_of_the_action() {
        assert_eq!(expanded(&["-q", "open", "image"]), ["open", "-q", "image"]);
        let line = ["-T1", "--header=file", "luksOpen", "image"];
        assert_eq!(expanded(&line), ["open", "--type", "luks", "-T1", "--header=file", "image"]);
        assert_eq!(expanded(&["--key-file", "open"]), ["--key-file", "open"]);
        assert_eq!(expanded(&["-v", "-?"]), ["-v", "-?"]);
    }

    #[test]
    fn a_hash_without_a_name_is_a_call_for_help() {
        assert_eq!(expanded(&["-h"]), ["--help"]);
        assert_eq!(expanded(&["open", "-h"]), ["open", "--help"]);
        assert_eq!(expanded(&["open", "-h", "sha256"]), ["open", "-h", "sha256"]);
        assert_eq!(expanded(&["status", "--", "-h"]), ["status", "--", "-h"]);
    }
}
