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

/// As [`confirm`], at this terminal.
pub(crate) fn confirm_at(terminal: &Terminal, warning: &str) -> Result<(), Failure> {
    match terminal.agrees(warning) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::wrong("operation aborted: the answer was not YES")),
        Err(error) => Err(Failure::wrong(format!("cannot read from the terminal: {error}"))),
    }
}
