//! A disk of zeroes that drops writes: the upper limit for everything above a backend.

use std::io;
use std::sync::Arc;

use crate::at_once::AtOnce;
use crate::{Backend, Done, Extent, Io, Limits, Map, Mapping, Queue, Zones};

/// Reads zeroes, accepts writes and drops them.
#[derive(Debug)]
pub struct ZeroBackend {
    limits: Limits,
}

impl ZeroBackend {
    /// A disk of `len` bytes.
    pub fn new(len: u64) -> Self {
        Self {
            limits: Limits {
                len,
                block: 512,
                write_unit: 512,
                transfer_max: 1 << 20,
                memory_align: 1,
                read_only: false,
                discard: true,
                rotational: false,
                synchronous: true,
                copies: false,
            },
        }
    }
}

impl Backend for ZeroBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn use_until(&self, _end: u64) {}

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(AtOnce::new(depth, perform)))
    }

    fn extents(&self, _offset: u64, len: u64, _max: usize) -> Vec<Extent> {
        vec![Extent { len, hole: true }]
    }

    fn len_now(&self) -> io::Result<u64> {
        Ok(self.limits.len)
    }

    fn map(&self) -> Option<Arc<dyn Map>> {
        let zeroes = Mapping::zeroes(self.limits.transfer_max as usize).ok()?;
        Some(Arc::new(zeroes))
    }

    fn zones(&self) -> Option<&dyn Zones> {
        None
    }

    fn describe(&self) -> String {
        format!("zero:{}", self.limits.len)
    }
}

/// Fills reads with zeroes, and does nothing else.
fn perform(io: Io) -> Done {
    let is_read = matches!(io, Io::Read { .. });
    let (token, mut bufs) = io.into_parts();
    if is_read {
        for buf in &mut bufs {
            buf.fill(0);
        }
    }
    Done { token, result: Ok(()), bufs }
}
