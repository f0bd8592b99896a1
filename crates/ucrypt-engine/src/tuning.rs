//! The constants by which queues and pools decide, besides those of the policy (`ucrypt-dispatch`,
//! `tuning.rs`). Bounds of memory, and how much a calibration measures, stand where they are used.
//!
//! "Halved" and "doubled" say how far that moves adaptive's throughput in the 144 cells of
//! `grid --quick` in virtual time ("no change": by less than 1 %). For polling they say how much
//! longer than with the better way 20 000 requests take in its own test if spinning is faster by a
//! quarter (5.3 % with the constants as they are) and if sleeping is (2.6 %), and how many requests
//! are spun for in vain where the disk changes its speed (2.1 %). The tables are in
//! `docs/reports/2026-11-27-constants.md`.

// Workers.

/// Maximum number of jobs in each ring of the worker pool. Beyond, queues transform inline.
/// Halved or doubled: no change.
pub(crate) const RING_JOBS_MAX: usize = 1024;

/// How often an idle worker looks for work before it parks: a few microseconds. Not in virtual time,
/// where workers spin for a time of their own (`Costs::spin`).
/// That time halved: 0.805 to 1.004. Doubled: 0.973 to 2.178.
pub(crate) const WORKER_SPIN_LOOKS: u32 = 200;

/// How often a queue looks for a worker's answer before it sleeps: a few microseconds. Not measured:
/// no queue spins like this in virtual time.
pub(crate) const ANSWER_SPIN_LOOKS: u32 = 200;

/// How often queues look for spare cores until a queue that sleeps, and was awake together with
/// others, is thought to need no core.
/// Halved or doubled: no change, nor with two to four queues on four cores.
pub(crate) const TOGETHER_LOOKS: u32 = 64;

// The clock.

/// A transform of at least this many 512-byte sectors is long. Long transforms are always timed,
/// short ones now and then; before an inline one, the queue serves the backend first.
/// Halved: no change. Doubled: 0.928 to 1.004.
pub(crate) const LONG_SECTORS: u64 = 32;

/// One of this many short transforms is timed. Where no decision depends on the time, the clock is
/// read in one of this many rounds.
/// Halved or doubled: no change.
pub(crate) const TIMED_ONE_IN: u32 = 16;

// Lone requests, and spinning for the backend (`queue/polling.rs`).

/// Requests in a row that were alone in flight, after which the next one will probably be, too.
/// Not measured: it acts only where queues spin for the backend, which they do not in virtual time.
pub(crate) const ALONE_REQUESTS_MIN: u32 = 8;

/// Longest spin of [`Poll::Auto`](crate::Poll::Auto), in nanoseconds: longer than a read of a fast
/// disk, shorter than any of a slow one.
/// Not measured, for the same reason.
pub(crate) const POLL_SPIN_NS_MAX: u64 = 200_000;

/// Requests of an epoch, which has one way to wait; the median judges it.
/// Halved: 4.4 %, 1.5 %, 1.5 %. Doubled: 7.3 %, 3.4 %, 3.6 %.
pub(crate) const POLL_EPOCH_REQUESTS: usize = 32;

/// A trial has this many pairs: queues sleep for two epochs and spin for two. The first of the two
/// does not count: right after a change threads and cores are not yet where they will be.
/// Halved, fewer than have to be won: spinning is never chosen. Doubled: 7.9 %, 4.3 %, 4.2 %.
pub(crate) const POLL_TRIAL_PAIRS: u32 = 4;

/// Spinning wins a pair if it saves this share of the time, in per cent.
/// Halved: no change. Doubled: 5.5 %, 2.6 %, 2.1 %.
pub(crate) const POLL_GAIN_PERCENT: u64 = 10;

/// Pairs that spinning has to win of a trial.
/// One: 5.3 %, 2.6 %, 2.5 % (worst seed 6.0). Four, which is all: no change.
pub(crate) const POLL_WON_PAIRS_MIN: u32 = 3;

/// Trials in a row that spinning has to win before it is chosen.
/// Halved: 4.7 %, 2.6 %, 2.1 %. Doubled: 6.2 %, 2.6 %, 2.1 %.
pub(crate) const POLL_WON_TRIALS_MIN: u32 = 2;

/// Epochs between these trials.
/// Halved: 5.2 %, 2.6 %, 2.1 %. Doubled: 5.6 %, 2.6 %, 2.1 %.
pub(crate) const POLL_AGAIN_EPOCHS: u32 = 4;

/// Epochs between other trials at first. They double each time the result is the same.
/// Halved: 5.3 %, 3.0 %, 2.4 %. Doubled: 5.8 %, 2.1 %, 1.9 %.
pub(crate) const POLL_PAUSE_EPOCHS_MIN: u32 = 16;

/// Most epochs between two trials while queues sleep.
/// Halved: 5.3 %, 2.6 %, 2.6 %. Doubled: 5.3 %, 2.6 %, 2.1 %.
pub(crate) const POLL_PAUSE_ASLEEP_EPOCHS_MAX: u32 = 1024;

/// Most epochs between two trials while queues spin.
/// Halved: 7.0 %, 2.6 %, 2.1 %. Doubled: 4.1 %, 2.6 %, 2.1 %.
pub(crate) const POLL_PAUSE_SPINNING_EPOCHS_MAX: u32 = 64;
