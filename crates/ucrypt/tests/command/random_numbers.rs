//! Salts, keys and what overwrites them come from the kernel's random number generator, and from nowhere else.

use crate::image::{DATA, Image, LUKS1, LUKS2};
use crate::process::{python, run};
use crate::scratch::{Scratch, UCRYPT};

/// Without the kernel's random numbers, nothing that needs some is done: no other source is taken for them.
#[test]
fn without_random_numbers_of_the_kernel_no_header_is_made_or_changed() {
    let pbkdf = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1001"];
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let before = image.bytes();
        let new = scratch.file("new", b"another passphrase").display().to_string();
        let version = format!("luks{}", kind.version);
        let by_new = ["--new-keyfile", &new];
        let actions = [
            vec!["luksFormat", "--type", &version],
            [&["luksAddKey"], &by_new[..]].concat(),
            [&["luksChangeKey"], &by_new[..]].concat(),
            [&["luksRotateKey"], &by_new[..]].concat(),
            vec!["luksConvertKey"],
            vec!["luksRemoveKey"],
            vec!["erase"],
        ];
        for action in actions {
            if action[0] == "luksConvertKey" && kind.version == 1 {
                continue;
            }
            let mut command =
                python(include_str!("scripts/without_random.py"), "ctypes", "python3");
            command.arg(UCRYPT).args(&action).arg("-q");
            if !["luksRemoveKey", "erase"].contains(&action[0]) {
                command.args(pbkdf);
            }
            if action[0] == "erase" {
                command.arg(&image.path);
            } else {
                command.args(image.with_key());
            }
            let ran = run(&mut command, b"");
            assert_ne!(ran.code(), Some(0), "{version} {action:?}: {}", ran.stderr);
            assert!(
                ran.stderr.contains("no random numbers"),
                "{version} {action:?}: {}",
                ran.stderr
            );
            assert!(image.bytes() == before, "{version} {action:?}: something was written");
        }
    }
}
