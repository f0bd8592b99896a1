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
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};
use serde_json::{Value, json};
use ucrypt_backend::{keep_resident, may_lock_all};

use super::mounts;
use crate::runtime::RuntimePaths;

/// Size of the stacks of the server's threads, in bytes. They are locked too.
pub(super) const THREAD_STACK: &str = "262144";

/// The protections that failed.
#[derive(Debug, Default)]
pub(super) struct Resilience {
    notes: Vec<String>,
}

impl Resilience {
    /// Protects this thread and all that it will start. Call before any is started.
    pub(super) fn guard() -> Self {
        let mut guarded = Self::default();
        if let Err(error) = configure_io_flusher_behavior(true) {
            let what = "when memory is short, the kernel and this server may wait for each other";
            guarded.note(what, "CAP_SYS_RESOURCE", error);
        }
        if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
            let what = "it may be killed when memory runs out";
            guarded.note(what, "CAP_SYS_RESOURCE", errno(&error));
        }
        guarded
    }

    /// Leaves the mounts of the user, except the server's directory.
    pub(super) fn leave_mounts(&mut self, paths: &RuntimePaths) {
        if let Err(error) = mounts::enter(paths.dir()) {
            self.note("it has no mount namespace of its own", "CAP_SYS_ADMIN", errno(&error));
        }
    }

    /// Locks all present and future memory, so that the server never waits for a page. A mapped
    /// image is not locked. Call once everything is set up.
    pub(super) fn lock_memory(&mut self) {
        // Under a limit, locking future memory would make later allocations fail.
        if !may_lock_all() {
            let limit = getrlimit(Resource::Memlock).current.unwrap_or(0) >> 10;
            self.notes.push(format!(
                "memory is not locked, the limit is {limit} KiB (give it CAP_IPC_LOCK or ulimit -l \
                 unlimited): it may wait for swap"
            ));
            return;
        }
        if let Err(error) = keep_resident() {
            self.note("memory is not locked: it may wait for swap", "CAP_IPC_LOCK", errno(&error));
        }
    }

    /// Notes a protection that failed, and the missing right if it was refused.
    fn note(&mut self, what: &str, right: &str, error: Errno) {
        self.notes.push(if matches!(error, Errno::PERM | Errno::ACCESS) {
            format!("{what}: it lacks {right}")
        } else {
            format!("{what}: {error}")
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
    fn what_a_process_has_in_memory_is_read() {
        assert_eq!(field("VmLck:\t      12 kB\nVmRSS:\t  345 kB\n", "VmRSS:"), Some(345 << 10));
        assert_eq!(field("Name:\tx\n", "VmRSS:"), None);
        assert!(Resilience::default().status()["memory_bytes"].as_u64() > Some(1 << 16));
    }
}
