//! What `bench/*.py` does when something goes wrong. No figure is judged.

use std::path::Path;

use crate::process::{python, run};
use crate::scratch::Scratch;

#[test]
fn what_stays_in_use_is_closed_again_and_what_failed_is_in_no_ratio() {
    let scratch = Scratch::new();
    let mut bench = python(include_str!("scripts/bench.py"), "json", "python3");
    bench.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench")).arg(scratch.path(""));
    assert_eq!(run(&mut bench, b"").text(), "done\n");
}
