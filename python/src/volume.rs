//! An open volume as a Python object.

use std::sync::{PoisonError, RwLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyType};
use ucrypt_lib::Facts;

use crate::error::raised_by_io;

/// An open volume; any number of threads may use it.
#[pyclass(frozen, module = "ucrypt")]
pub(crate) struct Volume {
    /// `None` once it is closed. A call takes a clone, so a volume that is closed meanwhile stays open until
    /// the call ends.
    open: RwLock<Option<ucrypt_lib::Volume>>,
    facts: Facts,
    notices: Vec<String>,
    in_use: bool,
}

impl Volume {
    pub(crate) fn new(volume: ucrypt_lib::Volume) -> Self {
        let (facts, notices) = (volume.facts().clone(), volume.notices().to_vec());
        let in_use = volume.is_in_use();
        Self { open: RwLock::new(Some(volume)), facts, notices, in_use }
    }

    fn volume(&self) -> PyResult<ucrypt_lib::Volume> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| PyValueError::new_err("the volume is closed"))
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
        self.open.read().unwrap_or_else(PoisonError::into_inner).is_none()
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

    /// Flushes and closes the volume. Does nothing if it is closed already.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        match volume {
            Some(volume) => py.detach(|| volume.close()).map_err(raised_by_io),
            None => Ok(()),
        }
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
