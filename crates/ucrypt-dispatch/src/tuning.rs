//! Every constant that `adaptive` decides by. What can be measured is not here.

/// What is decrypted while it still sits in the core's cache, in bytes: half of a usual L2.
pub(crate) const CACHE_BYTES: f64 = 512.0 * 1024.0;

/// Where everything is offloaded, requests over a backend in memory are split at this length, in bytes, as
/// dm-crypt splits them: many short chunks are another bet than the cost model's few long ones.
pub(crate) const SPREAD_BYTES: f64 = 128.0 * 1024.0;

/// Chunks are multiples of this, in bytes: what caches and devices like. And the shortest chunk.
pub(crate) const PAGE_BYTES: f64 = 4096.0;

/// Chunks in flight that a device needs to be busy: fewer than that never become one.
pub(crate) const IN_FLIGHT_MIN: u32 = 4;

/// As many chunks keep workers busy too, beside the device.
pub(crate) const IN_FLIGHT_MANY: u32 = 16;

/// A joined chunk takes at most this many times as long to transform as an operation costs.
pub(crate) const JOIN_WORTH: f64 = 8.0;

/// The share of all requests in flight that each awake worker may have waiting before this thread transforms
/// the next chunk itself.
pub(crate) const BACKLOG_SHARE: f64 = 2.0 / 3.0;

/// What one more operation is assumed to cost, in nanoseconds, thread and device together. Nobody measures it:
/// the explorer multiplies it. Twice or half of that moves chunk lengths by 1.4.
pub(crate) const OPERATION_NS: f64 = 1_500.0;

/// How wrong an estimate may be, together with what it leaves out.
pub(crate) const WRONG: f64 = 3.0;
