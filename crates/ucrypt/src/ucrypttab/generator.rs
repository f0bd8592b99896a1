//! Units for the volumes of the table, written when systemd starts (systemd.generator(7)), as
//! systemd-cryptsetup-generator does for crypttab.
//!
//! The service itself is `ucrypt@.service`, which is installed. For each line this writes what the service
//! has to wait for, what waits for it, and who wants it. A line that is wrong gets its service too, which
//! then fails with the reason: whoever waits for the volume is told, and does not wait for ever. So it does unless
//! another line of the same name is right: then the service is that line's.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::entry::{Entry, Problem};
use super::{TABLE, escape, read, udev};
use crate::failure::Failure;
use crate::stdio::say_line;

/// Where messages of generators go: the system's log is not there yet.
const KERNEL_LOG: &str = "/dev/kmsg";

/// The target of volumes that need the network.
const REMOTE: &str = "remote-cryptsetup.target";

/// Arguments of `systemd-generator`, as systemd gives them.
#[derive(Debug, clap::Args)]
pub(crate) struct GeneratorArgs {
    /// Where units go
    normal: PathBuf,
    /// Where units go that replace those of the administrator: not used
    early: Option<PathBuf>,
    /// Where units go that others replace: not used
    late: Option<PathBuf>,
    /// The table
    #[arg(long, value_name = "FILE", default_value = TABLE)]
    ucrypttab: PathBuf,
}

pub(crate) fn generate(args: &GeneratorArgs) -> Result<(), Failure> {
    let _ = (&args.early, &args.late);
    if !args.ucrypttab.exists() {
        return Ok(());
    }
    let mut ended = Ok(());
    let lines = match read(&args.ucrypttab) {
        Ok(lines) => lines,
        Err(failure) => {
            tell(args, &failure.message);
            return Err(failure);
        }
    };
    let right: BTreeSet<_> = lines.iter().flatten().map(|entry| entry.name.clone()).collect();
    for line in lines {
        let (text, written) = match &line {
            Ok(entry) => (String::new(), write(args, &Unit::of(entry, &args.ucrypttab))),
            Err(problem) => {
                let failure = problem.failure(&args.ucrypttab);
                let fails = problem.name.as_ref().is_some_and(|name| !right.contains(name));
                let unit = fails.then(|| Unit::of_problem(problem, &args.ucrypttab));
                (failure.message, unit.map_or(Ok(()), |unit| write(args, &unit)))
            }
        };
        if !text.is_empty() {
            tell(args, &text);
        }
        if let Err(error) = written {
            let text = format!("cannot write a unit to {}: {error}", args.normal.display());
            tell(args, &text);
            ended = Err(Failure::device(text));
        }
    }
    ended
}

/// Says what is wrong, also where nobody reads standard error.
fn tell(args: &GeneratorArgs, text: &str) {
    say_line(text);
    if args.ucrypttab != Path::new(TABLE) {
        return;
    }
    // `<3>`: an error.
    let _ = fs::OpenOptions::new().write(true).open(KERNEL_LOG).and_then(|mut log| {
        io::Write::write_all(&mut log, format!("<3>ucrypt: {text}\n").as_bytes())
    });
}

/// What is written for a volume.
struct Unit {
    /// The instance of the service.
    service: String,
    /// The settings of the service that depend on the line.
    settings: String,
    /// The unit that wants the service at boot, and whether it requires it.
    wanted: Option<(&'static str, bool)>,
    /// The unit of the device, if it will be one of the kernel's.
    device: Option<String>,
    /// Whether udev will tell systemd of that device.
    is_announced: bool,
    /// The unit of the image's own device, and how many seconds to wait for it.
    waits: Option<(String, u64)>,
}

impl Unit {
    fn of(entry: &Entry, table: &Path) -> Self {
        let options = &entry.options;
        let target = if options.netdev { REMOTE } else { "cryptsetup.target" };
        let mut settings = head(&table.display().to_string());
        let image = entry.source.path();
        let on_node = is_node(&image);
        let image_unit = format!("{}.device", escape::path(&image));
        if on_node {
            let _ = writeln!(settings, "BindsTo={image_unit}\nAfter={image_unit}");
        }
        let files = (!on_node).then_some(&image).into_iter().chain(&entry.key);
        for file in files.chain(&options.files) {
            if is_node(file) {
                // A key or a header on a device of its own, which udev may find later than the image's.
                let unit = format!("{}.device", escape::path(file));
                let needs = if options.nofail { "Wants" } else { "Requires" };
                let _ = writeln!(settings, "{needs}={unit}\nAfter={unit}");
            } else if !file.starts_with("/dev") {
                let _ = writeln!(settings, "RequiresMountsFor={}", escape::quoted(file));
            }
        }
        if options.is_ublk() {
            settings += "Wants=modprobe@ublk_drv.service\nAfter=modprobe@ublk_drv.service\n";
        }
        if options.netdev {
            // What makes network disks (iSCSI, NBD, RBD) comes before this target, and so ends after the volume.
            settings +=
                "After=remote-fs-pre.target network-online.target\nWants=network-online.target\n";
        }
        if !options.nofail && !options.noauto {
            let _ = writeln!(settings, "Before={target}");
        }
        if options.netdev {
            // A network that stands still is no server that stands still.
            settings += "\n[Service]\nWatchdogSec=0\n";
        }
        Self {
            service: service(&entry.name),
            settings,
            wanted: (!options.noauto).then_some((target, !options.nofail)),
            device: options.is_device.then(|| device(&entry.name)),
            is_announced: udev::takes(&entry.name),
            waits: options
                .device_timeout
                .filter(|_| on_node)
                .map(|time| (image_unit, time.as_secs())),
        }
    }

    /// For a line that is wrong: its service fails and says why.
    fn of_problem(problem: &Problem, table: &Path) -> Self {
        let name = problem.name.as_deref().unwrap_or_default();
        Self {
            service: service(name),
            settings: head(&table.display().to_string()),
            wanted: (!problem.noauto).then_some(("cryptsetup.target", false)),
            device: Some(device(name)),
            is_announced: true,
            waits: None,
        }
    }
}

/// Whether a path is a node for which systemd has a unit, because udev makes it.
fn is_node(path: &Path) -> bool {
    const OTHERS: [&str; 9] = [
        "/dev/shm",
        "/dev/fd",
        "/dev/null",
        "/dev/zero",
        "/dev/random",
        "/dev/urandom",
        "/dev/hwrng",
        "/dev/hw_random",
        "/dev/stdin",
    ];
    path.starts_with("/dev") && !OTHERS.iter().any(|other| path.starts_with(other))
}

fn head(table: &str) -> String {
    format!("# Made of {table} by ucrypt systemd-generator.\n[Unit]\nSourcePath={table}\n")
}

fn service(name: &str) -> String {
    format!("ucrypt@{}.service", escape::instance(name))
}

fn device(name: &str) -> String {
    format!("{}.device", escape::path(&Path::new("/dev/ucrypt").join(name)))
}

fn write(args: &GeneratorArgs, unit: &Unit) -> io::Result<()> {
    let dir = &args.normal;
    // The template itself is where it was installed.
    let template = Path::new("../ucrypt@.service");
    let add = |directory: String, file: &str, text: &str| {
        let directory = dir.join(directory);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(file), text)
    };
    let link_to = |unit: &Path, directory: &str, name: &str| {
        let directory = dir.join(directory);
        fs::create_dir_all(&directory)?;
        match symlink(unit, directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    };
    let link = |directory: String| link_to(template, &directory, &unit.service);
    add(format!("{}.d", unit.service), "50-ucrypttab.conf", &unit.settings)?;
    if let Some((target, required)) = unit.wanted {
        link(format!("{target}.{}", if required { "requires" } else { "wants" }))?;
        if target == REMOTE {
            // Not every system has enabled it.
            let unit = Path::new("..").join(REMOTE);
            link_to(&unit, "multi-user.target.wants", REMOTE)?;
        }
    }
    if let Some(device) = &unit.device {
        // Whoever waits for the device has the service started, and fails with it.
        link(format!("{device}.requires"))?;
        // The boot must not wait for ever for what nobody announces.
        if unit.is_announced {
            let text = "# A passphrase takes the time that it takes; a service that fails ends the wait.\n\
                [Unit]\nJobTimeoutSec=infinity\nJobRunningTimeoutSec=infinity\n";
            add(format!("{device}.d"), "40-device-timeout.conf", text)?;
        }
    }
    if let Some((device, seconds)) = &unit.waits {
        let text = format!("[Unit]\nJobRunningTimeoutSec={seconds}\n");
        add(format!("{device}.d"), "50-device-timeout.conf", &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ucrypttab::entry;

    fn unit(line: &str) -> Unit {
        let lines = entry::parse(line.as_bytes());
        match &lines[0] {
            Ok(entry) => Unit::of(entry, Path::new(TABLE)),
            Err(problem) => Unit::of_problem(problem, Path::new(TABLE)),
        }
    }

    #[test]
    fn a_service_waits_for_its_image_and_its_keys() {
        let found = unit("my-vol UUID=4d9f-2c /etc/keys/my\\040key luks");
        assert_eq!(found.service, "ucrypt@my\\x2dvol.service");
        let of_image = "dev-disk-by\\x2duuid-4d9f\\x2d2c.device";
        assert!(found.settings.contains(&format!("\nBindsTo={of_image}\nAfter={of_image}\n")));
        assert!(found.settings.contains("\nRequiresMountsFor=\"/etc/keys/my key\"\n"));
        assert!(found.settings.contains("\nBefore=cryptsetup.target\n"));
        assert_eq!(found.wanted, Some(("cryptsetup.target", true)));
        assert_eq!(found.device.as_deref(), Some("dev-ucrypt-my\\x2dvol.device"));
        let found =
            unit("w /srv/disk.img none luks,header=/boot/w.header,x-systemd.device-timeout=5");
        assert!(found.settings.contains("\nRequiresMountsFor=\"/srv/disk.img\"\n"));
        assert!(found.settings.contains("\nRequiresMountsFor=\"/boot/w.header\"\n"));
        assert!(!found.settings.contains("BindsTo") && found.waits.is_none());
        let found = unit("w /dev/sdb1 none luks,x-systemd.device-timeout=5");
        assert_eq!(found.waits, Some(("dev-sdb1.device".into(), 5)));
    }

    #[test]
    fn a_service_waits_for_the_devices_of_its_key_and_its_header() {
        let found = unit("w /dev/sdb1 /dev/disk/by-id/usb-key luks,header=/dev/sdc2");
        for of in ["dev-disk-by\\x2did-usb\\x2dkey.device", "dev-sdc2.device"] {
            assert!(found.settings.contains(&format!("\nRequires={of}\nAfter={of}\n")), "{of}");
        }
        let found = unit("w /dev/sdb1 /dev/sdc luks,nofail");
        assert!(found.settings.contains("\nWants=dev-sdc.device\nAfter=dev-sdc.device\n"));
        // udev makes none of these.
        let found = unit("w /dev/shm/disk.img /dev/urandom luks");
        assert!(!found.settings.contains(".device"), "{}", found.settings);
    }

    #[test]
    fn who_wants_a_service_is_what_its_line_says() {
        assert_eq!(unit("w /i none luks,nofail").wanted, Some(("cryptsetup.target", false)));
        assert!(!unit("w /i none luks,nofail").settings.contains("Before="));
        assert_eq!(unit("w /i none luks,noauto").wanted, None);
        assert_eq!(unit("w /i none luks,_netdev").wanted, Some(("remote-cryptsetup.target", true)));
        assert!(unit("w /i none luks,_netdev").settings.contains("WatchdogSec=0"));
        assert_eq!(unit("w /i none luks,as=nbd").device, None);
        let wrong = unit("w /i none luks,frobnicate");
        assert_eq!(
            wrong.wanted,
            Some(("cryptsetup.target", false)),
            "it fails, and the boot goes on"
        );
        assert!(wrong.device.is_some());
    }

    #[test]
    fn a_wrong_line_that_is_not_for_the_boot_has_no_part_in_it() {
        let wrong = unit("w /i none frobnicate,noauto,nofail");
        assert_eq!(wrong.wanted, None);
        assert!(wrong.device.is_some(), "who waits for it is told");
    }

    #[test]
    fn a_service_waits_for_all_other_files_of_its_volume() {
        let found = unit("w /dev/sdb1 none luks,volume-key-file=/mnt/usb/w.key,log=/var/log/w.log");
        for file in ["/mnt/usb/w.key", "/var/log/w.log"] {
            let waits = format!("\nRequiresMountsFor=\"{file}\"\n");
            assert!(found.settings.contains(&waits), "{}", found.settings);
        }
        let found = unit("w /dev/sdb1 none luks,volume-key-file=/dev/disk/by-id/k,log=syslog");
        assert!(found.settings.contains("\nRequires=dev-disk-by\\x2did-k.device\n"));
        assert!(!found.settings.contains("RequiresMountsFor"), "{}", found.settings);
    }

    #[test]
    fn a_service_is_ordered_as_those_of_crypttab_are() {
        let template = include_str!("../../../../dist/systemd/ucrypt@.service");
        assert!(template.contains("\nAfter=cryptsetup-pre.target "), "{template}");
        let found = unit("w /dev/sdb none luks,_netdev");
        assert!(found.settings.contains("\nAfter=remote-fs-pre.target "), "{}", found.settings);
    }

    #[test]
    fn the_driver_that_a_line_asks_for_is_loaded() {
        let wants = |line| unit(line).settings.contains("\nWants=modprobe@ublk_drv.service\n");
        assert!(wants("w /dev/sdb none luks,as=ublk") && !wants("w /dev/sdb none luks,as=loop"));
    }

    #[test]
    fn the_boot_does_not_wait_for_ever_for_a_device_that_udev_cannot_name() {
        assert!(!unit("my\\040vol /i none luks").is_announced);
        assert!(unit("my-vol /i none luks").is_announced);
    }

    /// `NAME` is the instance as it is typed: unescaped, a `-` in it would be a `/`.
    #[test]
    fn the_units_of_nbd_take_names_as_they_are() {
        for unit in [
            include_str!("../../../../dist/systemd/ucrypt-nbd@.service"),
            include_str!("../../../../dist/systemd/ucrypt-nbd@.socket"),
        ] {
            assert!(!unit.contains("%I"), "{unit}");
        }
    }

    #[test]
    fn a_wrong_line_changes_nothing_of_the_right_one_of_its_name() {
        let files = |table: &str| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("table");
            fs::write(&path, table).unwrap();
            let normal = dir.path().join("normal");
            let ucrypttab = path.clone();
            let args = GeneratorArgs { normal: normal.clone(), early: None, late: None, ucrypttab };
            generate(&args).unwrap();
            let mut found = Vec::new();
            for directory in fs::read_dir(&normal).unwrap().flatten() {
                for file in fs::read_dir(directory.path()).unwrap().flatten() {
                    let text = fs::read_to_string(file.path()).unwrap_or_default();
                    let text = text.replace(&path.display().to_string(), "TABLE");
                    let path = file.path();
                    found.push((path.strip_prefix(&normal).unwrap().to_owned(), text));
                }
            }
            found.sort();
            found
        };
        let wrong = "data /dev/sdc1 none luks,frobnicate\n";
        for right in [
            "data /dev/sdb1 /etc/keys/d.key luks\n",
            "data /dev/sdb1 none luks,noauto\n",
            "data /dev/sdb1 none luks,as=nbd\n",
        ] {
            let expected = files(right);
            assert!(!expected.is_empty());
            assert_eq!(files(&format!("{right}{wrong}")), expected, "{right}");
            assert_eq!(files(&format!("{wrong}{right}")), expected, "{right}");
        }
    }

    #[test]
    fn units_are_written_and_a_second_time_over_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let table = dir.path().join("table");
        fs::write(&table, "a /i /key luks\nb /i none nonsense\n\0\nn /i none _netdev\n").unwrap();
        let normal = dir.path().join("normal");
        let args =
            GeneratorArgs { normal: normal.clone(), early: None, late: None, ucrypttab: table };
        for _ in 0..2 {
            generate(&args).unwrap();
        }
        for there in [
            "ucrypt@a.service.d/50-ucrypttab.conf",
            "ucrypt@b.service.d/50-ucrypttab.conf",
            "cryptsetup.target.requires/ucrypt@a.service",
            "cryptsetup.target.wants/ucrypt@b.service",
            "remote-cryptsetup.target.requires/ucrypt@n.service",
            "multi-user.target.wants/remote-cryptsetup.target",
            "dev-ucrypt-a.device.requires/ucrypt@a.service",
            "dev-ucrypt-a.device.d/40-device-timeout.conf",
        ] {
            assert!(normal.join(there).symlink_metadata().is_ok(), "{there}");
        }
        let missing = GeneratorArgs { ucrypttab: dir.path().join("none"), ..args };
        generate(&missing).unwrap();
    }
}
