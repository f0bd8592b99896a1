//! Work on a device that may never answer.
//!
//! A thread that waits for such a device cannot be ended, nor can its queue be dropped, which waits for
//! what is under way. So the work is done by threads that own all they need, and whoever waits for them
//! leaves them behind when the time is over: they keep their memory, and end with the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::load::INTERRUPTED;

/// How long work may take to end after a stop. Longer than [`GRACE`](crate::process::GRACE): a server that
/// holds its requests is killed first, and the work ends by that.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(10);

/// How often a stop is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Work of one thread. It ends early when the flag is set.
pub(crate) type Work<T> = Box<dyn FnOnce(&AtomicBool) -> io::Result<T> + Send>;

/// Carries each work out in a thread of its own, and returns what they return, in their order. `look` is
/// called while they are under way.
///
/// # Errors
/// The first of theirs; `Interrupted` if `stop` was set; `TimedOut` if they have not ended after `limit`.
pub(crate) fn carry_out<T: Send + 'static>(
    works: Vec<Work<T>>,
    limit: Duration,
    stop: &AtomicBool,
    look: &dyn Fn(),
) -> io::Result<Vec<T>> {
    let ends = Arc::new(AtomicBool::new(false));
    let mut results: Vec<Option<io::Result<T>>> = Vec::new();
    let (told, heard) = mpsc::channel();
    for (at, work) in works.into_iter().enumerate() {
        results.push(None);
        let (its_end, told) = (ends.clone(), told.clone());
        let run = move || {
            // Nobody listens any more to what took too long.
            let _ = told.send((at, work(&its_end)));
        };
        if let Err(error) = std::thread::Builder::new().spawn(run) {
            ends.store(true, Ordering::Relaxed);
            return Err(error);
        }
    }
    drop(told);
    let (mut deadline, mut stopped) = (Instant::now() + limit, false);
    while results.iter().any(Option::is_none) {
        if !stopped && stop.load(Ordering::Relaxed) {
            stopped = true;
            ends.store(true, Ordering::Relaxed);
            deadline = deadline.min(Instant::now() + END_PATIENCE);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match heard.recv_timeout(left.min(LOOK_EVERY)) {
            Ok((at, result)) => results[at] = Some(result),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                ends.store(true, Ordering::Relaxed);
                return Err(if stopped { interrupted() } else { hangs(limit) });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("a job failed")),
        }
        look();
    }
    results.into_iter().flatten().collect()
}

fn interrupted() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED)
}

fn hangs(limit: Duration) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!(
            "it has not answered for {} s; look at the system's log and at its disk or server",
            limit.as_secs()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_their_order_and_the_first_error_is_returned() {
        let go = AtomicBool::new(false);
        let number = |number: u64| -> Work<u64> {
            Box::new(move |_| {
                std::thread::sleep(Duration::from_millis(20 - number));
                Ok(number)
            })
        };
        let limit = Duration::from_secs(60);
        let all = carry_out((0..4).map(number).collect(), limit, &go, &|| {}).expect("all ended");
        assert_eq!(all, [0, 1, 2, 3]);
        let fails: Work<u64> = Box::new(|_| Err(io::Error::other("it failed")));
        let failed = carry_out(vec![number(1), fails], limit, &go, &|| {}).expect_err("one failed");
        assert_eq!(failed.to_string(), "it failed");
        let panics: Work<u64> = Box::new(|_| panic!("a test's"));
        assert!(carry_out(vec![panics], limit, &go, &|| {}).is_err());
    }

    #[test]
    fn work_that_does_not_end_is_left_behind() {
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        let endless = || -> Vec<Work<()>> {
            let ended = ended.clone();
            vec![Box::new(move |_| {
                let ended = ended.lock().map_err(|_| io::ErrorKind::Other)?;
                // Until the test ends.
                let _ = ended.recv();
                Ok(())
            })]
        };
        let limit = Duration::from_millis(150);
        let hung = carry_out(endless(), limit, &AtomicBool::new(false), &|| {}).expect_err("hangs");
        assert_eq!(hung.kind(), io::ErrorKind::TimedOut, "{hung}");
        let limit = Duration::from_secs(600);
        let stopped = carry_out(endless(), limit, &AtomicBool::new(true), &|| {});
        assert_eq!(stopped.expect_err("stopped").kind(), io::ErrorKind::Interrupted);
        drop(end);
    }
}
