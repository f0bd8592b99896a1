//! The options of a line: those of systemd's and Debian's crypttab(5), and those of `open` under their own
//! names. An option is done, means nothing here, or is refused with the reason.

use std::path::PathBuf;
use std::time::Duration;

use super::entry::Source;

/// Why a volume that asks nobody cannot be opened.
pub(super) const NO_KEY: &str = "there is no key file, and nobody is asked for a passphrase";

/// Whether a line has a key file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyFile {
    /// The line names it.
    Named,
    /// The line names none, but there is one where crypttab(5) looks for it.
    OfItsName,
    None,
}

/// What an option means.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Meaning {
    /// It is this option of `open`, without a value.
    Flag(&'static str),
    /// It is this option of `open`, with its value.
    Value(&'static str),
    /// The table's own, explained by this text.
    Own(Own, &'static str),
    /// It means nothing here, for this reason.
    Nothing(&'static str),
    /// It is refused for this reason.
    Refused(&'static str),
}

/// Options that are not passed on to `open` as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    Luks,
    Plain,
    Timeout,
    Tries,
    NoAuto,
    NoFail,
    NetDev,
    Headless,
    DeviceTimeout,
}

use Meaning::{Flag, Nothing, Refused, Value};

const fn own(which: Own, text: &'static str) -> Meaning {
    Meaning::Own(which, text)
}

const TOKENS: Meaning = Refused(
    "tokens of systemd (TPM, FIDO2, PKCS#11) unlock nothing here; use crypttab for this volume",
);
const TCRYPT: Meaning = Refused("TrueCrypt and VeraCrypt volumes are not supported yet");
const INITRAMFS: Meaning =
    Refused("nothing is opened in the initramfs; use crypttab for the root file system");
const FRESH: Meaning = Refused(
    "swap and temporary file systems under a new key are not supported: use crypttab, because memory that \
     is short must not wait for a program",
);

/// All options, by their names.
const OPTIONS: &[(&str, Meaning)] = &[
    ("luks", own(Own::Luks, "The volume has a LUKS header. This is so unless plain is given.")),
    (
        "plain",
        own(
            Own::Plain,
            "The volume has no header. Needs cipher=, size= and, without a key file, hash=: a wrong one would \
         not be noticed.",
        ),
    ),
    ("cipher", Value("cipher")),
    ("size", Value("key-size")),
    ("hash", Value("hash")),
    ("offset", Value("offset")),
    ("skip", Value("skip")),
    ("sector-size", Value("sector-size")),
    ("iv-large-sectors", Flag("iv-large-sectors")),
    ("header", Value("header")),
    ("header-digest", Value("header-digest")),
    ("strict", Flag("strict")),
    ("key-slot", Value("key-slot")),
    ("keyslot", Value("key-slot")),
    ("keyfile-offset", Value("keyfile-offset")),
    ("keyfile-size", Value("keyfile-size")),
    ("volume-key-file", Value("volume-key-file")),
    ("token-id", Value("token-id")),
    ("token-type", Value("token-type")),
    ("token-only", Flag("token-only")),
    ("discard", Flag("allow-discards")),
    ("allow-discards", Flag("allow-discards")),
    ("read-only", Flag("readonly")),
    ("readonly", Flag("readonly")),
    ("same-cpu-crypt", Flag("perf-same_cpu_crypt")),
    ("submit-from-crypt-cpus", Flag("perf-submit_from_crypt_cpus")),
    ("no-read-workqueue", Flag("perf-no_read_workqueue")),
    ("no-write-workqueue", Flag("perf-no_write_workqueue")),
    ("high-priority", Flag("perf-high_priority")),
    ("as", Value("as")),
    ("partscan", Flag("partscan")),
    ("ublk-wait", Flag("ublk-wait")),
    ("direct", Flag("direct")),
    ("dispatch", Value("dispatch")),
    ("poll", Value("poll")),
    ("memory", Value("memory")),
    ("log", Value("log")),
    ("log-level", Value("log-level")),
    ("log-format", Value("log-format")),
    ("metrics", Value("metrics")),
    ("metrics-any-host", Flag("metrics-any-host")),
    ("tries", own(Own::Tries, "How often a passphrase may be tried; 0 is without end.")),
    (
        "timeout",
        own(
            Own::Timeout,
            "How long to wait for a passphrase: seconds, or with units as in 2min 30s; 0 is for ever.",
        ),
    ),
    ("headless", own(Own::Headless, "Ask nobody for a passphrase (headless, headless=yes).")),
    ("noauto", own(Own::NoAuto, "Not opened at boot, nor by attach --all.")),
    (
        "nofail",
        own(Own::NoFail, "The boot goes on without it, and attach --all succeeds without it."),
    ),
    ("_netdev", own(Own::NetDev, "The image needs the network.")),
    (
        "x-systemd.device-timeout",
        own(Own::DeviceTimeout, "How long systemd waits for the device of the image."),
    ),
    ("loud", Nothing("what goes wrong is always said")),
    ("quiet", Nothing("what goes wrong is always said")),
    ("noearly", Nothing("systemd and the init script open a volume when its image is there")),
    ("verify", Nothing("a passphrase is tried at once, so it is asked for once")),
    ("password-echo", Nothing("the agents of systemd decide what they show")),
    ("password-cache", Nothing("passphrases are kept nowhere: each volume asks for its own")),
    ("token-timeout", Nothing("no token is waited for")),
    (
        "keyscript",
        Refused("key scripts are not run: have a key file, or a passphrase that systemd asks for"),
    ),
    (
        "keyfile-erase",
        Refused("key files are not erased; do it in a unit that runs after this one"),
    ),
    ("keyfile-timeout", Refused("a key file has to be there; let the unit require its mount")),
    ("try-empty-password", Refused("an empty passphrase is tried only if a key file holds it")),
    ("link-volume-key", Refused("volume keys are never in the kernel's keyring")),
    ("check", Refused("what is in a volume is not checked")),
    ("precheck", Refused("what is on an image is not checked")),
    ("checkargs", Refused("what is in a volume is not checked")),
    ("swap", FRESH),
    ("tmp", FRESH),
    ("initramfs", INITRAMFS),
    ("x-initrd.attach", INITRAMFS),
    ("tcrypt", TCRYPT),
    ("tcrypt-hidden", TCRYPT),
    ("tcrypthidden", TCRYPT),
    ("tcrypt-keyfile", TCRYPT),
    ("tcrypt-system", TCRYPT),
    ("tcrypt-veracrypt", TCRYPT),
    ("veracrypt", TCRYPT),
    ("veracrypt-pim", TCRYPT),
    ("bitlk", Refused("BitLocker volumes are not supported yet")),
    ("fvault2", Refused("FileVault volumes are not supported yet")),
    ("loop", Refused("loop-AES volumes are not supported yet")),
    ("integrity", Refused("integrity protection is not supported yet")),
    ("tpm2-device", TOKENS),
    ("tpm2-pcrs", TOKENS),
    ("tpm2-pin", TOKENS),
    ("tpm2-signature", TOKENS),
    ("fido2-device", TOKENS),
    ("fido2-cid", TOKENS),
    ("fido2-rp", TOKENS),
    ("pkcs11-uri", TOKENS),
];

/// The options of systemd's crypttab that describe a volume without a header, and the words for `open`.
const OF_PLAIN: &[(&str, &str)] = &[
    ("cipher", "--cipher"),
    ("size", "--key-size"),
    ("hash", "--hash"),
    ("offset", "--offset"),
    ("skip", "--skip"),
    ("sector-size", "--sector-size"),
];

/// Why they mean nothing for a LUKS volume.
const HAS_HEADER: &str =
    "means nothing here: the LUKS header says it; plain is for a volume without one";

/// What `open` says of its options, with the names that the table has for them.
pub(super) fn in_names_of_the_table(text: &str) -> String {
    let mut said = String::new();
    let mut rest = text.replace("--type plain", "plain");
    while let Some(at) = rest.find("--") {
        said.push_str(&rest[..at]);
        let word = &rest[at + 2..];
        let len = word.find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c));
        let (long, behind) = word.split_at(len.unwrap_or(word.len()));
        let known = OPTIONS.iter().find_map(|(name, meaning)| match meaning {
            Flag(option) if *option == long => Some((*name).to_owned()),
            Value(option) if *option == long => Some(format!("{name}=")),
            Meaning::Own(Own::Timeout | Own::Tries, _) if *name == long => Some(format!("{name}=")),
            _ => None,
        });
        // The value's kind, as help shows it.
        let kind = behind.strip_prefix(" <").filter(|_| known.is_some());
        let behind = kind.and_then(|it| it.split_once('>')).map_or(behind, |(_, behind)| behind);
        said.push_str(&known.unwrap_or_else(|| format!("--{long}")));
        rest = behind.to_owned();
    }
    said + &rest
}

/// The options and what they mean, for the manual page.
pub(crate) fn for_pages() -> impl Iterator<Item = (&'static str, Meaning)> {
    OPTIONS.iter().copied()
}

/// What the options of a line ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// The words for `open`.
    pub(super) words: Vec<String>,
    pub(super) noauto: bool,
    pub(super) nofail: bool,
    pub(super) netdev: bool,
    /// No passphrase is asked for.
    pub(super) asks_nobody: bool,
    /// How long systemd waits for the device of the image.
    pub(super) device_timeout: Option<Duration>,
    /// What the volume needs besides its image and its key file: a detached header, a volume key, the file of the log.
    pub(super) files: Vec<PathBuf>,
    /// The volume has a key by another way than a key file.
    pub(super) has_other_key: bool,
    /// Whether the volume is served as a block device of the kernel, as far as the line says so.
    pub(super) is_device: bool,
    /// What options of the line mean nothing here.
    pub(super) notes: Vec<String>,
}

impl Options {
    /// Whether `open` chooses how the volume is served, which need not be a device then.
    pub(super) fn may_fall_back(&self) -> bool {
        !self.words.iter().any(|word| word.starts_with("--as="))
    }

    /// Whether the line asks for ublk.
    pub(super) fn is_ublk(&self) -> bool {
        self.words.iter().any(|word| word == "--as=ublk")
    }

    /// Reads the fourth field.
    pub(super) fn parse(text: &str, key: KeyFile) -> Result<Self, String> {
        let mut options = Self { is_device: true, ..Self::default() };
        let mut seen = Vec::new();
        let mut kind = None;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let found = OPTIONS.iter().find(|(known, _)| *known == name);
            let Some((_, meaning)) = found else {
                // They are for other programs, as in fstab(5).
                if name.starts_with("x-") {
                    continue;
                }
                if name.starts_with("tpm2-")
                    || name.starts_with("fido2-")
                    || name.starts_with("pkcs11-")
                {
                    return Err(refusal(name, TOKENS));
                }
                return Err(format!(
                    "'{name}' is no option that is known here; man ucrypttab lists them"
                ));
            };
            if seen.contains(&name) {
                return Err(format!("{name} stands twice"));
            }
            seen.push(name);
            let needs =
                || value.filter(|value| !value.is_empty()).ok_or(format!("{name}= has no value"));
            let has_none = || match value {
                None => Ok(()),
                Some(_) => Err(format!("{name} has no value; write it without '='")),
            };
            match *meaning {
                Flag(option) => {
                    has_none()?;
                    options.words.push(format!("--{option}"));
                }
                Value(option) => options.take(option, needs()?)?,
                Meaning::Own(which, _) => {
                    if !matches!(
                        which,
                        Own::Timeout | Own::Tries | Own::DeviceTimeout | Own::Headless
                    ) {
                        has_none()?;
                    }
                    match which {
                        Own::Luks | Own::Plain if kind.is_some() => {
                            return Err("luks and plain exclude each other".into());
                        }
                        Own::Luks | Own::Plain => kind = Some(which),
                        Own::Timeout => {
                            let time = time(needs()?).ok_or(format!("{word} is no time"))?;
                            options.words.push(format!("--timeout={}", time.as_secs()));
                        }
                        Own::Tries => {
                            let tries = needs()?.parse::<u32>();
                            let tries = tries.map_err(|_| format!("{word} is no number"))?;
                            let tries = if tries == 0 { u32::MAX } else { tries };
                            options.words.push(format!("--tries={tries}"));
                        }
                        Own::NoAuto => options.noauto = true,
                        Own::NoFail => options.nofail = true,
                        Own::NetDev => options.netdev = true,
                        Own::Headless => {
                            options.asks_nobody = boolean(value.unwrap_or("yes"))
                                .ok_or(format!("{word} is neither yes nor no"))?;
                        }
                        Own::DeviceTimeout => {
                            let time = time(needs()?).ok_or(format!("{word} is no time"))?;
                            options.device_timeout = Some(time);
                        }
                    }
                }
                Nothing(why) => options.notes.push(format!("{name}: {why}")),
                Refused(_) => return Err(refusal(name, *meaning)),
            }
        }
        options.check(&seen, kind, key)?;
        Ok(options)
    }

    /// Leaves out what describes a volume without a header: systemd takes it for LUKS volumes too, and ignores it. A
    /// volume key is no passphrase, and has its size.
    fn forget_plain(&mut self, has_volume_key: bool) {
        for (name, option) in OF_PLAIN {
            let is_it =
                |word: &String| word.strip_prefix(option).is_some_and(|it| it.starts_with('='));
            if !(has_volume_key && *name == "size") && self.words.iter().any(is_it) {
                self.words.retain(|word| !is_it(word));
                self.notes.push(format!("{name}: {HAS_HEADER}"));
            }
        }
    }

    fn take(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "header" | "volume-key-file" => {
                if !value.starts_with('/') {
                    return Err(format!("{value} is no path from / on"));
                }
                refuse_other_device(value)?;
                self.files.push(value.into());
            }
            "log" if value.starts_with('/') => self.files.push(value.into()),
            "as" => match value {
                "ublk" | "loop" => {}
                "fuse" | "nbd" => self.is_device = false,
                _ => return Err(format!("as={value}: there are ublk, loop, fuse and nbd")),
            },
            _ => {}
        }
        self.words.push(format!("--{option}={value}"));
        Ok(())
    }

    fn check(&mut self, seen: &[&str], kind: Option<Own>, key: KeyFile) -> Result<(), String> {
        let has = |name: &str| seen.contains(&name);
        self.words.insert(
            0,
            format!("--type={}", if kind == Some(Own::Plain) { "plain" } else { "luks" }),
        );
        let has_volume_key = has("volume-key-file");
        if kind != Some(Own::Plain) {
            self.forget_plain(has_volume_key);
        }
        if has_volume_key && key == KeyFile::Named {
            return Err("a key file has no effect beside volume-key-file=; write none".into());
        }
        self.has_other_key = has_volume_key || has("token-only");
        let has_key = key == KeyFile::Named || key == KeyFile::OfItsName && !self.has_other_key;
        if kind == Some(Own::Plain) {
            let needed = [("cipher", true), ("size", true), ("hash", !has_key && !has_volume_key)];
            if let Some((name, _)) = needed.iter().find(|(name, needed)| *needed && !has(name)) {
                return Err(format!(
                    "a plain volume needs {name}=: nobody would notice that another one was meant"
                ));
            }
        }
        let hash = self.words.iter().find_map(|word| word.strip_prefix("--hash="));
        if kind == Some(Own::Plain) && has_key && hash.is_some_and(|hash| hash != "plain") {
            return Err("hash= beside a key file is one volume for systemd, which hashes the file, and another one \
                        here and for cryptsetup, where the file is the key: leave hash= out if it is"
                .into());
        }
        if self.asks_nobody && !has_key && !self.has_other_key {
            self.notes.push(format!("headless: {NO_KEY}"));
        }
        self.asks_nobody |= has_volume_key;
        Ok(())
    }
}

/// Refuses a path on the file system of another device, which systemd mounts for it.
pub(super) fn refuse_other_device(path: &str) -> Result<(), String> {
    let Some((before, device)) = path.rsplit_once(':') else { return Ok(()) };
    if device.starts_with("/dev/") || Source::is_tag(device) {
        return Err(format!(
            "{path}: a file on a device that is mounted for it alone is not supported: mount {device} by fstab, and \
             give the path of {before} there"
        ));
    }
    Ok(())
}

fn refusal(name: &str, meaning: Meaning) -> String {
    match meaning {
        Refused(why) => format!("{name}: {why}"),
        _ => name.into(),
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "yes" | "true" | "on" | "1" => Some(true),
        "no" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// A time as in systemd.time(7): seconds, or numbers with units. Parts of a second count as a whole one. `infinity` is
/// 0: both mean no limit wherever the table has a time.
fn time(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest == "infinity" {
        return Some(total);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u32 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "" | "s" | "sec" | "second" | "seconds" => Duration::from_secs(1),
            "ms" | "msec" => Duration::from_millis(1),
            "m" | "min" | "minute" | "minutes" => Duration::from_secs(60),
            "h" | "hr" | "hour" | "hours" => Duration::from_secs(3600),
            _ => return None,
        };
        rest = rest[letters..].trim_start();
        total = total.checked_add(unit.checked_mul(number)?)?;
    }
    Some(Duration::from_secs(total.as_secs() + u64::from(total.subsec_nanos() > 0)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn words(text: &str) -> Vec<String> {
        Options::parse(text, KeyFile::Named).unwrap_or_else(|error| panic!("{text}: {error}")).words
    }

    fn error(text: &str) -> String {
        Options::parse(text, KeyFile::None).expect_err(text)
    }

    /// A value that the option takes.
    fn sample(name: &str) -> &'static str {
        match name {
            "cipher" => "aes-xts-plain64",
            "size" => "512",
            "hash" => "sha256",
            "header" | "volume-key-file" | "log" => "/x",
            "header-digest" => {
                "sha256:0000000000000000000000000000000000000000000000000000000000000000"
            }
            "token-type" => "luks2-keyring",
            "as" => "loop",
            "dispatch" => "inline",
            "poll" => "auto",
            "memory" => "8M",
            "log-level" => "info",
            "log-format" => "json",
            "metrics" => "127.0.0.1:9090",
            _ => "1",
        }
    }

    #[test]
    fn every_option_that_is_passed_on_is_one_of_open_with_or_without_a_value() {
        let mut command = Cli::command();
        command.build();
        let open = command.find_subcommand("open").unwrap();
        let mut names = BTreeSet::new();
        for (name, meaning) in OPTIONS {
            assert!(names.insert(name), "{name} stands twice");
            let (long, takes_value, text) = match meaning {
                // It needs an address.
                Flag(long) if *name == "metrics-any-host" => {
                    (long, false, format!("{name},metrics=0.0.0.0:9090"))
                }
                Flag(long) => (long, false, (*name).to_owned()),
                Value(long) => (long, true, format!("{name}={}", sample(name))),
                _ => continue,
            };
            let found = open.get_arguments().find(|argument| argument.get_long() == Some(*long));
            let argument = found.unwrap_or_else(|| panic!("{name}: open has no --{long}"));
            assert_eq!(argument.get_action().takes_values(), takes_value, "{name}");
            let key = if *name == "volume-key-file" { KeyFile::None } else { KeyFile::Named };
            let options = Options::parse(&text, key).unwrap();
            let line = ["ucrypt", "open"].into_iter().map(str::to_owned).chain(options.words);
            let line = line.chain(["/image".into(), "name".into()]);
            let parsed = Cli::command().try_get_matches_from(line);
            assert!(parsed.is_ok(), "{text}: {}", parsed.unwrap_err());
            // Neither a missing value nor one too many is taken for something else.
            let wrong = if takes_value { (*name).to_owned() } else { format!("{name}=1") };
            assert!(Options::parse(&wrong, KeyFile::Named).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_other_option_is_done_means_nothing_or_is_refused_with_a_reason() {
        for (name, meaning) in OPTIONS {
            match meaning {
                Nothing(why) => {
                    let options = Options::parse(&format!("{name},luks"), KeyFile::Named).unwrap();
                    assert_eq!(options.notes, [format!("{name}: {why}")]);
                    assert_eq!(options.words, ["--type=luks"]);
                }
                Refused(why) => {
                    assert_eq!(error(&format!("luks,{name}=x")), format!("{name}: {why}"));
                }
                _ => {}
            }
        }
        assert!(error("luks,tpm2-new-thing=auto").contains("tokens of systemd"));
        assert!(error("luks,frobnicate").contains("'frobnicate'"));
        assert_eq!(words("luks,x-thing=1,x-other"), ["--type=luks"], "they are for others");
    }

    #[test]
    fn the_tables_own_options_are_what_crypttab_says() {
        let options = Options::parse(
            "luks,noauto,nofail,_netdev,x-systemd.device-timeout=1min 30",
            KeyFile::None,
        )
        .unwrap();
        assert!(options.noauto && options.nofail && options.netdev && options.is_device);
        assert_eq!(options.device_timeout, Some(Duration::from_secs(90)));
        assert_eq!(
            words("tries=0,timeout=2min"),
            ["--type=luks", "--tries=4294967295", "--timeout=120"]
        );
        assert_eq!(words("luks,discard,,"), ["--type=luks", "--allow-discards"]);
        assert_eq!(words(""), ["--type=luks"]);
        assert!(!Options::parse("as=nbd", KeyFile::None).unwrap().is_device);
        assert!(Options::parse("headless", KeyFile::Named).unwrap().asks_nobody);
        assert!(!Options::parse("headless=no", KeyFile::None).unwrap().asks_nobody);
        assert!(Options::parse("headless,token-only", KeyFile::None).unwrap().asks_nobody);
        assert_eq!(
            Options::parse("header=/h", KeyFile::None).unwrap().files,
            [PathBuf::from("/h")]
        );
    }

    #[test]
    fn what_would_open_another_volume_than_meant_is_refused() {
        for (text, word) in [
            ("plain", "cipher="),
            ("plain,cipher=aes", "size="),
            ("plain,cipher=aes,size=256", "hash="),
            ("plain,luks", "exclude each other"),
            ("luks,luks", "stands twice"),
            ("cipher=", "no value"),
            ("cipher", "no value"),
            ("luks=yes", "has no value"),
            ("nofail=no", "has no value"),
            ("header=relative", "no path"),
            ("as=disk", "as=disk"),
            ("tries=many", "no number"),
            ("timeout=soon", "no time"),
            ("timeout=", "no value"),
            ("headless=perhaps", "neither yes nor no"),
        ] {
            assert!(error(text).contains(word), "{text}: {}", error(text));
        }
        let error = Options::parse("volume-key-file=/k", KeyFile::Named).unwrap_err();
        assert!(error.contains("no effect"), "{error}");
        assert!(
            Options::parse("plain,cipher=aes,size=256", KeyFile::Named).is_ok(),
            "a key file is the key"
        );
        assert!(Options::parse("plain,cipher=aes,size=256,hash=plain", KeyFile::Named).is_ok());
        // Here it would be the key, for systemd its hash is.
        let error =
            Options::parse("plain,cipher=aes,size=256,hash=sha256", KeyFile::Named).unwrap_err();
        assert!(error.contains("hash="), "{error}");
    }

    #[test]
    fn what_describes_a_plain_volume_means_nothing_for_one_with_a_header() {
        for text in ["luks,cipher=aes-xts-plain64,size=512,hash=sha256", "size=256"] {
            let options = Options::parse(text, KeyFile::None).unwrap();
            assert_eq!(options.words, ["--type=luks"], "{text}");
            let notes = text.matches('=').count();
            assert_eq!(options.notes.len(), notes, "{:?}", options.notes);
            assert!(options.notes.iter().all(|note| note.contains("the LUKS header says it")));
        }
        let options = Options::parse("volume-key-file=/k,size=512", KeyFile::None).unwrap();
        assert!(options.words.contains(&"--key-size=512".into()), "it is the key's");
    }

    #[test]
    fn messages_name_the_options_as_the_table_does() {
        for (said, expected) in [
            ("--key-size describes a plain volume", "size= describes a plain volume"),
            ("add --type plain if", "add plain if"),
            ("invalid value 'x' for '--key-size <BITS>': no", "invalid value 'x' for 'size=': no"),
            ("--allow-discards and --no-such", "discard and --no-such"),
            ("--offset", "offset="),
            ("--tries has no effect", "tries= has no effect"),
            ("a -- b", "a -- b"),
        ] {
            assert_eq!(in_names_of_the_table(said), expected);
        }
    }

    #[test]
    fn times_are_systemds() {
        let seconds = |text: &str| time(text).map(|time| time.as_secs());
        for (text, expected) in [
            ("0", 0),
            ("90", 90),
            ("1min 30s", 90),
            ("1h", 3600),
            ("2m5", 125),
            ("1ms", 1),
            ("1500ms", 2),
            ("infinity", 0),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for wrong in ["", " ", "x", "-1", "1y", "1.5", "99999999999"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
