//! The user of this process, as seen outside of user namespaces.

use std::fs;

/// The line of `uid_map` in the initial user namespace.
const INITIAL: [u32; 3] = [0, 0, u32::MAX];

/// Whether this process runs as root of the machine, not only of a user namespace.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root() && is_initial(&map())
}

/// The user ID outside of the user namespace that this process is in, if any.
pub fn number() -> u32 {
    outside(&map(), rustix::process::geteuid().as_raw())
}

fn map() -> String {
    // A kernel without user namespaces has no such file.
    fs::read_to_string("/proc/self/uid_map").unwrap_or_default()
}

fn is_initial(map: &str) -> bool {
    let mut lines = ranges(map);
    lines.next().is_none_or(|line| line == INITIAL) && lines.next().is_none()
}

/// Translates a user ID from inside a namespace to outside. An ID that is not mapped stays the
/// same.
fn outside(map: &str, inside: u32) -> u32 {
    let found = ranges(map).find_map(|[first, outside, count]| {
        let index = inside.checked_sub(first).filter(|index| *index < count)?;
        outside.checked_add(index)
    });
    found.unwrap_or(inside)
}

fn ranges(map: &str) -> impl Iterator<Item = [u32; 3]> {
    map.lines().filter_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map_while(|word| word.parse().ok());
        Some([numbers.next()?, numbers.next()?, numbers.next()?])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_user_namespace_is_the_user_who_made_it() {
        let (initial, own) = ("         0          0 4294967295\n", "0 1000 1\n");
        assert!(is_initial(initial) && is_initial("") && !is_initial(own));
        assert_eq!(outside(initial, 1000), 1000);
        assert_eq!(outside(own, 0), 1000);
        let many = "0 1000 1\n1 100000 65536\n";
        assert_eq!((outside(many, 0), outside(many, 33)), (1000, 100_032));
        assert_eq!(outside(own, 7), 7, "nobody's");
        assert!(!is_initial(many) && !is_initial("0 0 1\n"));
    }
}
