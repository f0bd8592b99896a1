//! The constants of `adaptive`. Figures that can be measured are not here.

/// Bytes that are decrypted while they still sit in the core's cache: half of a usual L2.
pub(crate) const CACHE_BYTES: f64 = 512.0 * 1024.0;

/// Chunk length, in bytes, where everything is offloaded over a backend in memory; dm-crypt splits
/// at this length. Many short chunks are a different bet from the cost model's few long ones.
pub(crate) const SPREAD_BYTES: f64 = 128.0 * 1024.0;

/// Chunks are multiples of this page size, in bytes, which suits caches and devices. Also the
/// shortest chunk.
pub(crate) const PAGE_BYTES: f64 = 4096.0;

/// Requests in flight that keep a device busy: fewer are never joined into one.
pub(crate) const IN_FLIGHT_MIN: u32 = 4;

/// Requests in flight that keep the workers busy too, besides the device.
pub(crate) const IN_FLIGHT_MANY: u32 = 16;

/// The transform of a joined chunk takes at most this many times as long as an operation costs.
pub(crate) const JOIN_WORTH: f64 = 8.0;

/// The share of all requests in flight that each awake worker may have waiting before this thread transforms
/// the next chunk itself.
pub(crate) const BACKLOG_SHARE: f64 = 2.0 / 3.0;

/// Assumed cost of one more operation, in nanoseconds, thread and device together. It is not
/// measured: the explorer multiplies it. Doubling or halving it changes chunk lengths by a factor
/// of 1.4.
pub(crate) const OPERATION_NS: f64 = 1_500.0;

/// Factor by which an estimate may be wrong, including what it leaves out.
pub(crate) const WRONG: f64 = 3.0;
