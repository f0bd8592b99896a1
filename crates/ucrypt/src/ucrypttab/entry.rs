//! The lines of the table: name, device, key file, options. A line that makes no sense is a problem with
//! its number, and stops no other line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;

use super::options::{KeyFile, Options, in_names_of_the_table, refuse_other_device};
use super::udev;
use crate::failure::Failure;
use crate::octal::unescaped;
use crate::programs;
use crate::runtime::RuntimePaths;
use crate::{Cli, effects};

/// A line that is neither empty nor a comment.
pub(super) type Line = Result<Entry, Problem>;

/// A volume of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its line, from 1 on.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) source: Source,
    /// The key file: the one that the line names, or what systemd's crypttab would take; without one, a passphrase is
    /// asked for.
    pub(super) key: Option<PathBuf>,
    pub(super) options: Options,
}

/// A line that makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) line: usize,
    /// The volume's name, if the line has one that can be one.
    pub(super) name: Option<String>,
    /// The line says that it is not for the boot.
    pub(super) noauto: bool,
    pub(super) message: String,
}

/// Where the volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Path(PathBuf),
    /// A tag by which udev and blkid know devices, such as UUID, and its value.
    Tag(Tag, String),
}

/// What udev makes links by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Uuid,
    Label,
    PartUuid,
    PartLabel,
    Id,
}

const TAGS: [(&str, Tag, &str); 5] = [
    ("UUID", Tag::Uuid, "by-uuid"),
    ("LABEL", Tag::Label, "by-label"),
    ("PARTUUID", Tag::PartUuid, "by-partuuid"),
    ("PARTLABEL", Tag::PartLabel, "by-partlabel"),
    ("ID", Tag::Id, "by-id"),
];

impl Tag {
    fn name(self) -> &'static str {
        TAGS.iter().find(|(_, tag, _)| *tag == self).map_or("", |(name, ..)| name)
    }

    fn directory(self) -> &'static str {
        TAGS.iter().find(|(_, tag, _)| *tag == self).map_or("", |(.., directory)| directory)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Tag(tag, value) => write!(f, "{}={value}", tag.name()),
        }
    }
}

impl Source {
    /// The tag that a field begins with, and its value.
    fn tag(field: &str) -> Option<(Tag, &str)> {
        let (name, value) = field.split_once('=')?;
        let (_, tag, _) = TAGS.iter().find(|(known, ..)| *known == name)?;
        Some((*tag, value.trim_matches('"')))
    }

    /// Whether a field names a device by a tag.
    pub(super) fn is_tag(field: &str) -> bool {
        Self::tag(field).is_some()
    }

    fn parse(field: OsString) -> Result<Self, String> {
        if let Some((tag, value)) = field.to_str().and_then(Self::tag) {
            if value.is_empty() {
                return Err(format!("{}= has no value", tag.name()));
            }
            return Ok(Self::Tag(tag, value.into()));
        }
        let path = PathBuf::from(field);
        if path.is_absolute() {
            return Ok(Self::Path(path));
        }
        Err(format!(
            "'{}' is no device: give the path of an image or a device from / on, or UUID=, LABEL=, \
             PARTUUID=, PARTLABEL=, ID=",
            path.display()
        ))
    }

    /// The path that udev gives the device, or that of the image.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Tag(tag, value) => {
                Path::new("/dev/disk").join(tag.directory()).join(encoded(value))
            }
        }
    }

    /// The path of the image or device that is there now. Where there is no udev, blkid(8) finds it.
    pub(super) fn find(&self) -> Result<PathBuf, Failure> {
        let path = self.path();
        let Self::Tag(tag, value) = self else { return Ok(path) };
        if path.exists() {
            return Ok(path);
        }
        let missing =
            || Failure::device(format!("no device has {self}; blkid shows what there is"));
        let blkid = programs::find("blkid").filter(|_| *tag != Tag::Id).ok_or_else(missing)?;
        let mut blkid = Command::new(blkid);
        blkid.args(["-o", "device", "-l", "-t"]).arg(format!("{}={value}", tag.name()));
        let ran = programs::run(&mut blkid).map_err(|_| missing())?;
        let found = PathBuf::from(ran.said);
        if ran.status.success() && found.is_absolute() { Ok(found) } else { Err(missing()) }
    }
}

/// Where crypttab(5) of systemd looks for the key file of a line that names none.
const KEY_FOLDERS: [&str; 2] = ["/etc/cryptsetup-keys.d", "/run/cryptsetup-keys.d"];

/// The key file of a name in one of these directories.
fn key_of(name: &str, directories: &[&Path]) -> Option<PathBuf> {
    let mut found = directories.iter().map(|directory| directory.join(format!("{name}.key")));
    found.find(|path| path.exists())
}

/// A value as udev writes it into the name of a link.
fn encoded(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii();
    value
        .chars()
        .map(|c| if plain(c) { c.to_string() } else { format!("\\x{:02x}", u32::from(c)) })
        .collect()
}

/// The lines of a table. The second of two lines with one name is a problem.
pub(super) fn parse(text: &[u8]) -> Vec<Line> {
    parse_in(text, &KEY_FOLDERS.map(Path::new))
}

fn parse_in(text: &[u8], key_folders: &[&Path]) -> Vec<Line> {
    let mut seen = BTreeMap::new();
    let mut lines = Vec::new();
    for (index, text) in text.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let text = text.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        let mut line = parse_line(number, text, key_folders);
        if let Ok(entry) = &line {
            let first = *seen.entry(entry.name.clone()).or_insert(number);
            if first != number {
                let message = format!("line {first} has the name {}, too", entry.name);
                line = Err(Problem { line: number, name: None, noauto: false, message });
            }
        }
        lines.push(line);
    }
    lines
}

fn parse_line(line: usize, text: &[u8], key_folders: &[&Path]) -> Line {
    let fields: Vec<_> = text
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
        .map(unescaped)
        .collect();
    let words = fields.get(3).and_then(|options| options.to_str());
    let noauto = words.is_some_and(|words| words.split(',').any(|word| word == "noauto"));
    let mut fields = fields.into_iter();
    let problem = |name: Option<&String>, message: String| Problem {
        line,
        name: name.cloned(),
        noauto,
        message,
    };
    let name = fields.next().unwrap_or_default();
    let name = name.into_string().map_err(|_| problem(None, "the name is no UTF-8 text".into()))?;
    RuntimePaths::of(&name).map_err(|failure| problem(None, failure.message))?;
    let wrong = |message: String| problem(Some(&name), message);
    // It would be another line in a unit.
    if fields.as_slice().iter().any(|field| field.as_bytes().iter().any(u8::is_ascii_control)) {
        return Err(wrong("a control character is in no path and no option".into()));
    }
    let source = fields.next().ok_or_else(|| wrong("the device is missing".into()))?;
    let source = Source::parse(source).map_err(wrong)?;
    let named = fields.next().filter(|key| key != "none" && key != "-").map(PathBuf::from);
    let options = fields.next().unwrap_or_default();
    let options = options.to_str().ok_or_else(|| wrong("the options are no UTF-8 text".into()))?;
    if let Some(more) = fields.next() {
        return Err(wrong(format!(
            "'{}' is one field too many; a line has name, device, key file and options, and a space in \
             one of them is \\040",
            more.display()
        )));
    }
    if let Some(key) = &named {
        if !key.is_absolute() {
            return Err(wrong(format!(
                "the key file '{}' is no path from / on; for a passphrase write none",
                key.display()
            )));
        }
        key.to_str().map_or(Ok(()), refuse_other_device).map_err(wrong)?;
    }
    let of_its_name = key_of(&name, key_folders);
    let key_file = match (&named, &of_its_name) {
        (Some(_), _) => KeyFile::Named,
        (None, Some(_)) => KeyFile::OfItsName,
        (None, None) => KeyFile::None,
    };
    let mut options = Options::parse(options, key_file).map_err(wrong)?;
    let key = named.or(of_its_name.filter(|_| !options.has_other_key));
    check(&options.words, &name).map_err(|said| wrong(in_names_of_the_table(&said)))?;
    if options.is_device && !udev::takes(&name) {
        options.notes.push(
            "the name: udev takes letters, digits and . _ - + : @ only, so that systemd does not find the device"
                .into(),
        );
    }
    Ok(Entry { line, name, source, key, options })
}

/// What `open` says of these options without looking at an image: values that it does not take, and options that do
/// not go together.
fn check(words: &[String], name: &str) -> Result<(), String> {
    // Nothing but the type.
    if words.len() == 1 {
        return Ok(());
    }
    let line = ["ucrypt", "open"].into_iter().map(str::to_owned).chain(words.iter().cloned());
    let given = Cli::command()
        .try_get_matches_from(line.chain(["/image".into(), name.into()]))
        .map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        })?;
    let (action, given) = given.subcommand().ok_or("no action")?;
    effects::check(action, given).map_err(|failure| failure.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> Entry {
        let mut lines = parse(text.as_bytes());
        assert_eq!(lines.len(), 1, "{text}");
        lines.remove(0).unwrap_or_else(|problem| panic!("{text}: {problem:?}"))
    }

    #[test]
    fn a_line_is_a_name_a_device_a_key_and_options() {
        let found = entry("work /srv/disk.img /etc/keys/work luks,discard");
        assert_eq!((found.line, found.name.as_str()), (1, "work"));
        assert_eq!(found.source, Source::Path("/srv/disk.img".into()));
        assert_eq!(found.key, Some("/etc/keys/work".into()));
        assert_eq!(found.options.words, ["--type=luks", "--allow-discards"]);
        for without in ["w /i", "w /i none", "w\t/i  - ", " w /i none luks "] {
            assert_eq!(entry(without).key, None, "{without}");
        }
        assert_eq!(entry("w /a\\040b /c\\134d").source.path(), Path::new("/a b"));
        assert_eq!(entry("w /a /c\\134d").key, Some("/c\\d".into()));
    }

    #[test]
    fn a_line_without_a_key_file_takes_the_one_of_its_name_as_systemd_does() {
        let places = tempfile::tempdir().unwrap();
        let [first, second] = ["etc", "run"].map(|name| places.path().join(name));
        let directories = [first.as_path(), second.as_path()];
        let parsed = |line: &str| parse_in(line.as_bytes(), &directories).remove(0);
        let key_of = |line: &str| parsed(line).unwrap().key;
        assert_eq!(key_of("work /i none"), None);
        let notes = parsed("work /i none headless").unwrap().options.notes;
        assert!(notes[0].starts_with("headless: there is no key file"), "{notes:?}");
        for directory in [&second, &first] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("work.key"), "secret").unwrap();
            assert_eq!(key_of("work /i"), Some(directory.join("work.key")));
        }
        assert_eq!(key_of("other /i -"), None);
        assert_eq!(key_of("work /i /a/key"), Some("/a/key".into()));
        // It counts for the options, unless these say where the key is.
        assert!(parsed("work /i none headless").unwrap().options.notes.is_empty());
        let plain = "plain,cipher=aes-xts-plain64,size=512";
        assert_eq!(key_of(&format!("work /i none {plain}")), Some(first.join("work.key")));
        let hashed = parsed(&format!("work /i none {plain},hash=sha256")).unwrap_err();
        assert!(hashed.message.contains("hashes the file"), "{hashed:?}");
        for other in ["volume-key-file=/k", "token-only"] {
            assert_eq!(key_of(&format!("work /i none {other}")), None, "{other}");
        }
    }

    #[test]
    fn devices_have_the_names_that_udev_gives_them() {
        for (field, path) in [
            ("UUID=4d9f-2c", "/dev/disk/by-uuid/4d9f-2c"),
            ("UUID=\"4d9f\"", "/dev/disk/by-uuid/4d9f"),
            ("LABEL=my\\040data/x", "/dev/disk/by-label/my\\x20data\\x2fx"),
            ("PARTUUID=1-2", "/dev/disk/by-partuuid/1-2"),
            ("PARTLABEL=ä", "/dev/disk/by-partlabel/ä"),
            ("ID=usb-x", "/dev/disk/by-id/usb-x"),
            ("/dev/sdb1", "/dev/sdb1"),
        ] {
            assert_eq!(entry(&format!("w {field}")).source.path(), Path::new(path), "{field}");
        }
    }

    #[test]
    fn every_wrong_line_is_named_and_stops_no_other() {
        let text = b"# a comment\n\
            \n\
            one /i none luks\n\
            .two /i none\n\
            three\n\
            four relative none\n\
            five /i key\n\
            six /i none luks,frobnicate\n\
            seven /i none luks more\n\
            one /other none luks\n\
            eight UUID= none\n\
            nine /i \xff\n\
            t\xffn /i\n\
            eleven /i none \xff\n\
            twelve /i\\012[Service] none luks\n\
            thirteen /i /keys/k:LABEL=usb luks\n\
            fourteen /i none luks,header=/h:/dev/sdb1\n\
            last /i none luks\n";
        let lines = parse(text);
        let good: Vec<_> = lines.iter().flatten().map(|entry| entry.name.as_str()).collect();
        assert_eq!(good, ["one", "last"]);
        let problems: Vec<_> = lines.iter().filter_map(|line| line.as_ref().err()).collect();
        let shown: Vec<_> =
            problems.iter().map(|it| (it.line, it.name.as_deref().unwrap_or("?"))).collect();
        let expected = [
            (4, "?"),
            (5, "three"),
            (6, "four"),
            (7, "five"),
            (8, "six"),
            (9, "seven"),
            (10, "?"),
            (11, "eight"),
            (12, "nine"),
            (13, "?"),
            (14, "eleven"),
            (15, "twelve"),
            (16, "thirteen"),
            (17, "fourteen"),
        ];
        assert_eq!(shown, expected);
        for (index, word) in [
            (0, "cannot name a volume"),
            (1, "device is missing"),
            (2, "is no device"),
            (3, "key file"),
            (4, "frobnicate"),
            (5, "one field too many"),
            (6, "line 3"),
            (7, "no value"),
            (8, "key file"),
            (9, "UTF-8"),
            (10, "UTF-8"),
            (11, "control character"),
            (12, "mount LABEL=usb by fstab"),
            (13, "mount /dev/sdb1 by fstab"),
        ] {
            assert!(problems[index].message.contains(word), "{:?}", problems[index]);
        }
    }

    #[test]
    fn no_table_makes_the_parser_panic() {
        let mut random = fastrand::Rng::with_seed(19);
        let words: [&[u8]; 12] = [
            b" ", b"\n", b"\\", b"\\04", b"\\400", b"a", b"/", b"UUID=", b"\"", b",", b"=", b"\xff",
        ];
        for _ in 0..20_000 {
            let count = random.usize(..20);
            let text: Vec<u8> =
                (0..count).flat_map(|_| words[random.usize(..words.len())]).copied().collect();
            for line in parse(&text) {
                drop(line.map(|entry| entry.source.path()));
            }
        }
    }
}
