//! A client's request: parses its bytes into a valid command or a refusal.
//!
//! This module alone decides which requests are refused and with which error, so that the
//! transmission loop only ever sees commands that are valid for the export.

use ucrypt_engine::Errno;

use super::protocol::{
    NbdError, PAYLOAD_BYTES_MAX, REQUEST_LEN, REQUEST_MAGIC, command, command_flag, get_u16,
    get_u32, get_u64, transmission_flag,
};

/// A request as received, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Command flags.
    pub(super) flags: u16,
    /// The command.
    pub(super) command: u16,
    /// The client's identifier of the request, sent back with the reply.
    pub(super) cookie: u64,
    /// First byte of the range.
    pub(super) offset: u64,
    /// Bytes of the range.
    pub(super) length: u32,
}

/// The command of a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Send the bytes of the range.
    Read,
    /// Store the payload.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// End the session, without a reply.
    Disconnect,
    /// Make all acknowledged writes durable.
    Flush,
    /// Give up the content of the range.
    Trim {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make the range read as zeroes.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// The range must stay allocated.
        no_hole: bool,
        /// Fail if the zeroes have to be written as data.
        fast: bool,
    },
    /// Report what is allocated in the range.
    BlockStatus {
        /// Only the first extent is wanted.
        one: bool,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The error for the client program.
    pub(super) error: NbdError,
    /// The reason for a human; only structured replies carry it.
    pub(super) message: &'static str,
}

/// The engine has no buffer for the request and will never have one.
pub(super) const NO_MEMORY: Refusal =
    Refusal { error: NbdError::NoMem, message: "no memory for a request of this size" };

impl From<Errno> for Refusal {
    /// Maps a system error to one of the protocol, after the protocol's section on error values.
    fn from(errno: Errno) -> Self {
        let (error, message) = match errno {
            Errno::PERM | Errno::ACCESS | Errno::ROFS => (NbdError::Perm, "not permitted"),
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => (NbdError::NoSpc, "the backend is full"),
            Errno::NOMEM => return NO_MEMORY,
            Errno::OPNOTSUPP => (NbdError::NotSup, "the backend cannot do this"),
            Errno::INVAL => (NbdError::Inval, "the backend cannot do this"),
            _ => (NbdError::Io, "the backend failed"),
        };
        Self { error, message }
    }
}

/// What requests are checked against: the export, and what was negotiated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Bytes of the export.
    pub(super) size: u64,
    /// The transmission flags that the client was sent.
    pub(super) flags: u16,
    /// `base:allocation` was selected.
    pub(super) block_status: bool,
    /// Writing zeroes is faster than writing data, where the backend can do it.
    pub(super) fast_zero: bool,
}

impl Terms {
    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn allow_write(&self) -> Result<(), Refusal> {
        if self.has(transmission_flag::READ_ONLY) {
            return Err(Refusal { error: NbdError::Perm, message: "the export is read-only" });
        }
        Ok(())
    }
}

const fn inval(message: &'static str) -> Refusal {
    Refusal { error: NbdError::Inval, message }
}

impl Request {
    /// Parses a request; `None` if the magic number is wrong, after which nothing that follows in
    /// the stream can be trusted.
    pub(super) fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        if get_u32(bytes, 0)? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: get_u16(bytes, 4)?,
            command: get_u16(bytes, 6)?,
            cookie: get_u64(bytes, 8)?,
            offset: get_u64(bytes, 16)?,
            length: get_u32(bytes, 24)?,
        })
    }

    /// Bytes that follow the request in the stream, whether it is allowed or not.
    pub(super) fn payload_len(&self) -> u32 {
        if self.command == command::WRITE { self.length } else { 0 }
    }

    /// Checks the request against the export.
    pub(super) fn check(&self, terms: &Terms) -> Result<Command, Refusal> {
        let fua = self.flags & command_flag::FUA != 0;
        match self.command {
            command::READ => {
                self.allow_flags(terms, command_flag::DF)?;
                self.in_range(terms, NbdError::Inval)?;
                self.payload_fits()?;
                Ok(Command::Read)
            }
            command::WRITE => {
                terms.allow_write()?;
                self.allow_flags(terms, 0)?;
                self.in_range(terms, NbdError::NoSpc)?;
                self.payload_fits()?;
                Ok(Command::Write { fua })
            }
            command::DISC => Ok(Command::Disconnect),
            command::FLUSH => {
                self.allow_flags(terms, 0)?;
                if self.offset != 0 || self.length != 0 {
                    return Err(inval("flush: offset and length must be zero"));
                }
                Ok(Command::Flush)
            }
            command::TRIM => {
                terms.allow_write()?;
                if !terms.has(transmission_flag::SEND_TRIM) {
                    return Err(inval("trim was not advertised: discards are not allowed"));
                }
                self.allow_flags(terms, 0)?;
                self.in_range(terms, NbdError::Inval)?;
                Ok(Command::Trim { fua })
            }
            command::WRITE_ZEROES => self.check_write_zeroes(terms),
            command::BLOCK_STATUS => self.check_block_status(terms),
            _ => Err(inval("unknown command")),
        }
    }

    fn check_write_zeroes(&self, terms: &Terms) -> Result<Command, Refusal> {
        terms.allow_write()?;
        self.allow_flags(terms, command_flag::NO_HOLE | command_flag::FAST_ZERO)?;
        self.in_range(terms, NbdError::NoSpc)?;
        let has = |flag| self.flags & flag != 0;
        let (no_hole, fua) = (has(command_flag::NO_HOLE), has(command_flag::FUA));
        let fast = has(command_flag::FAST_ZERO);
        // Zeroes that must be allocated or durable are written like data, so they are never fast. Of
        // others the backend has the last word.
        if fast && (!terms.fast_zero || no_hole || fua) {
            return Err(Refusal {
                error: NbdError::NotSup,
                message: "zeroing this range is not faster than writing it",
            });
        }
        Ok(Command::WriteZeroes { fua, no_hole, fast })
    }

    fn check_block_status(&self, terms: &Terms) -> Result<Command, Refusal> {
        if !terms.block_status {
            return Err(inval("block status: no metadata context was negotiated"));
        }
        self.allow_flags(terms, command_flag::REQ_ONE)?;
        self.in_range(terms, NbdError::Inval)?;
        if self.length == 0 {
            // A reply holds at least one extent, and an extent at least one byte.
            return Err(inval("block status: length must not be zero"));
        }
        Ok(Command::BlockStatus { one: self.flags & command_flag::REQ_ONE != 0 })
    }

    /// Refuses every flag but those of the command. `FUA` is allowed with every command if the
    /// export has it; `DF` and `FAST_ZERO` only if they were advertised.
    fn allow_flags(&self, terms: &Terms, of_command: u16) -> Result<(), Refusal> {
        let mut allowed = of_command;
        if terms.has(transmission_flag::SEND_FUA) {
            allowed |= command_flag::FUA;
        }
        if !terms.has(transmission_flag::SEND_DF) {
            allowed &= !command_flag::DF;
        }
        if !terms.has(transmission_flag::SEND_FAST_ZERO) {
            allowed &= !command_flag::FAST_ZERO;
        }
        if self.flags & !allowed == 0 { Ok(()) } else { Err(inval("unknown or misplaced flag")) }
    }

    fn in_range(&self, terms: &Terms, error: NbdError) -> Result<(), Refusal> {
        match self.offset.checked_add(u64::from(self.length)) {
            Some(end) if end <= terms.size => Ok(()),
            _ => Err(Refusal { error, message: "the range ends beyond the export" }),
        }
    }

    fn payload_fits(&self) -> Result<(), Refusal> {
        if self.length > PAYLOAD_BYTES_MAX {
            return Err(inval("longer than the maximum block size of 32 MiB"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WRITABLE: Terms = Terms {
        size: 64 << 20,
        flags: transmission_flag::HAS_FLAGS
            | transmission_flag::SEND_FLUSH
            | transmission_flag::SEND_FUA
            | transmission_flag::SEND_TRIM
            | transmission_flag::SEND_WRITE_ZEROES
            | transmission_flag::SEND_FAST_ZERO
            | transmission_flag::SEND_DF,
        block_status: true,
        fast_zero: false,
    };

    fn request(command: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 7, offset, length }
    }

    fn error(request: Request, terms: &Terms) -> NbdError {
        request.check(terms).expect_err("refused").error
    }

    #[test]
    fn a_range_past_the_end_is_einval_to_read_and_enospc_to_write() {
        let end = WRITABLE.size;
        for (offset, length) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 3, u32::MAX)] {
            for command in [command::READ, command::TRIM, command::BLOCK_STATUS] {
                assert_eq!(error(request(command, 0, offset, length), &WRITABLE), NbdError::Inval);
            }
            for command in [command::WRITE, command::WRITE_ZEROES] {
                assert_eq!(error(request(command, 0, offset, length), &WRITABLE), NbdError::NoSpc);
            }
        }
        assert_eq!(request(command::READ, 0, end - 1, 1).check(&WRITABLE), Ok(Command::Read));
        assert_eq!(request(command::READ, 0, end, 0).check(&WRITABLE), Ok(Command::Read));
    }

    #[test]
    fn a_payload_is_at_most_32_mib_and_other_lengths_are_not_bounded() {
        let exact = request(command::WRITE, 0, 0, PAYLOAD_BYTES_MAX);
        assert_eq!(exact.check(&WRITABLE), Ok(Command::Write { fua: false }));
        assert_eq!(
            error(request(command::READ, 0, 0, PAYLOAD_BYTES_MAX + 1), &WRITABLE),
            NbdError::Inval
        );
        assert_eq!(
            error(request(command::WRITE, 0, 0, PAYLOAD_BYTES_MAX + 1), &WRITABLE),
            NbdError::Inval
        );
        let zeroes = request(command::WRITE_ZEROES, 0, 0, PAYLOAD_BYTES_MAX + 1).check(&WRITABLE);
        let expected = Command::WriteZeroes { fua: false, no_hole: false, fast: false };
        assert_eq!(zeroes, Ok(expected));
    }

    #[test]
    fn a_read_only_export_refuses_every_write_with_eperm() {
        let flags = transmission_flag::HAS_FLAGS | transmission_flag::READ_ONLY;
        let terms = Terms { flags, ..WRITABLE };
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(error(request(command, 0, 0, 512), &terms) as u32, 1, "EPERM");
        }
        assert_eq!(request(command::FLUSH, 0, 0, 0).check(&terms), Ok(Command::Flush));
    }

    #[test]
    fn only_the_flags_of_the_command_pass() {
        let of = |command| match command {
            command::READ => command_flag::FUA | command_flag::DF,
            command::WRITE_ZEROES => command_flag::FUA | command_flag::NO_HOLE,
            command::BLOCK_STATUS => command_flag::FUA | command_flag::REQ_ONE,
            _ => command_flag::FUA,
        };
        for command in [0, 1, 3, 4, 6, 7] {
            for bit in 0..16 {
                let flag = 1 << bit;
                let length = if command == command::FLUSH { 0 } else { 512 };
                let result = request(command, flag, 0, length).check(&WRITABLE);
                assert_eq!(result.is_ok(), of(command) & flag != 0, "{command} {flag:#x}");
            }
        }
    }

    #[test]
    fn flags_that_were_not_advertised_are_refused() {
        let terms = Terms { flags: transmission_flag::HAS_FLAGS, ..WRITABLE };
        assert_eq!(error(request(command::READ, command_flag::DF, 0, 1), &terms), NbdError::Inval);
        assert_eq!(
            error(request(command::WRITE, command_flag::FUA, 0, 1), &terms),
            NbdError::Inval
        );
        let fast = request(command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 1);
        assert_eq!(error(fast, &terms), NbdError::Inval);
        assert_eq!(error(request(command::TRIM, 0, 0, 1), &terms), NbdError::Inval);
    }

    #[test]
    fn fast_zero_is_enotsup_where_zeroing_is_not_fast() {
        let fast = request(command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 4096);
        assert_eq!(error(fast, &WRITABLE), NbdError::NotSup);
        let terms = Terms { fast_zero: true, ..WRITABLE };
        assert_eq!(
            fast.check(&terms),
            Ok(Command::WriteZeroes { fua: false, no_hole: false, fast: true })
        );
        for other in [command_flag::NO_HOLE, command_flag::FUA] {
            let slow = request(command::WRITE_ZEROES, command_flag::FAST_ZERO | other, 0, 4096);
            assert_eq!(error(slow, &terms), NbdError::NotSup);
        }
    }

    #[test]
    fn block_status_needs_a_context_and_a_length() {
        let terms = Terms { block_status: false, ..WRITABLE };
        assert_eq!(error(request(command::BLOCK_STATUS, 0, 0, 512), &terms), NbdError::Inval);
        assert_eq!(error(request(command::BLOCK_STATUS, 0, 0, 0), &WRITABLE), NbdError::Inval);
    }

    #[test]
    fn unknown_commands_and_a_flush_of_a_range_are_einval() {
        for command in [5, 8, 9, 255, u16::MAX] {
            assert_eq!(error(request(command, 0, 0, 0), &WRITABLE), NbdError::Inval);
        }
        assert_eq!(error(request(command::FLUSH, 0, 512, 0), &WRITABLE), NbdError::Inval);
        assert_eq!(error(request(command::FLUSH, 0, 0, 512), &WRITABLE), NbdError::Inval);
    }

    proptest! {
        #[test]
        fn whatever_is_allowed_lies_inside_the_export(bytes: [u8; REQUEST_LEN], small: bool) {
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            if small {
                bytes[4..7].fill(0);
                bytes[16..20].fill(0);
                bytes[24] = 0;
            }
            let request = Request::parse(&bytes).expect("the magic number is right");
            if let Ok(allowed) = request.check(&WRITABLE) {
                if allowed != Command::Disconnect {
                    prop_assert!(request.offset + u64::from(request.length) <= WRITABLE.size);
                }
                prop_assert!(request.payload_len() <= PAYLOAD_BYTES_MAX);
            }
        }
    }
}
