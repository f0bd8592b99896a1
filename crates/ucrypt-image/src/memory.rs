//! Memory for key derivations: what a control group allows, and turns where it is short.
//!
//! A keyslot may ask for gigabytes. In a container with less, taking them would get the process
//! killed without a word, and several unlocks at once would be killed together. So nothing is
//! taken before it is known to be there:
//!
//! - New keyslots stay below half of what the control group of this process may have.
//! - An unlock that needs more than a control group may have at all is refused.
//! - Unlocks take their memory one after the other (`turn`). One that finds too little waits until
//!   the others are done.

use std::fmt;

use ucrypt_luks::{Header, Permit};

use crate::error::Error;
use crate::machine;

mod cgroup;
mod turn;

/// Smaller derivations do not wait for each other, in bytes.
const SMALL: u64 = 32 << 20;

const REMEDY: &str = "raise the limit, or unlock elsewhere and give the keyslot a smaller memory \
                      there (ucrypt luksConvertKey --pbkdf-memory), or use --volume-key-file";

/// The right to take `bytes` for a key derivation, for [`ucrypt_luks::guard_memory`]. Waits for others;
/// `waits` is called if that takes more than two seconds.
///
/// # Errors
/// There is no such memory here; the text says why and what to do.
pub fn permit(bytes: u64, waits: &dyn Fn()) -> Result<Box<dyn Permit>, String> {
    check(bytes)?;
    if bytes < SMALL {
        return Ok(Box::new(Unqueued));
    }
    Ok(Box::new(turn::take(bytes, waits)?))
}

/// A derivation that is too small to wait for others.
struct Unqueued;

impl Permit for Unqueued {
    fn taken(&mut self) {}
}

/// Refuses what no wait can give: more than a control group may have.
fn check(bytes: u64) -> Result<(), String> {
    match cgroup::limits().into_iter().find(|limit| bytes > limit.bytes) {
        None => Ok(()),
        Some(limit) => {
            Err(format!("the key derivation needs {}, and {limit}; {REMEDY}", Bytes(bytes)))
        }
    }
}

/// Refuses to unlock a header, before a passphrase is asked for, if each of its keyslots needs more
/// memory than there may be.
pub fn check_unlock(header: &Header, keyslot: Option<u32>) -> Result<(), Error> {
    header.memory_to_unlock(keyslot).map_or(Ok(()), check).map_err(Error::Memory)
}

/// As [`check_unlock`], if each of these keyslots, unbound ones too, needs more.
pub fn check_keyslots(
    header: &Header,
    keyslots: impl IntoIterator<Item = u32>,
) -> Result<(), Error> {
    header.least_memory(keyslots).map_or(Ok(()), check).map_err(Error::Memory)
}

/// The memory that a new keyslot may take here because of a control group, in KiB: half of its
/// limit, and half of what is free of it.
pub fn bound_kib() -> Option<u64> {
    bounds().into_iter().map(|(bytes, _)| bytes >> 10).min()
}

/// The control group that keeps a new keyslot below `kib` KiB, in words.
pub fn bound_by(kib: u32) -> Option<String> {
    let (bytes, limit) = bounds().into_iter().min_by_key(|(bytes, _)| *bytes)?;
    (bytes >> 10 <= u64::from(kib)).then_some(limit)
}

/// What each control group leaves to a new keyslot, in bytes, with its description.
fn bounds() -> Vec<(u64, String)> {
    let bound = |limit: cgroup::Limit| (machine::half(limit.bytes, limit.room), limit.to_string());
    cgroup::limits().into_iter().map(bound).collect()
}

/// A number of bytes for people: `1.5 GiB`.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let (unit, name) =
            UNITS.into_iter().find(|(unit, _)| self.0 >= *unit).unwrap_or((1, "bytes"));
        let tenths = self.0 % unit * 10 / unit;
        if tenths == 0 {
            write!(f, "{} {name}", self.0 / unit)
        } else {
            write!(f, "{}.{tenths} {name}", self.0 / unit)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_largest_unit() {
        let cases =
            [(1 << 30, "1 GiB"), (1536 << 20, "1.5 GiB"), (512 << 20, "512 MiB"), (7, "7 bytes")];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
