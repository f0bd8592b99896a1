//! Man pages and completions.

use std::fs;

use crate::image::{DATA, Image, LUKS2, PASSPHRASE};
use crate::namespace::script;
use crate::process::{run, tool};
use crate::scratch::{Scratch, UCRYPT};

#[path = "../../src/pages/examples.rs"]
mod examples;

use examples::EXAMPLES;

/// The actions that `--help` lists.
fn actions(scratch: &Scratch) -> Vec<String> {
    let help = run(&mut scratch.ucrypt(&["--help"]), b"").text();
    let listed = help.lines().skip_while(|line| *line != "Volumes:");
    let listed = listed.take_while(|line| *line != "Options:");
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.map(str::to_owned);
    names.filter(|name| name != "help").collect()
}

#[test]
fn every_action_has_a_page_without_mistakes_and_with_all_its_options() {
    let scratch = Scratch::new();
    let dir = scratch.path("pages");
    fs::create_dir(&dir).expect("made");
    run(scratch.ucrypt(&["man-pages"]).arg(&dir), b"").passes();
    let actions = actions(&scratch);
    assert!(actions.len() > 20, "{actions:?}");
    for action in actions {
        let page = dir.join(format!("ucrypt-{action}.8"));
        let mut groff = tool("groff", "groff-base");
        let shown = run(groff.args(["-man", "-Tascii", "-ww", "-P-cbou"]).arg(&page), b"");
        assert_eq!(shown.stderr, "", "{action}");
        let shown = shown.text();
        let help = run(&mut scratch.ucrypt(&[&action, "--help"]), b"").text();
        let options = help.split_whitespace().filter(|word| word.starts_with("--"));
        for option in options.map(|word| word.trim_end_matches([',', ';', '.', ')', '\''])) {
            assert!(shown.contains(option), "{action}: {option} is not in its page:\n{shown}");
        }
    }
    for part in ["list", "run", "sim", "advise", "report"] {
        let page = fs::read_to_string(dir.join(format!("ucrypt-lab-{part}.8"))).expect("a page");
        assert!(page.contains(&format!("ucrypt lab {part}")), "{page}");
    }
    let table = ["\\040", "keyfile-offset=", "nofail", "tpm2-device", "--allow-discards"];
    let containers = ["vhost-user-blk", "SYS_ADMIN", "io_uring_register", "--stop-timeout 40"];
    let formats = ["LUKS1", "plain64be", "4096", "OPAL", "VeraCrypt", "aes-xts-plain64"];
    for (page, words) in [
        ("ucrypttab.5", &table[..]),
        ("ucrypt-containers.7", &containers),
        ("ucrypt-formats.7", &formats),
    ] {
        let mut groff = tool("groff", "groff-base");
        let shown = run(groff.args(["-man", "-Tascii", "-ww", "-P-cbou"]).arg(dir.join(page)), b"");
        assert_eq!(shown.stderr, "", "{page}");
        // Words of one option may stand on two lines.
        let shown = shown.text().split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            assert!(shown.contains(word), "{word} is not in {page}:\n{shown}");
        }
    }
    for page in fs::read_dir(&dir).expect("pages") {
        let page = page.expect("a page").path();
        let text = fs::read_to_string(&page).expect("text");
        let is_alias = text.starts_with(".so ");
        assert!(is_alias || text.contains("\n.SH EXAMPLES\n"), "{}: no examples", page.display());
    }
    run(&mut scratch.ucrypt(&["man-pages", "/nonexistent"]), b"").refuses(4);
}

/// Runs commands of a document in the directory of a test. `disk.img` and the name `work` become
/// those of the test, and key derivations are shortened. Whoever asks gets the passphrase.
pub(crate) fn run_shell(scratch: &Scratch, title: &str, commands: &str) {
    let mut commands = commands
        .replace("disk.img", &scratch.path("disk.img").display().to_string())
        .replace(" work", &format!(" {}", scratch.unique()))
        .replace("/ucrypt/work", &format!("/ucrypt/{}", scratch.unique()));
    let derives = ["Format", "AddKey", "ChangeKey", "ConvertKey", "RotateKey"];
    for action in derives.map(|name| format!("ucrypt luks{name}")) {
        commands = commands.replace(&action, &format!("{action} --iter-time 10"));
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", scratch.path("bin").display());
    let words = ["120", "bash", "-euo", "pipefail", "-c", &commands];
    // Scripts of other tests have copies of what is mounted where all see it, and keep it in use.
    let mounts = ["\nmount ", "ucrypt mount "].iter().any(|word| commands.contains(word));
    let mut shell = if mounts {
        script(scratch, "exec timeout \"$@\"", &words)
    } else {
        let mut shell = tool("timeout", "coreutils");
        shell.args(words).current_dir(scratch.path(""));
        shell
    };
    shell
        .env("PATH", path)
        .env("HOME", scratch.path(""))
        .env("XDG_RUNTIME_DIR", scratch.path("run"));
    let passphrases = [PASSPHRASE, b"\n"].concat().repeat(40);
    let ran = run(&mut shell, &passphrases);
    assert!(ran.succeeded(), "{title}: {commands}: {ran:?}");
}

/// Pages whose examples take minutes, or a terminal, and the tests that run such commands smaller. Here
/// their command lines are read only.
const ELSEWHERE: &[(&str, &str)] = &[
    ("top", "tests/command/top.rs"),
    ("benchmark", "tests/benchmark.rs"),
    ("demo", "tests/command/demo.rs"),
    ("lab", "tests/command/lab.rs"),
    ("lab-run", "tests/command/lab.rs"),
    ("lab-sim", "tests/command/lab.rs"),
    ("lab-report", "tests/command/lab.rs"),
    ("lab-advise", "tests/command/lab_advise.rs"),
];

#[test]
fn the_examples_of_the_man_pages_run() {
    let scratch = Scratch::new();
    let mut known = actions(&scratch);
    known.extend(["ucrypt", "containers", "formats"].map(str::to_owned));
    let parts = ["list", "run", "sim", "advise", "report"];
    known.extend(parts.map(|part| format!("lab-{part}")));
    for (action, examples) in EXAMPLES {
        assert!(known.iter().any(|known| known == action), "there is no page {action}");
        let scratch = Scratch::new();
        if ELSEWHERE.iter().any(|(of, _)| of == action) {
            for (_, line) in *examples {
                let words: Vec<_> = line.split(' ').skip(1).chain(["--test-args"]).collect();
                run(&mut scratch.ucrypt(&words), b"").passes();
            }
            continue;
        }
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        fs::rename(&image.path, scratch.path("disk.img")).expect("renamed");
        scratch.file("key", PASSPHRASE);
        scratch.file("new.key", b"another passphrase");
        scratch.sparse("old.img", if *action == "write" { 4096 } else { 24 << 20 });
        fs::create_dir_all(scratch.path(".local/share/bash-completion/completions")).expect("made");
        fs::create_dir(scratch.path("bin")).expect("made");
        std::os::unix::fs::symlink(UCRYPT, scratch.path("bin/ucrypt")).expect("linked");
        fs::create_dir(scratch.path("mnt")).expect("made");
        if ["mount", "umount"].contains(action) {
            let system = scratch.sparse("system", DATA);
            let mut make = tool("mkfs.ext4", "e2fsprogs");
            // In blocks of the volume's sectors.
            run(make.args(["-q", "-b", "4096"]).arg(&system), b"").passes();
            let mut write = scratch.ucrypt(&["write", "--key-file"]);
            write.arg(scratch.path("key")).arg(scratch.path("disk.img"));
            run(&mut write, &fs::read(&system).expect("read")).passes();
        }
        let backup = scratch.path("header.backup");
        let mut save = scratch.ucrypt(&["luksHeaderBackup", "--header-backup-file"]);
        run(save.arg(backup).arg(scratch.path("disk.img")), b"").passes();
        let lines: Vec<_> = examples.iter().map(|(_, line)| *line).collect();
        if lines.iter().any(|line| line.starts_with("ucrypt mount ")) {
            // What one of them mounts, the next one has to see.
            run_shell(&scratch, action, &lines.join("\n"));
        } else {
            for line in lines {
                run_shell(&scratch, action, line);
            }
        }
    }
}

#[test]
fn completions_know_every_action_and_bash_completes_with_them() {
    let scratch = Scratch::new();
    let actions = actions(&scratch);
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&mut scratch.ucrypt(&["completions", shell]), b"").text();
        for action in &actions {
            assert!(script.contains(action.as_str()), "{shell}: {action}");
        }
        for old in ["luksOpen", "plainOpen", "luksClose"] {
            assert!(script.contains(old), "{shell}: {old}");
        }
        // What only programs call.
        for internal in ["in-background", "systemd-generator", "man-pages"] {
            assert!(!script.contains(internal), "{shell}: {internal}");
        }
        scratch.file(shell, script.as_bytes());
    }
    let line = "source ./bash; COMP_WORDS=(ucrypt luksKil); COMP_CWORD=1; \
                _ucrypt ucrypt luksKil ucrypt; echo \"${COMPREPLY[@]}\"";
    let mut bash = tool("bash", "bash");
    let found = run(bash.args(["-euc", line]).current_dir(scratch.path("")), b"").text();
    assert_eq!(found, "luksKillSlot\n");
    run(&mut scratch.ucrypt(&["completions", "csh"]), b"").exits(1);
}
