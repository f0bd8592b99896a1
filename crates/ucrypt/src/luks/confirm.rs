//! "Are you sure?", as cryptsetup asks it: only a person at a terminal, and never in batch mode.

use std::io::{self, BufRead, Write};

use rustix::termios::isatty;

use crate::failure::Failure;

/// Shows `warning` and goes on only if the answer is a `YES`.
pub(super) fn confirm(warning: &str, batch_mode: bool) -> Result<(), Failure> {
    if batch_mode || !isatty(io::stdin()) {
        return Ok(());
    }
    let failed =
        |error: io::Error| Failure::wrong(format!("cannot read from the terminal: {error}"));
    eprint!("\nWARNING!\n========\n{warning}\n\nAre you sure? (Type 'yes' in capital letters): ");
    io::stderr().flush().map_err(failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    if answer.trim_end_matches(['\r', '\n']) == "YES" {
        Ok(())
    } else {
        Err(Failure::wrong("operation aborted: the answer was not YES"))
    }
}
