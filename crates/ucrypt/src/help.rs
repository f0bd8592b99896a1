//! The order of actions and options in help: what most people need first, what experts need last and,
//! with `-h`, not at all.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::{effects, pages};

/// The actions that open a volume.
const OPENING: &[&str] = &["open", "mount", "serve", "read", "write"];

/// All actions that help shows, in groups.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Volumes",
        &["open", "close", "status", "list", "top", "resize", "luksSuspend", "luksResume", "serve"],
    ),
    ("File systems and boot", &["mount", "umount", "attach", "detach"]),
    ("Content, without serving it", &["read", "write"]),
    (
        "Keys",
        &[
            "luksAddKey",
            "luksChangeKey",
            "luksRotateKey",
            "luksRemoveKey",
            "luksKillSlot",
            "luksConvertKey",
            "token",
            "erase",
        ],
    ),
    (
        "Headers",
        &[
            "luksFormat",
            "luksDump",
            "isLuks",
            "luksUUID",
            "config",
            "luksHeaderBackup",
            "luksHeaderRestore",
            "convert",
            "repair",
        ],
    ),
    ("This machine", &["doctor", "benchmark", "lab", "demo", "completions", "help"]),
];

/// Options of `luksFormat`, in groups.
const FORMAT: &[(&str, &[&str])] = &[
    (
        "Passphrase",
        &[
            "key_file",
            "keyfile_size",
            "keyfile_offset",
            "key_description",
            "timeout",
            "verify_passphrase",
            "key_slot",
        ],
    ),
    ("Encryption", &["cipher", "key_size", "volume_key_file", "sector_size", "offset"]),
    ("Header", &["kind", "header", "hash", "uuid", "label", "subsystem"]),
];

/// Options that say what a new keyslot costs: a group of their own.
const DERIVATION: &[&str] =
    &["pbkdf", "iter_time", "pbkdf_memory", "pbkdf_parallel", "pbkdf_force_iterations"];

/// Options of actions that make keyslots, for experts.
const EXPERTS_OF_KEYS: &[&str] = &[
    "use_random",
    "use_urandom",
    "align_payload",
    "keyslot_cipher",
    "keyslot_key_size",
    "luks2_metadata_size",
    "luks2_keyslots_size",
    "force_password",
];

/// Options of these actions for experts: the last group.
const EXPERTS: &[&str] = &[
    "header_digest",
    "strict",
    "direct",
    "memory",
    "backend",
    "disable_keyring",
    "cipher_model",
    "persistent",
    "unbound",
    "fuse_transport",
    "ublk_wait",
    "ublk_recover",
];

/// Options that stay in their group and that only `--help` shows.
const LESS_USED: &[&str] = &[
    "keyfile_size",
    "keyfile_offset",
    "key_description",
    "volume_key_keyring",
    "timeout",
    "tries",
    "key_slot",
    "token_id",
    "token_type",
    "token_only",
    "dispatch",
    "poll",
    "no_read_workqueue",
    "no_write_workqueue",
    "same_cpu_crypt",
    "submit_from_crypt_cpus",
    "high_priority",
    "skip",
    "iv_large_sectors",
    "table_file",
    "nbd_any_user",
    "log_format",
    "log_level",
    "metrics_any_host",
];

/// Longest line of help, in characters; a narrower terminal has shorter ones.
const WIDTH: usize = 100;

/// The last group: options that every action has.
pub(crate) const OF_ALL_HEADING: &str = "Every action";

/// Options that every action has.
const OF_ALL: &[&str] = &["help", "verbose", "debug", "disable_locks", "test_args"];

/// Sorts the options of all actions.
pub(crate) fn arranged(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let place = OF_ALL.iter().position(|id| arg.get_id() == id);
        match place {
            Some(place) => arg.display_order(1000 + place),
            None => arg,
        }
    });
    let listed = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}",
        groups(&command)
    );
    command.help_template(listed).max_term_width(WIDTH).mut_subcommands(|action| {
        let mut action = action;
        if action.get_name() == "luksFormat" {
            for (heading, ids) in FORMAT {
                for id in *ids {
                    action = action.mut_arg(id, |arg| arg.help_heading(*heading));
                }
            }
        }
        if has(&action, "pbkdf") && !OPENING.contains(&action.get_name()) {
            for id in DERIVATION.iter().filter(|id| has(&action, id)).collect::<Vec<_>>() {
                action = action.mut_arg(id, |arg| arg.help_heading("Key derivation"));
            }
            for id in EXPERTS_OF_KEYS.iter().filter(|id| has(&action, id)).collect::<Vec<_>>() {
                action = action.mut_arg(id, |arg| hidden(arg).help_heading("Experts"));
            }
        }
        if OPENING.contains(&action.get_name()) {
            // Logs and metrics, then dispatch, behind what the volume is: an argument that is changed moves
            // to the end.
            for group in ["Operation", "Dispatch"] {
                let of_group = |arg: &&Arg| arg.get_help_heading() == Some(group);
                let ids = action.get_arguments().filter(of_group).map(Arg::get_id).cloned();
                for id in ids.collect::<Vec<_>>() {
                    action = action.mut_arg(id, |arg| arg);
                }
            }
            for id in EXPERTS.iter().filter(|id| has(&action, id)).collect::<Vec<_>>() {
                // It moves to the end, too.
                let expert = |arg: Arg| hidden(arg).help_heading("Experts");
                action = action.mut_arg(id, expert);
            }
        }
        action = action.mut_args(|arg| {
            let is_less_used = LESS_USED.contains(&arg.get_id().as_str());
            if is_less_used { hidden(arg) } else { arg }
        });
        let name = action.get_name().to_owned();
        if ["read", "write"].contains(&name.as_str()) {
            // They are known, and refused.
            let is_refused =
                |id: &str| !effects::affects_transfers(id) || name == "write" && id == "readonly";
            action = action.mut_args(|arg| {
                let hides = is_refused(arg.get_id().as_str());
                if hides { arg.hide(true) } else { arg }
            });
        }
        if pages::has_examples(&name) {
            action = action.after_long_help(format!("Examples: man ucrypt-{name}"));
        }
        if action.get_arguments().any(Arg::is_hide_short_help_set) {
            action = action.after_help(format!("ucrypt {name} --help shows all options."));
        }
        action
    })
}

/// The actions in their groups, as clap lists them in one.
fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for name in *names {
            let action = command.find_subcommand(name);
            let about = action.and_then(Command::get_about).map(ToString::to_string);
            let about =
                about.unwrap_or_else(|| "Print this message, or the help of an action".into());
            let aliases = action.map(|action| action.get_visible_aliases().collect::<Vec<_>>());
            let aliases = match aliases.unwrap_or_default().as_slice() {
                [] => String::new(),
                [one] => format!(" [alias: {one}]"),
                several => format!(" [aliases: {}]", several.join(", ")),
            };
            let _ = writeln!(text, "  {name:17}  {about}{aliases}");
        }
        text.push('\n');
    }
    text
}

/// Hides an option with `-h`. Man pages would then have no text for it, unless it is its long one.
fn hidden(arg: Arg) -> Arg {
    let help = arg.get_long_help().or(arg.get_help()).cloned();
    arg.hide_short_help(true).long_help(help.unwrap_or_default())
}

fn has(action: &Command, id: &str) -> bool {
    action.get_arguments().any(|argument| argument.get_id() == id)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_action_names_its_page_with_examples() {
        let command = arranged(Cli::command());
        for action in command.get_subcommands().filter(|action| !action.is_hide_set()) {
            assert!(action.get_after_long_help().is_some(), "{}", action.get_name());
        }
    }

    #[test]
    fn no_line_of_help_is_wider_than_a_terminal() {
        let mut command = arranged(Cli::command()).term_width(80);
        command.build();
        let mut texts = vec![command.render_help().to_string()];
        for action in command.get_subcommands_mut() {
            let action = action.clone().term_width(80);
            texts.extend(
                [action.clone().render_help(), action.clone().render_long_help()]
                    .map(|it| it.to_string()),
            );
        }
        let wide: Vec<_> =
            texts.iter().flat_map(|it| it.lines()).filter(|it| it.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }

    #[test]
    fn every_action_is_in_one_group() {
        let mut command = arranged(Cli::command());
        command.build();
        let shown = command.get_subcommands().filter(|action| !action.is_hide_set());
        let mut shown: Vec<_> = shown.map(Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(shown, grouped);
    }

    #[test]
    fn every_option_of_new_keyslots_that_is_sorted_exists() {
        let command = arranged(Cli::command());
        let format = command.find_subcommand("luksFormat").unwrap();
        let add = command.find_subcommand("luksAddKey").unwrap();
        for id in DERIVATION.iter().chain(EXPERTS_OF_KEYS) {
            assert!(has(format, id) || has(add, id), "no action has {id}");
        }
        let without: Vec<_> = format
            .get_arguments()
            .filter(|arg| !arg.is_positional() && arg.get_help_heading().is_none())
            .map(|arg| arg.get_id().as_str())
            .collect();
        assert_eq!(without, ["batch_mode"], "every other option of luksFormat has a group");
        let headings: Vec<_> = format.get_arguments().map(Arg::get_help_heading).collect();
        assert_eq!(headings.last(), Some(&Some("Experts")));
    }

    #[test]
    fn options_of_all_actions_stand_behind_an_actions_own_ones() {
        let mut command = arranged(Cli::command());
        command.build();
        for action in command.get_subcommands().filter(|action| action.get_name() != "help") {
            let is_of_all = |arg: &&Arg| OF_ALL.contains(&arg.get_id().as_str());
            let in_group = |arg: &&Arg| arg.get_help_heading() == Some(OF_ALL_HEADING);
            assert!(action.get_arguments().all(|arg| is_of_all(&arg) == in_group(&arg)));
            let text = action.clone().render_long_help().to_string();
            let headings: Vec<_> =
                text.lines().filter(|it| it.ends_with(':') && !it.starts_with(' ')).collect();
            assert_eq!(headings.last(), Some(&"Every action:"), "{text}");
            let of_all = action.get_arguments().filter(is_of_all).map(Arg::get_display_order);
            let own = action.get_arguments().filter(|arg| !is_of_all(arg));
            let last = own.map(Arg::get_display_order).max().unwrap_or(0);
            assert!(of_all.min() > Some(last), "{}", action.get_name());
        }
    }

    #[test]
    fn every_option_that_is_sorted_exists_and_the_experts_come_last() {
        let command = arranged(Cli::command());
        let actions: Vec<_> =
            OPENING.iter().map(|name| command.find_subcommand(name).unwrap()).collect();
        for id in EXPERTS.iter().chain(LESS_USED) {
            assert!(actions.iter().any(|action| has(action, id)), "no action has {id}");
        }
        for action in actions {
            let mut hidden = action.get_arguments().filter(|arg| arg.is_hide_short_help_set());
            assert!(hidden.all(|arg| arg.get_long_help().is_some()));
            let headings = action.get_arguments().filter(|argument| !argument.is_positional());
            let headings: Vec<_> = headings.map(Arg::get_help_heading).collect();
            let first = headings.iter().position(|heading| *heading == Some("Experts")).unwrap();
            assert!(headings[first..].iter().all(|heading| *heading == Some("Experts")));
        }
    }
}
