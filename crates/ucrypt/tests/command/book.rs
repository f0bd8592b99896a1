//! The pages in `docs/`: their commands run, their links lead somewhere, their messages exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::image::PASSPHRASE;
use crate::pages::run_shell;
use crate::process::{run, tool};
use crate::scratch::{Scratch, UCRYPT};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).expect("a page")
}

/// The lines of all blocks of shell commands.
fn commands(text: &str) -> String {
    let mut inside = false;
    let lines = text.split_inclusive('\n').filter(|line| {
        let fence = line.starts_with("```");
        inside = if fence { *line == "```sh\n" } else { inside };
        inside && !fence
    });
    lines.collect()
}

pub(crate) fn prepare() -> Scratch {
    let scratch = Scratch::new();
    scratch.file("key", PASSPHRASE);
    scratch.file("new.key", b"another passphrase");
    fs::create_dir(scratch.path("bin")).expect("made");
    std::os::unix::fs::symlink(UCRYPT, scratch.path("bin/ucrypt")).expect("linked");
    scratch
}

#[test]
fn a_newcomer_can_type_the_commands_of_the_first_page() {
    run_shell(&prepare(), "tutorial", &commands(&page("tutorial.md")));
}

#[test]
fn each_recipe_works_by_itself() {
    let text = page("howto.md");
    let recipes: Vec<_> = text.split("\n## ").skip(1).collect();
    assert!(recipes.len() > 10, "{} recipes", recipes.len());
    for recipe in recipes {
        let scratch = prepare();
        let image = scratch.sparse("disk.img", 48 << 20);
        let mut format = scratch.ucrypt(&["luksFormat", "-q", "--pbkdf", "pbkdf2"]);
        format.args(["--pbkdf-force-iterations", "1000", "--key-file"]).arg(scratch.path("key"));
        run(format.arg(&image), b"").passes();
        if recipe.contains("resize2fs") {
            // The recipe is for a volume with a file system, in blocks of the volume's sectors.
            let system = scratch.sparse("system", 16 << 20);
            let mut make = tool("mkfs.ext4", "e2fsprogs");
            run(make.args(["-q", "-b", "4096"]).arg(&system), b"").passes();
            let mut write = scratch.ucrypt(&["write", "--key-file"]);
            write.arg(scratch.path("key")).arg(&image);
            run(&mut write, &fs::read(&system).expect("read")).passes();
        }
        scratch.sparse("old.img", 24 << 20);
        let title = recipe.lines().next().expect("a title");
        let commands = commands(recipe);
        assert!(!commands.is_empty(), "{title}: no commands");
        run_shell(&scratch, title, &commands);
    }
}

/// The Markdown files of a folder and those below, relative to the root.
pub(crate) fn markdown(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder").map(|entry| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        (path, entry.file_type().expect("a type").is_dir())
    });
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|(_, is_folder)| *is_folder);
    let files = files.into_iter().map(|(path, _)| path);
    let files = files.filter(|path| Path::new(path).extension().is_some_and(|it| it == "md"));
    let below = folders.iter().filter(|_| !folder.is_empty());
    files.chain(below.flat_map(|(path, _)| markdown(path))).collect()
}

/// The anchor of a heading, as mdBook and code forges make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of all links.
fn links(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    after.filter_map(|rest| Some(&rest[..rest.find(')')?])).collect()
}

#[test]
fn every_page_is_in_the_book_and_every_link_leads_to_a_page_and_a_heading() {
    let pages: Vec<_> = ["", "docs"].into_iter().flat_map(markdown).collect();
    let mut checked = 0;
    for page in &pages {
        let text = fs::read_to_string(root().join(page)).expect("a page");
        let folder = Path::new(page).parent().expect("a folder");
        for link in links(&text) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = root().join(if file.is_empty() { page.into() } else { folder.join(file) });
            assert!(path.exists(), "{page}: {link} leads to no file");
            if !heading.is_empty() {
                let text = fs::read_to_string(&path).expect("a page");
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                let found = headings.any(|line| anchor(line.trim_start_matches('#')) == heading);
                assert!(found, "{page}: {link} leads to no heading");
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked} links");
    let summary = page("SUMMARY.md");
    let listed: BTreeSet<_> =
        links(&summary).into_iter().map(|link| format!("docs/{link}")).collect();
    let present = pages.into_iter().filter(|page| page.starts_with("docs/"));
    let present: BTreeSet<_> = present.filter(|page| page != "docs/SUMMARY.md").collect();
    assert_eq!(listed, present);
}

/// All string literals of the source in one text, as they are printed.
fn source(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            source(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = fs::read_to_string(&path).expect("a source file");
            // A line of a literal that goes on in the next one ends with a backslash.
            let mut parts = file.split("\\\n");
            text.push_str(parts.next().unwrap_or_default());
            parts.for_each(|part| text.push_str(part.trim_start()));
        }
    }
}

#[test]
fn every_message_that_is_explained_can_be_printed() {
    let mut known = String::new();
    for name in fs::read_dir(root().join("crates")).expect("crates") {
        source(&name.expect("a crate").path().join("src"), &mut known);
    }
    let text = page("troubleshooting.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let messages: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert!(messages.len() > 25, "{} messages", messages.len());
    for message in messages {
        for part in message.split('…').map(str::trim).filter(|part| part.len() > 3) {
            assert!(known.contains(part), "no source file has \"{part}\"");
        }
    }
}

/// The names of all functions in the sources of a folder, and of its files and modules.
fn names(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            names(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs" || it == "py") {
            let text = fs::read_to_string(&path).expect("a source file");
            let words: Vec<_> = text.split_whitespace().collect();
            let named = words.windows(2).filter(|pair| ["fn", "def", "mod"].contains(&pair[0]));
            let name = |pair: &[&str]| {
                pair[1].split(['(', '<', ';', ':']).next().unwrap_or_default().to_owned()
            };
            found.extend(named.map(name));
        }
        let of_file = [path.file_stem(), path.file_name()].into_iter().flatten();
        found.extend(of_file.filter_map(|name| Some(name.to_str()?.to_owned())));
    }
}

/// Whether there is a test, a module or a file of that name. `…` stands for what the name before it
/// begins or ends with.
fn is_there(word: &str, names: &BTreeSet<String>) -> bool {
    if word.contains('/') {
        let mut crates = fs::read_dir(root().join("crates")).expect("the crates");
        let in_crate = crates.any(|it| it.expect("a crate").path().join(word).exists());
        return in_crate || ["", "crates"].iter().any(|it| root().join(it).join(word).exists());
    }
    let name = word.rsplit("::").next().unwrap_or_default();
    match (name.strip_prefix('…'), name.strip_suffix('…')) {
        (Some(middle), _) if middle.ends_with('…') => {
            names.iter().any(|it| it.contains(middle.trim_end_matches('…')))
        }
        (Some(end), _) => names.iter().any(|it| it.ends_with(end)),
        (None, Some(begin)) => names.iter().any(|it| it.starts_with(begin)),
        (None, None) => names.contains(name),
    }
}

#[test]
fn every_promise_names_tests_that_exist() {
    let page = page("promises.md");
    let (promises, _) = page.split_once("\n## Long runs").expect("the chapter after the promises");
    let mut known = BTreeSet::new();
    names(&root().join("crates"), &mut known);
    names(&root().join("python/tests"), &mut known);
    let (mut checked, mut missing) = (0, Vec::new());
    for row in
        promises.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise |"))
    {
        let held_by = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
        let words = held_by.split('`').skip(1).step_by(2);
        let words: Vec<_> =
            words.filter(|word| !word.contains([' ', '-']) || word.contains('/')).collect();
        assert!(!words.is_empty(), "no test: {row}");
        checked += words.len();
        missing.extend(words.into_iter().filter(|word| !is_there(word, &known)));
    }
    assert!(missing.is_empty(), "there are no such tests: {missing:?}");
    assert!(checked > 200, "{checked} tests");
}
