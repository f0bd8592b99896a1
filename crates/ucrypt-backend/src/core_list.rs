//! The kernel's lists of cores.

/// Counts the cores in a list such as `0-3,8` (kernel: `Documentation/admin-guide/cputopology.rst`),
/// which may end with a line break. `None`: it is no such list.
pub fn count_cores(list: &str) -> Option<u32> {
    list.trim_end().split(',').try_fold(0u32, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count.checked_add(u32::from(last.checked_sub(first)?) + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_from_the_kernels_list() {
        assert_eq!(count_cores("0"), Some(1));
        assert_eq!(count_cores("0-1\n"), Some(2));
        assert_eq!(count_cores("0,64"), Some(2));
        assert_eq!(count_cores("0-3,8,10-11"), Some(7));
        for wrong in ["", "\n", "a", "3-1", "0-", "-1", "0--1", "0-65536"] {
            assert_eq!(count_cores(wrong), None, "{wrong:?}");
        }
    }
}
