//! Helpers that the experiments share.

use std::sync::Arc;

use ucrypt_backend::Backend;
use ucrypt_engine::{CipherModel, PolicyKind, Queue, Segment, Volume, VolumeOptions};
use ucrypt_sector::SectorCipher;

/// A volume over the whole backend; without `cipher` it is the raw contender.
pub(crate) fn volume(
    backend: Arc<dyn Backend>,
    cipher: Option<SectorCipher>,
    cipher_model: Option<CipherModel>,
    policy: PolicyKind,
) -> Arc<Volume> {
    let segment = Segment { len: backend.limits().len, backend_offset: 0, cipher };
    let options =
        VolumeOptions { policies: policy.into(), cipher_model, ..VolumeOptions::default() };
    Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"))
}

/// Waits for one answer.
pub(crate) fn finish(queue: &mut Queue) {
    queue.wait().expect("the backend works");
    let done = queue.next_done().expect("an answer");
    assert_eq!(done.result, Ok(()));
}

/// The median.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A length with a binary unit, rounded down.
pub(crate) fn name(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}
