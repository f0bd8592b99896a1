//! How requests arrive from the kernel and answers return, and who decides that.

use std::fmt;
use std::fs;
use std::str::FromStr;

/// How requests arrive from the kernel and answers return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// By io_uring (Linux 6.14 with the parameter `enable_uring` of the module `fuse`).
    Ring,
    /// By read(2) and write(2).
    Classic,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "io_uring",
            Self::Classic => "classic",
        })
    }
}

/// Which transport is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    /// The one that loses nowhere as much as the other: [`Transport::Classic`]. A connection cannot change it, and
    /// nobody knows at its start how deep its clients' queues will be.
    #[default]
    Auto,
    /// This one, where the kernel has it; else [`Transport::Classic`].
    Only(Transport),
}

impl Preference {
    /// Whether to use rings, if the kernel has them.
    pub(super) fn wants_rings(self) -> bool {
        self == Self::Only(Transport::Ring)
    }

    /// Why this transport is in use. `offered`: the kernel has rings.
    pub(super) fn reason(self, transport: Transport, offered: bool) -> Reason {
        match self {
            Self::Auto if offered => Reason::FasterAtDepth,
            Self::Only(wanted) if wanted == transport => Reason::Asked,
            Self::Only(_) if offered => Reason::Refused,
            Self::Auto | Self::Only(_) => Reason::Absent,
        }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(transport) => transport.fmt(f),
        }
    }
}

impl FromStr for Preference {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Auto, Self::Only(Transport::Ring), Self::Only(Transport::Classic)]
            .into_iter()
            .find(|preference| preference.to_string() == name)
            .ok_or_else(|| format!("{name} is no transport; there are auto, io_uring and classic"))
    }
}

/// Why a transport is in use, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The user named it.
    Asked,
    /// The kernel has no other.
    Absent,
    /// The kernel or the memory allows no other.
    Refused,
    /// Both are there. This one was faster for clients that keep many requests in flight (`docs/fuse.md`).
    FasterAtDepth,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "as asked",
            Self::Absent => "io_uring is off in the kernel",
            Self::Refused => "io_uring was refused",
            Self::FasterAtDepth => "faster at depth",
        })
    }
}

/// The transport in use, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InUse {
    /// The transport.
    pub transport: Transport,
    /// Why it and no other.
    pub reason: Reason,
}

/// Whether the kernel has FUSE over `io_uring` now.
pub fn kernel_has_rings() -> bool {
    fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .is_ok_and(|value| value.trim() == "Y")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_serve_who_asks_for_them_and_everything_is_told_with_its_reason() {
        use Transport::{Classic, Ring};
        let by = |preference: &str, offered: bool| {
            let preference: Preference = preference.parse().expect("a preference");
            let used = if offered && preference.wants_rings() { Ring } else { Classic };
            (used, preference.reason(used, offered))
        };
        assert_eq!(by("auto", true), (Classic, Reason::FasterAtDepth));
        assert_eq!(by("auto", false), (Classic, Reason::Absent));
        assert_eq!(by("io_uring", true), (Ring, Reason::Asked));
        assert_eq!(by("io_uring", false), (Classic, Reason::Absent));
        assert_eq!(by("classic", true), (Classic, Reason::Asked));
        assert_eq!(Preference::Only(Ring).reason(Classic, true), Reason::Refused);
        assert!("ring".parse::<Preference>().is_err());
        assert_eq!(Preference::default().to_string(), "auto");
    }
}
