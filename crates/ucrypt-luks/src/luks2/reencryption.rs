//! The rules for a header in the middle of a reencryption: its requirement, its keyslot and its segments
//! must agree. Such a volume is not opened here, but a header that breaks these rules is damaged, and
//! cryptsetup refuses it, too.

use super::metadata::{Keyslot, Metadata, Segment, SegmentKind};
use super::parse::Node;
use crate::error::{Error, Result};
use crate::volume::SECTOR_BYTES;

/// The type of the keyslot that keeps what survives a crash of a reencryption. It holds no key.
pub(super) const KEYSLOT: &str = "reencrypt";

/// The requirement of a reencryption whose rules are known, in its three versions.
const KNOWN: [&str; 3] = ["online-reencrypt", "online-reencrypt-v2", "online-reencrypt-v3"];

/// Checks the members of a reencryption's keyslot and of its area.
pub(super) fn check_keyslot(keyslot: &Node<'_>, area: &Node<'_>) -> Result<()> {
    // Keyslots must have a key size; this one has no key.
    let key_size = keyslot.member("key_size")?;
    if key_size.number()? != 1 {
        return Err(key_size.broken("it is not 1"));
    }
    let one_of = |name: &str, values: &[&str]| {
        let member = keyslot.member(name)?;
        let value = member.text()?;
        if values.contains(&value) {
            return Ok(());
        }
        Err(member.broken(format!("{value:?} is none of {}", values.join(", "))))
    };
    one_of("mode", &["encrypt", "reencrypt", "decrypt"])?;
    one_of("direction", &["forward", "backward"])?;
    let kind = area.member("type")?.text()?;
    if matches!(kind, "checksum" | "datashift-checksum") {
        area.member("hash")?.name()?;
        let size = area.member("sector_size")?;
        let bytes = u64::from(size.number()?);
        if bytes < SECTOR_BYTES || !bytes.is_power_of_two() {
            return Err(size.broken("it is not a power of two from 512 on"));
        }
    }
    if matches!(kind, "datashift" | "datashift-journal") {
        let shift = area.member("shift_size")?;
        let bytes = shift.decimal()?;
        if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(shift.broken("it is not a multiple of 512 above 0"));
        }
    }
    Ok(())
}

/// Checks that requirement, keyslot and segments agree.
pub(super) fn check(metadata: &Metadata) -> Result<()> {
    let is_one = |(_, keyslot): &(&u32, &Keyslot)| keyslot.kind.name() == KEYSLOT;
    let mut keyslots = metadata.keyslots.iter().filter(is_one);
    let broken = |problem: &str| Err(Error::damaged("JSON/keyslots", problem));
    let requirements = &metadata.config.requirements;
    let reencryptions: Vec<_> = requirements.iter().filter(|name| may_reencrypt(name)).collect();
    if reencryptions.len() > 1 {
        let problem = "more than one reencryption is required";
        return Err(Error::damaged("JSON/config/requirements", problem));
    }
    let is_known = reencryptions.iter().any(|name| KNOWN.contains(&name.as_str()));
    match (keyslots.next(), keyslots.next()) {
        (Some(_), Some(_)) => return broken("two are of a reencryption"),
        (None, _) if is_known => return broken("none is of the reencryption that is required"),
        (Some(_), None) if reencryptions.is_empty() => {
            return broken("one is of a reencryption that is not required");
        }
        _ => {}
    }
    if is_known { check_segments(metadata) } else { Ok(()) }
}

/// Whether a requirement stands for a reencryption with a keyslot, also in a version to come.
fn may_reencrypt(requirement: &str) -> bool {
    let is_version = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    KNOWN.contains(&requirement)
        || requirement.strip_prefix("online-reencrypt-v").is_some_and(is_version)
}

/// Each segment of the volume is as it was before the reencryption or as it will be after it, and the
/// one that is being written is as it will be.
fn check_segments(metadata: &Metadata) -> Result<()> {
    let has = |segment: &Segment, flag: &str| segment.flags.iter().any(|name| name == flag);
    let (backups, volume): (Vec<_>, Vec<_>) =
        metadata.segments.iter().partition(|(_, segment)| segment.is_backup());
    let (mut before, mut after) = (None, None);
    for (_, segment) in backups {
        // A segment with both flags is the later state. Of several, the last one counts.
        if has(segment, "backup-final") {
            after = Some(segment);
        } else if has(segment, "backup-previous") {
            before = Some(segment);
        }
    }
    let (Some(before), Some(after)) = (before, after) else {
        return Err(Error::damaged("JSON/segments", "a backup of the reencryption is missing"));
    };
    for (number, segment) in volume {
        let is_done = is_alike(segment, after);
        if !is_done && (has(segment, "in-reencryption") || !is_alike(segment, before)) {
            let problem = "it is neither as before the reencryption nor as after it";
            return Err(Error::damaged(format!("JSON/segments/{number}"), problem));
        }
    }
    Ok(())
}

/// Whether two segments have the same type and, if they are encrypted, the same cipher and sectors.
fn is_alike(one: &Segment, other: &Segment) -> bool {
    match (&one.kind, &other.kind) {
        (
            SegmentKind::Crypt { encryption, sector_size, .. },
            SegmentKind::Crypt { encryption: other, sector_size: others, .. },
        ) => (encryption, sector_size) == (other, others),
        (one, other) => one.name() == other.name(),
    }
}
