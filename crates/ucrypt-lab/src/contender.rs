//! Who is compared.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use ucrypt_engine::PolicyKind;

use crate::ours::{Image, Server, Way};

/// A way to reach the data of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Contender {
    /// The target itself.
    Raw,
    /// ucrypt's engine in this process, without an export, under a policy.
    Ucrypt(PolicyKind),
    /// As `Ucrypt`, adaptive, with the null cipher: the ceiling of every cipher.
    Null,
    /// Memory alone, whatever the target is: the ceiling of every disk.
    Memory,
    /// A scratch image, without anything on top: what those below are compared with.
    File,
    /// A server of ucrypt on a scratch image; devices need root.
    Ours(Server),
    /// The kernel's loop device over a scratch image, not encrypted; needs root.
    Loop,
    /// A server that only copies, on one of ucrypt's ways: the ceiling of that way.
    Copy(Way),
    /// qemu-storage-daemon with LUKS, through FUSE.
    QemuStorageDaemon,
    /// qemu-nbd with LUKS.
    QemuNbd,
    /// nbdkit with its LUKS filter.
    Nbdkit,
    /// The kernel's dm-crypt over a loop device; needs root and device-mapper.
    DmCrypt,
    /// As `DmCrypt`, without its work queues (`--perf-no_read_workqueue`, `--perf-no_write_workqueue`).
    DmCryptInline,
    /// A file in a mounted gocryptfs, which encrypts files and their names.
    Gocryptfs,
    /// A file on ext4 over `Loop`; needs root.
    LoopExt4,
    /// A file on ext4 over `ucrypt-loop`; needs root.
    UcryptLoopExt4,
}

/// A name, its contender, and the program of others that it starts.
type Name = (&'static str, Contender, Option<&'static str>);

/// The names without a policy. Those of [`Contender::Ours`] are in their own module.
const NAMES: [Name; 17] = [
    ("raw", Contender::Raw, None),
    ("ucrypt", Contender::Ucrypt(PolicyKind::Adaptive), None),
    ("null", Contender::Null, None),
    ("memory", Contender::Memory, None),
    ("file", Contender::File, None),
    ("loop", Contender::Loop, Some("losetup")),
    ("copy-fuse", Contender::Copy(Way::Fuse), None),
    ("copy-loop", Contender::Copy(Way::Loop), Some("losetup")),
    ("copy-nbd", Contender::Copy(Way::Nbd), None),
    ("qemu-storage-daemon", Contender::QemuStorageDaemon, Some("qemu-storage-daemon")),
    ("qemu-nbd", Contender::QemuNbd, Some("qemu-nbd")),
    ("nbdkit", Contender::Nbdkit, Some("nbdkit")),
    ("dm-crypt", Contender::DmCrypt, Some("cryptsetup")),
    ("dm-crypt-inline", Contender::DmCryptInline, Some("cryptsetup")),
    ("gocryptfs", Contender::Gocryptfs, Some("gocryptfs")),
    ("loop-ext4", Contender::LoopExt4, Some("mkfs.ext4")),
    ("ucrypt-loop-ext4", Contender::UcryptLoopExt4, Some("mkfs.ext4")),
];

/// The contenders that are compared where they are installed, unless the user names others.
pub const PEERS: [Contender; 9] = [
    Contender::Ours(Server::new(Way::Fuse)),
    Contender::Ours(Server::new(Way::Nbd)),
    Contender::Ours(Server::new(Way::Loop)),
    Contender::Loop,
    Contender::QemuStorageDaemon,
    Contender::QemuNbd,
    Contender::Nbdkit,
    Contender::DmCrypt,
    Contender::Gocryptfs,
];

impl Contender {
    fn policy(self) -> Option<PolicyKind> {
        match self {
            Self::Ucrypt(policy) => Some(policy),
            Self::Ours(server) => Some(server.policy),
            _ => None,
        }
    }

    fn with(self, policy: PolicyKind) -> Option<Self> {
        match self {
            Self::Ucrypt(_) => Some(Self::Ucrypt(policy)),
            Self::Ours(server) => Some(Self::Ours(Server { policy, ..server })),
            _ => None,
        }
    }

    fn row(self) -> &'static Name {
        let plain = self.with(PolicyKind::Adaptive).unwrap_or(self);
        NAMES.iter().find(|(_, contender, _)| *contender == plain).unwrap_or(&NAMES[0])
    }

    /// The program of others that it starts.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::Ours(server) => match server.way {
                // A loop device is one over a file.
                Way::Fuse | Way::Loop => Some("fusermount3"),
                Way::Nbd | Way::Ublk => None,
            },
            _ => self.row().2,
        }
    }

    /// The server of ucrypt that it is.
    pub fn ours(self) -> Option<Server> {
        match self {
            Self::Ours(server) => Some(server),
            _ => None,
        }
    }

    fn is_on(self, way: Way) -> bool {
        self.ours().is_some_and(|server| server.way == way)
    }

    /// Whether a process serves it, from a scratch image; the others run in this process.
    pub fn is_served(self) -> bool {
        !matches!(self, Self::Raw | Self::Ucrypt(_) | Self::Null | Self::Memory)
    }

    /// Whether it is an upper limit for others, not a choice that a user has.
    pub fn is_ceiling(self) -> bool {
        matches!(self, Self::Raw | Self::Null | Self::Memory | Self::File | Self::Copy(_))
    }

    /// Whether it encrypts.
    pub fn encrypts(self) -> bool {
        let is_plain = self.ours().is_some_and(|server| server.image == Image::Plain);
        !self.is_ceiling() && !is_plain && !matches!(self, Self::Loop | Self::LoopExt4)
    }

    /// Whether it is a block device, which a file system can be on.
    pub fn is_device(self) -> bool {
        let is_ours = self.ours().is_some_and(|server| server.way.is_device());
        is_ours || matches!(self, Self::Loop | Self::Copy(Way::Loop)) || self.is_dm_crypt()
    }

    /// Whether it attaches a loop device, which only root can.
    pub fn attaches_loop(self) -> bool {
        let is_loop = self.is_device() && !self.is_on(Way::Ublk);
        is_loop || self.below_file_system().is_some()
    }

    /// The device below a file system that files are read from; `None` if it has none.
    pub fn below_file_system(self) -> Option<Self> {
        match self {
            Self::LoopExt4 => Some(Self::Loop),
            Self::UcryptLoopExt4 => Some(Self::Ours(Server::new(Way::Loop))),
            _ => None,
        }
    }

    /// Whether it is the kernel's dm-crypt.
    pub fn is_dm_crypt(self) -> bool {
        matches!(self, Self::DmCrypt | Self::DmCryptInline)
    }

    /// Whether it claims a block device that it opens, so that nobody else may have a claim on it.
    pub(crate) fn claims_device(self) -> bool {
        let below = self.below_file_system().unwrap_or(self);
        below.ours().is_some() || below.is_dm_crypt()
    }

    /// Whether it is a program of others that encrypts.
    pub fn is_peer(self) -> bool {
        matches!(
            self,
            Self::QemuStorageDaemon
                | Self::QemuNbd
                | Self::Nbdkit
                | Self::DmCrypt
                | Self::DmCryptInline
                | Self::Gocryptfs
        )
    }

    /// Whether a load reaches it through NBD.
    pub fn is_nbd(self) -> bool {
        self.is_on(Way::Nbd) || matches!(self, Self::QemuNbd | Self::Nbdkit | Self::Copy(Way::Nbd))
    }

    /// What its ratio is taken of: the same target without encryption, reached by the same load.
    #[must_use]
    pub fn base(self) -> Self {
        match self {
            Self::LoopExt4 | Self::UcryptLoopExt4 => Self::LoopExt4,
            _ if self.is_served() => Self::File,
            _ => Self::Raw,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(server) => server.fmt(f)?,
            _ => f.write_str(self.row().0)?,
        }
        match self.policy() {
            None | Some(PolicyKind::Adaptive) => Ok(()),
            Some(policy) => write!(f, ":{policy}"),
        }
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, policy) = match text.split_once(':') {
            Some((name, policy)) => (name, Some(policy)),
            None => (text, None),
        };
        let known = || {
            let names: Vec<_> = NAMES.iter().map(|(name, ..)| *name).collect();
            format!(
                "'{text}' is no contender; there are {}, and {}; ucrypt's take :POLICY",
                names.join(", "),
                crate::ours::NAMES
            )
        };
        let others = NAMES.iter().find(|(known, ..)| *known == name).map(|(_, found, _)| *found);
        let ours = || Server::by_name(name).map(Contender::Ours);
        let found = others.or_else(ours).ok_or_else(known)?;
        match policy {
            None => Ok(found),
            Some(policy) => found
                .with(policy.parse()?)
                .ok_or_else(|| format!("{name} has no dispatch policy; leave :{policy} out")),
        }
    }
}

impl From<Contender> for String {
    fn from(contender: Contender) -> Self {
        contender.to_string()
    }
}

impl TryFrom<String> for Contender {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Parses names separated by commas. A policy's own `,unsorted` belongs to the name before it.
///
/// # Errors
/// Names the word that is no contender.
pub fn list(text: &str) -> Result<Vec<Contender>, String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(',') {
        match words.last_mut() {
            Some(last) if word == "unsorted" => last.push_str(",unsorted"),
            _ => words.push(word.to_owned()),
        }
    }
    let mut all = Vec::new();
    for word in words {
        let contender = word.parse()?;
        if !all.contains(&contender) {
            all.push(contender);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, contender, _) in NAMES {
            assert_eq!(name.parse(), Ok(contender));
            assert_eq!(contender.to_string(), name);
        }
        let read = list("raw,ucrypt,ucrypt:unbound,unsorted,ucrypt-fuse:inline,raw").unwrap();
        let names: Vec<_> = read.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["raw", "ucrypt", "ucrypt:unbound,unsorted", "ucrypt-fuse:inline"]);
        for bad in ["", "dmcrypt", "dm-crypt:inline", "raw:inline", "ucrypt:fast", "unsorted"] {
            assert!(list(bad).is_err(), "{bad}");
        }
    }
}
