//! `doctor` says what `open` then does.

use serde_json::Value;

use crate::image::{DATA, Image, LUKS2};
use crate::namespace::{OWN_DEV, script};
use crate::process::run;
use crate::scratch::{Scratch, UCRYPT};

/// The exports that `open` knows, each with what `doctor` says to be lacking.
fn exports(diagnosis: &Value) -> Vec<(String, Option<String>)> {
    let list = diagnosis["exports"].as_array().expect("exports");
    let known = list.iter().filter(|export| export["name"] != "vhost-user-blk");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    known.map(|export| (text(&export["name"]).expect("a name"), text(&export["lacking"]))).collect()
}

#[test]
fn an_export_is_lacking_exactly_where_open_refuses_it() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let json = run(&mut scratch.ucrypt(&["doctor", "--json"]), b"").passes();
    let diagnosis: Value = serde_json::from_slice(&json).expect("JSON");
    let text = run(&mut scratch.ucrypt(&["doctor"]), b"").text();
    let exports = exports(&diagnosis);
    assert_eq!(exports.len(), 4, "{text}");
    for (name, lacking) in &exports {
        let mut open = image.ucrypt(&scratch, "open");
        open.args(["--as", name, "volume"]);
        let line = text.lines().find(|line| line.trim_start().starts_with(name.as_str()));
        let line = line.unwrap_or_else(|| panic!("{name} is missing: {text}"));
        let Some(lacking) = lacking else {
            assert!(line.ends_with("yes"), "{text}");
            run(&mut open, b"").passes();
            run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
            continue;
        };
        assert!(line.contains(" no ") && line.ends_with(lacking.as_str()), "{text}");
        let ran = run(&mut open, b"");
        let code = ran.code().filter(|code| [2, 4].contains(code)).expect("a refusal");
        let message = ran.refuses(code);
        assert!(message.contains(lacking.as_str()), "{name}: {message}");
    }
    let first = exports.iter().find(|(_, lacking)| lacking.is_none()).expect("one is there");
    assert_eq!(diagnosis["open_serves"], first.0.as_str());
}

#[test]
fn without_devices_everything_but_sockets_is_lacking() {
    let scratch = Scratch::new();
    let text = format!("{OWN_DEV}\n\"$1\" doctor --json");
    let json = run(&mut script(&scratch, &text, &[UCRYPT]), b"").passes();
    let diagnosis: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(diagnosis["open_serves"], "nbd");
    for (name, lacking) in exports(&diagnosis) {
        assert_eq!(lacking.is_none(), name == "nbd", "{name}: {lacking:?}");
    }
}
