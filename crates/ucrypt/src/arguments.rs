//! The command line, with cryptsetup's old names of actions made into the present ones.

use std::ffi::OsString;

/// Old names that stand for an action and an option.
const OLD_NAMES: [(&str, [&str; 3]); 2] =
    [("luksOpen", ["open", "--type", "luks"]), ("plainOpen", ["open", "--type", "plain"])];

/// The arguments of this process without its name.
pub(crate) fn arguments() -> Vec<OsString> {
    expand(std::env::args_os().skip(1))
}

fn expand(mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let Some(action) = arguments.next() else { return Vec::new() };
    let known = OLD_NAMES.iter().find(|(old, _)| action == *old);
    let action = match known {
        Some((_, new)) => new.iter().map(OsString::from).collect(),
        None => vec![action],
    };
    action.into_iter().chain(arguments).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_is_an_action_and_its_type() {
        let expanded = |words: &[&str]| expand(words.iter().map(OsString::from));
        assert_eq!(
            expanded(&["plainOpen", "image", "name"]),
            ["open", "--type", "plain", "image", "name"]
        );
        assert_eq!(expanded(&["status", "luksOpen"]), ["status", "luksOpen"]);
        assert!(expanded(&[]).is_empty());
    }
}
