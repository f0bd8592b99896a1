//! Every action that changes a header is fuzzed (`scripts/fuzz`).

use std::collections::BTreeSet;

use clap::{Command, CommandFactory};

use crate::Cli;

/// The actions that change headers, and what fuzzes what they do.
const FUZZED: &[(&str, &[&str])] = &[
    // --persistent, and a copy that is damaged.
    ("open", &["set-labels-and-flags", "repair"]),
    ("luksUUID", &["set-uuid"]),
    ("luksAddKey", &["add-key", "add-unbound-key"]),
    ("luksRemoveKey", &["remove-keyslot-0"]),
    ("luksChangeKey", &["change-key"]),
    ("luksKillSlot", &["remove-keyslot-1"]),
    ("luksConvertKey", &["convert-key"]),
    ("luksRotateKey", &["rotate-key"]),
    ("config", &["set-labels-and-flags", "set-priority"]),
    ("token", &["add-token", "remove-token", "import-token", "unassign-token"]),
    ("luksHeaderRestore", &["restore", "restore-mutated-backup"]),
    ("convert", &["convert"]),
    ("repair", &["repair-by-request"]),
    ("erase", &["erase"]),
];

/// The actions that change none, or open volumes as `open` does.
const OTHERS: &[&str] = &[
    "close",
    "status",
    "list",
    "mount",
    "umount",
    "attach",
    "detach",
    "top",
    "resize",
    "luksSuspend",
    "luksResume",
    "serve",
    "read",
    "write",
    // It reads nothing of what was there.
    "luksFormat",
    "luksDump",
    "isLuks",
    "luksHeaderBackup",
    "benchmark",
    "doctor",
    "demo",
    "lab",
    "completions",
];

#[test]
fn every_action_that_changes_a_header_is_fuzzed_and_nothing_else_is() {
    let mut command = Cli::command();
    command.build();
    let shown = command.get_subcommands().filter(|action| !action.is_hide_set());
    let shown: BTreeSet<&str> =
        shown.map(Command::get_name).filter(|name| *name != "help").collect();
    let changing = FUZZED.iter().map(|(action, _)| *action);
    let listed: Vec<&str> = changing.chain(OTHERS.iter().copied()).collect();
    assert_eq!(shown, listed.iter().copied().collect(), "who changes headers, and is it fuzzed?");
    assert_eq!(shown.len(), listed.len(), "an action stands twice");
    let script = include_str!("../../../../scripts/fuzz");
    let fuzzed = script.split("actions=\"").nth(1).and_then(|rest| rest.split('"').next());
    let fuzzed: BTreeSet<&str> = fuzzed.expect("a list").split_whitespace().collect();
    assert_eq!(fuzzed, FUZZED.iter().flat_map(|(_, targets)| *targets).copied().collect());
}

#[test]
fn every_token_action_that_changes_a_header_is_fuzzed() {
    let mut command = Cli::command();
    command.build();
    let token = command.find_subcommand("token").unwrap();
    let action = token.get_arguments().find(|argument| argument.get_id() == "action").unwrap();
    let (_, fuzzed) = FUZZED.iter().find(|(action, _)| *action == "token").unwrap();
    let values = action.get_possible_values();
    let names: BTreeSet<String> =
        values.iter().map(|value| format!("{}-token", value.get_name())).collect();
    let changing = fuzzed.iter().map(|name| (*name).to_owned());
    assert_eq!(names, changing.chain(["export-token".to_owned()]).collect());
}
