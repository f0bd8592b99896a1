//! ucrypt's own servers among the contenders.
//!
//! `ucrypt-WAY` serves a scratch image with sectors of 512 bytes, as peers do. What differs follows:
//! `-4096` has such sectors, `-none` no cipher, and files take `-classic` or `-io_uring` for how requests
//! come. `before-` instead of `ucrypt-` is another build, and
//! `control-` the same one a second time: what differs between these two is the machine's.

use std::fmt;

use ucrypt_engine::PolicyKind;
use ucrypt_export::fuse::Transport;

/// The names of all servers, as a pattern.
pub(crate) const NAMES: &str = "ucrypt-fuse|nbd|loop|ublk[-4096|-none], ucrypt-fuse[…]-classic|-io_uring, before-…, control-… (--before)";

/// The ways on which ucrypt serves a volume to programs, as `open --as` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// A file.
    Fuse,
    /// A Unix socket.
    Nbd,
    /// The kernel's loop device over a file.
    Loop,
    /// A device of ublk.
    Ublk,
}

impl Way {
    const ALL: [Self; 4] = [Self::Fuse, Self::Nbd, Self::Loop, Self::Ublk];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::Nbd => "nbd",
            Self::Loop => "loop",
            Self::Ublk => "ublk",
        }
    }

    /// The way of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// Whether it is a block device.
    pub fn is_device(self) -> bool {
        matches!(self, Self::Loop | Self::Ublk)
    }
}

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Image {
    /// LUKS1, sectors of 512 bytes.
    Sectors512,
    /// LUKS2, sectors of 4096 bytes.
    Sectors4096,
    /// Without a cipher.
    Plain,
}

/// The build that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Build {
    /// The one that measures.
    This,
    /// The one that `--before` names.
    Before,
    /// The same, a second time.
    Control,
}

/// A server of ucrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Server {
    /// Who serves.
    pub build: Build,
    /// How programs reach it.
    pub way: Way,
    /// What it serves.
    pub image: Image,
    /// How the requests of a file come; `None` leaves the choice to the server.
    pub transport: Option<Transport>,
    /// Its dispatch.
    pub policy: PolicyKind,
}

impl Server {
    /// The usual one on a way.
    pub const fn new(way: Way) -> Self {
        Self {
            build: Build::This,
            way,
            image: Image::Sectors512,
            transport: None,
            policy: PolicyKind::Adaptive,
        }
    }

    /// The same without a cipher.
    #[must_use]
    pub const fn plain(self) -> Self {
        Self { image: Image::Plain, ..self }
    }

    /// By its name without a policy.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        // Its name in runs of 27 November 2026 and before.
        if name == "ucrypt-none" {
            return Some(Self::new(Way::Loop).plain());
        }
        let (build, rest) = name.split_once('-')?;
        let build = match build {
            "ucrypt" => Build::This,
            "before" => Build::Before,
            "control" => Build::Control,
            _ => return None,
        };
        let mut words = rest.split('-').peekable();
        let usual = Self::new(Way::by_name(words.next()?)?);
        let image = match words.peek() {
            Some(&"none") => Image::Plain,
            Some(&"4096") => Image::Sectors4096,
            _ => Image::Sectors512,
        };
        if image != Image::Sectors512 {
            words.next();
        }
        let transport = match words.next() {
            Some("classic") => Some(Transport::Classic),
            Some("io_uring") => Some(Transport::Ring),
            Some(_) => return None,
            None => None,
        };
        let is_one = words.next().is_none() && (transport.is_none() || usual.way == Way::Fuse);
        is_one.then_some(Self { build, image, transport, ..usual })
    }

    /// Whether it compares with the programs of others: adaptive, on the volume that they open.
    pub fn is_usual(&self) -> bool {
        self.policy == PolicyKind::Adaptive
            && self.build == Build::This
            && self.image == Image::Sectors512
    }

    /// Whether both differ in their policies alone.
    pub fn is_like(&self, other: &Self) -> bool {
        Self { policy: other.policy, ..*self } == *other
    }
}

/// Without its policy.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = match self.build {
            Build::This => "ucrypt",
            Build::Before => "before",
            Build::Control => "control",
        };
        let image = match self.image {
            Image::Sectors512 => "",
            Image::Sectors4096 => "-4096",
            Image::Plain => "-none",
        };
        write!(f, "{build}-{}{image}", self.way.name())?;
        match self.transport {
            Some(transport) => write!(f, "-{transport}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_a_name_of_its_own_that_is_read_again() {
        let mut names = std::collections::BTreeSet::new();
        for build in [Build::This, Build::Before, Build::Control] {
            for way in Way::ALL {
                for image in [Image::Sectors512, Image::Sectors4096, Image::Plain] {
                    for transport in [None, Some(Transport::Classic), Some(Transport::Ring)] {
                        let server = Server { build, image, transport, ..Server::new(way) };
                        let is_one = transport.is_none() || way == Way::Fuse;
                        let read = Server::by_name(&server.to_string());
                        assert_eq!(read, is_one.then_some(server), "{server}");
                        assert!(names.insert(server.to_string()), "{server}");
                    }
                }
            }
        }
        assert_eq!(Server::by_name("ucrypt-none"), Some(Server::new(Way::Loop).plain()));
        for bad in ["ucrypt", "ucrypt-", "ucrypt-fuse-", "ucrypt-fuse-none-4096", "qemu-nbd"] {
            assert_eq!(Server::by_name(bad), None, "{bad}");
        }
    }
}
