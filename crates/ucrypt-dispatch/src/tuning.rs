//! The constants of `adaptive`. Figures that can be measured are not here.
//!
//! "Halved" and "doubled" say how far that moves the throughput of the 144 cells of `grid --quick`, in
//! virtual time. The table is in `docs/reports/2026-11-22-dispatch.md`.

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
pub(crate) const IN_FLIGHT_MIN: u32 = 4;

/// Requests in flight that keep the workers busy too, besides the device.
/// Halved or doubled: no change at the depths 1 and 32.
pub(crate) const IN_FLIGHT_MANY: u32 = 16;

/// The transform of a joined chunk takes at most this many times as long as an operation costs.
/// Halved: 0.919 to 1.069. Doubled: 0.838 to 1.023.
pub(crate) const JOIN_WORTH: f64 = 8.0;

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
pub(crate) const WRONG: f64 = 3.0;
