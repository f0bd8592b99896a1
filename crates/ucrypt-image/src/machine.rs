//! What this machine can do for a key derivation.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use ucrypt_backend::count_cores;
use ucrypt_luks::{Machine, Time};

use crate::memory;

/// Memory for Argon2 in KiB if the system does not report its memory: cryptsetup's default.
const MEMORY_UNKNOWN_KIB: u64 = 1024 * 1024;

/// Half of the available memory limits Argon2 only above this, in KiB: a shortage of memory is no
/// reason to make a weaker keyslot.
const FREE_MIN_KIB: u64 = 64 * 1024;

/// The CPUs that are online, as cryptsetup counts them, and the memory that a new keyslot may take
/// with Argon2.
///
/// All CPUs count, also those that this process may not use: a keyslot that is made in a container
/// is not to differ from others.
pub fn machine() -> Machine {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let cpus = online.and_then(|list| count_cores(&list)).unwrap_or_else(|| {
        // Without /sys.
        thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
    });
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib = memory::bound_kib().unwrap_or(u64::MAX).min(usable_kib(&meminfo));
    let memory_kib = u32::try_from(memory_kib).unwrap_or(u32::MAX);
    Machine { cpus, memory_kib }
}

/// A clock that measures key derivations.
pub fn clock() -> impl FnMut(Time) -> Duration {
    let begin = Instant::now();
    move |time| match time {
        Time::Real => begin.elapsed(),
        // A failure to convert would be a time before the thread began.
        Time::Thread => clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default(),
    }
}

/// Half of the total memory. Without swap, also at most half of the available memory, because a
/// process that takes the last of it is killed.
fn usable_kib(meminfo: &str) -> u64 {
    let Some(total) = field(meminfo, "MemTotal:") else { return MEMORY_UNKNOWN_KIB };
    let half = total / 2;
    let swap = field(meminfo, "SwapTotal:").unwrap_or(0);
    let available = field(meminfo, "MemAvailable:").map(|available| available / 2);
    match available {
        Some(available) if swap == 0 && available > FREE_MIN_KIB => half.min(available),
        _ => half,
    }
}

/// Memory that this machine can give without killing anybody, in bytes.
pub fn free_memory() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = field(&meminfo, "MemAvailable:").map_or(u64::MAX, |kib| kib << 10);
    available.saturating_add(free_swap())
}

/// Free swap that this process may use, in bytes. Locked memory is never swapped.
pub fn free_swap() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = field(&meminfo, "SwapFree:").map_or(0, |kib| kib << 10);
    if free == 0 || ucrypt_backend::may_lock_all() { 0 } else { free }
}

/// Half of what a control group of `bytes` has, and at most half of the `room` that is left.
pub fn half(bytes: u64, room: u64) -> u64 {
    let free = Some(room / 2).filter(|free| *free > FREE_MIN_KIB << 10);
    free.map_or(bytes / 2, |free| free.min(bytes / 2))
}

fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::usable_kib;

    #[test]
    fn half_of_the_memory_or_of_what_is_available_without_swap() {
        let meminfo = "MemTotal: 4000000 kB\nMemAvailable: 1000000 kB\nSwapTotal: 0 kB\n";
        assert_eq!(usable_kib(meminfo), 500_000);
        assert_eq!(usable_kib(&meminfo.replace("SwapTotal: 0", "SwapTotal: 9")), 2_000_000);
        assert_eq!(usable_kib(&meminfo.replace("1000000", "1000")), 2_000_000);
        assert_eq!(usable_kib("nothing"), 1024 * 1024);
    }
}
