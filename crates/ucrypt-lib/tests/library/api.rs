//! The public interface, as `api.txt` lists it.
//!
//! `cargo-semver-checks` and `cargo-public-api` read the JSON of rustdoc, whose format changes with each
//! compiler and is not stable, and compare with a version that was published. This works with any compiler
//! that builds the crate and compares with a file: the source is formatted by rustfmt (`make lint`), so its
//! public items can be found by their lines, and whatever is `pub` can be reached (`unreachable_pub`).
//!
//! - Nothing of the list may change or go away while the crate's version is compatible with that of the list.
//! - What is added is compatible, for there is no public trait, and what can grow is `#[non_exhaustive]`,
//!   which is checked here, too. It is added to the list by `UCRYPT_API=write cargo test -p ucrypt-lib api`.
//! - A version that is not compatible with the list's gets a new list, by the same command.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The part of a version that has to stay the same: the first number that is not 0, with those before it.
fn compatible(version: &str) -> String {
    let numbers: Vec<_> = version.split('.').collect();
    let first = numbers.iter().position(|number| *number != "0").unwrap_or(numbers.len() - 1);
    numbers[..=first].join(".")
}

/// Cuts a declaration off in front of its body.
fn without_body(text: &str) -> String {
    let end = text.find([';', '{']).unwrap_or(text.len());
    let text: Vec<_> = text[..end].split_whitespace().collect();
    text.join(" ").replace("( ", "(").replace(", )", ")").replace(" )", ")").replace(" .", ".")
}

/// What the lines that are indented belong to.
struct Parent {
    name: String,
    /// It is an enum: all of its members are public.
    is_enum: bool,
    can_grow: bool,
}

/// The public items of a file.
fn items(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines: Vec<&str> = source.lines().collect();
    let (mut found, mut types) = (Vec::new(), BTreeSet::new());
    let mut parent: Option<Parent> = None;
    let mut attributes = String::new();
    for (at, line) in lines.iter().enumerate() {
        let declaration = || {
            let rest = lines[at..].iter().take_while(|line| !line.is_empty());
            without_body(&rest.copied().collect::<Vec<_>>().join("\n"))
        };
        let text = line.trim_start();
        if text.starts_with("//") || text.is_empty() {
            continue;
        }
        match ((line.len() - text.len()) / 4, &parent) {
            (0, _) if text.starts_with("#[") => {
                if text.starts_with("#[derive") || text == "#[non_exhaustive]" {
                    attributes.push_str(text);
                    attributes.push(' ');
                }
                continue;
            }
            (0, _) if text.starts_with("pub ") => {
                let (item, can_grow) = (declaration(), attributes.contains("#[non_exhaustive]"));
                let is_enum = item.starts_with("pub enum");
                assert!(!is_enum || can_grow, "{item} has to be #[non_exhaustive]");
                assert!(
                    !item.starts_with("pub trait"),
                    "{item}: whoever implements it would break"
                );
                let name = item.trim_start_matches("pub ").to_owned();
                let is_type = is_enum || item.starts_with("pub struct");
                // The fields of tuples are private.
                let shown =
                    if is_type { item.split('(').next().unwrap_or_default() } else { &item };
                found.push(format!("{attributes}{shown}"));
                if is_type {
                    types.insert(bare(&name).to_owned());
                }
                parent =
                    (is_type && line.ends_with('{')).then_some(Parent { name, is_enum, can_grow });
            }
            (0, _) if text.starts_with("impl") => {
                let item = declaration();
                match item.split_once(" for ") {
                    Some((_, of)) => {
                        let of = of.split(['<', ' ']).next().unwrap_or_default();
                        if types.contains(of) || of == "io::Error" || of == "Self" {
                            found.push(item);
                        }
                        parent = None;
                    }
                    None => parent = Some(Parent { name: item, is_enum: false, can_grow: true }),
                }
            }
            (0, _) => parent = parent.filter(|_| text != "}"),
            (1, Some(Parent { name, is_enum: true, .. })) if is_name(text) => {
                found.push(format!("{name}: {}", enum_variant(&lines[at..])));
            }
            (1, Some(Parent { name, can_grow, .. })) if text.starts_with("pub ") => {
                let is_field = name.starts_with("struct");
                assert!(can_grow, "{name} has public fields, so it has to be #[non_exhaustive]");
                let item = declaration();
                let item = if is_field { text.trim_end_matches(',') } else { &item };
                found.push(format!("{name}: {item}"));
            }
            _ => {}
        }
        attributes.clear();
    }
    found
}

/// Whether a line begins with the name of a variant.
fn is_name(line: &str) -> bool {
    line.starts_with(|first: char| first.is_ascii_uppercase())
}

/// The name of a type without parameters, from its declaration.
fn bare(declaration: &str) -> &str {
    let name = declaration.split(' ').nth(1).unwrap_or_default();
    name.split(['<', '(']).next().unwrap_or_default()
}

/// A variant with its fields on one line, without comments.
fn enum_variant(lines: &[&str]) -> String {
    if !lines[0].ends_with('{') {
        return lines[0].trim().trim_end_matches(',').to_owned();
    }
    let fields =
        lines[1..].iter().map(|line| line.trim()).take_while(|line| !line.starts_with('}'));
    let fields: Vec<_> = fields.filter(|line| !line.starts_with("//")).collect();
    format!("{} {} }}", lines[0].trim(), fields.join(" ").trim_end_matches(','))
}

/// The list as it has to be now, by file.
fn list() -> Vec<String> {
    let entries = fs::read_dir(file("src")).expect("the source");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let source = fs::read_to_string(&path).expect("source");
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        all.extend(items(&source).into_iter().filter(|_| name != "lib"));
        if name == "lib" {
            let exported = source.lines().filter(|line| line.starts_with("pub use"));
            all.extend(exported.map(str::to_owned));
        }
    }
    all
}

#[test]
fn the_public_interface_is_the_listed_one_and_takes_nothing_away() {
    let now = list();
    assert!(now.len() > 80, "{now:#?}");
    let listed = fs::read_to_string(file("api.txt")).unwrap_or_default();
    let mut lines = listed.lines();
    let version = lines.next().and_then(|line| line.strip_prefix("# ucrypt-lib ")).unwrap_or("");
    let before: BTreeSet<_> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let present: BTreeSet<_> = now.iter().cloned().collect();
    let gone: Vec<_> = before.difference(&present).collect();
    if compatible(version) == compatible(VERSION) {
        assert!(
            gone.is_empty(),
            "{VERSION} is said to be compatible with {version}, which had this: {gone:#?}"
        );
    }
    let text = format!("# ucrypt-lib {VERSION}\n{}\n", now.join("\n"));
    if std::env::var_os("UCRYPT_API").is_some_and(|what| what == "write") {
        fs::write(file("api.txt"), &text).expect("written");
    } else {
        let new: Vec<_> = present.difference(&before).collect();
        assert!(
            listed == text,
            "api.txt is not up to date: UCRYPT_API=write cargo test -p ucrypt-lib api\n{new:#?}"
        );
    }
}

#[test]
fn versions_are_compatible_as_cargo_has_it() {
    for (one, other, same) in [
        ("0.1.0", "0.1.9", true),
        ("0.1.0", "0.2.0", false),
        ("1.2.0", "1.0.0", true),
        ("1.2.0", "2.0.0", false),
        ("0.0.1", "0.0.2", false),
    ] {
        assert_eq!(compatible(one) == compatible(other), same, "{one} {other}");
    }
}
