//! How an export divides buffer memory among its queues.

use ucrypt_engine::Volume;

/// Bytes for the queues of an export if the volume's queues share no memory.
const DEFAULT_BYTES: usize = 16 << 20;

/// Least bytes of a queue's largest request.
const REQUEST_BYTES_MIN: usize = 64 << 10;

/// Requests of the largest length that a queue has memory for, whatever the others do: one that is
/// received or answered, and one in the engine.
const REQUESTS: usize = 2;

/// The share of each of an export's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Number of queues.
    pub(crate) queues: usize,
    /// Bytes of buffer memory of each.
    pub(crate) memory: usize,
    /// Bytes of the largest request; a power of two.
    pub(crate) request_max: usize,
}

/// Bytes of buffer memory for all queues of an export together: as much as the volume's queues share.
pub(crate) fn bytes(volume: &Volume) -> usize {
    match volume.shared_memory() {
        0 => DEFAULT_BYTES,
        bytes => bytes,
    }
}

/// Divides an export's memory among up to `wanted` queues, but no fewer than two if two are wanted.
/// Rather than with fewer queues, requests are cut shorter than `request_wanted` bytes, down to half.
pub(crate) fn divide(volume: &Volume, wanted: usize, request_wanted: usize) -> Share {
    divide_bytes(bytes(volume), wanted, request_wanted)
}

/// Bytes of the largest request if `requests` of that length have memory, a power of two of at most
/// `request_wanted`; `None` if too few.
pub(crate) fn request_max(
    volume: &Volume,
    requests: usize,
    request_wanted: usize,
) -> Option<usize> {
    let request = (bytes(volume) / requests.max(1)).min(request_wanted);
    (request >= REQUEST_BYTES_MIN).then(|| 1 << request.ilog2())
}

/// Bytes of buffer memory of each of up to `queues` queues, at most `most`.
pub(crate) fn each(volume: &Volume, queues: usize, most: usize) -> usize {
    (bytes(volume) / queues.max(1)).clamp(REQUEST_BYTES_MIN, most)
}

fn divide_bytes(bytes: usize, wanted: usize, request_wanted: usize) -> Share {
    let fit = bytes / (REQUESTS * request_wanted / 2);
    let queues = fit.max(2).min(wanted).max(1);
    let request = (bytes / queues / REQUESTS).clamp(REQUEST_BYTES_MIN, request_wanted);
    let request_max = 1 << request.ilog2();
    Share { queues, memory: (bytes / queues).max(REQUESTS * request_max), request_max }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_have_what_there_is_and_room_for_two_requests_each() {
        const MIB: usize = 1 << 20;
        let share = |queues, memory, request_max| Share { queues, memory, request_max };
        assert_eq!(divide_bytes(16 * MIB, 2, MIB), share(2, 8 * MIB, MIB));
        assert_eq!(divide_bytes(16 * MIB, 8, MIB), share(8, 2 * MIB, MIB));
        assert_eq!(divide_bytes(16 * MIB, 64, MIB), share(16, MIB, MIB / 2));
        assert_eq!(divide_bytes(2 * MIB, 4, MIB), share(2, MIB, MIB / 2));
        assert_eq!(divide_bytes(0, 64, MIB), share(2, MIB / 8, MIB / 16));
        for (bytes, wanted) in [(1, 1), (MIB / 2, 3), (3 * MIB, 3), (5 * MIB, 7), (MIB << 10, 128)]
        {
            let share = divide_bytes(bytes, wanted, MIB);
            assert!(share.memory >= 2 * share.request_max && share.queues <= wanted, "{share:?}");
        }
    }
}
