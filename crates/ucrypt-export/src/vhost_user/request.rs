//! Parses a descriptor chain into a request (virtio 1.2, 2.7.5 and 5.2.6).
//!
//! Each descriptor and the header are read once; after that the guest may change them as it
//! likes. Parsing allocates nothing: the caller owns the list of pieces, which keeps its memory.

use ucrypt_engine::{Buf, Urgency};
use vm_memory::GuestAddress;

use super::config::{DISCARD_SECTORS_MAX, SEGMENTS_MAX, ZEROES_SECTORS_MAX};
use super::memory::{Gone, GuestMap, Outside};
use super::split::{Segment, field};

const HEADER_LEN: usize = 16;
/// Bytes of the range of a discard or write-zeroes request.
const RANGE_LEN: usize = 16;
/// Bytes of the answer to `GET_ID`.
pub(super) const ID_LEN: usize = 20;
/// Most descriptors of a request: the data, the header and the status.
const DESCRIPTORS_MAX: usize = SEGMENTS_MAX as usize + 2;
/// Flag in the range of a write-zeroes request: the space may be given back.
const UNMAP: u32 = 1;
/// Of an I/O priority of Linux (`ioprio_set(2)`): the shift of its class, and the idle class, whose
/// requests wait until nobody else needs the disk.
const CLASS_SHIFT: u32 = 13;
const CLASS_IDLE: u32 = 3;

/// How a request ended, as the guest reads it in the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Ok = 0,
    IoErr = 1,
    Unsupported = 2,
}

/// The command of a request. Offsets and lengths are in bytes of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read { offset: u64 },
    Write { offset: u64 },
    Flush,
    Id,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, unmap: bool },
}

/// A request to carry out or to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) command: Result<Command, Status>,
    /// Where the status goes; `None` if the guest left no room for it.
    pub(super) status_at: Option<GuestAddress>,
    /// Bytes that are written to the guest on success, including the status.
    pub(super) written: u32,
    /// How urgent the request is.
    pub(super) urgency: Urgency,
}

/// Why there is no command.
enum Failure {
    /// The request is refused.
    Refused(Status),
    /// A part of the request is in memory that was removed.
    Gone,
}

const IO_ERR: Failure = Failure::Refused(Status::IoErr);

impl From<Outside> for Failure {
    fn from(outside: Outside) -> Self {
        match outside {
            Outside::Nowhere => IO_ERR,
            Outside::Gone => Self::Gone,
        }
    }
}

/// A run of the guest's memory, in bytes.
type Run = (u64, usize);

/// The parts of a chain, reused from request to request.
pub(super) struct Parser {
    readable: Vec<Run>,
    writable: Vec<Run>,
    urgency: Urgency,
}

impl Parser {
    pub(super) fn new() -> Self {
        let list = || Vec::with_capacity(DESCRIPTORS_MAX);
        Self { readable: list(), writable: list(), urgency: Urgency::Normal }
    }

    /// Parses a chain. Appends the data of the request to `pieces`.
    ///
    /// # Errors
    /// A part of the request lies in memory that was removed and may come back.
    pub(super) fn parse(
        &mut self,
        map: &GuestMap,
        chain: impl Iterator<Item = Result<Segment, Outside>>,
        pieces: &mut Vec<Buf>,
    ) -> Result<Request, Gone> {
        self.urgency = Urgency::Normal;
        let is_sound = self.collect(chain)?;
        let status_at = take_last_byte(&mut self.writable);
        if status_at.is_some_and(|at| map.check(at, 1) == Err(Outside::Gone)) {
            return Err(Gone);
        }
        let command =
            if is_sound && status_at.is_some() { self.command(map, pieces) } else { Err(IO_ERR) };
        if command.is_err() {
            pieces.clear();
        }
        let command = match command {
            Ok(command) => Ok(command),
            Err(Failure::Refused(status)) => Err(status),
            Err(Failure::Gone) => return Err(Gone),
        };
        let data = match command {
            Ok(Command::Read { .. }) => self.writable.iter().map(|run| run.1).sum(),
            Ok(Command::Id) => self.writable.iter().map(|run| run.1).sum::<usize>().min(ID_LEN),
            _ => 0,
        };
        let written = (data as u32).saturating_add(1);
        Ok(Request { command, status_at, written, urgency: self.urgency })
    }

    /// Sorts the descriptors into readable and writable ones. Returns whether the chain is whole,
    /// in order, and not too long. A chain that is too long is still walked to its end, where the
    /// status is.
    fn collect(
        &mut self,
        chain: impl Iterator<Item = Result<Segment, Outside>>,
    ) -> Result<bool, Gone> {
        self.readable.clear();
        self.writable.clear();
        let (mut count, mut is_sound) = (0, true);
        for segment in chain {
            let Segment { at, len, writable } = match segment {
                Ok(segment) => segment,
                Err(Outside::Gone) => return Err(Gone),
                Err(Outside::Nowhere) => {
                    is_sound = false;
                    continue;
                }
            };
            count += 1;
            is_sound &= (writable || self.writable.is_empty()) && count <= DESCRIPTORS_MAX;
            let list = if writable { &mut self.writable } else { &mut self.readable };
            if list.len() == DESCRIPTORS_MAX {
                list.pop();
            }
            if len > 0 {
                list.push((at, len as usize));
            }
        }
        Ok(is_sound)
    }

    fn command(&mut self, map: &GuestMap, pieces: &mut Vec<Buf>) -> Result<Command, Failure> {
        let header: [u8; HEADER_LEN] = take(&mut self.readable, map)?;
        let kind = u32::from_le_bytes(field(&header, 0));
        // Reserved in the standard; Linux's driver puts the I/O priority there.
        let priority = u32::from_le_bytes(field(&header, 4));
        if priority >> CLASS_SHIFT == CLASS_IDLE {
            self.urgency = Urgency::Background;
        }
        let sector = u64::from_le_bytes(field(&header, 8));
        let offset = || sector.checked_mul(512).ok_or(IO_ERR);
        match kind {
            0 => {
                self.data(false, map, pieces)?;
                Ok(Command::Read { offset: offset()? })
            }
            1 => {
                self.data(true, map, pieces)?;
                Ok(Command::Write { offset: offset()? })
            }
            4 => Ok(Command::Flush),
            8 => {
                append(&self.writable, map, pieces)?;
                Ok(Command::Id)
            }
            11 => {
                let (offset, len, flags) = self.range(map, DISCARD_SECTORS_MAX)?;
                if flags != 0 {
                    return Err(Failure::Refused(Status::Unsupported));
                }
                Ok(Command::Discard { offset, len })
            }
            13 => {
                let (offset, len, flags) = self.range(map, ZEROES_SECTORS_MAX)?;
                if flags & !UNMAP != 0 {
                    return Err(Failure::Refused(Status::Unsupported));
                }
                Ok(Command::WriteZeroes { offset, len, unmap: flags & UNMAP != 0 })
            }
            _ => Err(Failure::Refused(Status::Unsupported)),
        }
    }

    /// Appends the data of a read or write to `pieces`: whole units of 512 bytes.
    fn data(&self, out: bool, map: &GuestMap, pieces: &mut Vec<Buf>) -> Result<(), Failure> {
        let runs = if out { &self.readable } else { &self.writable };
        append(runs, map, pieces)?;
        let len: usize = runs.iter().map(|run| run.1).sum();
        if len.is_multiple_of(512) { Ok(()) } else { Err(IO_ERR) }
    }

    /// The range of a discard or write-zeroes request: only one, as the configuration says.
    fn range(&mut self, map: &GuestMap, sectors_max: u32) -> Result<(u64, u64, u32), Failure> {
        let range: [u8; RANGE_LEN] = take(&mut self.readable, map)?;
        let sectors = u32::from_le_bytes(field(&range, 8));
        if !self.readable.is_empty() || sectors > sectors_max {
            return Err(IO_ERR);
        }
        let offset = u64::from_le_bytes(field(&range, 0)).checked_mul(512).ok_or(IO_ERR)?;
        Ok((offset, u64::from(sectors) * 512, u32::from_le_bytes(field(&range, 12))))
    }
}

/// Appends the data in `runs` to `pieces`, as buffers.
fn append(runs: &[Run], map: &GuestMap, pieces: &mut Vec<Buf>) -> Result<(), Failure> {
    Ok(runs.iter().try_for_each(|&(at, len)| map.append(at, len, pieces))?)
}

/// Takes `N` bytes off the front of `runs`. They may span several runs: drivers may split requests
/// as they like.
fn take<const N: usize>(runs: &mut Vec<Run>, map: &GuestMap) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    let (mut filled, mut used) = (0, 0);
    for (at, len) in runs.iter_mut() {
        let count = (*len).min(N - filled);
        let part = &mut bytes[filled..filled + count];
        map.read(*at, part)?;
        filled += count;
        (*at, *len) = (at.checked_add(count as u64).ok_or(IO_ERR)?, *len - count);
        if *len > 0 {
            break;
        }
        used += 1;
    }
    runs.drain(..used);
    if filled == N { Ok(bytes) } else { Err(IO_ERR) }
}

/// Takes the last byte off the end of `runs`, none of which is empty.
fn take_last_byte(runs: &mut Vec<Run>) -> Option<GuestAddress> {
    let (at, len) = runs.last_mut()?;
    *len -= 1;
    let (at, len) = (*at, *len);
    if len == 0 {
        runs.pop();
    }
    at.checked_add(len as u64).map(GuestAddress)
}
