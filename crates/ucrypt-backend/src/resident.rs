//! Locking memory, so that pages stay resident.

#![expect(unsafe_code, reason = "memory is locked by address")]

use std::io;
use std::ptr;

use rustix::mm::{
    MapFlags, MlockAllFlags, MlockFlags, ProtFlags, mlock, mlock_with, mlockall, mmap_anonymous,
    munlockall, munmap,
};
use rustix::process::{Resource, getrlimit};

use crate::kernel_table;

/// Upper bound of the page size, in bytes.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// How often the mappings are listed until all that is listed is still there.
const LISTS_MAX: usize = 20;

/// Whether this process may lock unlimited memory. Under a limit, locking all future memory makes
/// later allocations fail, which ends the program.
///
/// The permission depends on a capability in the *initial* user namespace (`CAP_IPC_LOCK`), which
/// neither the user id nor the list of capabilities shows. So this function tries to lock a range
/// without pages that is longer than the limit.
pub fn may_lock_all() -> bool {
    let Some(limit) = getrlimit(Resource::Memlock).current else { return true };
    let Ok(limit) = usize::try_from(limit) else { return true };
    let Some(len) = limit.checked_next_multiple_of(PAGE_BYTES_MAX) else { return true };
    let Some(len) = len.checked_add(PAGE_BYTES_MAX) else { return true };
    // SAFETY: a new range at any free address; nobody can access it.
    let range = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let Ok(range) = range else { return false };
    // SAFETY: the range was just mapped and nobody else knows of it. `ONFAULT`: none of its pages
    // is allocated.
    unsafe {
        let locked = mlock_with(range, len, MlockFlags::ONFAULT);
        let _ = munmap(range, len);
        locked.is_ok()
    }
}

/// Locks all pages of this process when they are first used, now and later, if it may lock
/// unlimited memory. Returns whether it did.
pub fn lock_on_fault() -> bool {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    may_lock_all() && mlockall(all).is_ok()
}

/// Loads this process's memory and locks it, together with all future memory. Shared mappings are
/// left out, above all the mapping of an image ([`Mapping`](crate::Mapping)): locking it would load
/// all of it and fill its holes. If this fails, nothing is locked.
///
/// # Errors
/// `EPERM` if the process may not lock unlimited memory ([`may_lock_all`]), or the system's error.
pub fn keep_resident() -> io::Result<()> {
    if !may_lock_all() {
        return Err(rustix::io::Errno::PERM.into());
    }
    mlockall(MlockAllFlags::FUTURE)?;
    // Threads that end meanwhile unmap ranges just listed.
    let mut locked = lock_private();
    for _ in 1..LISTS_MAX {
        locked = locked.or_else(|_| lock_private());
    }
    locked.inspect_err(|_| {
        // Otherwise future memory would be locked all the same.
        let _ = munlockall();
    })
}

fn lock_private() -> io::Result<()> {
    for line in kernel_table("/proc/self/maps")?.lines() {
        let Some((start, len)) = private(line) else { continue };
        // SAFETY: locking changes nothing that a program can see.
        unsafe { mlock(ptr::with_exposed_provenance_mut(start), len) }?;
    }
    Ok(())
}

/// Address and length of the mapping in a line of `maps`, if it is private, accessible and not one
/// of the kernel's.
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
