//! Tells the command which commit it is built from, for which system, and with which features.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A source archive inside of another project's repository is not of that commit.
    let commit = git(&["ls-files", "--error-unmatch", "build.rs"])
        .and_then(|_| git(&["rev-parse", "--short=12", "HEAD"]));
    // Each commit and checkout appends a line there.
    if let Some(log) = commit.as_ref().and_then(|_| git(&["rev-parse", "--git-path", "logs/HEAD"]))
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = commit.map(|commit| format!("{commit}, ")).unwrap_or_default();
    let target = std::env::var("TARGET").unwrap_or_default();
    let features = std::env::vars()
        .filter_map(|(name, _)| name.strip_prefix("CARGO_FEATURE_").map(str::to_lowercase));
    let features = features.collect::<Vec<_>>().join(" ");
    let features = if features.is_empty() { "none" } else { &features };
    println!("cargo:rustc-env=UCRYPT_BUILD= ({commit}{target}, features: {features})");
}

/// The output of git, unless it fails or is not installed.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
