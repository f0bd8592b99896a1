//! What is said of a command line that cannot be understood: one line, as of all other failures.

use clap::{Command, Error};

/// The cause and the remedy, without `ucrypt: `. `words` is the command line.
pub(crate) fn line<'a>(
    error: &Error,
    command: &Command,
    words: impl IntoIterator<Item = &'a str>,
) -> String {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let cause = paragraphs.next().unwrap_or_default();
    let mut parts = vec![joined(cause.strip_prefix("error: ").unwrap_or(cause))];
    parts.extend(paragraphs.filter_map(|it| it.strip_prefix("tip: ")).map(joined));
    let action = words.into_iter().find_map(|word| command.find_subcommand(word));
    let action = action.map(|it| format!(" {}", it.get_name())).unwrap_or_default();
    parts.push(format!("see ucrypt{action} --help"));
    parts.join("; ")
}

fn joined(lines: &str) -> String {
    lines.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_command_line_that_is_not_understood_takes_one_line_with_its_remedy() {
        let options = [
            Arg::new("as").long("as").value_parser(["loop", "nbd"]),
            Arg::new("sure").long("sure"),
        ];
        let image = Arg::new("image").value_name("IMAGE").required(true);
        let open = Command::new("open").args(options).arg(image);
        let command = Command::new("ucrypt").subcommand_required(true).subcommand(open);
        let said = |words: &[&str]| {
            let all = std::iter::once(&"ucrypt").chain(words);
            let error = command.clone().try_get_matches_from(all).expect_err("refused");
            line(&error, &command, words.iter().copied())
        };
        let places = "[possible values: loop, nbd]; see ucrypt open --help";
        assert_eq!(
            said(&["open", "--as", "x", "i"]),
            format!("invalid value 'x' for '--as <as>' {places}")
        );
        let missing =
            "the following required arguments were not provided: <IMAGE>; see ucrypt open --help";
        assert_eq!(said(&["open"]), missing);
        let similar = "unrecognized subcommand 'opne'; a similar subcommand exists: 'open'; see ucrypt --help";
        assert_eq!(said(&["opne"]), similar);
        let similar = "unexpected argument '--sur' found; a similar argument exists: '--sure'; see ucrypt open --help";
        assert_eq!(said(&["open", "--sur", "i"]), similar);
    }
}
