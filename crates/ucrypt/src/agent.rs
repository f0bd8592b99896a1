//! Asks for passphrases by `systemd-ask-password`(1): an agent puts the question to whoever is there, on the
//! console at boot, on the boot screen, or at a terminal. Nothing is kept in the kernel's keyring.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::passphrase::{Secret, read_printed};
use crate::programs;

const PROGRAM: &str = "systemd-ask-password";

/// A way to the agents.
#[derive(Debug)]
pub(crate) struct Agent {
    program: PathBuf,
}

impl Agent {
    /// # Errors
    /// This system has no such agents.
    pub(crate) fn find() -> Result<Self, Failure> {
        let program = programs::find(PROGRAM).ok_or_else(|| {
            Failure::device(
                "--ask-password needs systemd-ask-password (package systemd); without systemd, leave it \
                 out or use --key-file",
            )
        })?;
        Ok(Self { program })
    }

    /// Asks for a passphrase, which has to be complete within `timeout` seconds; 0 is for ever.
    pub(crate) fn ask(&self, prompt: &str, timeout: u64) -> Result<Secret, Failure> {
        let failed = |error| Failure::device(format!("cannot run {PROGRAM}: {error}"));
        let mut asking = Command::new(&self.program)
            .args(["--icon=drive-harddisk", "--id=ucrypt", &format!("--timeout={timeout}")])
            .arg(format!("{prompt}:"))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let answer = match asking.stdout.take() {
            Some(mut stdout) => read_printed(&mut stdout).map_err(failed),
            None => Ok(Secret::default()),
        };
        let status = asking.wait().map_err(failed)?;
        if !status.success() {
            return Err(Failure::wrong(
                "systemd-ask-password has returned no passphrase (its time may be over, see --timeout); try \
                 again, or use --key-file",
            ));
        }
        answer
    }
}
