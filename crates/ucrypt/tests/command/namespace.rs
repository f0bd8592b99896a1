//! Runs scripts that mount in a mount namespace of their own, which removes every mount however the
//! script ends.

use std::ffi::OsStr;
use std::process::Command;

use crate::process::tool;
use crate::scratch::Scratch;

/// Gives up the copies of what other tests have mounted: they would keep it in use until the script ends.
const FORGET_OTHERS: &str = "
    for place in $(cut -d ' ' -f 2 /proc/self/mounts | grep /ucrypt-test- | sort -r); do
        case $place in \"$PWD\"/*) ;; *) umount --lazy \"$place\" 2>/dev/null || true ;; esac
    done";

/// A shell script in the directory of the test, with its arguments as `$1` and so on. It ends at
/// the first command that fails. `m` is a directory to mount at.
pub(crate) fn script<S: AsRef<OsStr>>(scratch: &Scratch, text: &str, arguments: &[S]) -> Command {
    assert!(rustix::process::geteuid().is_root(), "this test mounts, and has to run as root");
    let mut command = tool("unshare", "util-linux");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-eu", "-c"]);
    command.arg(format!("{FORGET_OTHERS}\nmkdir -p m\n{text}")).arg("sh").args(arguments);
    command.current_dir(scratch.path(""));
    command
}

/// Put this at the beginning of a script: it gives the script its own `/dev` of single nodes, as in
/// a container. `nodes NAME...` adds some; `OTHER:NAME` is `OTHER` under that name.
pub(crate) const OWN_DEV: &str = "
    mkdir nodes; mount --rbind /dev nodes; mount -t tmpfs none /dev
    nodes() {
        for node in $*; do
            touch /dev/${node#*:}; mount --bind nodes/${node%%:*} /dev/${node#*:}
        done
    }
    nodes null urandom";
