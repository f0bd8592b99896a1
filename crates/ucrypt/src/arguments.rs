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
use crate::options::{Judged, judge, words_of_option};

/// Old names, each of which stands for an action with an option.
const OLD_NAMES: [(&str, [&str; 3]); 3] = [
    ("luksOpen", ["open", "--type", "luks"]),
    ("plainOpen", ["open", "--type", "plain"]),
    (CREATE, ["open", "--type", "plain"]),
];

/// The old name whose arguments stand in the other order: the volume, then its image.
const CREATE: &str = "create";

/// Actions of cryptsetup that this command does not have yet, with their old names.
const NOT_YET: [&str; 10] = [
    "refresh",
    "reencrypt",
    "tcryptOpen",
    "tcryptDump",
    "bitlkOpen",
    "bitlkDump",
    "fvault2Open",
    "fvault2Dump",
    "loopaesOpen",
    "reload",
];

/// The arguments of this process without the program name, as the parser takes them: rewritten by
/// [`expand`], and without options that are accepted and mean nothing here.
pub(crate) fn arguments() -> Result<Judged, Failure> {
    rewritten(std::env::args_os().skip(1).collect())
}

fn rewritten(words: Vec<OsString>) -> Result<Judged, Failure> {
    let words = in_front(words);
    let is_create = words.first().is_some_and(|action| action == CREATE);
    let mut judged = judge(expand(words))?;
    if is_create {
        judged.exchange();
    }
    Ok(judged)
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
        Some(action) if *action == "reload" => {
            Err(Failure::wrong("reload is not supported; use open --type plain"))
        }
        Some(action) if *action == "refresh" => Err(Failure::wrong(
            "refresh is not supported; close the volume and open it with other options",
        )),
        Some(action) if action.ends_with("Close") || action.ends_with("Open") => {
            Err(Failure::wrong(format!("{action} is not supported yet; use cryptsetup")))
        }
        Some(action) => Err(Failure::wrong(format!(
            "{action} is not supported yet; use cryptsetup's, which reads and writes the same \
             volumes"
        ))),
    }
}

/// Moves the action to the front, followed by the options that stood before it. As in cryptsetup,
/// every option of it may stand there.
fn in_front(mut words: Vec<OsString>) -> Vec<OsString> {
    let mut action = 0;
    while let Some(word) = words.get(action) {
        match words_of_option(word) {
            Some(count) => action += count,
            None => break,
        }
    }
    if words.get(action).is_some_and(|word| !word.as_bytes().starts_with(b"-")) {
        words[..=action].rotate_right(1);
    }
    words
}

/// The old names, and the actions that they stand for.
pub(crate) fn old_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    OLD_NAMES.iter().map(|(old, [action, ..])| (*old, *action))
}

/// Replaces an old name of the action.
fn expand(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.first().is_some_and(|action| action == "help") {
        // The other words name an action. Who asks for help on help gets it anyway.
        words.retain(|word| !["-h", "-?", "--help"].iter().any(|help| word == help));
        if let Some(of) = words.get_mut(1)
            && let Some((_, action)) = old_names().find(|(old, _)| of == old)
        {
            *of = action.into();
        }
        return words;
    }
    let old = OLD_NAMES.iter().find(|(old, _)| words.first().is_some_and(|action| action == *old));
    if let Some((_, new)) = old {
        words.splice(..1, new.iter().map(OsString::from));
    }
    // Some actions have `-h HASH`. At the end of the line `-h` has no value, so it asks for help.
    let ends_options = words.iter().any(|word| word == "--");
    if let Some(last) = words.last_mut().filter(|last| *last == "-h" && !ends_options) {
        *last = "-?".into();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(words: &[&str]) -> Vec<OsString> {
        expand(in_front(words.iter().map(OsString::from).collect()))
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
    fn create_names_the_volume_first() {
        let rewritten =
            |words: &[&str]| rewritten(words.iter().map(OsString::from).collect()).unwrap().words;
        assert_eq!(
            rewritten(&["-q", "create", "-c", "aes", "name", "--key-size=256", "image"]),
            ["open", "--type", "plain", "-q", "-c", "aes", "image", "--key-size=256", "name"]
        );
        assert_eq!(rewritten(&["create", "name"]), ["open", "--type", "plain", "name"]);
    }

    #[test]
    fn options_may_stand_in_front_of_the_action() {
        assert_eq!(expanded(&["-q", "open", "image"]), ["open", "-q", "image"]);
        let line = ["-T1", "--header=file", "luksOpen", "image"];
        assert_eq!(expanded(&line), ["open", "--type", "luks", "-T1", "--header=file", "image"]);
        assert_eq!(expanded(&["--key-file", "open"]), ["--key-file", "open"]);
        assert_eq!(
            expanded(&["--type", "luks2", "-d", "open", "--debug", "luksFormat", "image"]),
            ["luksFormat", "--type", "luks2", "-d", "open", "--debug", "image"]
        );
        assert_eq!(expanded(&["--no-such", "open"]), ["--no-such", "open"]);
        assert_eq!(expanded(&["-v", "-?"]), ["-v", "-?"]);
    }

    #[test]
    fn help_takes_old_names_and_a_call_for_help() {
        assert_eq!(expanded(&["help", "close", "-h"]), ["help", "close"]);
        assert_eq!(expanded(&["help", "luksOpen", "--help"]), ["help", "open"]);
        assert_eq!(expanded(&["help", "-?"]), ["help"]);
    }

    #[test]
    fn a_hash_without_a_name_is_a_call_for_help() {
        assert_eq!(expanded(&["-h"]), ["-?"]);
        assert_eq!(expanded(&["open", "-h"]), ["open", "-?"]);
        assert_eq!(expanded(&["open", "-h", "sha256"]), ["open", "-h", "sha256"]);
        assert_eq!(expanded(&["status", "--", "-h"]), ["status", "--", "-h"]);
    }
}
