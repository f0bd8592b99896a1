//! What `scripts/install` puts where, and takes away again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::book::{prepare, root};
use crate::book_commands::commands;
use crate::pages::run_shell;
use crate::process::{run, tool};
use crate::scratch::UCRYPT;

/// All files below a directory.
fn files(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.insert(path);
        }
    }
}

#[test]
fn what_is_installed_is_listed_and_goes_with_its_list() {
    let scratch = prepare();
    let prefix = scratch.path("usr/local");
    let mut install = tool("sh", "dash");
    install.arg(root().join("scripts/install")).arg(UCRYPT).arg(&prefix);
    run(&mut install, b"").passes();
    // What an earlier version had installed goes with the next one.
    let [list, earlier] = ["share/doc/ucrypt/files", "share/man/man8/ucrypt-earlier.8.gz"];
    let (list, earlier) = (prefix.join(list), prefix.join(earlier));
    fs::write(&earlier, "").expect("written");
    let listed =
        fs::read_to_string(&list).expect("a list") + earlier.to_str().expect("text") + "\n";
    fs::write(&list, listed).expect("written");
    run(&mut install, b"").passes();
    assert!(!earlier.exists(), "it was left");
    for page in
        ["man5/ucrypttab.5", "man7/ucrypt-containers.7", "man7/ucrypt-formats.7", "man8/ucrypt.8"]
    {
        let page = prefix.join(format!("share/man/{page}.gz"));
        assert!(page.exists(), "{} was not installed", page.display());
    }
    // systemd reads the units of the socket, with the program where it was installed.
    let units = prefix.join("lib/systemd/system");
    let socket = scratch.path("ucrypt-nbd@disk.socket");
    fs::copy(units.join("ucrypt-nbd@.socket"), &socket).expect("copied");
    let mut verify = tool("systemd-analyze", "systemd");
    verify.args(["verify", "--man=no"]).arg(&socket);
    // With those of the system.
    verify.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
    assert_eq!(run(&mut verify, b"").exits(0).stderr, "");
    let list = fs::read_to_string(&list).expect("a list");
    let mut installed = BTreeSet::new();
    files(&prefix, &mut installed);
    assert_eq!(installed, list.lines().map(PathBuf::from).collect());
    let mut blocks = commands().into_iter().map(|(_, block)| block);
    let remove = blocks.find(|block| block.starts_with("xargs")).expect("a way to remove it");
    let remove = remove.lines().next().expect("a line");
    let remove = remove.replace("/usr/local", prefix.to_str().expect("text"));
    run_shell(&scratch, "install", &remove);
    let mut left = BTreeSet::new();
    files(&prefix, &mut left);
    assert_eq!(left, BTreeSet::new());
}
