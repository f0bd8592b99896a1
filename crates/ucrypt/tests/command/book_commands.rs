//! The command lines of all pages in `docs/` and of the README run, or are listed with what else runs
//! them. A line that is in neither list fails the test.

use std::collections::BTreeSet;
use std::fs;

use crate::book::{markdown, prepare, root};
use crate::pages::run_shell;
use crate::process::{run, tool};
use crate::scratch::Scratch;

/// A block of commands that runs in a directory with `disk.img`, whose passphrase is in `key` and on
/// standard input, `content`, which the volume holds, and the directory `mnt`.
struct Sample {
    page: &'static str,
    /// What its first line begins with.
    begins: &'static str,
    /// Commands that make what the page speaks of.
    before: &'static [&'static str],
    /// What is different in a test: places outside of its directory, servers in the foreground.
    replaced: &'static [(&'static str, &'static str)],
    /// Commands that look at the result.
    after: &'static str,
}

const BACKUP: &str = "ucrypt luksHeaderBackup --header-backup-file disk.header disk.img";
const LOSE_HEADER: &str = "dd if=/dev/zero of=disk.img bs=1M count=15 conv=notrunc status=none";
const SAVE_KEY: &str = "ucrypt luksDump --dump-volume-key --volume-key-file volume.key --key-file key \
                        disk.img";
const HOLDS_CONTENT: &str =
    "ucrypt read --key-file key --length 1M disk.img | cmp -n 1048576 - content";
/// Serves for a moment, as a program in the background, which cannot ask for a passphrase.
const SERVED: &str = "disk.sock --key-file key > ready & \
                      until grep -q disk.sock ready; do sleep 0.1; done; \
                      nbdinfo 'nbd+unix:///?socket=disk.sock'; kill $!; wait $!";

const SAMPLES: &[Sample] = &[
    Sample {
        page: "docs/recovery.md",
        begins: "head -c 16M disk.img",
        before: &[],
        replaced: &[],
        after: "cmp -n 1048576 /dev/ucrypt/work content; ucrypt close work; \
                head -c 16M disk.img | cmp - header.before",
    },
    Sample {
        page: "docs/recovery.md",
        begins: "ucrypt open --readonly --header disk.header",
        before: &[BACKUP, LOSE_HEADER],
        replaced: &[(
            "ucrypt close work",
            "cmp -n 1048576 /dev/ucrypt/work content; ucrypt close work",
        )],
        after: HOLDS_CONTENT,
    },
    Sample {
        page: "docs/recovery.md",
        begins: "ucrypt luksAddKey --volume-key-file",
        before: &[SAVE_KEY, "ucrypt erase -q disk.img"],
        replaced: &[],
        after: HOLDS_CONTENT,
    },
    Sample {
        page: "docs/recovery.md",
        begins: "ucrypt open --type plain",
        before: &[SAVE_KEY, LOSE_HEADER],
        replaced: &[],
        after: "cmp -n 1048576 /dev/ucrypt/work content; ucrypt close work",
    },
    Sample {
        page: "docs/recovery.md",
        begins: "ucrypt luksHeaderBackup --header-backup-file disk.header.new",
        before: &[],
        replaced: &[],
        after: "",
    },
    Sample {
        page: "docs/recovery.md",
        begins: "sync",
        before: &["ucrypt open --key-file key disk.img work"],
        replaced: &[
            // Without a name it waits for the suspended volumes of other tests.
            ("sync\n", "sync disk.img\n"),
            ("/backup/disk.img", "copy.img"),
        ],
        after: "ucrypt close work; ucrypt read --key-file key --length 1M copy.img | cmp -n 1048576 - content",
    },
    Sample {
        page: "docs/mount.md",
        begins: "ucrypt mount disk.img",
        before: &[],
        replaced: &[("/mnt/disk", "mnt")],
        after: "",
    },
    Sample {
        page: "docs/mount.md",
        begins: "disk=$(ucrypt open disk.img work)",
        before: &["mkdir ~/work"],
        replaced: &[("/sbin/mkfs.ext4", "/sbin/mkfs.ext4 -q")],
        after: "ucrypt umount ~/work; ucrypt close work",
    },
    Sample {
        page: "docs/nbd.md",
        begins: "ucrypt serve --key-file key",
        before: &[],
        replaced: &[
            ("/srv/disk/sock", "disk.sock"),
            (" &\n", " > ready &\n"),
            // The line that the server prints.
            ("# nbd: ", "until grep -q disk.sock ready; do sleep 0.1; done # "),
            ("chgrp kvm", "chgrp daemon"),
        ],
        after: "test \"$(stat -c %a-%G disk.sock)\" = 660-daemon; kill $!; wait $!",
    },
    Sample {
        page: "docs/operations.md",
        begins: "ucrypt open --metrics",
        before: &[],
        // No fixed port: others may have it.
        replaced: &[
            ("127.0.0.1:9100 ", "\"unix:$PWD/metrics.sock\" "),
            ("curl http://127.0.0.1:9100", "curl -sf --unix-socket metrics.sock http://localhost"),
        ],
        after: "ucrypt close work",
    },
    Sample {
        page: "docs/containers.md",
        begins: "ucrypt serve disk.img",
        before: &[],
        replaced: &[
            (
                "/shared/disk.sock\n",
                "disk.sock > ready & until grep -q disk.sock ready; do sleep 0.1; done\n",
            ),
            ("/shared/disk.sock", "disk.sock"),
        ],
        after: "kill $!; wait $!",
    },
    Sample {
        page: "docs/containers.md",
        begins: "jq",
        before: &["echo '{\"syscalls\": [{\"names\": [\"read\"]}]}' > profile.json"],
        replaced: &[("/usr/share/containers/seccomp.json", "profile.json")],
        after: "jq -e '.syscalls | map(.names) == [[\"read\"], \
                [\"io_uring_setup\", \"io_uring_enter\", \"io_uring_register\"]]' ucrypt.json",
    },
    Sample {
        page: "docs/boot.md",
        begins: "mkdir -p -m 700",
        before: &["mkdir etc"],
        replaced: &[
            ("/etc/", "etc/"),
            ("/srv/work.img", "new.img"),
            ("10G", "1G"),
            ("\"work new.img etc/keys", "\" work $PWD/new.img $PWD/etc/keys"),
            ("luks,nofail", "luks,as=loop"),
            ("tach work", "tach --ucrypttab etc/ucrypttab work"),
            ("mkfs.ext4", "mkfs.ext4 -q"),
            ("mkdir /work", "mkdir work"),
        ],
        after: "test -z \"$(ucrypt list)\"; test -s etc/fstab",
    },
    Sample {
        page: "docs/boot.md",
        begins: "ucrypt attach --check",
        before: &["echo 'disk /dev/sdz none luks' > table"],
        replaced: &[("/etc/crypttab", "table")],
        after: "",
    },
    Sample {
        page: "docs/install.md",
        begins: "ucrypt detach --all",
        before: &[
            "echo \"work disk.img $PWD/key luks,as=nbd\" > table",
            "ucrypt attach --all --ucrypttab table",
        ],
        replaced: &[("--all  ", "--all --ucrypttab table  ")],
        after: "test -z \"$(ucrypt list)\"",
    },
    Sample {
        page: "README.md",
        begins: "truncate -s 10G",
        before: &[],
        replaced: &[("10G", "1G"), ("mkfs.ext4", "mkfs.ext4 -q")],
        after: "test -z \"$(ucrypt list)\"",
    },
    Sample {
        page: "README.md",
        begins: "ucrypt mount disk.img",
        before: &[],
        replaced: &[("/mnt", "mnt")],
        after: "",
    },
    Sample {
        page: "README.md",
        begins: "ucrypt serve disk.img --nbd",
        before: &[],
        replaced: &[("/tmp/disk.sock", SERVED)],
        after: "",
    },
];

/// Command lines that do not run here: the page, what the line begins with, and what runs them instead.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("docs/benchmarks.md", "ucrypt lab run exports", MEASURED),
    ("docs/benchmarks.md", "cargo run --release -p ucrypt-lab --example aims", MEASURED),
    ("docs/boot.md", "install -d -m 700 /etc/ucrypt/nbd", UNITS),
    ("docs/boot.md", "ln -s /srv/disk.img", UNITS),
    ("docs/boot.md", "install -m 600 key", UNITS),
    ("docs/boot.md", "systemctl enable --now ucrypt-nbd@", UNITS),
    ("docs/boot.md", "qemu-img info 'nbd+unix:///?socket=/run/ucrypt-nbd", UNITS),
    ("docs/ciphers.md", "ucrypt benchmark", "tests/benchmark.rs, in less time"),
    ("docs/ciphers.md", "make bench-ciphers", MEASURED),
    ("docs/containers.md", "podman run", PODMAN),
    ("docs/containers.md", "serve --key-file /data/key", PODMAN),
    ("docs/containers.md", "nbdcopy data", PODMAN),
    ("docs/containers.md", "podman stop", PODMAN),
    ("docs/containers.md", "install -", TRIED),
    ("docs/containers.md", "podman kube play", TRIED),
    ("docs/containers.md", "podman pod stop", TRIED),
    ("docs/containers.md", "nsenter", "needs a node of a cluster; not tried, as the page says"),
    ("docs/install.md", "xargs -d '\\n' -a /usr/local", INSTALLED),
    (
        "docs/install.md",
        "systemctl daemon-reload",
        "needs systemd as process 1; tests/systemd boots it",
    ),
    ("docs/lab.md", "ucrypt lab", "tests/command/lab.rs and lab_advise.rs, in less time"),
    ("docs/memory.md", "cargo run --release -p ucrypt-lab --example page_cache", MEASURED),
    ("docs/models.md", "cargo test -p ucrypt-backend fit", "the suite"),
    ("docs/operations.md", "cargo bench --package ucrypt-engine", MEASURED),
    ("docs/operations.md", "cargo run --release -p ucrypt-lab --example engine_builds", MEASURED),
    ("docs/mount.md", "systemd-run --scope", "needs systemd as process 1; by hand"),
    ("docs/ublk.md", "ucrypt serve disk.img --ublk", GUEST),
    ("docs/ublk.md", "ucrypt open disk.img disk --ublk-wait", GUEST),
    ("docs/vhost-user.md", "ucrypt serve", MACHINE),
    ("docs/vhost-user.md", "qemu-system-x86_64", MACHINE),
    ("docs/vhost-user.md", "-object memory-backend-memfd", MACHINE),
    ("docs/vhost-user.md", "-chardev socket", MACHINE),
    ("docs/vhost-user.md", "-device vhost-user-blk-pci", MACHINE),
    ("docs/vhost-user.md", "until grep", TRIED),
    ("docs/vhost-user.md", "chgrp kvm", TRIED),
    ("docs/vhost-user.md", "virsh create", TRIED),
    ("README.md", "make deb", "scripts/try-deb"),
    ("README.md", "ucrypt doctor", "tests/command/doctor.rs"),
];

const MEASURED: &str = "a measurement, by hand";
const UNITS: &str = "needs systemd as process 1; tests/systemd boots it";
const PODMAN: &str = "needs Podman and the image of make container: scripts/try-container";
const TRIED: &str = "needs libvirt or pods: tried by hand, docs/reports/2026-11-28-trials.md";
const INSTALLED: &str = "installed::what_is_installed_is_listed_and_goes_with_its_list";
const GUEST: &str = "needs the kernel's ublk; tests/guest";
const MACHINE: &str = "needs a virtual machine; tests/virtual_machine";

/// The pages whose blocks all run in order; see `book`.
const WHOLE: &[&str] = &["docs/tutorial.md", "docs/howto.md"];

/// The blocks between fences of a page, each with what stands behind its fence.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        if let Some(kind) = line.strip_prefix("```") {
            inside = !inside;
            if inside {
                found.push((kind.trim().to_owned(), String::new()));
            }
        } else if inside {
            found.last_mut().expect("a block").1.push_str(line);
        }
    }
    found
}

/// All blocks of commands of the pages, each with its page.
pub(crate) fn commands() -> Vec<(String, String)> {
    let pages = ["", "docs"].into_iter().flat_map(markdown);
    // Reports are of their day, with the commands of that day.
    let pages = pages.filter(|page| !WHOLE.contains(&page.as_str()) && !page.contains("/reports/"));
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(root().join(&page)).expect("a page");
        let is_indented =
            |line: &str| ["    ucrypt ", "    cargo "].iter().any(|it| line.starts_with(it));
        let mut inside = false;
        for line in text.lines() {
            inside ^= line.starts_with("```");
            assert!(inside || !is_indented(line), "{page}: commands stand behind ```sh: {line}");
        }
        for (kind, block) in blocks(&text) {
            let starts_program =
                |line: &str| ["ucrypt ", "$ ", "# ucrypt "].iter().any(|it| line.starts_with(it));
            let is_unmarked = kind.is_empty() && block.lines().any(starts_program);
            assert!(!is_unmarked, "{page}: commands stand behind ```sh:\n{block}");
            if kind == "sh" {
                found.push((page.clone(), block));
            }
        }
    }
    found
}

fn sample_of(page: &str, block: &str) -> Option<usize> {
    SAMPLES.iter().position(|sample| sample.page == page && block.starts_with(sample.begins))
}

#[test]
fn every_command_line_of_a_page_runs_in_a_test_or_is_listed_with_what_runs_it() {
    let (mut samples, mut elsewhere) = (BTreeSet::new(), BTreeSet::new());
    for (page, block) in commands() {
        if let Some(sample) = sample_of(&page, &block) {
            assert!(samples.insert(sample), "{page}: two blocks begin alike:\n{block}");
            continue;
        }
        for line in block.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let listed = ELSEWHERE
                .iter()
                .position(|(of, begins, _)| *of == page && line.starts_with(begins));
            let listed = listed.unwrap_or_else(|| panic!("{page}: nothing runs \"{line}\""));
            elsewhere.insert(listed);
        }
    }
    assert_eq!(samples.len(), SAMPLES.len(), "a sample is of no page");
    for (at, (page, begins, _)) in ELSEWHERE.iter().enumerate() {
        assert!(elsewhere.contains(&at), "{page} has no line \"{begins}\"");
    }
}

/// A directory as [`Sample`] describes it.
fn directory() -> Scratch {
    let scratch = prepare();
    let image = scratch.sparse("disk.img", 48 << 20);
    let mut format = scratch.ucrypt(&["luksFormat", "-q", "--pbkdf", "pbkdf2"]);
    format.args(["--pbkdf-force-iterations", "1000", "--key-file"]).arg(scratch.path("key"));
    run(format.arg(&image), b"").passes();
    let content = scratch.sparse("content", 16 << 20);
    let mut make = tool("mkfs.ext4", "e2fsprogs");
    // In blocks of the volume's sectors.
    run(make.args(["-q", "-b", "4096"]).arg(&content), b"").passes();
    let mut write = scratch.ucrypt(&["write", "--key-file"]);
    write.arg(scratch.path("key")).arg(&image);
    run(&mut write, &fs::read(&content).expect("read")).passes();
    fs::create_dir(scratch.path("mnt")).expect("made");
    scratch
}

#[test]
fn the_commands_of_the_pages_do_what_the_pages_say() {
    for (page, block) in commands() {
        let Some(sample) = sample_of(&page, &block).map(|at| &SAMPLES[at]) else { continue };
        let mut block = block;
        for (from, to) in sample.replaced {
            assert!(block.contains(from), "{page}: there is no {from:?} in:\n{block}");
            block = block.replace(from, to);
        }
        let commands = format!("{}\n{block}{}", sample.before.join("\n"), sample.after);
        run_shell(&directory(), &page, &commands);
    }
}
