//! Corners that few walk, done by this command on one image and by cryptsetup on a copy of it.

mod luks;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use luks::both::{Both, LUKS1, LUKS2, header};
use luks::{CHEAP, Scratch, Terminal, UCRYPT, code, good, run, stderr, text, ucrypt};

/// As cryptsetup's, the file of a detached header grows. An image whose data follows does not.
#[test]
fn a_detached_header_is_restored_into_an_empty_file() {
    for kind in [&["--type", "luks1"][..], &["--luks2-keyslots-size", "3M"]] {
        let scratch = Scratch::new();
        let (data, place) = (scratch.make("data", 1 << 20), scratch.path("header"));
        let backup = scratch.path("backup");
        let at = ["--header", text(&place), text(&data)];
        let file = ["--header-backup-file", text(&backup)];
        good(&ucrypt(&[&["luksFormat", "-q"], kind, CHEAP, &at].concat(), b"one"));
        good(&ucrypt(&[&["luksHeaderBackup"], &file[..], &at].concat(), b""));
        for target in [&at[..], &[text(&place)]] {
            for program in [UCRYPT, "cryptsetup"] {
                fs::write(&place, b"").unwrap();
                good(&run(
                    program,
                    &[&["luksHeaderRestore", "-q"], &file[..], target].concat(),
                    b"",
                ));
                for opener in [UCRYPT, "cryptsetup"] {
                    good(&run(opener, &[&["open", "--test-passphrase"], &at[..]].concat(), b"one"));
                }
            }
        }
    }
    let both = Both::new(LUKS2);
    let backup = both.scratch.path("backup");
    let file = ["--header-backup-file", text(&backup)];
    good(&ucrypt(&[&["luksHeaderBackup"], &file[..], &[text(&both.ours)]].concat(), b""));
    let short = both.scratch.make("short", 1 << 20);
    let restore = [&["luksHeaderRestore", "-q"], &file[..], &[text(&short)]].concat();
    let ran = ucrypt(&restore, b"");
    assert!(code(&ran) == 1 && stderr(&ran).contains("larger than its image"), "{}", stderr(&ran));
    assert_eq!(fs::metadata(&short).unwrap().len(), 1 << 20);
    // What is wrong with the backup is not said of the image.
    fs::write(&backup, [0; 8192]).unwrap();
    let ran = ucrypt(&restore, b"");
    assert!(code(&ran) == 1 && stderr(&ran).contains("the backup cannot be used: no LUKS header"));
}
