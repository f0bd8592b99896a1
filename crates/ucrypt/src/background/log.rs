//! The log that takes the server's standard error once nobody reads it: a file, or the system's
//! log.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread::JoinHandle;

use crate::failure::Failure;

/// The system's log takes datagrams here (RFC 3164, as syslog(3) sends them).
const SYSLOG: &str = "/dev/log";

/// `LOG_DAEMON | LOG_ERR`: the server logs nothing else.
const PRIORITY: u32 = 3 << 3 | 3;

/// The log that the user chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum To {
    Syslog,
    File(PathBuf),
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "syslog" => Ok(Self::Syslog),
            "" => Err("name a file, or syslog".into()),
            file => std::path::absolute(file).map(Self::File).map_err(|error| error.to_string()),
        }
    }
}

impl To {
    /// Opens the log.
    pub(super) fn open(&self) -> Result<Log, Failure> {
        let opened = match self {
            Self::File(path) => open_file(path).map(|written| Log { written, sender: None }),
            Self::Syslog => open_syslog(),
        };
        opened.map_err(|error| {
            let place = match self {
                Self::File(path) => path.as_path(),
                Self::Syslog => Path::new(SYSLOG),
            };
            Failure::device(format!(
                "cannot log to {}: {error}; use --log FILE with a file that can be written",
                place.display()
            ))
        })
    }
}

/// An open log.
pub(super) struct Log {
    /// The end to write to.
    written: OwnedFd,
    sender: Option<JoinHandle<()>>,
}

impl Log {
    /// Redirects standard error to the log.
    pub(super) fn take_stderr(&self) -> io::Result<()> {
        Ok(rustix::stdio::dup2_stderr(&self.written)?)
    }

    /// Waits until all messages have arrived. Later messages are lost.
    pub(super) fn finish(self) -> io::Result<()> {
        rustix::stdio::dup2_stderr(File::options().write(true).open("/dev/null")?)?;
        drop(self.written);
        if let Some(sender) = self.sender {
            // A sender that panicked sends nothing more.
            let _ = sender.join();
        }
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().create(true).append(true).open(path)?.into())
}

/// Opens a pipe whose lines a thread of its own sends to the system's log.
fn open_syslog() -> io::Result<Log> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SYSLOG)?;
    // A log that takes nothing must not block the server: its lines are lost.
    socket.set_nonblocking(true)?;
    let (lines, written) = io::pipe()?;
    let send = move || {
        let tag = format!("<{PRIORITY}>ucrypt[{}]: ", std::process::id());
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            // A log that has gone takes nothing more; there is nobody else to tell.
            let _ = socket.send(format!("{tag}{line}").as_bytes());
        }
    };
    let sender = std::thread::Builder::new().name("log".into()).spawn(send)?;
    Ok(Log { written: written.into(), sender: Some(sender) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_the_systems_or_a_file_wherever_it_is_named_from() {
        assert_eq!("syslog".parse(), Ok(To::Syslog));
        assert_eq!("/var/log/x".parse(), Ok(To::File("/var/log/x".into())));
        let relative: To = "x".parse().unwrap();
        assert!(matches!(relative, To::File(path) if path.is_absolute()));
        assert!("".parse::<To>().is_err());
    }
}
