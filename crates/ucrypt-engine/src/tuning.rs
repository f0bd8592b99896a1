//! The constants by which queues and pools decide, besides those of the policy (`ucrypt-dispatch`,
//! `tuning.rs`). Bounds of memory, and how much a calibration measures, stand where they are used.
//!
//! "Halved" and "doubled" say how far that moves adaptive's throughput in the 144 cells of
//! `grid --quick` in virtual time ("no change": by less than 1 %). The table is in
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

// Trials of two ways (`queue/pairs.rs`). The effects of other values are those in its tests, 100 seeds: how much
// longer than with the better way requests take where the other way is faster by a quarter, and where the usual one
// is; the time by the other way where it only looks faster after a change, and where the disk changes its speed. As
// they are: 1.2, 0.5, 1.5, 1.5 %.

/// For so long after a change nothing is measured, in nanoseconds.
/// Halved: 1.0, 0.4, 1.2, 1.2 %. Doubled: 1.5, 0.7, 1.9, 2.0 %.
pub(crate) const PAIRS_SETTLE_NS: u64 = 30_000_000;

/// Shortest time of a window, which has one way, in nanoseconds.
/// Halved: 0.9, 0.3, 1.0, 1.2 %. Doubled: 1.8, 0.8, 2.4, 2.4 %.
pub(crate) const PAIRS_MEASURE_NS: u64 = 30_000_000;

/// Longest time between two requests within a window, in nanoseconds: what lies further apart is not
/// compared.
/// Halved or doubled: no change.
pub(crate) const PAIRS_GAP_NS: u64 = 30_000_000;

/// Pairs of windows in a trial.
/// Halved: fewer than have to be won: the other way is never chosen. Doubled: 2.1, 1.0, 2.9, 3.0 %.
pub(crate) const PAIRS_OF_TRIAL: u32 = 4;

/// The other way wins a pair if it saves this share of the time, in per cent.
/// Halved or doubled: no change.
pub(crate) const PAIRS_GAIN_PERCENT: u64 = 10;

/// Pairs that the other way has to win of a trial.
/// Halved: no change. Doubled: more than there are: the other way is never chosen.
pub(crate) const PAIRS_WON_MIN: u32 = 3;

/// Trials in a row that it has to win before it is chosen.
/// Halved: 1.1, 0.5, 1.5, 1.5 %. Doubled: 1.4, 0.5, 1.5, 1.5 %.
pub(crate) const PAIRS_TRIALS_WON_MIN: u32 = 2;

/// Time between these trials, in nanoseconds.
/// Halved: 1.1, 0.5, 1.5, 1.5 %. Doubled: 1.2, 0.5, 1.5, 1.5 %.
pub(crate) const PAIRS_AGAIN_NS: u64 = 100_000_000;

/// Time between other trials at first, in nanoseconds. It doubles each time the result is the same.
/// Halved: 1.1, 0.6, 1.6, 1.7 %. Doubled: 1.3, 0.4, 1.3, 1.3 %.
pub(crate) const PAIRS_PAUSE_NS_MIN: u64 = 500_000_000;

/// Longest time between two trials, in nanoseconds, while the usual way is in use.
/// Halved: 1.2, 0.6, 1.6, 1.7 %. Doubled: no change.
pub(crate) const PAIRS_PAUSE_USUAL_NS_MAX: u64 = 64_000_000_000;

/// The same while the other way is in use.
/// Halved: 1.8, 0.5, 1.5, 1.5 %. Doubled: 0.9, 0.5, 1.5, 1.5 %.
pub(crate) const PAIRS_PAUSE_OTHER_NS_MAX: u64 = 8_000_000_000;
