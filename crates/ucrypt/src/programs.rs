//! Programs of other packages that this command runs.

use std::fs;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};

/// Where programs of the system are, if the path of the user does not name these.
const SYSTEM: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Most bytes of what a program says that are kept.
const SAID_MAX: u64 = 4096;

/// The program of this name, in the path or where the system has its own.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SYSTEM.map(PathBuf::from));
    places
        .filter(|place| place.is_absolute())
        .map(|place| place.join(name))
        .find(|it| is_program(it))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    /// In one line.
    pub(crate) said: String,
}

/// Runs a program to its end, in plain English. What it leaves in the background is not waited for.
pub(crate) fn run(command: &mut Command) -> io::Result<Ran> {
    // Not a pipe, whose end a program in the background might keep; and in memory, because there may be no
    // directory for temporary files, or no room: a volume is unmounted all the same.
    let mut said = File::from(memfd_create("said", MemfdFlags::CLOEXEC)?);
    let to = || said.try_clone().map(Stdio::from);
    let (out, err) = (to()?, to()?);
    let status =
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(out).stderr(err).status()?;
    Ok(Ran { status, said: text(&mut said)? })
}

fn text(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(SAID_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_and_what_it_says_is_one_line() {
        assert_eq!(find("no-such-program-at-all"), None);
        let sh = find("sh").unwrap();
        let ran =
            run(Command::new(sh).args(["-c", "echo one; echo; echo two >&2; exit 3"])).unwrap();
        assert_eq!((ran.status.code(), ran.said.as_str()), (Some(3), "one; two"));
    }
}
