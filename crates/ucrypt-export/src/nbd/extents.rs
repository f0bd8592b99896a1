//! Allocation status in the form of the metadata context `base:allocation`.

use ucrypt_engine::VolumeExtent;

use super::protocol::{STATE_HOLE, STATE_ZERO};

fn state(extent: &VolumeExtent) -> u32 {
    let hole = if extent.hole { STATE_HOLE } else { 0 };
    hole | if extent.zero { STATE_ZERO } else { 0 }
}

/// Joins neighbours in the same state; ends at `length` bytes and after `most` extents. Returns at
/// least one extent, as the protocol demands.
pub(super) fn join_extents(extents: &[VolumeExtent], length: u32, most: usize) -> Vec<(u32, u32)> {
    let mut joined: Vec<(u32, u32)> = Vec::new();
    let mut left = length;
    for extent in extents {
        let len = u32::try_from(extent.len).unwrap_or(u32::MAX).min(left);
        if len == 0 {
            continue;
        }
        let full = joined.len() == most;
        match joined.last_mut() {
            Some(last) if last.1 == state(extent) => last.0 += len,
            _ if full => break,
            _ => joined.push((len, state(extent))),
        }
        left -= len;
    }
    if joined.is_empty() {
        joined.push((length, 0));
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(len: u64, hole: bool, zero: bool) -> VolumeExtent {
        VolumeExtent { len, hole, zero }
    }

    #[test]
    fn neighbours_are_joined_and_the_range_is_never_left() {
        let extents = [
            extent(4096, false, false),
            extent(4096, false, false),
            extent(8192, true, true),
            extent(u64::MAX, true, false),
        ];
        assert_eq!(join_extents(&extents, 20_000, 9), [(8192, 0), (8192, 3), (3616, 1)]);
        assert_eq!(join_extents(&extents, 16_384, 9), [(8192, 0), (8192, 3)]);
        assert_eq!(join_extents(&extents, 100, 9), [(100, 0)]);
        assert_eq!(join_extents(&extents[3..], u32::MAX, 9), [(u32::MAX, 1)]);
    }

    #[test]
    fn one_extent_is_what_was_asked_for_and_what_is_left_when_nothing_is_known() {
        let extents = [extent(512, false, false), extent(512, true, false)];
        assert_eq!(join_extents(&extents, 4096, 1), [(512, 0)]);
        assert_eq!(join_extents(&[], 4096, 1), [(4096, 0)]);
    }
}
