//! Refuses options that have no effect.
//!
//! A user who gives an option expects something of it. If the option were ignored, the worst result
//! would be silent: a volume under another key than intended. This module therefore lists, for
//! every option of the actions that open a volume, where the option has an effect. Any other use is
//! refused before a passphrase is asked for. Options that cryptsetup accepts without effect get
//! cryptsetup's warning, in `volume/plain.rs`.

use std::path::PathBuf;

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::failure::Failure;
use crate::mount;

/// What the action opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// A volume with a LUKS header.
    Luks,
    /// A plain volume, described by options.
    Plain,
    /// A plain volume, described by a table line.
    Table,
    /// An image without encryption.
    Raw,
    /// A backend without an image, under a key of its own.
    Scratch,
}

/// What the action does with the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Serve,
    Transfer,
    /// Only try the passphrase.
    Test,
}

use Target::{Luks, Plain, Raw, Scratch, Table};

const ALL: &[Target] = &[Luks, Plain, Table, Raw, Scratch];
const WITH_KEY: &[Target] = &[Luks, Plain];
const IMAGES: &[Target] = &[Luks, Plain, Table, Raw];
const ENCRYPTED: &[Target] = &[Luks, Plain, Table, Scratch];

/// An option, with the targets and the uses for which it has an effect.
struct Effect {
    /// ID of the argument in clap.
    id: &'static str,
    on: &'static [Target],
    uses: &'static [Use],
}

const fn effect(id: &'static str, on: &'static [Target], uses: &'static [Use]) -> Effect {
    Effect { id, on, uses }
}

const ANY: &[Use] = &[Use::Serve, Use::Transfer, Use::Test];
const DATA: &[Use] = &[Use::Serve, Use::Transfer];
const SERVE: &[Use] = &[Use::Serve];

/// The options of the actions that open a volume.
const EFFECTS: &[Effect] = &[
    effect("kind", WITH_KEY, ANY),
    effect("key_file", WITH_KEY, ANY),
    effect("keyfile_size", WITH_KEY, ANY),
    effect("keyfile_offset", WITH_KEY, ANY),
    effect("key_description", &[Luks], ANY),
    effect("timeout", WITH_KEY, ANY),
    effect("ask_password", WITH_KEY, ANY),
    effect("tries", WITH_KEY, ANY),
    effect("verify_passphrase", WITH_KEY, ANY),
    effect("key_slot", &[Luks], ANY),
    effect("volume_key_file", WITH_KEY, ANY),
    effect("volume_key_keyring", &[Luks], ANY),
    effect("token_id", &[Luks], ANY),
    effect("token_type", &[Luks], ANY),
    effect("token_only", &[Luks], ANY),
    effect("persistent", &[Luks], SERVE),
    // Allowed also for uses that never write.
    effect("readonly", ALL, ANY),
    effect("header", &[Luks], ANY),
    effect("header_digest", &[Luks], ANY),
    effect("strict", &[Luks], ANY),
    effect("allow_discards", ALL, SERVE),
    effect("memory", ALL, SERVE),
    effect("direct", IMAGES, DATA),
    effect("backend", &[Scratch], DATA),
    effect("batch_mode", ALL, ANY),
    effect("disable_keyring", ALL, ANY),
    effect("dispatch", ALL, DATA),
    effect("poll", ALL, SERVE),
    effect("no_read_workqueue", ALL, DATA),
    effect("no_write_workqueue", ALL, DATA),
    effect("same_cpu_crypt", ALL, DATA),
    effect("submit_from_crypt_cpus", ALL, DATA),
    effect("high_priority", ALL, DATA),
    effect("cipher_model", ENCRYPTED, DATA),
    effect("cipher", &[Plain, Raw, Scratch], DATA),
    effect("key_size", &[Plain, Scratch], DATA),
    effect("hash", &[Plain], DATA),
    effect("data_offset", &[Plain], DATA),
    effect("skip", &[Plain], DATA),
    effect("size", &[Plain], DATA),
    effect("sector_size", &[Plain, Scratch], DATA),
    effect("iv_large_sectors", &[Plain, Scratch], DATA),
    effect("table", &[Table], DATA),
    effect("table_file", &[Table], DATA),
    effect("served", ALL, SERVE),
    effect("partscan", ALL, SERVE),
    effect("ublk_wait", ALL, SERVE),
    effect("log", ALL, SERVE),
    effect("foreground", ALL, SERVE),
    effect("log_format", ALL, SERVE),
    effect("log_level", ALL, SERVE),
    effect("metrics", ALL, SERVE),
    effect("metrics_any_host", ALL, SERVE),
    effect("json", ALL, SERVE),
    effect("test_passphrase", &[Luks], &[Use::Test]),
    effect("unbound", &[Luks], &[Use::Test]),
];

/// Whether an option may have an effect on `read` and `write`.
pub(crate) fn affects_transfers(id: &str) -> bool {
    let known = EFFECTS.iter().find(|effect| effect.id == id);
    known.is_none_or(|effect| effect.uses.contains(&Use::Transfer))
}

/// Options for a passphrase, which has no use beside a volume key.
const NOT_WITH_VOLUME_KEY: &[&str] = &[
    "key_file",
    "keyfile_size",
    "keyfile_offset",
    "key_description",
    "timeout",
    "ask_password",
    "tries",
    "verify_passphrase",
    "key_slot",
    "hash",
    "token_id",
    "token_type",
    "token_only",
    "unbound",
];

/// Refuses options on the command line that have no effect on the action.
pub(crate) fn check(action: &str, given: &ArgMatches) -> Result<(), Failure> {
    let uses = match action {
        "open" if given.get_flag("test_passphrase") => Use::Test,
        "open" | "serve" | "mount" => Use::Serve,
        "read" | "write" => Use::Transfer,
        _ => return Ok(()),
    };
    let is_given = |id: &str| {
        given.try_contains_id(id).is_ok()
            && given.value_source(id) == Some(ValueSource::CommandLine)
    };
    if action == "mount"
        && let Some(name) = given.get_one::<PathBuf>("image").and_then(|it| mount::open_volume(it))
        && let Some(effect) =
            EFFECTS.iter().find(|effect| effect.id != "json" && is_given(effect.id))
    {
        return Err(Failure::wrong(format!(
            "{} has no effect on {}, which is open already; leave it out, or close it first",
            option(action, effect.id),
            name.name()
        )));
    }
    let target = target(given, is_given)?;
    let has_volume_key = target == Luks && is_given("volume_key_file");
    for effect in EFFECTS.iter().filter(|effect| is_given(effect.id)) {
        if effect.id == "key_size" && has_volume_key {
            continue;
        }
        if !effect.on.contains(&target) || !effect.uses.contains(&uses) {
            return Err(refusal(action, effect, target, uses));
        }
    }
    let volume_key = ["volume_key_file", "volume_key_keyring"].into_iter().find(|id| is_given(id));
    if let Some(volume_key) = volume_key
        && let Some(id) = NOT_WITH_VOLUME_KEY.iter().find(|id| is_given(id))
    {
        return Err(Failure::wrong(format!(
            "{} has no effect beside {}; leave one of them out",
            option(action, id),
            option(action, volume_key)
        )));
    }
    if is_given("iv_large_sectors") && given.get_one::<u32>("sector_size").is_none_or(|s| *s <= 512)
    {
        return Err(Failure::wrong(
            "--iv-large-sectors has an effect only with --sector-size above 512",
        ));
    }
    Ok(())
}

fn target(given: &ArgMatches, is_given: impl Fn(&str) -> bool) -> Result<Target, Failure> {
    let is_plain = given.get_raw("kind").is_some_and(|mut kind| kind.any(|kind| kind == "plain"));
    let is_raw = given.get_raw("cipher").is_some_and(|mut cipher| cipher.any(|c| c == "none"));
    let is_table = is_given("table") || is_given("table_file");
    let target = match (is_given("backend"), is_table, is_raw) {
        (true, true, _) | (_, true, true) => {
            return Err(Failure::wrong(
                "--table describes a whole volume; leave --backend and --cipher out",
            ));
        }
        (true, ..) => Scratch,
        (_, true, _) => Table,
        (_, _, true) => Raw,
        _ if is_plain => Plain,
        _ => Luks,
    };
    Ok(target)
}

/// An option as written on the command line.
fn option(action: &str, id: &str) -> String {
    let long = match (id, action) {
        ("kind", _) => "type",
        ("served", _) => "as",
        ("data_offset", "read" | "write") => "data-offset",
        ("data_offset", _) => "offset",
        ("no_read_workqueue", _) => "perf-no_read_workqueue",
        ("no_write_workqueue", _) => "perf-no_write_workqueue",
        ("same_cpu_crypt", _) => "perf-same_cpu_crypt",
        ("submit_from_crypt_cpus", _) => "perf-submit_from_crypt_cpus",
        ("high_priority", _) => "perf-high_priority",
        (id, _) => return format!("--{}", id.replace('_', "-")),
    };
    format!("--{long}")
}

fn refusal(action: &str, effect: &Effect, target: Target, uses: Use) -> Failure {
    let option = option(action, effect.id);
    if target == Luks && !effect.on.contains(&Luks) && effect.on.contains(&Plain) {
        return Failure::wrong(format!(
            "{option} describes a plain volume; with a LUKS header it cannot be chosen{} (add \
             --type plain if there is no header)",
            if effect.id == "key_size" { ", except with --volume-key-file" } else { "" }
        ));
    }
    if uses == Use::Test && target != Luks {
        return Failure::wrong("--test-passphrase needs a LUKS header to try the passphrase on");
    }
    if !effect.on.contains(&target) {
        let what = match target {
            Luks => "a volume with a LUKS header",
            Plain => "a plain volume",
            Table => "a volume that --table describes",
            Raw => "a volume without encryption (--cipher none)",
            Scratch => "a volume of --backend, whose key is thrown away",
        };
        return Failure::wrong(format!("{option} has no effect on {what}; leave it out"));
    }
    let what = if uses == Use::Test { "--test-passphrase" } else { action };
    Failure::wrong(format!("{option} has no effect on {what}; leave it out"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// Arguments of the actions that are no options of a volume.
    const OWN: &[&str] = &[
        "help",
        "verbose",
        "debug",
        "disable_locks",
        "test_args",
        "first",
        "second",
        "image",
        "offset",
        "length",
        "nbd",
        "nbd_any_user",
        "vhost_user",
        "fuse",
        "fuse_transport",
        "ublk",
        "ublk_wait",
        "ublk_recover",
        "dir",
        "name",
        "options",
        "fstype",
    ];

    #[test]
    fn every_option_of_a_volume_says_what_it_has_an_effect_on() {
        let mut command = Cli::command();
        command.build();
        for action in ["open", "serve", "mount", "read", "write"] {
            let action = command.find_subcommand(action).unwrap();
            for argument in action.get_arguments() {
                let id = argument.get_id().as_str();
                let known = EFFECTS.iter().any(|effect| effect.id == id) || OWN.contains(&id);
                assert!(known, "{}: nobody says what {id} has an effect on", action.get_name());
            }
        }
        for effect in EFFECTS {
            let open = command.find_subcommand("open").unwrap();
            let found = open.get_arguments().find(|argument| argument.get_id() == effect.id);
            let argument = found.unwrap_or_else(|| panic!("no option {}", effect.id));
            let long = argument.get_long().map(|long| format!("--{long}"));
            assert_eq!(long, Some(option("open", effect.id)));
        }
    }
}
