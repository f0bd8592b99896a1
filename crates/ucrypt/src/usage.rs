//! What is said of a command line that cannot be understood: one line, as of all other failures. And the
//! line that shows how an action is used.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// The cause and the remedy, without `ucrypt: `. `words` is the command line.
pub(crate) fn line<'a>(
    error: &Error,
    command: &Command,
    words: impl IntoIterator<Item = &'a str>,
) -> String {
    let text = error.render().to_string();
    let cause = text.split("\n\n").next().unwrap_or_default();
    let cause = cause.strip_prefix("error: ").unwrap_or(cause);
    let mut parts = vec![cause.split_whitespace().collect::<Vec<_>>().join(" ")];
    parts.extend(similar(error).map(|it| format!("similar: {it}")));
    let is_of_action = error.kind() != ErrorKind::InvalidSubcommand;
    let mut words = words.into_iter().filter(|_| is_of_action);
    let action = words.find_map(|word| command.find_subcommand(word)).map(Command::get_name);
    let action = action.map(|name| format!(" {name}")).unwrap_or_default();
    parts.push(format!("see ucrypt{action} --help"));
    parts.join("; ")
}

/// The usage line of an action, or of the command if it has no action of this name.
pub(crate) fn usage(mut command: Command, action: Option<&OsString>) -> String {
    command.build();
    let action = action.and_then(|name| name.to_str());
    let line = match action.and_then(|name| command.find_subcommand_mut(name)) {
        Some(action) => action.render_usage(),
        None => command.render_usage(),
    };
    format!("{line}\n")
}

/// What was probably meant.
fn similar(error: &Error) -> Option<&str> {
    use ContextKind::{SuggestedArg, SuggestedSubcommand, SuggestedValue};
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
    fn the_usage_of_an_action_is_one_line() {
        let of = |name: &str| usage(Cli::command(), Some(&name.into()));
        assert_eq!(of("isLuks"), "Usage: ucrypt isLuks [OPTIONS] <IMAGE>\n");
        assert_eq!(of("luksDelKey"), "Usage: ucrypt luksKillSlot [OPTIONS] <IMAGE> <NUMBER>\n");
        assert_eq!(of("nonsense"), "Usage: ucrypt [OPTIONS] <COMMAND>\n");
        assert_eq!(usage(Cli::command(), None), "Usage: ucrypt [OPTIONS] <COMMAND>\n");
    }

    #[test]
    fn a_command_line_that_is_not_understood_takes_one_line_with_its_remedy() {
        let command = Cli::command();
        let said = |words: &[&str]| {
            let all = std::iter::once(&"ucrypt").chain(words);
            let error = command.clone().try_get_matches_from(all).expect_err("refused");
            line(&error, &command, words.iter().copied())
        };
        let places = "[possible values: ublk, loop, fuse, nbd]; see ucrypt open --help";
        let wrong = said(&["open", "--as", "x", "i"]);
        assert_eq!(wrong, format!("invalid value 'x' for '--as <SERVED>' {places}"));
        let missing = "the following required arguments were not provided: <IMAGE>; see ucrypt luksDump --help";
        assert_eq!(said(&["luksDump"]), missing);
        let similar = "unrecognized subcommand 'opne'; similar: open; see ucrypt --help";
        assert_eq!(said(&["opne", "status"]), similar);
        let similar =
            "unexpected argument '--deferrd' found; similar: --deferred; see ucrypt close --help";
        assert_eq!(said(&["close", "--deferrd", "i"]), similar);
        assert_eq!(
            said(&["open", "--frob", "i"]),
            "unexpected argument '--frob' found; see ucrypt open --help"
        );
    }
}
