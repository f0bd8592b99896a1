//! An open volume as a Python object.

use std::process;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyType};
use ucrypt_lib::{Facts, IoError};

use crate::error::{Raised, raised_by_io};

/// How long [`Volume::close`] sleeps between looks whether the calls of other threads have ended.
const PAUSE: Duration = Duration::from_millis(1);

/// An open volume; any number of threads may use it.
#[pyclass(frozen, module = "ucrypt")]
pub(crate) struct Volume {
    /// Held only while this thread has the interpreter, so that a child that was forked finds it free.
    state: RwLock<State>,
    facts: Facts,
    notices: Vec<String>,
    in_use: bool,
}

/// Whether a volume is open.
enum State {
    /// A call takes a clone, for which [`Volume::close`] waits before it flushes.
    Open(Arc<ucrypt_lib::Volume>),
    /// A thread of this process closes it.
    Closing(u32),
    /// Everything that was written is durable.
    Closed,
    /// It is closed, and something was lost: whoever asks again is told again.
    Lost(Raised),
}

impl Volume {
    pub(crate) fn new(volume: ucrypt_lib::Volume) -> Self {
        let (facts, notices) = (volume.facts().clone(), volume.notices().to_vec());
        let in_use = volume.is_in_use();
        Self { state: RwLock::new(State::Open(Arc::new(volume))), facts, notices, in_use }
    }

    fn volume(&self) -> PyResult<Arc<ucrypt_lib::Volume>> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Open(volume) => Ok(volume.clone()),
            State::Closing(_) | State::Closed | State::Lost(_) => {
                Err(PyValueError::new_err("the volume is closed"))
            }
        }
    }

    /// The process that closes it at this moment.
    fn closer(&self) -> Option<u32> {
        match *self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Closing(closer) => Some(closer),
            _ => None,
        }
    }

    fn set(&self, state: State) -> State {
        let mut now = self.state.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, state)
    }
}

/// Flushes and closes, once the calls of other threads have ended: what they return for is durable, too.
fn close(volume: Arc<ucrypt_lib::Volume>) -> Result<(), IoError> {
    let mut shared = match Arc::try_unwrap(volume) {
        Ok(alone) => return alone.close(),
        Err(shared) => shared,
    };
    // In a child that was forked this fails: the parent's threads are not there to be waited for.
    shared.flush()?;
    loop {
        thread::sleep(PAUSE);
        shared = match Arc::try_unwrap(shared) {
            Ok(alone) => return alone.close(),
            Err(shared) => shared,
        };
    }
}

#[pymethods]
impl Volume {
    /// Bytes of the volume.
    #[getter]
    fn size(&self) -> u64 {
        self.facts.size
    }

    /// Bytes that are encrypted as one.
    #[getter]
    fn sector_size(&self) -> u32 {
        self.facts.sector_size
    }

    /// Cipher, mode and IV in dm-crypt's notation.
    #[getter]
    fn cipher(&self) -> &str {
        &self.facts.cipher
    }

    /// Length of the volume key in bits.
    #[getter]
    fn key_bits(&self) -> usize {
        self.facts.key_bits
    }

    /// Where the data starts in the image, in bytes.
    #[getter]
    fn data_offset(&self) -> u64 {
        self.facts.data_offset
    }

    /// `luks1` or `luks2`.
    #[getter]
    fn format(&self) -> &'static str {
        self.facts.format.name()
    }

    /// The UUID of the header.
    #[getter]
    fn uuid(&self) -> Option<&str> {
        self.facts.uuid.as_deref()
    }

    /// The label of a LUKS2 header.
    #[getter]
    fn label(&self) -> Option<&str> {
        self.facts.label.as_deref()
    }

    /// The keyslot that the passphrase has opened.
    #[getter]
    fn keyslot(&self) -> Option<u32> {
        self.facts.keyslot
    }

    /// Whether writes are refused.
    #[getter]
    fn readonly(&self) -> bool {
        self.facts.read_only
    }

    /// Whether another program may write to the image.
    #[getter]
    fn in_use(&self) -> bool {
        self.in_use
    }

    /// What a person should be told.
    #[getter]
    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }

    /// Whether the volume is closed.
    #[getter]
    fn closed(&self) -> bool {
        !matches!(*self.state.read().unwrap_or_else(PoisonError::into_inner), State::Open(_))
    }

    /// Reads `length` bytes from byte `offset` on; fewer only at the end of the volume.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let volume = self.volume()?;
        let left = volume.size().saturating_sub(offset);
        let length = usize::try_from(length.min(left))?;
        PyBytes::new_with(py, length, |buf| {
            py.detach(|| volume.read_at(offset, buf)).map(drop).map_err(raised_by_io)
        })
    }

    /// Writes all of `data` from byte `offset` on; returns how many bytes that are.
    fn pwrite(&self, py: Python<'_>, offset: u64, data: PyBackedBytes) -> PyResult<usize> {
        let volume = self.volume()?;
        py.detach(|| volume.write_at(offset, &data)).map_err(raised_by_io)?;
        Ok(data.len())
    }

    /// Makes `length` bytes from byte `offset` on read as zeroes.
    fn write_zeroes(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        let volume = self.volume()?;
        py.detach(|| volume.write_zeroes(offset, length)).map_err(raised_by_io)
    }

    /// Tells the image that `length` bytes from byte `offset` on are no longer needed.
    fn discard(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        let volume = self.volume()?;
        py.detach(|| volume.discard(offset, length)).map_err(raised_by_io)
    }

    /// Makes every write durable that has returned.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.volume()?;
        py.detach(|| volume.flush()).map_err(raised_by_io)
    }

    /// Waits for the calls of other threads, flushes and closes the volume. Does nothing if it is closed
    /// already; but if something was lost then, raises that again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        while let Some(closer) = self.closer() {
            if closer != process::id() {
                return Err(Raised::of(&IoError::OtherProcess).error());
            }
            py.check_signals()?;
            py.detach(|| thread::sleep(PAUSE));
        }
        let closed = match self.set(State::Closing(process::id())) {
            State::Open(volume) => py.detach(|| close(volume)).map_err(|error| Raised::of(&error)),
            State::Closed | State::Closing(_) => Ok(()),
            State::Lost(raised) => Err(raised),
        };
        let (state, result) = match closed {
            Ok(()) => (State::Closed, Ok(())),
            Err(raised) => {
                let error = raised.error();
                (State::Lost(raised), Err(error))
            }
        };
        self.set(state);
        result
    }

    /// The volume as a file with a position, at the start.
    fn file<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().volume()?;
        slf.py().import("ucrypt._file")?.getattr("VolumeFile")?.call1((slf,))
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().volume()?;
        Ok(slf.clone())
    }

    #[pyo3(signature = (kind, error, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyType>>,
        error: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = (kind, error, traceback);
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let Facts { format, cipher, size, .. } = &self.facts;
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<ucrypt.Volume: {}, {cipher}, {size} bytes{closed}>", format.name())
    }
}
