//! The fuzz targets. What they do with an input is shared with the tests of `ucrypt-luks`, which
//! repeat the kept corpus.

#[path = "../../crates/ucrypt-luks/tests/common/mod.rs"]
mod common;

use common::targets::{self, ACTIONS, Subject, image_of};

/// Reads, shows and unlocks a header.
pub fn header(input: &[u8]) {
    targets::look(&image_of(input));
}

/// Carries out an action on an image.
pub fn action(name: &str, input: &[u8]) {
    let image = image_of(input);
    let Some(subject) = Subject::of(&image) else { return };
    if name == targets::ROTATION {
        return targets::rotates(0, &image, &subject);
    }
    if name == targets::RESTORE {
        targets::restores(0, &image, &subject);
        return;
    }
    let action = ACTIONS.iter().find(|action| action.name == name);
    targets::acts(action.expect("a known action"), 0, &image, &subject);
}

/// Inputs from sound headers, with which a corpus begins.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let (luks1, luks2) = (common::small_luks1(), common::roomy_luks2());
    let json = common::json_text(&luks2);
    let kind = |kind: u8, parts: &[&[u8]]| [&[kind][..], &parts.concat()].concat();
    let mut seeds = vec![
        ("luks1".into(), kind(0, &[&luks1[..592]])),
        ("luks2-binary".into(), kind(2, &[&luks2[..512], &luks2[0x4000..][..512]])),
        ("luks2-primary".into(), kind(3, &[&json])),
        ("luks2-secondary".into(), kind(4, &[&json])),
        ("bytes".into(), kind(5, &[&luks1[..1024]])),
    ];
    let text = String::from_utf8(json.clone()).expect("JSON");
    let token = r#""tokens":{"0":{"type":"luks2-keyring","keyslots":["0"],"key_description":"x"}}"#;
    let flags = r#""config":{"flags":["allow-discards"],"requirements":{"mandatory":[]},"#;
    for (name, from, to) in [
        ("luks2", "", ""),
        ("luks2-token", r#""tokens":{}"#, token),
        ("luks2-flags", r#""config":{"#, flags),
        ("luks2-ignored", r#""key_size":32,"#, r#""key_size":32,"priority":0,"#),
    ] {
        seeds.push((name.into(), kind(1, &[text.replacen(from, to, 1).as_bytes()])));
    }
    seeds
}
