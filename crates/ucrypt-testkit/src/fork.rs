//! A child of a test, made by a fork: it has all that the test has, but no other thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long the child may take: more is a hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Exit status of a child whose work has panicked.
const PANICKED: u8 = 101;

/// Forks, and has the child carry `work` out and end with what it returns, nothing being dropped that
/// `work` does not drop. Returns the child's exit status; `None` if it was killed because it hung.
///
/// # Panics
/// If the system refuses the fork.
pub fn in_child(work: impl FnOnce() -> u8) -> Option<u8> {
    // SAFETY: the child runs Rust code although other threads may have been under way. What it may find
    // locked by them is what is tested, except for the allocator, which glibc makes usable; it returns
    // to no frame of the test.
    #[expect(unsafe_code, reason = "a fork is what is tested")]
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED);
        // SAFETY: ends the process, and calls nothing that the test has registered.
        #[expect(unsafe_code, reason = "a fork is what is tested")]
        unsafe {
            libc::_exit(status.into())
        }
    }
    let child = Pid::from_raw(child).expect("fork: the system has no room for a process");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).expect("a child") {
            return status.exit_status().and_then(|status| u8::try_from(status).ok());
        }
        if Instant::now() > deadline {
            // It is reaped by the next round, or by whoever reaps the test.
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::empty());
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
