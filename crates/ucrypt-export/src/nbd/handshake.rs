//! The handshake, as a state machine that takes bytes and returns bytes.
//!
//! It knows no socket and no clock: the caller reads what [`Handshake::wanted`] asks for, sends
//! what [`Handshake::take_output`] returns, and sets the deadline. Tests and fuzzers can therefore
//! reach every state. Memory is bounded whatever the client sends: an option's data is kept up to
//! [`OPTION_DATA_BYTES_MAX`] bytes, and longer data is thrown away as it arrives.

use std::mem;

use super::options;
use super::protocol::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_BYTES_MAX, client_flag, get_u32,
    get_u64, handshake_flag, option, option_reply, transmission_flag,
};

/// Longest option data that is parsed, in bytes. Longer data is refused with `ERR_TOO_BIG`.
pub(super) const OPTION_DATA_BYTES_MAX: u32 = 64 << 10;
/// Longest option data that is skipped, in bytes. A client that announces more is cut off.
const OPTION_SKIP_BYTES_MAX: u32 = 32 << 20;
/// Most options in one handshake. A client that sends more is not going to finish.
const OPTIONS_MAX: u32 = 4096;
/// Zero bytes after the reply to `EXPORT_NAME`.
const ZEROES: usize = 124;

/// What the handshake tells a client about the volume.
#[derive(Clone, Debug)]
pub(super) struct Export {
    /// The canonical name; the empty name chooses the export too. At most 4096 bytes.
    pub(super) name: String,
    /// A line for a human. At most 4096 bytes.
    pub(super) description: String,
    /// Bytes of the volume.
    pub(super) size: u64,
    /// Transmission flags without `SEND_DF`, which depends on the negotiation.
    pub(super) flags: u16,
    /// Smallest request, in bytes: a power of two.
    pub(super) block_min: u32,
    /// Smallest efficient request, in bytes: a power of two of 512 or more.
    pub(super) block_preferred: u32,
    /// Largest payload, in bytes.
    pub(super) block_max: u32,
}

impl Export {
    /// Whether `name` means this export.
    pub(super) fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// What was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Negotiated {
    /// Reads are answered with structured replies.
    pub(super) structured: bool,
    /// `base:allocation` was selected, block status may be asked for.
    pub(super) block_status: bool,
}

impl Negotiated {
    /// The transmission flags for a client with these features.
    pub(super) fn transmission_flags(self, export: &Export) -> u16 {
        export.flags | if self.structured { transmission_flag::SEND_DF } else { 0 }
    }
}

/// Where the handshake stands after some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send the output, then read on.
    Continue,
    /// Send the output, then start the transmission phase.
    Transmission(Negotiated),
    /// Send the output, then close the connection: the client asked for it.
    Close,
    /// Close the connection: the client broke the protocol, or there is no other way to refuse.
    Violation(&'static str),
}

/// The part that the next bytes belong to.
#[derive(Clone, Copy)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32, length: u32 },
    Skip { option: u32, left: u32 },
}

/// One client's handshake.
pub(super) struct Handshake<'a> {
    export: &'a Export,
    state: State,
    /// The bytes of the current part so far.
    input: Vec<u8>,
    output: Vec<u8>,
    negotiated: Negotiated,
    fixed: bool,
    no_zeroes: bool,
    options: u32,
    /// Why the client is not served; `None` if it is.
    refusal: Option<String>,
}

impl<'a> Handshake<'a> {
    /// A handshake that tells the client that it is not served, and why.
    pub(super) fn refusing(export: &'a Export, why: String) -> Self {
        Self { refusal: Some(why), ..Self::new(export) }
    }

    /// Starts a handshake. Its first output is the greeting.
    pub(super) fn new(export: &'a Export) -> Self {
        let mut output = Vec::with_capacity(512);
        output.extend(GREETING_MAGIC.to_be_bytes());
        output.extend(OPTION_MAGIC.to_be_bytes());
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        output.extend(flags.to_be_bytes());
        Self {
            export,
            state: State::ClientFlags,
            input: Vec::new(),
            output,
            negotiated: Negotiated::default(),
            fixed: false,
            no_zeroes: false,
            options: 0,
            refusal: None,
        }
    }

    /// Number of bytes to read now without reading past the handshake; never zero, at most
    /// [`OPTION_DATA_BYTES_MAX`].
    pub(super) fn wanted(&self) -> usize {
        let part = match self.state {
            State::ClientFlags => 4,
            State::OptionHeader => 16,
            State::OptionData { length, .. } => length,
            State::Skip { left, .. } => return left.min(OPTION_DATA_BYTES_MAX) as usize,
        };
        (part as usize).saturating_sub(self.input.len())
    }

    /// Takes the bytes to send to the client now.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    /// Takes bytes from the client: at least 1 and at most [`wanted`](Self::wanted).
    pub(super) fn take_input(&mut self, bytes: &[u8]) -> Step {
        let wanted = self.wanted();
        debug_assert!(bytes.len() <= wanted, "the caller read into the next part");
        if let State::Skip { option, left } = self.state {
            let left = left.saturating_sub(bytes.len() as u32);
            self.state = State::Skip { option, left };
            if left == 0 {
                self.refuse(option, option_reply::ERR_TOO_BIG, "the option is too long");
                self.state = State::OptionHeader;
            }
            return Step::Continue;
        }
        self.input.extend_from_slice(bytes);
        if bytes.len() < wanted {
            return Step::Continue;
        }
        let input = mem::take(&mut self.input);
        match self.state {
            State::ClientFlags => self.client_flags(&input),
            State::OptionHeader => self.option_header(&input),
            State::OptionData { option, .. } => {
                self.state = State::OptionHeader;
                self.option(option, &input)
            }
            State::Skip { .. } => Step::Continue,
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> Step {
        let flags = get_u32(input, 0).unwrap_or(u32::MAX);
        if flags & !(client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES) != 0 {
            return Step::Violation("unknown client flags");
        }
        self.fixed = flags & client_flag::FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & client_flag::NO_ZEROES != 0;
        self.state = State::OptionHeader;
        Step::Continue
    }

    fn option_header(&mut self, input: &[u8]) -> Step {
        let (Some(magic), Some(option), Some(length)) =
            (get_u64(input, 0), get_u32(input, 8), get_u32(input, 12))
        else {
            return Step::Violation("a short option");
        };
        self.options += 1;
        if magic != OPTION_MAGIC {
            return Step::Violation("bad option magic");
        }
        if self.options > OPTIONS_MAX {
            return Step::Violation("too many options");
        }
        if !self.fixed && option != option::EXPORT_NAME {
            return Step::Violation("an option from a client without fixed newstyle");
        }
        if option == option::EXPORT_NAME && length as usize > STRING_BYTES_MAX {
            return Step::Violation("the export name is too long");
        }
        if length > OPTION_SKIP_BYTES_MAX {
            return Step::Violation("the option is far too long");
        }
        if length > OPTION_DATA_BYTES_MAX {
            self.state = State::Skip { option, left: length };
            return Step::Continue;
        }
        if length == 0 {
            return self.option(option, &[]);
        }
        self.state = State::OptionData { option, length };
        Step::Continue
    }

    /// Runs one whole option.
    fn option(&mut self, option: u32, data: &[u8]) -> Step {
        if let (Some(why), true) = (&self.refusal, option != option::ABORT) {
            if option == option::EXPORT_NAME {
                // EXPORT_NAME has no error reply: closing is the only answer.
                return Step::Close;
            }
            let why = why.clone();
            self.refuse(option, option_reply::ERR_POLICY, &why);
            return if option == option::GO { Step::Close } else { Step::Continue };
        }
        match option {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.reply(option, option_reply::ACK, &[]);
                return Step::Close;
            }
            option::GO => {
                if self.info(option, data) {
                    return Step::Transmission(self.negotiated);
                }
            }
            option::INFO => {
                self.info(option, data);
            }
            option::LIST if data.is_empty() => self.list(),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.negotiated.structured = true;
                self.reply(option, option_reply::ACK, &[]);
            }
            option::LIST_META_CONTEXT => {
                self.meta_context(option, data);
            }
            option::SET_META_CONTEXT => {
                // Even a refused option drops the previous selection.
                self.negotiated.block_status = false;
                self.negotiated.block_status = self.meta_context(option, data);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                self.refuse(option, option_reply::ERR_INVALID, "the option takes no data");
            }
            option::STARTTLS => {
                let message = "this server has no TLS; use a Unix socket or loopback";
                self.refuse(option, option_reply::ERR_UNSUP, message);
            }
            _ => self.refuse(option, option_reply::ERR_UNSUP, "unknown option"),
        }
        Step::Continue
    }

    fn export_name(&mut self, name: &[u8]) -> Step {
        if !self.export.answers_to(name) {
            return Step::Violation("no such export");
        }
        let flags = self.negotiated.transmission_flags(self.export);
        self.output.extend(self.export.size.to_be_bytes());
        self.output.extend(flags.to_be_bytes());
        if !self.no_zeroes {
            self.output.extend([0; ZEROES]);
        }
        Step::Transmission(self.negotiated)
    }

    fn list(&mut self) {
        let (name, description) = (&self.export.name, &self.export.description);
        let mut data = Vec::with_capacity(4 + name.len() + description.len());
        data.extend((name.len() as u32).to_be_bytes());
        data.extend(name.as_bytes());
        data.extend(description.as_bytes());
        self.reply(option::LIST, option_reply::SERVER, &data);
        self.reply(option::LIST, option_reply::ACK, &[]);
    }

    /// Answers `INFO` or `GO`; true if it was accepted.
    fn info(&mut self, option: u32, data: &[u8]) -> bool {
        let Some(query) = options::InfoQuery::parse(data) else {
            self.refuse(option, option_reply::ERR_INVALID, "malformed option data");
            return false;
        };
        if !self.export.answers_to(query.name) {
            self.refuse(option, option_reply::ERR_UNKNOWN, "no such export");
            return false;
        }
        let flags = self.negotiated.transmission_flags(self.export);
        for fact in query.facts(self.export, flags) {
            self.reply(option, option_reply::INFO, &fact);
        }
        self.reply(option, option_reply::ACK, &[]);
        true
    }

    /// Answers `LIST_META_CONTEXT` or `SET_META_CONTEXT`; true if `base:allocation` was chosen.
    fn meta_context(&mut self, option: u32, data: &[u8]) -> bool {
        if !self.negotiated.structured {
            let message = "structured replies must be negotiated first";
            self.refuse(option, option_reply::ERR_INVALID, message);
            return false;
        }
        let Some(query) = options::MetaQuery::parse(data) else {
            self.refuse(option, option_reply::ERR_INVALID, "malformed option data");
            return false;
        };
        if !self.export.answers_to(query.name) {
            self.refuse(option, option_reply::ERR_UNKNOWN, "no such export");
            return false;
        }
        let list = option == option::LIST_META_CONTEXT;
        let chosen = query.chooses_base_allocation(list);
        if chosen {
            self.reply(option, option_reply::META_CONTEXT, &options::base_allocation(list));
        }
        self.reply(option, option_reply::ACK, &[]);
        chosen
    }

    fn refuse(&mut self, option: u32, error: u32, message: &str) {
        self.reply(option, error, message.as_bytes());
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.output.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.extend(option.to_be_bytes());
        self.output.extend(kind.to_be_bytes());
        self.output.extend((data.len() as u32).to_be_bytes());
        self.output.extend(data);
    }
}

#[cfg(test)]
mod tests;
