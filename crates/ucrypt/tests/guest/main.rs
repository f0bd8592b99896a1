//! The command in real kernels: one with ublk, dm-crypt, nbd and zoned devices, and a newer one with FUSE over
//! io_uring. `guest/run.py` boots each once for all tests of this file, and runs the scenarios of `scenarios/`
//! or `rings/` in it.
//!
//! Each test is the verdict on one scenario. If the scenario failed, the test shows its log.

#![forbid(unsafe_code)]

mod disk;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const UCRYPT: &str = env!("CARGO_BIN_EXE_ucrypt");

/// Seconds for the boot and all scenarios, on a machine that is busy with other tests.
const LIMIT_S: &str = "1800";

const PROGRAMS: [&str; 12] = [
    UCRYPT,
    "cryptsetup",
    "dmsetup",
    "fio",
    "nbd-client",
    "setpriv",
    "dd",
    "blkdiscard",
    "blkzone",
    "mkfs.btrfs",
    "mkfs.ext4",
    "losetup",
];

const MODULES: [&str; 15] = [
    "ublk_drv",
    "dm-crypt",
    "dm-flakey",
    "xts",
    "cbc",
    "essiv",
    "adiantum",
    "nhpoly1305",
    "chacha_generic",
    "serpent_generic",
    "loop",
    "nbd",
    "btrfs",
    "ext4",
    "null_blk gb=1 zoned=1 zone_size=4 memory_backed=1",
];

/// A kernel with FUSE over io_uring. It may be off in the kernel below the tests.
const NEWER: &str = "trixie-backports/linux-image-cloud-amd64";

/// The output of a guest.
struct Guest {
    /// What the scenarios left, by name. Statics are not dropped, so their directory is gone by now.
    files: BTreeMap<String, String>,
    run: Output,
}

impl Guest {
    /// The one guest of most tests.
    fn get() -> &'static Self {
        static GUEST: OnceLock<Guest> = OnceLock::new();
        GUEST.get_or_init(|| Self::boot("scenarios", &MODULES, |_| ()))
    }

    /// The one with FUSE over `io_uring`, and an empty disk of 128 MiB for each scenario.
    fn with_rings() -> &'static Self {
        static GUEST: OnceLock<Guest> = OnceLock::new();
        GUEST.get_or_init(|| {
            let disks = ["disks", "ends"].map(|name| {
                let disk = tempfile::NamedTempFile::new().expect("a file");
                disk.as_file().set_len(128 << 20).expect("a length");
                (name, disk)
            });
            Self::boot("rings", &["ext4", "xts"], |command| {
                command.args(["--kernel", NEWER, "--append", "fuse.enable_uring=1"]);
                for (name, disk) in &disks {
                    command.args(["--disk", &format!("{name}={}", disk.path().display())]);
                }
            })
        })
    }

    /// Runs the scenarios of a directory.
    fn boot(scenarios: &str, modules: &[&str], more: impl FnOnce(&mut Command)) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest");
        let out = tempfile::Builder::new().prefix("ucrypt-guest-").tempdir().expect("a directory");
        let mut command = Command::new(here.join("../../../../guest/run.py"));
        command.args(["--memory", "1536", "--timeout", LIMIT_S, "--out"]).arg(out.path());
        for program in PROGRAMS {
            command.args(["--program", program]);
        }
        // This test binary itself: some of its tests run in the guest.
        command.arg("--program").arg(std::env::current_exe().expect("a path"));
        for module in modules {
            command.args(["--module", module]);
        }
        more(&mut command);
        command.arg("--file").arg(here.join("common.sh"));
        let scenarios = here.join(scenarios).display().to_string();
        command.args(["--file", &(scenarios + ":/work/scenarios")]);
        command.arg(here.join("guest.sh")).stdin(Stdio::null());
        let run = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let listed = fs::read_dir(out.path()).expect("a directory").filter_map(Result::ok);
        let files = listed.map(|entry| {
            let content = fs::read(entry.path()).unwrap_or_default();
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, String::from_utf8_lossy(&content).into_owned())
        });
        Self { files: files.collect(), run }
    }

    fn file(&self, name: &str) -> &str {
        self.files.get(name).map_or("(none)", String::as_str)
    }

    #[track_caller]
    fn passed(&self, scenario: &str) {
        let printed = String::from_utf8_lossy(&self.run.stdout);
        let errors = String::from_utf8_lossy(&self.run.stderr);
        assert!(
            self.files.contains_key(&format!("{scenario}.status")),
            "the guest did not get through {scenario}: {}\n{printed}\n{errors}",
            self.run.status
        );
        let status = self.file(&format!("{scenario}.status"));
        let log = self.file(&format!("{scenario}.log"));
        // First what matters most: those who report failures may cut the rest.
        let last: Vec<&str> = log.lines().rev().take(30).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        assert!(
            status.trim() == "0",
            "{scenario} failed with {status}at the end:\n{last}\n\nall of it:\n{log}\nthe kernel said:\n{}",
            self.file("dmesg.log")
        );
    }
}

#[test]
fn a_ublk_device_is_a_disk_with_the_volumes_limits() {
    Guest::get().passed("ublk");
}

#[test]
fn programs_that_share_a_ublk_disk_find_what_they_have_written() {
    Guest::get().passed("random");
}

#[test]
fn a_new_server_takes_the_device_of_a_killed_one_over_under_load() {
    Guest::get().passed("recovery");
}

#[test]
fn an_open_volume_is_a_ublk_device_and_its_name_outlives_no_server() {
    Guest::get().passed("open");
}

#[test]
fn volumes_of_dm_crypt_and_ucrypt_are_each_others() {
    Guest::get().passed("exchange");
}

#[test]
fn the_lab_measures_the_kernels_dm_crypt() {
    Guest::get().passed("lab");
}

#[test]
fn the_kernels_nbd_client_uses_the_nbd_export() {
    Guest::get().passed("nbd");
}

#[test]
fn a_zoned_device_is_written_in_order_under_parallel_encryption() {
    Guest::get().passed("zoned");
}

#[test]
fn what_was_durable_is_there_after_the_power_failed_under_a_server() {
    Guest::get().passed("power");
}

#[test]
fn what_was_synced_is_there_after_the_power_failed_under_a_loop_device() {
    Guest::get().passed("flakey");
}

#[test]
fn a_zoned_image_is_a_zoned_disk_to_which_file_systems_append() {
    Guest::get().passed("zones");
}

#[test]
fn a_user_without_privileges_has_a_device_where_that_is_allowed() {
    Guest::get().passed("users");
}

#[test]
fn key_derivations_keep_to_the_limits_of_control_groups_and_count_their_swap() {
    Guest::get().passed("memory");
}

#[test]
fn without_the_driver_the_command_says_what_works_instead() {
    Guest::get().passed("without");
}

#[test]
fn files_over_rings_are_disks() {
    Guest::with_rings().passed("disks");
}

#[test]
fn a_killed_server_or_an_aborted_connection_of_rings_leaves_no_program_waiting() {
    Guest::with_rings().passed("ends");
}
