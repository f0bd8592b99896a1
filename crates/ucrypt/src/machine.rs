//! What this machine can do for a key derivation.

use std::fs;
use std::thread;

use ucrypt_luks::Machine;

/// Memory for Argon2 in KiB if the system does not report its memory: cryptsetup's default.
const MEMORY_UNKNOWN_KIB: u64 = 1024 * 1024;

/// Half of the available memory limits Argon2 only above this, in KiB: a shortage of memory is no
/// reason to make a weaker keyslot.
const FREE_MIN_KIB: u64 = 64 * 1024;

/// The CPUs that are online and the memory that Argon2 may take.
pub(crate) fn machine() -> Machine {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib = u32::try_from(usable_kib(&meminfo)).unwrap_or(u32::MAX);
    Machine { cpus, memory_kib }
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
