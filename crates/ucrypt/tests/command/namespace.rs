//! Scripts that mount: in a mount namespace of their own, which takes every mount away with it,
//! however the script ends.

use std::ffi::OsStr;
use std::process::Command;

use crate::process::judge;
use crate::scratch::Scratch;

/// A shell script in the directory of the test, with its arguments as `$1` and so on. It ends at
/// the first command that fails. `m` is a directory to mount at.
pub(crate) fn script<S: AsRef<OsStr>>(scratch: &Scratch, text: &str, arguments: &[S]) -> Command {
    assert!(rustix::process::geteuid().is_root(), "this test mounts, and has to run as root");
    let mut command = judge("unshare", "util-linux");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-eu", "-c"]);
    command.arg(format!("mkdir -p m\n{text}")).arg("sh").args(arguments);
    command.current_dir(scratch.path(""));
    command
}
