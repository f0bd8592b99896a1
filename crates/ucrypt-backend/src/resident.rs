//! Memory that is never waited for.

#![expect(unsafe_code, reason = "memory is locked by address")]

use std::fs;
use std::io;

use rustix::mm::{MlockAllFlags, mlock, mlockall};

/// Fetches what this process has in memory and locks it, and all that it will have. What it shares is
/// left out, above all the mapping of an image ([`Mapping`](crate::Mapping)): that would be fetched
/// whole, and its holes filled.
///
/// # Errors
/// The system's: `EPERM` or `ENOMEM` where the process may not lock so much (`RLIMIT_MEMLOCK`).
pub fn keep_resident() -> io::Result<()> {
    mlockall(MlockAllFlags::FUTURE)?;
    // Another thread may unmap what was just listed.
    lock_private().or_else(|_| lock_private())
}

fn lock_private() -> io::Result<()> {
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((start, len)) = private(line) else { continue };
        // SAFETY: locking changes nothing that a program can see.
        unsafe { mlock(std::ptr::with_exposed_provenance_mut(start), len) }?;
    }
    Ok(())
}

/// Address and length of the mapping of a line of `maps`, if it is private and can be accessed, and no
/// page of the kernel's.
fn private(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, access) = (words.next()?, words.next()?);
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let of_kernel = words.nth(3).is_some_and(|name| name.starts_with("[v"));
    let kept = access.ends_with('p') && !access.starts_with("---") && !of_kernel;
    kept.then_some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_private_and_accessible_is_locked() {
        let maps = "\
            5600-5800 r-xp 00000000 fe:00 1234 /usr/bin/ucrypt (deleted)\n\
            7000-9000 rw-p 00000000 00:00 0 \n\
            9000-a000 ---p 00000000 00:00 0 \n\
            a000-f000 r--s 00000000 00:1a 77 /dev/shm/image\n\
            ff00-ff80 rw-p 00000000 00:00 0 [stack]\n\
            fff0-fff8 r--p 00000000 00:00 0 [vvar]\n\
            fff8-ffff r-xp 00000000 00:00 0 [vdso]\n\
            nonsense\n\
            9-8 rw-p 0 0 0\n";
        let found: Vec<_> = maps.lines().filter_map(private).collect();
        assert_eq!(found, [(0x5600, 0x200), (0x7000, 0x2000), (0xff00, 0x80)]);
    }
}
