//! Man pages and completions, made from the definition of the command line, so that they cannot
//! tell anything else than `--help`.

mod examples;
mod table;
mod topics;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::arguments;
use crate::failure::Failure;
use crate::stdio;

use examples::EXAMPLES;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManPagesArgs {
    /// An existing directory for the pages
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Carries out `completions`: prints the script that the shell reads.
pub(crate) fn completions(args: &CompletionsArgs, command: &Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown(command), "ucrypt", &mut script);
    stdio::Stdout::get()?.put(&script)
}

/// The command without the actions that only programs call, and with the old names of
/// actions.
fn shown(command: &Command) -> Command {
    let actions = command.get_subcommands().filter(|action| !action.is_hide_set()).cloned();
    let actions = actions.map(|action| {
        let of = action.get_name().to_owned();
        let old = arguments::old_names().filter(|(_, action)| *action == of).map(|(old, _)| old);
        action.visible_aliases(old)
    });
    Command::new("ucrypt")
        .version(crate::VERSION)
        .args(command.get_arguments().cloned())
        .subcommands(actions)
        .disable_help_flag(true)
}

/// Carries out `man-pages`: writes `ucrypt.8`, `ucrypt-ACTION.8` for each action, `ucrypttab.5`, and
/// `ucrypt-TOPIC.7` for each topic.
pub(crate) fn man_pages(args: &ManPagesArgs, mut command: Command) -> Result<(), Failure> {
    let write_in = |section: u32, name: &str, page: io::Result<Vec<u8>>| {
        let path = args.dir.join(format!("{name}.{section}"));
        page.and_then(|page| fs::write(&path, page)).map_err(|error| cannot_write(&path, &error))
    };
    let write = |name: &str, page| write_in(8, name, page);
    command.build();
    write_in(5, "ucrypttab", table::page())?;
    for topic in topics::TOPICS {
        write_in(7, &format!("ucrypt-{}", topic.name), topics::page(topic))?;
    }
    write("ucrypt", whole(&command))?;
    for action in command.get_subcommands().filter(|action| is_documented(action)) {
        let name = format!("ucrypt-{}", action.get_name());
        write(&name, of_action(action, &name))?;
        for part in action.get_subcommands().filter(|part| is_documented(part)) {
            let name = format!("{name}-{}", part.get_name());
            write(&name, of_action(part, &name))?;
        }
        for alias in action.get_visible_aliases() {
            write(&format!("ucrypt-{alias}"), Ok(format!(".so man8/{name}.8\n").into_bytes()))?;
        }
    }
    Ok(())
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::device(format!("cannot write {}: {error}", path.display()))
}

/// Whether the page of an action has examples.
pub(crate) fn has_examples(action: &str) -> bool {
    EXAMPLES.iter().any(|(of, _)| *of == action)
}

fn is_documented(action: &Command) -> bool {
    !action.is_hide_set() && action.get_name() != "help"
}

/// The page of the command.
fn whole(command: &Command) -> io::Result<Vec<u8>> {
    let man = page(command.clone(), "ucrypt");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    let mut roff = Roff::new();
    synopsis(&mut roff, command);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        roff.control("PP", []).text([roman(*paragraph)]);
    }
    actions(&mut roff, command, "ucrypt");
    roff.to_writer(&mut out)?;
    man.render_options_section(&mut out)?;
    let mut roff = Roff::new();
    examples_of(&mut roff, "ucrypt");
    exit_status(&mut roff);
    roff.control("SH", ["FILES"]);
    for (path, what) in FILES {
        roff.control("TP", []).text([italic(*path)]).text([roman(*what)]);
    }
    see_also(&mut roff, SEE_ALSO);
    roff.to_writer(&mut out)?;
    Ok(out)
}

/// Lists the actions of a command with their pages, whose names begin with `name`.
fn actions(roff: &mut Roff, command: &Command, name: &str) {
    let mut actions = command.get_subcommands().filter(|action| is_documented(action)).peekable();
    if actions.peek().is_none() {
        return;
    }
    roff.control("SH", ["ACTIONS"]);
    for action in actions {
        let about = action.get_about().map(ToString::to_string).unwrap_or_default();
        roff.control("TP", []).text([bold(format!("{name}-{}", action.get_name())), roman("(8)")]);
        roff.text([roman(about)]);
    }
}

/// The page of one action.
fn of_action(action: &Command, name: &str) -> io::Result<Vec<u8>> {
    let man = page(action.clone(), name);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    let mut roff = Roff::new();
    synopsis(&mut roff, action);
    roff.to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    let mut roff = Roff::new();
    actions(&mut roff, action, name);
    roff.to_writer(&mut out)?;
    man.render_options_section(&mut out)?;
    let mut roff = Roff::new();
    examples_of(&mut roff, name.trim_start_matches("ucrypt-"));
    exit_status(&mut roff);
    see_also(&mut roff, &[("ucrypt", "8")]);
    roff.to_writer(&mut out)?;
    Ok(out)
}

/// The examples of a page, by the name that `EXAMPLES` has for it.
fn examples_of(roff: &mut Roff, name: &str) {
    let Some((_, examples)) = EXAMPLES.iter().find(|(of, _)| *of == name) else { return };
    roff.control("SH", ["EXAMPLES"]);
    for (what, line) in *examples {
        roff.control("PP", []).text([roman(*what)]);
        roff.control("PP", []).control("EX", []).text([roman(format!("  {line}"))]);
        roff.control("EE", []);
    }
}

/// Refers to pages, each with its section.
fn see_also(roff: &mut Roff, pages: &[(&str, &str)]) {
    roff.control("SH", ["SEE ALSO"]);
    for (at, (name, section)) in pages.iter().enumerate() {
        let comma = if at + 1 < pages.len() { "," } else { "" };
        roff.text([bold(*name), roman(format!("({section}){comma}"))]);
    }
}

fn page(command: Command, name: &str) -> Man {
    let version = concat!("ucrypt ", env!("CARGO_PKG_VERSION"));
    Man::new(command).title(name).section("8").source(version).manual("System administration")
}

/// As in `--help`: one line for each way to call it. `clap_mangen`'s synopsis lists all options.
fn synopsis(roff: &mut Roff, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    roff.control("SH", ["SYNOPSIS"]);
    for line in usage.trim_start_matches("Usage:").lines() {
        roff.control("PP", []).text([roman(line.trim())]);
    }
}

fn exit_status(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_STATUS {
        roff.control("TP", []).text([bold(*code)]).text([roman(*meaning)]);
    }
}

const DESCRIPTION: &[&str] = &[
    "ucrypt opens LUKS1, LUKS2 and plain dm-crypt volumes in user space and serves them as disks: \
     as a ublk or loop device, as a file through FUSE, to virtual machines through NBD and \
     vhost-user-blk. It needs no device-mapper and, for most tasks, no root. cryptsetup reads what \
     ucrypt writes, and ucrypt reads what cryptsetup writes; actions, options and exit codes are \
     cryptsetup's where the action is the same.",
    "An option that has no effect is an error. Passphrases come from the terminal, from a line of \
     standard input, or from a file (--key-file); never from the command line.",
];

const SEE_ALSO: &[(&str, &str)] = &[
    ("ucrypt-containers", "7"),
    ("ucrypt-formats", "7"),
    ("ucrypttab", "5"),
    ("cryptsetup", "8"),
    ("nbd-client", "8"),
];

/// See `failure`.
const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "Done."),
    ("1", "Wrong parameters, or a header that is damaged, foreign or unknown."),
    ("2", "No permission, or a wrong passphrase."),
    ("3", "Out of memory."),
    ("4", "The image or device is the wrong one, failed, or does not answer."),
    ("5", "The volume or device exists already, or is in use."),
    ("141", "The reader of the output has gone (SIGPIPE)."),
];

const FILES: &[(&str, &str)] = &[
    ("/dev/ucrypt/NAME", "An open volume as a block device: a link to the loop or ublk device."),
    ("/etc/ucrypttab", "Volumes that are opened at boot; see ucrypttab(5)."),
    (
        "$XDG_RUNTIME_DIR/ucrypt/NAME",
        "An open volume as a file. The directory, of which each user has one, also holds sockets, \
         locks and logs. Without XDG_RUNTIME_DIR it is /run/ucrypt for root, also if that is a \
         session's or another user's, and /run/user/UID/ucrypt or /tmp/ucrypt-UID for others.",
    ),
];
