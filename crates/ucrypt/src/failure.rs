//! How an action fails: one line for people, one exit code for scripts (the codes of cryptsetup).

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::background;
use crate::stdio::say_line;

/// How a shell reports a program that SIGPIPE ended.
const SIGPIPE_CODE: u8 = 128 + 13;

/// A message without the numbers of errors, ` (os error 2)`, which say nothing to people that their text does not.
pub(crate) fn without_numbers(message: impl fmt::Display) -> String {
    const MARK: &str = " (os error ";
    let message = message.to_string();
    let mut parts = message.split(MARK);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|it: char| it.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) if rest.len() + 1 < part.len() => text.push_str(rest),
            _ => text.extend([MARK, part]),
        }
    }
    text
}

/// A failed action: its exit code and its message of one line, with cause and remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// What was to be ended has ended already, and as it should.
    pub(crate) is_gone: bool,
}

impl Failure {
    /// With an exit code.
    pub(crate) fn with(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: without_numbers(message), is_gone: false }
    }

    /// A volume is not open, though it was a moment ago: 4.
    pub(crate) fn gone(message: impl fmt::Display) -> Self {
        Self { is_gone: true, ..Self::device(message) }
    }

    /// Wrong parameters, or an image that is damaged or foreign: 1.
    pub(crate) fn wrong(message: impl fmt::Display) -> Self {
        Self::with(1, message)
    }

    /// No permission, or a wrong passphrase: 2.
    pub(crate) fn denied(message: impl fmt::Display) -> Self {
        Self::with(2, message)
    }

    /// Out of memory: 3.
    pub(crate) fn memory(message: impl fmt::Display) -> Self {
        Self::with(3, message)
    }

    /// The device cannot be used, or is the wrong one: 4.
    pub(crate) fn device(message: impl fmt::Display) -> Self {
        Self::with(4, message)
    }

    /// The device exists already or is busy: 5.
    pub(crate) fn busy(message: impl fmt::Display) -> Self {
        Self::with(5, message)
    }

    /// If it is that the file of a detached header cannot be opened: with the option that has named it.
    pub(crate) fn of_header(self, header: Option<&Path>) -> Self {
        let is_of_it =
            |path: &Path| self.message.starts_with(&format!("cannot open {}: ", path.display()));
        if !header.is_some_and(is_of_it) {
            return self;
        }
        Self { message: format!("{}; --header names the file of the header", self.message), ..self }
    }

    /// Puts the subject in front of the message.
    pub(crate) fn about(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// The reader of the result has gone. The command ends as other programs do then: silently, by
    /// SIGPIPE.
    pub(crate) fn nobody_reads() -> Self {
        Self::with(SIGPIPE_CODE, "")
    }

    /// Whether there is no permission.
    pub(crate) fn is_denied(&self) -> bool {
        self.code == 2
    }

    /// Whether something is in use.
    pub(crate) fn is_busy(&self) -> bool {
        self.code == 5
    }

    /// Whether it is [`Failure::nobody_reads`].
    pub(crate) fn is_nobody_reads(&self) -> bool {
        self.code == SIGPIPE_CODE
    }
}

/// How several acts end that do not depend on each other: each failure is said at once, in its order, and the
/// code of the first is the result.
#[derive(Debug, Default)]
pub(crate) struct Ended(Option<u8>);

impl Ended {
    /// One more has ended.
    pub(crate) fn keep(&mut self, ended: Result<(), Failure>) {
        if let Err(failure) = ended {
            self.0.get_or_insert(failure.code);
            tell(&failure);
        }
    }

    /// How all of them have ended.
    pub(crate) fn result(self) -> Result<(), Failure> {
        self.0.map_or(Ok(()), |code| Err(Failure::with(code, "")))
    }
}

/// Says why something has failed, unless a program that was started has done so.
pub(crate) fn tell(failure: &Failure) {
    if !failure.message.is_empty() {
        say_line(failure);
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ucrypt_backend::OpenError> for Failure {
    fn from(error: ucrypt_backend::OpenError) -> Self {
        let own = match &error {
            ucrypt_backend::OpenError::Locked { path } => background::volume_of_image(path),
            _ => None,
        };
        if let Some(name) = own {
            Self::busy(format!(
                "the image is open already, as {name}; ucrypt close {name} closes it"
            ))
        } else if error.is_busy() {
            Self::busy(error)
        } else if error.is_permission() {
            Self::denied(error)
        } else if is_missing(&error) {
            Self::device(format!("{error}; check the path"))
        } else {
            Self::device(error)
        }
    }
}

fn is_missing(error: &ucrypt_backend::OpenError) -> bool {
    use ucrypt_backend::OpenError::Io;
    matches!(error, Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
}

/// What may help against an error of the system, behind `; `; nothing where that is not known.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => {
            "; raise the limit of processes and threads (ulimit -u, or that of this container)"
        }
        Some(Errno::NOMEM) => "; free memory, or raise the limit of this container",
        Some(Errno::MFILE | Errno::NFILE) => "; raise the limit of open files (ulimit -n)",
        Some(Errno::NOSPC | Errno::DQUOT) => "; make room there",
        _ => "",
    }
}

/// The failure to draw random numbers.
pub(crate) fn no_random(error: &io::Error) -> Failure {
    Failure::device(format!(
        "no random numbers: {error}; permit getrandom(2) in the seccomp profile"
    ))
}

/// What to do about a header that asks for what this program lacks.
fn remedy_of_lack(what: &str) -> &'static str {
    match what {
        "PBKDF" => "use argon2id, argon2i or pbkdf2",
        "PBKDF for LUKS1" => "LUKS1 has only pbkdf2",
        "hash" => "cryptsetup may have it",
        "device-mapper target" | "dm-crypt option" | "key" => "dmsetup may take this line",
        _ => "cryptsetup may open the volume",
    }
}

impl From<ucrypt_luks::Error> for Failure {
    fn from(error: ucrypt_luks::Error) -> Self {
        use ucrypt_luks::Error as Luks;
        match error {
            Luks::WrongPassphrase { .. } | Luks::WrongVolumeKey => Self::denied(error),
            Luks::OutOfMemory { .. } | Luks::NoMemory(_) => Self::memory(error),
            Luks::OtherHeader { .. }
            | Luks::Read { .. }
            | Luks::Write { .. }
            | Luks::NoRoom(_)
            | Luks::Sync(_)
            | Luks::NotWiped(_)
            | Luks::NotStored { .. } => Self::device(error),
            Luks::NotLuks { .. } => Self::wrong(format!(
                "{error}; a detached header is named with --header, and a volume without one opened with \
                 --type plain"
            )),
            Luks::Unsupported { what, .. } => {
                Self::wrong(format!("{error}; {}", remedy_of_lack(what)))
            }
            // cryptsetup has the other limits, too.
            Luks::KdfCost { parameter: "memory (KiB)", value, .. }
                if value > u64::from(ucrypt_luks::ARGON2_MEMORY_MAX_KIB) =>
            {
                Self::wrong(format!("{error}; cryptsetup may open the volume"))
            }
            Luks::Damaged { .. } => Self::wrong(format!(
                "{error}; ucrypt repair mends some of a LUKS1 header, else ucrypt luksHeaderRestore puts a \
                 backup back"
            )),
            Luks::Random(error) => no_random(&error),
            Luks::InactiveKeyslot(_) => {
                Self::wrong(format!("{error}; luksDump shows those that are"))
            }
            error => Self::wrong(error),
        }
    }
}

impl From<ucrypt_image::Error> for Failure {
    fn from(error: ucrypt_image::Error) -> Self {
        use ucrypt_image::Error as Image;
        match error {
            Image::Open(error) => error.into(),
            Image::Luks(error) => error.into(),
            Image::About { path, error } => Self::from(error).about(path.display()),
            Image::Memory(_) => Self::memory(error),
            Image::HeaderBusy { .. } | Image::Replaced { .. } => Self::busy(error),
            Image::Lock { error: ref why, .. } => {
                let no_locks = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS];
                let has_none = Errno::from_io_error(why).is_some_and(|it| no_locks.contains(&it));
                let remedy = if has_none {
                    "; its file system has no locks: see that nobody else changes the header, and use \
                     --disable-locks"
                } else {
                    remedy(why)
                };
                Self::device(format!("{error}{remedy}"))
            }
            Image::Create { .. } | Image::NotDurable { .. } | Image::NoRoom { .. } => {
                Self::device(error)
            }
            Image::Volume(_)
            | Image::Key(_)
            | Image::OtherFormat { .. }
            | Image::NoData { .. }
            | Image::WeakKey(_)
            | Image::SectorSize { .. }
            | Image::TooShort { .. }
            | Image::Overwrites { .. } => Self::wrong(error),
        }
    }
}

impl From<ucrypt_image::transfer::TransferError> for Failure {
    fn from(error: ucrypt_image::transfer::TransferError) -> Self {
        use ucrypt_image::transfer::TransferError as Transfer;
        match error {
            Transfer::ReadOnly => Self::denied(error),
            Transfer::Refused { .. } => Self::wrong(error),
            Transfer::Broken(_) | Transfer::Failed { .. } => Self::device(error),
        }
    }
}

impl From<ucrypt_export::fuse::FuseError> for Failure {
    fn from(error: ucrypt_export::fuse::FuseError) -> Self {
        use ucrypt_export::fuse::FuseError as Fuse;
        match error {
            Fuse::Mount { error: ref why, .. } | Fuse::Hidden { error: ref why, .. }
                if is_shortage(why) =>
            {
                Self::device(error)
            }
            Fuse::Mount { .. } | Fuse::Hidden { .. } => Self::denied(error),
            Fuse::GoesOn { .. } | Fuse::OutOfReach { .. } => Self::busy(error),
            Fuse::Missing
            | Fuse::MountPoint { .. }
            | Fuse::Detach { .. }
            | Fuse::Aborted { .. }
            | Fuse::Stays { .. } => Self::device(error),
        }
    }
}

/// Whether descriptors or memory are short.
fn is_shortage(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM].contains(&errno))
}

impl From<ucrypt_export::loop_device::LoopError> for Failure {
    fn from(error: ucrypt_export::loop_device::LoopError) -> Self {
        use ucrypt_export::loop_device::LoopError as Loop;
        match error {
            Loop::Permission => Self::denied(error),
            Loop::File(error) => error.into(),
            error => Self::device(error),
        }
    }
}

impl From<ucrypt_export::ublk::UblkError> for Failure {
    fn from(error: ucrypt_export::ublk::UblkError) -> Self {
        use ucrypt_export::ublk::UblkError as Ublk;
        match error {
            Ublk::Denied | Ublk::NotForUsers { .. } => Self::denied(error),
            Ublk::Exists { .. } | Ublk::Served { .. } | Ublk::Waits { .. } => Self::busy(error),
            Ublk::Zones(_) | Ublk::ZonedRecovery => Self::wrong(error),
            error => Self::device(error),
        }
    }
}

impl From<ucrypt_export::SocketError> for Failure {
    fn from(error: ucrypt_export::SocketError) -> Self {
        match error {
            ucrypt_export::SocketError::InUse(_) => Self::busy(error),
            error => Self::device(error),
        }
    }
}

impl From<ucrypt_export::nbd::ServerError> for Failure {
    fn from(error: ucrypt_export::nbd::ServerError) -> Self {
        use ucrypt_export::SocketError;
        use ucrypt_export::nbd::{AddressError as Address, ServerError as Server};
        match error {
            Server::TooLong(_)
            | Server::Address(Address::Syntax(_) | Address::NotLoopback(_) | Address::NoService) => {
                Self::wrong(error)
            }
            Server::Address(Address::Socket(SocketError::InUse(_))) => Self::busy(error),
            error => Self::device(error),
        }
    }
}

impl From<ucrypt_export::vhost_user::ServerError> for Failure {
    fn from(error: ucrypt_export::vhost_user::ServerError) -> Self {
        use ucrypt_export::SocketError;
        use ucrypt_export::vhost_user::ServerError as Server;
        match error {
            Server::Socket(SocketError::InUse(_)) => Self::busy(error),
            error => Self::device(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_numbers_of_errors() {
        let told = |text: &str| Failure::device(text).message;
        let error = io::Error::from_raw_os_error(2);
        let text = "No such file or directory";
        assert_eq!(told(&format!("x: {error}; y: {error}")), format!("x: {text}; y: {text}"));
        for kept in ["", " (os error ", " (os error )", " (os error 2", "(os error x)"] {
            assert_eq!(told(kept), kept);
        }
    }
}
