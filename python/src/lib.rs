//! The native part of the Python package `ucrypt`: `ucrypt-lib`'s volumes as Python objects. The rest of
//! the package is Python, in `package/ucrypt`.
//!
//! Every call that may wait lets other Python threads run meanwhile. Ctrl-C ends the wait for an open volume, which may
//! be long: for the memory of other key derivations, or for a key file that is a pipe.

#![deny(unsafe_code)]

mod error;
mod volume;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyByteArray;
use ucrypt_lib::{Key, OpenOptions};
use zeroize::Zeroizing;

use crate::error::raised_by_open;
use crate::volume::Volume;

/// A key. `bytes` are read where they are. Of a `bytearray`, which other threads may change meanwhile,
/// there is a copy, which is wiped: so nothing is left once the caller has overwritten his.
enum Bytes {
    There(PyBackedBytes),
    Copied(Zeroizing<Vec<u8>>),
}

impl Bytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::There(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match given.cast::<PyByteArray>() {
            Ok(array) => Ok(Self::Copied(Zeroizing::new(array.to_vec()))),
            Err(_) => Ok(Self::There(given.extract()?)),
        }
    }
}

/// A passphrase: text counts as UTF-8.
#[derive(FromPyObject)]
enum Secret {
    Text(PyBackedStr),
    Bytes(Bytes),
}

impl Secret {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes.bytes(),
        }
    }
}

/// Opens the LUKS volume in an image, by exactly one of `passphrase`, `key_file` and `volume_key`.
#[pyfunction]
#[pyo3(signature = (
    path, *, passphrase=None, key_file=None, volume_key=None, readonly=true, shared=false, header=None,
    keyslot=None, allow_discards=false, direct=false, strict=false, memory=None
))]
#[expect(
    clippy::too_many_arguments,
    clippy::fn_params_excessive_bools,
    reason = "by name in Python"
)]
fn open(
    py: Python<'_>,
    path: PathBuf,
    passphrase: Option<Secret>,
    key_file: Option<PathBuf>,
    volume_key: Option<Bytes>,
    readonly: bool,
    shared: bool,
    header: Option<PathBuf>,
    keyslot: Option<u32>,
    allow_discards: bool,
    direct: bool,
    strict: bool,
    memory: Option<usize>,
) -> PyResult<Volume> {
    let mut options = OpenOptions::new()
        .read_only(readonly)
        .shared(shared)
        .allow_discards(allow_discards)
        .direct(direct)
        .strict(strict);
    if let Some(header) = header {
        options = options.header(header);
    }
    if let Some(number) = keyslot {
        options = options.keyslot(number);
    }
    if let Some(bytes) = memory {
        options = options.memory(bytes);
    }
    let opened = interruptible(py, move || {
        let key = key(passphrase.as_ref(), key_file.as_deref(), volume_key.as_ref());
        Ok::<_, PyErr>(options.open(&path, key?))
    })?;
    opened?.map(Volume::new).map_err(raised_by_open)
}

/// How often a wait looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs `work` on a thread of its own, so that signals are heard meanwhile. If one of them raises an exception, the
/// work goes on without anybody who waits for it; what it makes is then dropped.
fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, mut waits) = mpsc::channel();
    // Nobody may be left to hear of it.
    thread::Builder::new().spawn(move || _ = done.send(work()))?;
    loop {
        let (looked, again) = py.detach(move || (waits.recv_timeout(LOOK_EVERY), waits));
        waits = again;
        match looked {
            Ok(made) => return Ok(made),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the thread that opens the volume has died"));
            }
        }
    }
}

fn key<'a>(
    passphrase: Option<&'a Secret>,
    file: Option<&'a Path>,
    volume_key: Option<&'a Bytes>,
) -> PyResult<Key<'a>> {
    match (passphrase, file, volume_key) {
        (Some(passphrase), None, None) => Ok(Key::Passphrase(passphrase.bytes())),
        (None, Some(file), None) => Ok(Key::File(file)),
        (None, None, Some(key)) => Ok(Key::VolumeKey(key.bytes())),
        _ => Err(PyTypeError::new_err("give exactly one of passphrase, key_file and volume_key")),
    }
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::open;
    #[pymodule_export]
    use crate::error::{
        Denied, Error, HeaderError, InUse, NotEnoughMemory, OptionsError, WrongKey,
    };
    #[pymodule_export]
    use crate::volume::Volume;
}
