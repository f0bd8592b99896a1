//! The options of cryptsetup 2.8 that an action of this command does not have: refused by name and
//! with the reason, or accepted because they say what this command does anyway.
//!
//! `docs/cryptsetup-options.md` is made from these tables and the command itself, by a test.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command, CommandFactory};

use crate::Cli;
use crate::failure::Failure;

/// An option of cryptsetup.
#[derive(Clone, Copy)]
struct Known {
    long: &'static str,
    short: Option<char>,
    has_value: bool,
    /// What becomes of it where an action does not have it.
    elsewhere: Elsewhere,
}

/// What becomes of an option that an action does not have.
#[derive(Debug, Clone, Copy)]
enum Elsewhere {
    /// It has no effect on the action.
    NoEffect,
    /// It is accepted: this is so anyway.
    Accepted(&'static str),
    /// It is accepted with a warning: what it asks for is not done, and nothing is lost by that.
    Warned(&'static str),
    /// It is refused for this reason.
    Refused(&'static str),
}

use Elsewhere::{Accepted, NoEffect, Refused, Warned};

const fn flag(long: &'static str, elsewhere: Elsewhere) -> Known {
    Known { long, short: None, has_value: false, elsewhere }
}

const fn value(long: &'static str, elsewhere: Elsewhere) -> Known {
    Known { long, short: None, has_value: true, elsewhere }
}

const fn short(letter: char, option: Known) -> Known {
    Known { short: Some(letter), ..option }
}

const REENCRYPTION: Elsewhere = Refused("reencryption is not supported yet; use cryptsetup's");
const INTEGRITY: Elsewhere = Refused("integrity protection is not supported yet");
const OPAL: Elsewhere = Refused("self-encrypting drives (OPAL) are not supported");
const TCRYPT: Elsewhere = Refused("TrueCrypt and VeraCrypt volumes are not supported yet");
const OLD_REENCRYPTION: Elsewhere =
    Refused("it belongs to cryptsetup-reencrypt, which is not supported");

/// The options of cryptsetup 2.8 (`src/cryptsetup_arg_list.h`).
const OPTIONS: &[Known] = &[
    value("active-name", REENCRYPTION),
    value("align-payload", NoEffect),
    flag("allow-discards", NoEffect),
    short('q', flag("batch-mode", Accepted("nothing is asked here"))),
    flag(
        "cancel-deferred",
        Refused("a volume that closes with its last user does so; open it again afterwards"),
    ),
    short('c', value("cipher", NoEffect)),
    flag("debug", NoEffect),
    flag("debug-json", NoEffect),
    flag("decrypt", REENCRYPTION),
    flag("deferred", NoEffect),
    value(
        "device-size",
        Refused("open takes all of the image (plain: --size sectors); `ucrypt resize` changes it"),
    ),
    flag(
        "disable-blkid",
        Warned("signatures are looked for all the same, without blkid, so that nothing is lost"),
    ),
    flag("disable-external-tokens", Accepted("plugins for tokens are never loaded")),
    flag("disable-keyring", Accepted("volume keys are never put into the kernel's keyring")),
    flag("disable-locks", NoEffect),
    flag("disable-veracrypt", Accepted("VeraCrypt headers are not looked for")),
    flag("dump-json-metadata", NoEffect),
    flag("dump-volume-key", NoEffect),
    flag("encrypt", REENCRYPTION),
    value("external-tokens-path", Refused("plugins for tokens are never loaded")),
    flag("force-no-keyslots", REENCRYPTION),
    flag("force-offline-reencrypt", REENCRYPTION),
    flag("force-password", Accepted("passphrases are not judged")),
    short('h', value("hash", NoEffect)),
    value("header", Accepted("an open volume knows its header")),
    value("header-backup-file", NoEffect),
    value("hotzone-size", REENCRYPTION),
    flag("hw-opal", OPAL),
    flag("hw-opal-factory-reset", OPAL),
    flag("hw-opal-only", OPAL),
    flag("init-only", REENCRYPTION),
    short('I', value("integrity", INTEGRITY)),
    flag("integrity-inline", INTEGRITY),
    value("integrity-key-size", INTEGRITY),
    flag("integrity-legacy-padding", INTEGRITY),
    flag("integrity-no-journal", INTEGRITY),
    flag("integrity-no-wipe", INTEGRITY),
    short('i', value("iter-time", NoEffect)),
    flag("iv-large-sectors", NoEffect),
    value("json-file", NoEffect),
    flag("keep-key", REENCRYPTION),
    value("key-description", NoEffect),
    short('d', value("key-file", NoEffect)),
    short('s', value("key-size", NoEffect)),
    short('S', value("key-slot", NoEffect)),
    value("keyfile-offset", NoEffect),
    short('l', value("keyfile-size", NoEffect)),
    value("keyslot-cipher", NoEffect),
    value("keyslot-key-size", NoEffect),
    value("label", NoEffect),
    value(
        "link-vk-to-keyring",
        Refused("this program never puts volume keys into the kernel's keyring"),
    ),
    value("luks2-keyslots-size", NoEffect),
    value("luks2-metadata-size", NoEffect),
    value("volume-key-file", NoEffect),
    value("new-keyfile", NoEffect),
    value("new-keyfile-offset", NoEffect),
    value("new-keyfile-size", NoEffect),
    value("new-key-description", NoEffect),
    value("new-key-size", REENCRYPTION),
    value("new-key-slot", NoEffect),
    value("new-token-id", NoEffect),
    value("new-volume-key-file", REENCRYPTION),
    value("new-volume-key-keyring", REENCRYPTION),
    short('o', value("offset", NoEffect)),
    value("pbkdf", NoEffect),
    value("pbkdf-force-iterations", NoEffect),
    value("pbkdf-memory", NoEffect),
    value("pbkdf-parallel", NoEffect),
    flag("perf-high_priority", NoEffect),
    flag("perf-no_read_workqueue", NoEffect),
    flag("perf-no_write_workqueue", NoEffect),
    flag("perf-same_cpu_crypt", NoEffect),
    flag("perf-submit_from_crypt_cpus", NoEffect),
    flag("persistent", NoEffect),
    value("priority", NoEffect),
    value("progress-frequency", Refused("only reencryption and integrity take so long")),
    flag("progress-json", Refused("only reencryption and integrity take so long")),
    short('r', flag("readonly", NoEffect)),
    value("reduce-device-size", REENCRYPTION),
    flag("refresh", Refused("close the volume and open it with other options")),
    value("resilience", REENCRYPTION),
    value("resilience-hash", REENCRYPTION),
    flag("resume-only", REENCRYPTION),
    value("sector-size", NoEffect),
    flag(
        "serialize-memory-hard-pbkdf",
        Accepted("key derivations wait for each other's memory anyway"),
    ),
    flag("shared", Refused("an image has one server, which may have several exports (serve)")),
    short('b', value("size", NoEffect)),
    short('p', value("skip", NoEffect)),
    value("subsystem", NoEffect),
    flag("tcrypt-backup", TCRYPT),
    flag("tcrypt-hidden", TCRYPT),
    flag("tcrypt-system", TCRYPT),
    flag("test-args", NoEffect),
    flag("test-passphrase", NoEffect),
    short('t', value("timeout", NoEffect)),
    value("token-id", NoEffect),
    flag("token-only", NoEffect),
    flag("token-replace", NoEffect),
    value("token-type", NoEffect),
    short('T', value("tries", NoEffect)),
    short('M', value("type", NoEffect)),
    flag("unbound", NoEffect),
    flag("use-random", NoEffect),
    flag("use-urandom", Accepted("random numbers come from the kernel's generator")),
    value("uuid", NoEffect),
    flag("veracrypt", TCRYPT),
    value("veracrypt-pim", TCRYPT),
    flag("veracrypt-query-pim", TCRYPT),
    short('v', flag("verbose", NoEffect)),
    short('y', flag("verify-passphrase", NoEffect)),
    value("volume-key-keyring", NoEffect),
    short('B', value("block-size", OLD_REENCRYPTION)),
    short('N', flag("new", OLD_REENCRYPTION)),
    flag("use-directio", OLD_REENCRYPTION),
    flag("use-fsync", OLD_REENCRYPTION),
    flag("write-log", OLD_REENCRYPTION),
    flag("dump-master-key", NoEffect),
    value("master-key-file", NoEffect),
];

/// Options that an action of cryptsetup has and the same action does not need here, with what becomes of
/// them: the action, its options, and that.
const NOT_NEEDED: &[(&str, &[&str], Elsewhere)] = &[
    (
        "resize",
        &[
            "key-description",
            "key-file",
            "keyfile-offset",
            "keyfile-size",
            "key-slot",
            "timeout",
            "token-id",
            "token-only",
            "token-type",
            "verify-passphrase",
            "volume-key-keyring",
        ],
        Accepted("the server has the key"),
    ),
    (
        "repair",
        &["key-file", "keyfile-offset", "keyfile-size", "key-slot", "timeout", "verify-passphrase"],
        Accepted("only the repair of a reencryption takes a key"),
    ),
    ("erase", &["key-file"], OPAL),
];

/// What becomes of an option that an action does not have.
fn elsewhere(known: &Known, action: &str) -> Elsewhere {
    let special = NOT_NEEDED
        .iter()
        .find(|(name, options, _)| *name == action && options.contains(&known.long));
    special.map_or(known.elsewhere, |(.., elsewhere)| *elsewhere)
}

/// The option of every program that uses popt, as cryptsetup does: print the usage line.
const USAGE: &str = "--usage";

/// A command line without the options that are accepted and mean nothing here.
#[derive(Default)]
pub(crate) struct Judged {
    /// The words that remain, the action first.
    pub(crate) words: Vec<OsString>,
    /// What the accepted options mean here.
    pub(crate) notes: Vec<String>,
    /// The same of those that ask for something that is not done.
    pub(crate) warnings: Vec<String>,
    /// Whether only the usage line of the action is asked for.
    pub(crate) usage: bool,
    /// The positions in `words` of those that are no options, after the action.
    positional: Vec<usize>,
}

impl Judged {
    /// Exchanges the first two words that are no options: the old order of `create`.
    pub(crate) fn exchange(&mut self) {
        if let [first, second, ..] = self.positional[..] {
            self.words.swap(first, second);
        }
    }
}

/// Takes accepted options out of a command line, and refuses cryptsetup's other options where the
/// action does not have them. Leaves everything else to the parser.
pub(crate) fn judge(words: Vec<OsString>) -> Result<Judged, Failure> {
    let mut judged = Judged::default();
    let mut command = Cli::command();
    command.build();
    let action = words.first().and_then(|action| action.to_str());
    let action = action.and_then(|name| command.find_subcommand(name)).cloned();
    let Some(mut action) = action else {
        let mut options = words.iter().take_while(|word| *word != "--");
        judged.usage = options.any(|word| word == USAGE);
        judged.words = words;
        return Ok(judged);
    };
    let mut words = words.into_iter();
    judged.words.extend(words.next());
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            judged.words.push(word);
            for rest in words.by_ref() {
                judged.positional.push(judged.words.len());
                judged.words.push(rest);
            }
            break;
        }
        if bytes.len() < 2 || bytes[0] != b'-' {
            // An action of an action has options of its own.
            let part = word.to_str().and_then(|name| action.find_subcommand(name)).cloned();
            action = part.unwrap_or(action);
            judged.positional.push(judged.words.len());
            judged.words.push(word);
            continue;
        }
        if word == USAGE {
            judged.usage = true;
            continue;
        }
        let Some(given) = Given::parse(&word) else {
            judged.words.push(word);
            continue;
        };
        if let Some(argument) = given.find(&action) {
            let takes_next = !given.has_value && argument.get_action().takes_values();
            judged.words.push(word);
            judged.words.extend(takes_next.then(|| words.next()).flatten());
            continue;
        }
        let Some(known) = OPTIONS.iter().find(|known| given.is(known)) else {
            judged.words.push(word);
            continue;
        };
        match elsewhere(known, action.get_name()) {
            how @ (Accepted(note) | Warned(note)) => {
                if known.has_value && !given.has_value {
                    words.next();
                }
                let said = format!("--{}: {note}", known.long);
                let list = match how {
                    Warned(_) => &mut judged.warnings,
                    _ => &mut judged.notes,
                };
                list.push(said);
            }
            Refused(why) => {
                return Err(Failure::wrong(format!("--{}: {why}", known.long)));
            }
            NoEffect => {
                return Err(Failure::wrong(format!(
                    "--{} has no effect on {}; leave it out",
                    known.long,
                    action.get_name()
                )));
            }
        }
    }
    Ok(judged)
}

/// How many words an option of cryptsetup takes. `None` if the word is no such option.
pub(crate) fn words_of_option(word: &OsString) -> Option<usize> {
    if !word.as_bytes().starts_with(b"-") {
        return None;
    }
    if word == USAGE {
        return Some(1);
    }
    let given = Given::parse(word)?;
    let known = OPTIONS.iter().find(|known| given.is(known));
    if given.has_value {
        // Flags may stand in one word, and options of this program have a value in it.
        return Some(1);
    }
    known.map(|known| if known.has_value { 2 } else { 1 })
}

/// An option as it stands on the command line.
struct Given<'a> {
    long: Option<&'a str>,
    short: Option<char>,
    /// Whether its value is in the same word.
    has_value: bool,
}

impl<'a> Given<'a> {
    fn parse(word: &'a OsString) -> Option<Self> {
        let text = word.to_str();
        let Some(text) = text else {
            // Only the value of an option is not UTF-8.
            let end = word.as_bytes().iter().position(|byte| *byte == b'=')?;
            let name = str::from_utf8(&word.as_bytes()[..end]).ok()?.strip_prefix("--")?;
            return Some(Self { long: Some(name), short: None, has_value: true });
        };
        if let Some(long) = text.strip_prefix("--") {
            let (name, has_value) = match long.split_once('=') {
                Some((name, _)) => (name, true),
                None => (long, false),
            };
            return Some(Self { long: Some(name), short: None, has_value });
        }
        let mut letters = text.chars().skip(1);
        let short = letters.next();
        Some(Self { long: None, short, has_value: letters.next().is_some() })
    }

    fn find<'b>(&self, action: &'b Command) -> Option<&'b Arg> {
        action.get_arguments().find(|argument| match (self.long, self.short) {
            (Some(long), _) => has_long(argument, long),
            (None, short) => short.is_some() && argument.get_short() == short,
        })
    }

    fn is(&self, known: &Known) -> bool {
        match self.long {
            Some(long) => known.long == long,
            None => self.short.is_some() && known.short == self.short,
        }
    }
}

fn has_long(argument: &Arg, long: &str) -> bool {
    let alias = argument.get_all_aliases().unwrap_or_default();
    argument.get_long() == Some(long) || alias.contains(&long)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;

    /// Where the table of all options is.
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cryptsetup-options.md");

    /// The actions that cryptsetup does not have.
    const OWN: &[&str] = &[
        "list",
        "serve",
        "mount",
        "umount",
        "attach",
        "detach",
        "read",
        "write",
        "doctor",
        "demo",
        "luksRotateKey",
    ];

    fn actions() -> Vec<Command> {
        let mut command = Cli::command();
        command.build();
        let actions = command.get_subcommands().filter(|action| {
            let name = action.get_name();
            !action.is_hide_set() && name != "help" && !OWN.contains(&name)
        });
        actions.cloned().collect()
    }

    /// The page as it has to be.
    fn page() -> String {
        let mut page = include_str!("options.md").to_owned();
        let actions = actions();
        for known in OPTIONS {
            let having = actions.iter().filter(|action| {
                action.get_arguments().any(|argument| has_long(argument, known.long))
            });
            let names: Vec<&str> = having.map(Command::get_name).collect();
            let names = match names.len() {
                0 => "none".to_owned(),
                count if count == actions.len() => "all".to_owned(),
                _ => names.join(", "),
            };
            let short = known.short.map(|letter| format!(", `-{letter}`")).unwrap_or_default();
            let told = |elsewhere| match elsewhere {
                NoEffect => "refused: no effect".to_owned(),
                Accepted(why) => format!("accepted: {why}"),
                Warned(why) => format!("accepted with a warning: {why}"),
                Refused(why) => format!("refused: {why}"),
            };
            let mut elsewhere = match known.elsewhere {
                NoEffect if names == "all" => String::new(),
                elsewhere => told(elsewhere),
            };
            let special = NOT_NEEDED.iter().filter(|(_, options, _)| options.contains(&known.long));
            for (action, _, what) in special {
                let _ = write!(elsewhere, "; {action}: {}", told(*what));
            }
            let _ = writeln!(page, "| `--{}`{short} | {names} | {elsewhere} |", known.long);
        }
        page
    }

    #[test]
    fn the_page_of_all_options_says_what_the_command_does() {
        if std::env::var_os("UCRYPT_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, page()).unwrap();
        }
        let written = std::fs::read_to_string(PAGE).unwrap();
        assert!(
            written == page(),
            "docs/cryptsetup-options.md is not what the command does; write it again with \
             UCRYPT_WRITE_DOCS=1 cargo test -p ucrypt the_page_of_all_options"
        );
    }

    #[test]
    fn an_option_that_some_action_has_is_not_refused_as_unsupported_everywhere() {
        let mut names = BTreeSet::new();
        for known in OPTIONS {
            assert!(names.insert(known.long), "--{} stands twice", known.long);
            let mut had = actions().into_iter();
            let had = had.any(|action| action.get_arguments().any(|a| has_long(a, known.long)));
            if matches!(known.elsewhere, NoEffect) {
                assert!(had, "no action has --{}, and it is not said why", known.long);
            }
        }
    }

    /// What the command says of these words; empty if it would carry them out.
    fn said(words: Vec<OsString>) -> String {
        match judge(words) {
            Err(failure) => failure.message,
            Ok(judged) if judged.notes.len() + judged.warnings.len() > 0 => String::new(),
            Ok(judged) => {
                let words = std::iter::once("ucrypt".into()).chain(judged.words);
                let parsed = Cli::command().try_get_matches_from(words);
                parsed.err().map(|error| error.to_string()).unwrap_or_default()
            }
        }
    }

    #[test]
    fn every_action_takes_each_option_of_cryptsetup_or_refuses_it_by_its_name() {
        let lines = OF_CRYPTSETUP.lines().filter(|line| !line.starts_with('#'));
        for action in lines.filter_map(|line| line.split(':').next()) {
            let rest = match action {
                "token" => &["add", "image"][..],
                "benchmark" => &[],
                _ => &["image"],
            };
            for known in OPTIONS {
                let option = format!("--{}", known.long);
                let words = [action, option.as_str(), "1"];
                let words = words[..2 + usize::from(known.has_value)].iter().chain(rest);
                let said = said(words.map(OsString::from).collect());
                let unknown = said.contains("unexpected argument");
                assert!(!unknown, "{action} {option}: {said}");
                // Where other words are missing, this one is none of them.
                let is_incomplete = said.contains("required arguments were not provided");
                let told = option.replace("master-key", "volume-key");
                let is_named = said.contains(&option) || said.contains(&told);
                assert!(said.is_empty() || is_incomplete || is_named, "{action} {option}: {said}");
            }
        }
    }

    /// Which options cryptsetup's actions have.
    const OF_CRYPTSETUP: &str = include_str!("options_of_cryptsetup.txt");

    #[test]
    fn no_option_that_an_action_of_cryptsetup_has_is_refused_as_without_effect() {
        let (mut count, mut refused) = (0, Vec::new());
        for line in OF_CRYPTSETUP.lines().filter(|line| !line.starts_with('#')) {
            let (action, options) = line.split_once(": ").unwrap();
            let own = actions().into_iter().any(|own| own.get_name() == action);
            assert!(own, "there is no action {action}");
            for option in options.split(' ') {
                count += 1;
                let known = OPTIONS.iter().find(|known| known.long == option);
                let known = known.unwrap_or_else(|| panic!("--{option} is not in the table"));
                let option = format!("--{option}");
                let words = [action, &option, "1"];
                let judged = judge(
                    words[..2 + usize::from(known.has_value)].iter().map(OsString::from).collect(),
                );
                let error = judged.err().map(|failure| failure.message).unwrap_or_default();
                if error.contains("has no effect") {
                    refused.push(format!("{action} {option}"));
                }
            }
        }
        assert!(count > 250, "{count}");
        assert!(refused.is_empty(), "cryptsetup takes: {refused:?}");
    }

    #[test]
    fn what_is_not_needed_is_an_option_of_cryptsetup_that_the_action_does_not_have() {
        for (name, options, _) in NOT_NEEDED {
            let action = actions().into_iter().find(|action| action.get_name() == *name).unwrap();
            for option in *options {
                assert!(OPTIONS.iter().any(|known| known.long == *option), "--{option}");
                assert!(
                    !action.get_arguments().any(|argument| has_long(argument, option)),
                    "{name} --{option}"
                );
                let line = OF_CRYPTSETUP
                    .lines()
                    .find(|line| line.starts_with(&format!("{name}: ")))
                    .unwrap();
                assert!(
                    line.split(' ').any(|word| word == *option),
                    "cryptsetup {name} has no --{option}"
                );
            }
        }
    }

    #[test]
    fn the_usage_line_is_asked_for_by_the_option_and_not_by_a_value_that_looks_like_it() {
        let asked = |words: &[&str]| {
            let words = words.iter().map(OsString::from).collect();
            judge(words).unwrap_or_else(|failure| panic!("{failure}")).usage
        };
        assert!(asked(&["--usage"]) && asked(&["-q", "--usage"]));
        assert!(asked(&["open", "--usage"]) && asked(&["open", "image", "--usage", "name"]));
        for other in [
            &["open", "--header", "--usage", "image"][..],
            &["open", "--", "--usage"],
            &["--", "--usage"],
            &["open", "image"],
        ] {
            assert!(!asked(other), "{other:?}");
        }
    }

    fn judged(words: &[&str]) -> Result<(Vec<String>, usize), String> {
        let words = words.iter().map(OsString::from).collect();
        let judged = judge(words).map_err(|failure| failure.message)?;
        let words = judged.words.into_iter().map(|word| word.into_string().unwrap());
        Ok((words.collect(), judged.notes.len()))
    }

    #[test]
    fn options_that_mean_nothing_here_are_taken_out_and_others_are_refused_by_name() {
        let out = |words: &[&str]| judged(words).unwrap();
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            out(&["luksAddKey", "--disable-external-tokens", "image"]),
            (words(&["luksAddKey", "image"]), 1)
        );
        // What looks like an option is the value of one.
        let line = ["luksDump", "--header", "--shared", "image"];
        assert_eq!(out(&line), (words(&line), 0));
        let line = ["open", "image", "name", "--", "--shared"];
        assert_eq!(out(&line), (words(&line), 0));
        for (line, reason) in [
            (&["open", "--shared", "image", "name"][..], "--shared: an image has one server"),
            (&["luksFormat", "-Ihmac-sha256", "image"], "--integrity: integrity protection"),
            (&["luksFormat", "--integrity=hmac-sha256", "image"], "--integrity: integrity"),
            (&["luksUUID", "-c", "aes", "image"], "--cipher has no effect on luksUUID"),
            (&["close", "--cancel-deferred", "x"], "--cancel-deferred"),
        ] {
            let error = judged(line).unwrap_err();
            assert!(error.starts_with(reason), "{line:?}: {error}");
        }
        // Who has it in a script goes on, and is told what is not done.
        let warned = judge(["open", "--disable-blkid", "i"].map(OsString::from).to_vec());
        let warned = warned.unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(warned.words, ["open", "i"]);
        assert!(warned.warnings[0].starts_with("--disable-blkid: signatures are looked for"));
        // The parser refuses what nobody knows.
        assert!(judged(&["open", "--no-such-option"]).is_ok());
        assert!(judged(&["nonsense", "--shared"]).is_ok());
        assert!(judged(&[]).is_ok());
    }
}
