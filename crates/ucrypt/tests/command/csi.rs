//! The script for the node plugin of a CSI driver, on loop devices.

use std::fs;

use crate::image::PASSPHRASE;
use crate::namespace::script;
use crate::process::run;
use crate::scratch::{Scratch, UCRYPT};

const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/csi/node");
const CALLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/scripts/csi.sh");

#[test]
fn the_calls_of_a_csi_driver_can_be_made_again_and_lose_nothing() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("bin")).expect("made");
    std::os::unix::fs::symlink(UCRYPT, scratch.path("bin/ucrypt")).expect("linked");
    scratch.file("key", PASSPHRASE);
    scratch.file("wrong", b"another passphrase");
    // XFS takes no less than 300 MiB.
    let image = scratch.sparse("image", 320 << 20);
    let mut format = scratch.ucrypt(&["luksFormat", "-q", "--pbkdf", "pbkdf2"]);
    format.args(["--pbkdf-force-iterations", "1000", "--key-file"]).arg(scratch.path("key"));
    run(format.arg(image), b"").passes();
    let bin = scratch.path("bin").display().to_string();
    let arguments = ["600", "bash", CALLS, NODE, &scratch.unique()];
    let mut shell = script(&scratch, "exec timeout \"$@\"", &arguments);
    shell
        .env("PATH", format!("{bin}:/usr/sbin:/usr/bin:/sbin:/bin"))
        .env("XDG_RUNTIME_DIR", scratch.path("run"));
    run(&mut shell, b"").passes();
}
