//! `ucrypt demo`: its JSON is right too, and it leaves nothing behind.

use std::fs;

use serde_json::Value;

use crate::process::run;
use crate::scratch::Scratch;

#[test]
fn the_demo_measures_both_exports_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let dir = scratch.path("demo");
    fs::create_dir(&dir).expect("a directory");
    let mut demo = scratch.ucrypt(&["demo", "--size", "16M", "--time", "10", "--json", "--dir"]);
    let printed = run(demo.arg(&dir), b"").passes();
    let printed: Value = serde_json::from_slice(&printed).expect("JSON");
    let text = printed.to_string();
    assert!(text.contains("fuse") && text.contains("nbd"), "{text}");
    assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 0, "scratch files are left");
    assert!(scratch.mounts().is_empty() && scratch.processes().is_empty());
}
