//! "Are you sure?", as in cryptsetup: asks only a person at a terminal, and never in batch mode.

use crate::failure::Failure;
use crate::terminal::Terminal;

/// Shows `warning` and fails unless the answer is `YES`. Without a terminal, or in batch mode,
/// succeeds without asking.
pub(crate) fn confirm(warning: &str, batch_mode: bool) -> Result<(), Failure> {
    match Terminal::of_stdin() {
        Some(terminal) if !batch_mode => confirm_at(&terminal, warning),
        _ => Ok(()),
    }
}

/// As [`confirm`], with the exit code and the words that cryptsetup has when no key was touched.
pub(super) fn confirm_on_keys(
    warning: &str,
    batch_mode: bool,
    aborted: &str,
) -> Result<(), Failure> {
    match Terminal::of_stdin() {
        Some(terminal) if !batch_mode && !agrees(&terminal, warning)? => {
            Err(Failure::denied(format!("operation aborted{aborted}")))
        }
        _ => Ok(()),
    }
}

/// As [`confirm`], at this terminal.
pub(crate) fn confirm_at(terminal: &Terminal, warning: &str) -> Result<(), Failure> {
    if agrees(terminal, warning)? {
        return Ok(());
    }
    Err(Failure::wrong("operation aborted: the answer was not YES"))
}

fn agrees(terminal: &Terminal, warning: &str) -> Result<bool, Failure> {
    let failed = |error| Failure::wrong(format!("cannot read from the terminal: {error}"));
    terminal.agrees(warning).map_err(failed)
}
