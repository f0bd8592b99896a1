//! The constants of decisions: cost model, order, zeroes, fixed policies, averages, explorer. Of
//! figures that are measured, only what stands for them until then is here.
//!
//! "Halved" and "doubled" say how far that moves the throughput of the 144 cells of `grid --quick`
//! in virtual time; for the explorer, also how much longer than with the fastest arm the first 20 000
//! requests of its own test take (2.4 % with the constants as they are). The tables are in
//! `docs/reports/2026-11-22-dispatch.md`, `docs/reports/2026-11-24-constants.md` (both with the names
//! of then) and `docs/reports/2026-11-27-constants.md`.

// The cost model.

/// Bytes that are decrypted while they still sit in the core's cache: half of a usual L2.
/// Halved: 0.945 to 1.000. Doubled: 0.948 to 1.064.
pub(crate) const CACHE_BYTES: f64 = 512.0 * 1024.0;

/// Chunk length, in bytes, where everything is offloaded over a backend in memory; dm-crypt splits
/// at this length. Many short chunks are a different bet from the cost model's few long ones.
/// Halved: 0.967 to 1.063. Doubled: 0.990 to 1.023.
pub(crate) const SPREAD_BYTES: f64 = 128.0 * 1024.0;

/// Chunks are multiples of this page size, in bytes, which suits caches and devices. Also the
/// shortest chunk.
/// Halved: 0.968 to 1.005. Doubled: 0.938 to 1.008.
pub(crate) const PAGE_BYTES: f64 = 4096.0;

/// Requests in flight that keep a device busy: fewer are never joined into one.
/// Halved: no change. Doubled: 0.971 to 1.020.
pub(crate) const IN_FLIGHT_REQUESTS_MIN: u32 = 4;

/// Requests in flight that keep the workers busy too, besides the device.
/// Halved or doubled: no change at the depths 1 and 32.
pub(crate) const IN_FLIGHT_REQUESTS_MANY: u32 = 16;

/// Operations that stay in flight when so many requests are joined.
/// Halved: no change. Doubled: 0.932 to 1.099.
pub(crate) const STAY_REQUESTS_OF_MANY: u32 = 2;

/// Wake latencies that a chunk must save this thread to be worth waking a worker for, beside other
/// requests.
/// Halved: 0.970 to 1.000. Doubled: 0.980 to 1.000.
pub(crate) const WAKE_WORTH_WAKES: f64 = 2.0;

/// Wake latencies that the cipher of a request to an image in memory must take for cores to share it.
/// Halved: 0.994 to 1.066. Doubled: 0.666 to 1.000.
pub(crate) const SHARE_WORTH_WAKES: f64 = 2.0;

/// The transform of a joined chunk takes at most this many times as long as an operation costs.
/// Halved: 0.919 to 1.069. Doubled: 0.838 to 1.023.
pub(crate) const JOIN_WORTH_OPERATIONS: f64 = 8.0;

/// The share of all requests in flight that each awake worker may have waiting before this thread
/// transforms the next chunk itself.
/// Halved: 0.886 to 1.046. Doubled: 0.836 to 1.028.
pub(crate) const BACKLOG_SHARE: f64 = 2.0 / 3.0;

/// Assumed cost of one more operation, in nanoseconds, thread and device together. It is not
/// measured: the explorer multiplies it. Chunk lengths change with its square root.
/// Halved: 0.919 to 1.069. Doubled: 0.838 to 1.023.
pub const OPERATION_NS: f64 = 1_500.0;

/// Factor by which an estimate may be wrong, including what it leaves out.
/// Halved or doubled: no change.
pub(crate) const WRONG_FACTOR: f64 = 3.0;

/// How long a worker without work stays awake, in nanoseconds.
/// Halved or doubled: no change.
pub(crate) const SPIN_NS: u64 = 4_000;

/// Ready chunks that are scanned for one to offload.
/// Halved or doubled: no change.
pub(crate) const LOOK_AHEAD_CHUNKS: usize = 32;

/// Waiting requests that are scanned for a neighbour to join.
/// Halved or doubled: no change.
pub(crate) const JOIN_SCAN_REQUESTS: usize = 32;

// The order of writes.

/// Sequential writers that are told apart. With more, some writes of each count as random.
/// Halved or doubled: no change (a cell has one writer).
pub(crate) const WRITERS_MAX: usize = 32;

/// Writes in a row that continued no other, after which the next such one is random. Until then it
/// counts as the beginning of a sequence, which the writes that continue it must not overtake.
/// Halved or doubled: no change.
pub(crate) const RANDOM_WRITES_MIN: u32 = 4;

// Zeroes. No cell of the grid writes them.

/// Unit of memory for zeroes, in 512-byte sectors (32 KiB). A chunk takes whole units, so that no
/// gap between two chunks is too small for a third. Halved, more small writes of zeroes are under
/// way, but large ones are cut into twice as many buffers.
/// Not measured.
pub const ZEROES_UNIT_SECTORS: u64 = 64;

/// Chunks of one write of zeroes under way at once: one that is encrypted, and one that is written.
/// Such a write brings no buffer of its own size, so each chunk borrows one from the queue, which
/// other requests need too. In virtual time, writes of zeroes of 64 KiB to 8 MiB at depths 1 to 16:
/// Halved: 0.175 to 1.000. Doubled: 0.982 to 5.704, because a request then keeps the memory until
/// it ends: sequential for a rotating disk, but others wait for all of a long one.
pub(crate) const ZEROES_CHUNKS_MAX: u32 = 2;

// The fixed policies: figures of others, which are what these policies are.

/// The length at which dm-crypt splits requests since 2024 (`max_read_size`, `max_write_size`):
/// 128 KiB, in 512-byte sectors.
/// Halved: `unbound` 0.883 to 1.180. Doubled: 0.648 to 1.082.
pub(crate) const DM_CRYPT_SPLIT_SECTORS: u64 = 256;

/// The length in bytes up to which Crucible (`MIN_DEFER_SIZE_BYTES`) and dm-verity (`use_bh_bytes`)
/// treat a chunk as short.
/// Halved or doubled: no change (the cells have 4 KiB, 64 KiB and 1 MiB).
pub(crate) const SHORT_BYTES_MAX: u64 = 8192;

// Averages.

/// Weight of a new sample.
/// Halved: 0.989 to 1.002. Doubled: 0.983 to 1.063.
pub(crate) const SAMPLE_WEIGHT: f64 = 1.0 / 8.0;

/// A sample counts for at most this many times the present value.
/// Halved or doubled: no change.
pub(crate) const OUTLIER_FACTOR: f64 = 4.0;

/// Weight with which a worker's speed drifts towards this thread's with each inline chunk, so that
/// workers are tried again now and then.
/// Halved or doubled: no change.
pub(crate) const DRIFT_WEIGHT: f64 = 1.0 / 1024.0;

/// Cipher time in nanoseconds per byte before it is measured: 2 GB/s.
/// Halved or doubled: no change.
pub(crate) const CIPHER_NS_PER_BYTE: f64 = 0.5;

/// Time from waking a worker to its answer, in nanoseconds, before it is measured.
/// Halved or doubled: no change.
pub(crate) const WAKE_LATENCY_NS: f64 = 5_000.0;

/// This thread's own share of the wake latency, before it is measured.
/// Halved or doubled: no change.
pub(crate) const WAKE_COST_SHARE: f64 = 0.25;

/// Borders between the wake latencies, in nanoseconds for which the workers have slept: idle cores
/// sleep deeper with time, and in a virtual machine the host halts them.
/// Halved: no change. Doubled: 0.994 to 1.063.
pub(crate) const SLEEPS_NS: [u64; 2] = [100_000, 1_000_000];

/// Time to give a chunk to an awake worker and take it back, in nanoseconds, before it is measured.
/// Halved or doubled: no change.
pub(crate) const ENQUEUE_COST_NS: f64 = 400.0;

// The explorer.

/// The cost of an operation that the arm "coarse" assumes, as a multiple of [`OPERATION_NS`]. The
/// number of chunks falls with its square root: twice this value would skip the best number of
/// chunks of a request that needs two. Adding 16 times the assumed cost improved no cell of the
/// grid by itself.
/// Halved: 0.966 to 1.004, 2.4 %. Doubled: 0.975 to 1.008, 2.4 %.
pub(crate) const COARSE_FACTOR: f64 = 4.0;

/// Minimum requests of an epoch; it also has at least as many as are in flight. (With four after
/// 100 ms, one stall hides the best arm of a slow disk for minutes.)
/// Halved: 0.994 to 1.063, 3.1 %. Doubled: 0.980 to 1.008, 2.8 %.
pub(crate) const EPOCH_REQUESTS_MIN: u32 = 16;

/// An epoch with this many times the minimum requests ends however many are in flight.
/// Halved or doubled: no change.
pub(crate) const EPOCH_ENOUGH_FACTOR: u32 = 4;

/// Shortest epoch, in nanoseconds: longer than the usual disturbances of a thread.
/// Halved: 0.983 to 1.024, 1.6 %. Doubled: 0.912 to 1.005, 3.7 %.
pub(crate) const EPOCH_NS_MIN: u64 = 100_000;

/// Lower bounds of the load classes: mean length in bytes, and depth.
/// Halved or doubled: no change (a cell has one load).
pub(crate) const LENGTHS_BYTES: [f64; 4] = [6e3, 24e3, 96e3, 384e3];
pub(crate) const DEPTHS_REQUESTS: [u32; 3] = [2, 6, 24];

/// Epochs of a trial.
/// Halved: 0.950 to 1.063, 1.8 %. Doubled: 0.916 to 1.060, 3.3 %.
pub(crate) const TRIAL_EPOCHS: u32 = 4;

/// A trial that has taken this many nanoseconds ends with its epoch.
/// Halved: no change, 2.3 %. Doubled: 0.974 to 1.003, 2.4 %.
pub(crate) const TRIAL_NS: u64 = 10_000_000;

/// A trial ends early if the arm takes this many times as long as the best one after one, two, or
/// more epochs: a stall may have fallen into the first ones.
/// Halved: 0.994 to 1.072, 2.0 %. Doubled: no change, 2.7 %.
pub(crate) const HOPELESS_FACTORS: [f64; 3] = [8.0, 4.0, 1.5];

/// Where one epoch takes longer than a trial may, the trials so far and the next one take at most
/// one part in this many of all the time: few requests are not to be spent on trials.
/// Halved: no change, 2.7 %. Doubled: no change, 2.4 %.
pub(crate) const SLOW_ONE_IN: u64 = 10;

/// The same for the first trial of an arm, which may come sooner, because nothing is known of it.
/// Halved: no change, 2.2 %. Doubled: no change, 2.4 %.
pub(crate) const SLOW_FIRST_ONE_IN: u64 = 4;

/// Epochs until an arm is tried again that has lost for the first time, by less than [`CLOSE_SHARE`]: one
/// trial says little.
/// Halved: 0.973 to 1.041, 2.3 %. Doubled: 0.981 to 1.010, 2.8 %.
pub(crate) const PAUSE_EPOCHS_FIRST: u32 = 32;

/// How much longer an arm may take than the best, as a share of it, and still be close.
/// Halved: no change, 2.0 %. Doubled: no change, 2.5 %.
pub(crate) const CLOSE_SHARE: f64 = 0.5;

/// Epochs until any other arm that has lost is tried again.
/// Halved: no change, 2.4 %. Doubled: no change, 2.4 %.
pub(crate) const PAUSE_EPOCHS: u32 = 512;

/// Longest pause, in epochs: each loss doubles it.
/// Halved or doubled: no change.
pub(crate) const PAUSE_EPOCHS_MAX: u32 = 8192;

/// Lengthens the pause of a slow arm, so that trials cost less than 1 %: an arm that takes twice as
/// long pauses for `1 + DEAR_FACTOR` times as many epochs.
/// Halved: 0.993 to 1.010, 2.3 %. Doubled: 0.989 to 1.010, 2.8 %.
pub(crate) const DEAR_FACTOR: f64 = 8.0;

/// Shortest pause, in epochs, of an arm that cannot pay off now or does the same as the first.
/// Halved: 0.950 to 1.002, 2.4 %. Doubled: no change, 2.4 %.
pub(crate) const PAUSE_EPOCHS_MIN: u32 = 2;

/// 2 % hysteresis: another arm has to be faster by this factor.
/// Halved: 0.987 to 1.018, 2.4 %. Doubled: 0.961 to 1.035, 2.3 %.
pub(crate) const BETTER_FACTOR: f64 = 0.98;

/// Weight of a new result after the trial, if better.
/// Halved: 0.998 to 1.035, 2.4 %. Doubled: 0.990 to 1.009, 2.3 %.
pub(crate) const WEIGHT_BETTER: f64 = 0.5;

/// Weight of a new result after the trial, if worse.
/// Halved: no change, 2.3 %. Doubled: 0.991 to 1.160, 2.9 %.
pub(crate) const WEIGHT_WORSE: f64 = 0.125;

/// A worse result counts for at most this many times the present value: a stall says nothing about
/// an arm.
/// Halved: no change, 2.3 %. Doubled: 0.998 to 1.114, 2.8 %.
pub(crate) const WORSE_FACTOR_MAX: f64 = 1.25;
