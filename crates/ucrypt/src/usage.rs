//! What is said of a command line that cannot be understood: one line, as of all other failures. And the
//! line that shows how an action is used.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::background::clean;

/// The cause and the remedy, without `ucrypt: `. `words` is the command line.
pub(crate) fn line<'a>(
    error: &Error,
    command: &Command,
    words: impl IntoIterator<Item = &'a str>,
) -> String {
    let text = error.render().to_string();
    let cause = text.split("\n\n").next().unwrap_or_default();
    let cause = cause.strip_prefix("error: ").unwrap_or(cause);
    let unknown = unknown_action(error);
    let cause = unknown.map_or_else(
        || cause.split_whitespace().collect::<Vec<_>>().join(" "),
        |name| format!("unrecognized action '{}'", clean(name)),
    );
    let mut parts = vec![cause];
    parts.extend(similar(error).map(|it| format!("similar: {it}")));
    let known = words.into_iter().take_while(|word| Some(*word) != unknown);
    parts.push(format!("see ucrypt{} --help", action(command, known)));
    parts.join("; ")
}

/// How an action is used that begins with these words, or the command if it has no such action.
pub(crate) fn usage(mut command: Command, words: &[OsString]) -> String {
    command.build();
    let mut action = &mut command;
    for name in words.iter().filter_map(|word| word.to_str()) {
        if action.find_subcommand(name).is_none() {
            break;
        }
        action = action.find_subcommand_mut(name).expect("it was found");
    }
    format!("{}\n", action.render_usage())
}

/// What stands in the place of an action and is none.
fn unknown_action(error: &Error) -> Option<&str> {
    match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(name) => Some(name),
        _ => None,
    }
}

/// The action that a command line is about, with those that it is a part of: ` lab run`.
fn action<'a>(mut command: &Command, words: impl Iterator<Item = &'a str>) -> String {
    let mut names = String::new();
    // Of `help`, the others are the action.
    for word in words.filter(|word| *word != "help") {
        if let Some(action) = command.find_subcommand(word) {
            names.extend([" ", action.get_name()]);
            command = action;
        }
    }
    names
}

/// What was probably meant.
fn similar(error: &Error) -> Option<&str> {
    use ContextKind::{SuggestedArg, SuggestedSubcommand, SuggestedValue};
    // Of values, all are listed.
    if error.kind() == ErrorKind::InvalidValue {
        return None;
    }
    let suggested = [SuggestedSubcommand, SuggestedArg, SuggestedValue];
    match suggested.into_iter().find_map(|kind| error.get(kind))? {
        ContextValue::String(one) => Some(one),
        // The best one is the last.
        ContextValue::Strings(several) => several.last().map(String::as_str),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn the_usage_is_that_of_the_action_and_of_a_part_of_it() {
        let of = |words: &str| {
            let words: Vec<OsString> = words.split_whitespace().map(Into::into).collect();
            usage(Cli::command(), &words)
        };
        assert_eq!(of("isLuks"), "Usage: ucrypt isLuks [OPTIONS] <IMAGE>\n");
        assert_eq!(of("luksDelKey"), "Usage: ucrypt luksKillSlot [OPTIONS] <IMAGE> <NUMBER>\n");
        assert_eq!(of("nonsense"), "Usage: ucrypt [OPTIONS] <COMMAND>\n");
        assert_eq!(of(""), "Usage: ucrypt [OPTIONS] <COMMAND>\n");
        assert!(of("lab run more").starts_with("Usage: ucrypt lab run [OPTIONS]"));
        assert!(of("serve").starts_with("Usage: ucrypt serve [OPTIONS] EXPORT... IMAGE\n"));
    }

    #[test]
    fn a_command_line_that_is_not_understood_takes_one_line_with_its_remedy() {
        let command = Cli::command();
        let said = |words: &[&str]| {
            let all = std::iter::once(&"ucrypt").chain(words);
            // As in `main`: what is parsed has nested actions of help from then on.
            let mut command = command.clone();
            let error = command.try_get_matches_from_mut(all).expect_err("refused");
            line(&error, &command, words.iter().copied())
        };
        let places = "[possible values: ublk, loop, fuse, nbd]; see ucrypt open --help";
        let wrong = said(&["open", "--as", "x", "i"]);
        assert_eq!(wrong, format!("invalid value 'x' for '--as <SERVED>' {places}"));
        let missing = "the following required arguments were not provided: <IMAGE>; see ucrypt luksDump --help";
        assert_eq!(said(&["luksDump"]), missing);
        assert!(!said(&["open", "--as", "nbdd", "i"]).contains("similar"), "all are listed");
        let similar = "unrecognized action 'opne'; similar: open; see ucrypt --help";
        assert_eq!(said(&["opne", "status"]), similar);
        for nested in [&["lab", "foo"][..], &["help", "lab", "foo"], &["lab", "help", "foo"]] {
            assert_eq!(said(nested), "unrecognized action 'foo'; see ucrypt lab --help");
        }
        let nested = said(&["lab", "run", "--frob"]);
        assert_eq!(nested, "unexpected argument '--frob' found; see ucrypt lab run --help");
        let similar =
            "unexpected argument '--deferrd' found; similar: --deferred; see ucrypt close --help";
        assert_eq!(said(&["close", "--deferrd", "i"]), similar);
        assert_eq!(
            said(&["open", "--frob", "i"]),
            "unexpected argument '--frob' found; see ucrypt open --help"
        );
    }
}
