//! The Debian packages of the programs of others that the lab starts.

use crate::process;

/// Program, and its package in Debian 12.
const PACKAGES: [(&str, &str); 14] = [
    ("cryptsetup", "cryptsetup-bin"),
    ("dd", "coreutils"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("gocryptfs", "gocryptfs"),
    ("losetup", "mount"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext2", "e2fsprogs"),
    ("mkfs.ext3", "e2fsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("nbdkit", "nbdkit"),
    ("qemu-nbd", "qemu-utils"),
    // Not that of QEMU's other tools.
    ("qemu-storage-daemon", "qemu-system-common"),
];

/// That a program is missing, with the remedy; `None` if it is installed.
pub fn missing(program: &str) -> Option<String> {
    (!process::is_installed(program)).then(|| absent(program))
}

/// The words of [`missing`].
fn absent(program: &str) -> String {
    let known = PACKAGES.iter().find(|(name, _)| *name == program);
    let remedy = known.map_or_else(
        || "install it".to_owned(),
        |(_, package)| format!("install it with: apt-get install {package}"),
    );
    format!("{program} is not installed; {remedy}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::contender::PEERS;
    use crate::process::{is_installed, program};

    /// The packages that have a program of that name, by dpkg.
    fn owners(name: &str) -> BTreeSet<String> {
        let pattern = format!("*bin/{name}");
        let said = program("dpkg").args(["-S", &pattern]).output().expect("dpkg starts");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let lines = said.lines().filter_map(|line| line.split_once(": "));
        let of_it = lines.filter(|(_, path)| Path::new(path).ends_with(name));
        // Several packages share a file; those of other architectures have their name behind a colon.
        let packages = of_it.flat_map(|(packages, _)| packages.split(", "));
        packages.map(|it| it.split(':').next().unwrap_or(it).to_owned()).collect()
    }

    /// What `scripts/setup` installs: program, package.
    fn set_up() -> Vec<(String, String)> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup");
        let script = std::fs::read_to_string(script).expect("the script");
        let lines = script.lines().filter_map(|line| line.trim().strip_prefix("need "));
        let pairs = lines.filter_map(|line| line.split_once(' '));
        pairs.map(|(program, package)| (program.to_owned(), package.to_owned())).collect()
    }

    #[test]
    fn a_program_is_looked_for_in_the_package_that_has_it() {
        let known = PACKAGES.map(|(program, package)| (program.to_owned(), package.to_owned()));
        let set_up = set_up();
        assert!(set_up.len() > 20, "{set_up:?}");
        for (program, package) in known.iter().chain(&set_up) {
            // A path is no program in /usr/bin or /usr/sbin, where dpkg would find it.
            if program.contains('/') || !is_installed("dpkg") || !is_installed(program) {
                continue;
            }
            let owners = owners(program);
            // One that no package has was installed in another way.
            assert!(owners.is_empty() || owners.contains(package), "{program}: {owners:?}");
        }
    }

    #[test]
    fn every_program_that_a_contender_starts_has_a_package() {
        for program in PEERS.iter().filter_map(|peer| peer.program()) {
            assert!(absent(program).contains("apt-get install"), "{program}");
        }
        assert_eq!(missing("sh"), None);
        let said = missing("no-such-program").expect("it is not there");
        assert_eq!(said, "no-such-program is not installed; install it");
    }
}
