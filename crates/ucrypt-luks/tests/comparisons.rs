//! Secrets are compared in constant time. How long a comparison takes cannot be tested without chance, so the
//! source is: what holds a secret is an operand of neither `==` nor `!=`, which end at the first difference.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of what holds a secret, or is computed from one.
const SECRETS: [&str; 7] =
    ["volume_key", "passphrase", "digest", "area_key", "master_key", "computed", "secret"];

/// Where secrets are handled.
const CRATES: [&str; 4] = ["ucrypt-luks", "ucrypt-image", "ucrypt-lib", "ucrypt"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The name that an operand ends or begins with: `self.digest` is `digest`, `&*key[..]` is `key`, and
/// `key.len()` is `len`.
fn name(operand: &str) -> &str {
    let operand = operand.trim_matches(|sign: char| " &*()[]{}.?;,".contains(sign));
    let path = operand.rsplit(|sign: char| " (&*!{|".contains(sign)).next().unwrap_or(operand);
    path.rsplit(['.', ':']).next().unwrap_or(path)
}

/// The names of secrets that a line compares byte by byte.
fn compared(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or(line);
    let mut names = Vec::new();
    for sign in ["==", "!="] {
        for (at, _) in code.match_indices(sign) {
            let (left, right) = (&code[..at], &code[at + sign.len()..]);
            // The first operand behind the sign, with its members.
            let right = right.trim_start().split([' ', ')', ',', ';']).next().unwrap_or(right);
            names.extend([name(left), name(right)]);
        }
    }
    names.retain(|name| SECRETS.contains(name));
    names
}

#[test]
fn no_secret_is_compared_in_a_time_that_tells_where_it_differs() {
    // The search finds what it is to find.
    for line in [
        "if digest == self.digest {",
        "Ok(computed == *stored)",
        "if *volume_key != key { // a remark",
        "assert!(a && (unlocked.volume_key == other))",
        "if old == new.passphrase {",
    ] {
        assert!(!compared(line).is_empty(), "{line}");
    }
    for line in [
        "if volume_key.len() != len {",
        "ct_eq(&digest).into()",
        "// digest == digest",
        "digest.is_some_and(|digest| digest.segments.is_empty() && digest.keyslots == [number])",
    ] {
        assert!(compared(line).is_empty(), "{line}: {:?}", compared(line));
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for name in CRATES {
        sources(&crates.join(name).join("src"), &mut found);
    }
    let mut constant = 0;
    for path in &found {
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        constant += code.matches(".ct_eq(").count();
        for (number, line) in code.lines().enumerate() {
            let names = compared(line);
            assert!(names.is_empty(), "{}:{}: {names:?}", path.display(), number + 1);
        }
    }
    assert!(found.len() > 100 && constant >= 6, "{} files, {constant} places", found.len());
}
