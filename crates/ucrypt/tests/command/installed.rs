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
    let install = |program: &str, prefix: PathBuf| {
        let mut install = tool("sh", "dash");
        install.arg(root().join("scripts/install")).arg(program).arg(prefix);
        install
    };
    run(&mut install(UCRYPT, prefix.clone()), b"").passes();
    // What an earlier version had installed goes with the next one.
    let [list, earlier] = ["share/doc/ucrypt/files", "share/man/man8/ucrypt-earlier.8.gz"];
    let (list, earlier) = (prefix.join(list), prefix.join(earlier));
    fs::write(&earlier, "").expect("written");
    let listed =
        fs::read_to_string(&list).expect("a list") + earlier.to_str().expect("text") + "\n";
    fs::write(&list, listed).expect("written");
    // One that fails has listed what there is.
    let there = |list: &Path| {
        let (mut installed, listed) = (BTreeSet::new(), fs::read_to_string(list).expect("a list"));
        files(&prefix, &mut installed);
        let listed: BTreeSet<_> = listed.lines().map(PathBuf::from).collect();
        installed.difference(&listed).cloned().collect::<Vec<_>>()
    };
    assert!(!run(&mut install("false", prefix.clone()), b"").succeeded(), "no pages, no success");
    assert_eq!(there(&list), Vec::<PathBuf>::new());
    // The same place in other words: nothing is taken for a file of an earlier installation.
    for same in ["/", "/.", "//../local", ""] {
        let mut spelled = prefix.clone().into_os_string();
        spelled.push(same);
        run(&mut install(UCRYPT, spelled.into()), b"").passes();
        assert!(prefix.join("bin/ucrypt").exists() && !earlier.exists(), "{same}");
    }
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
