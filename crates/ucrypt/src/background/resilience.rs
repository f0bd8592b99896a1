//! Keeps a server alive that a file system depends on.
//!
//! Under memory pressure the kernel writes dirty pages to our device to get memory. A server that
//! waits for memory then waits for itself. The server therefore allocates nothing on that path, its
//! memory stays resident, the kernel does not reclaim memory for it from writers to our device
//! (`PR_SET_IO_FLUSHER`), and it is the last process to be killed when memory runs out.
//!
//! What is refused is noted, and `status` shows it. Locked memory needs `CAP_IPC_LOCK` or no limit,
//! a mount namespace `CAP_SYS_ADMIN`, the others `CAP_SYS_RESOURCE`. Every step is tried, because
//! nothing else tells what a process may do.

use std::fs;

use rustix::io::Errno;
use rustix::process::configure_io_flusher_behavior;
use serde_json::{Value, json};
use ucrypt_backend::{keep_resident, may_lock_all};

use super::mounts::{self, Stays};
use crate::failure::without_numbers;
use crate::runtime::RuntimePaths;

/// Size of the stacks of the server's threads, in bytes. They are locked too.
pub(super) const THREAD_STACK: &str = "262144";

/// A note has at most 65 columns, so that it is one line of `status`.
const NOT_LOCKED: &str = "memory is not locked, may be swapped";

/// The protections that failed.
#[derive(Debug, Default)]
pub(super) struct Resilience {
    notes: Vec<String>,
}

impl Resilience {
    /// Protects this thread and all that it will start. Call before any is started.
    pub(super) fn guard() -> Self {
        let mut guarded = Self::default();
        let flusher = configure_io_flusher_behavior(true).err();
        let killed_last = fs::write("/proc/self/oom_score_adj", "-1000").err();
        let killed_last = killed_last.map(|error| errno(&error));
        let lacking = "the server lacks CAP_SYS_RESOURCE";
        if is_denied(flusher) && is_denied(killed_last) {
            guarded.notes.push(format!("no protection at low memory: {lacking}"));
            return guarded;
        }
        if let Some(error) = flusher {
            guarded.note("may hang at low memory", lacking, error);
        }
        if let Some(error) = killed_last {
            guarded.note("may be killed at low memory", lacking, error);
        }
        guarded
    }

    /// Leaves the mounts of the user, except the server's directory.
    pub(super) fn leave_mounts(&mut self, paths: &RuntimePaths) {
        let what = "no mount namespace of its own";
        match mounts::enter(paths.dir()) {
            Ok(()) => {}
            Err(Stays::ChangedRoot) => self.notes.push(format!("{what}: it runs in a chroot")),
            Err(Stays::InPart) => {
                self.notes.push("some of its threads keep its user's mounts".into());
            }
            Err(Stays::Refused { step, error }) => {
                let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
                let why = why_refused(step, errno(&error), capabilities(&status));
                self.notes.push(without_numbers(format_args!("{what}: {why}")));
            }
        }
    }

    /// Locks all present and future memory, so that the server never waits for a page. A mapped
    /// image is not locked. Call once everything is set up.
    pub(super) fn lock_memory(&mut self) {
        // Under a limit, locking future memory would make later allocations fail.
        if !may_lock_all() {
            self.notes.push(format!("{NOT_LOCKED}: ulimit -l unlimited"));
            return;
        }
        if let Err(error) = keep_resident() {
            self.note(NOT_LOCKED, "give it CAP_IPC_LOCK", errno(&error));
        }
    }

    /// Notes a protection that failed: with what is lacking if it was refused.
    fn note(&mut self, what: &str, lacking: &str, error: Errno) {
        self.notes.push(if is_denied(Some(error)) {
            format!("{what}: {lacking}")
        } else {
            without_numbers(format_args!("{what}: {error}"))
        });
    }

    /// The memory in use, how much of it is locked, and which protections failed.
    pub(super) fn status(&self) -> Value {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let memory = field(&status, "VmRSS:");
        // Locked address space that is only reserved takes no memory.
        let locked = field(&status, "VmLck:").min(memory);
        json!({
            "pid": std::process::id(),
            "memory_bytes": memory,
            "locked_bytes": locked,
            "notes": self.notes,
        })
    }
}

/// Memory of this process in use, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmRSS:").unwrap_or(0)
}

/// The capabilities that a mount namespace needs, with their bits in a set of `/proc/self/status`.
const OF_NAMESPACES: [(&str, u64); 2] = [("CAP_SYS_ADMIN", 1 << 21), ("CAP_SYS_CHROOT", 1 << 18)];

/// The capabilities of a process; none if that is not known.
fn capabilities(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Why a step to a mount namespace failed. Who has the capabilities was refused by something else, for example by the
/// seccomp profile of a container, which may also pretend that the kernel has no such call.
fn why_refused(step: &str, error: Errno, has: u64) -> String {
    let lacking = OF_NAMESPACES.iter().find(|(_, bit)| has & bit == 0);
    match (is_denied(Some(error)), lacking) {
        (true, Some((name, _))) => format!("the server lacks {name}"),
        (true, None) => format!("{step} is not permitted here"),
        _ if error == Errno::NOSYS => format!("there is no {step} here"),
        _ => format!("{step}: {error}"),
    }
}

fn is_denied(error: Option<Errno>) -> bool {
    matches!(error, Some(Errno::PERM | Errno::ACCESS))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A field in kB, in bytes.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_the_capability_that_is_lacking_or_the_step_that_is_not_permitted() {
        let (admin, both) = (1 << 21, 1 << 21 | 1 << 18);
        let why = |has| why_refused("pivot_root", Errno::PERM, has);
        assert_eq!(why(0), "the server lacks CAP_SYS_ADMIN");
        assert_eq!(why(admin), "the server lacks CAP_SYS_CHROOT");
        assert_eq!(why(both), "pivot_root is not permitted here");
        assert_eq!(why_refused("open_tree", Errno::NOSYS, both), "there is no open_tree here");
        // With its caption, a note is one line of `status`.
        let longest = ["no mount namespace of its own: ", &why(both)].concat();
        assert!(longest.len() <= 65, "{longest}");
        assert_eq!(capabilities("Name:\tx\nCapEff:\t0000000000240000\n"), both);
        assert_eq!(capabilities("CapEff:\tx\n"), 0);
    }

    #[test]
    fn what_a_process_has_in_memory_is_read() {
        assert_eq!(field("VmLck:\t      12 kB\nVmRSS:\t  345 kB\n", "VmRSS:"), Some(345 << 10));
        assert_eq!(field("Name:\tx\n", "VmRSS:"), None);
        assert!(Resilience::default().status()["memory_bytes"].as_u64() > Some(1 << 16));
    }
}
