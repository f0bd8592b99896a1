//! Key derivations of several processes take their memory one after the other.
//!
//! Whoever holds the **queue** looks whether there is room, takes its memory, and only then lets the
//! next one look. Where room is left for another of the same size, the next one starts at once.
//! Where memory is tight, the queue is kept until the derivation has ended. A shared lock on a second
//! file tells whoever waits in vain that no derivation will free anything.
//!
//! As root the queue is cryptsetup's own lock for memory-hard derivations, so that systemd's unlocks
//! at boot wait as well. Other users have one in their runtime directory: a lock that all users can
//! take could be held by any of them for ever. The unlocks of others are seen in /proc instead, where
//! memory is short: they are waited for, but only for a minute.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use ucrypt_luks::Permit;

use super::{Bytes, REMEDY, SMALL, cgroup};
use crate::cryptsetup_locks::{directory, is_still, open};
use crate::flock::Locked;
use crate::{machine, runtime_directory};

/// cryptsetup's lock for memory-hard derivations.
const QUEUE_OF_ROOT: &str = "LN_memory-hard-access";

/// How long to wait for others altogether.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long to wait for memory while no other derivation holds any.
const PATIENCE_ALONE: Duration = Duration::from_secs(2);
/// How long to wait for derivations of other users, which take no lock of this one; all derivations of this process
/// together, because the others may be servers, which never end.
const PATIENCE_OTHERS: Duration = Duration::from_secs(60);
static OTHERS_SINCE: OnceLock<Instant> = OnceLock::new();
/// Bytes that each of several derivations takes besides its memory: stacks, and the program's pages, which are locked.
const BESIDES: u64 = 8 << 20;
/// After this time, tell that it takes long.
const SILENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two looks at what other users do.
const PAUSE_OTHERS: Duration = Duration::from_millis(500);
/// Where the processes of all users are.
const PROCESSES: &str = "/proc";
/// Programs that derive keys with much memory, as the kernel cuts their names off.
const DERIVING: [&str; 3] = ["ucrypt", "cryptsetup", "systemd-cryptse"];

/// A turn to take memory.
pub(super) struct Turn {
    queue: Option<Locked>,
    _in_use: Option<Locked>,
    /// There is no room for another one of the same size.
    is_tight: bool,
}

impl Permit for Turn {
    fn taken(&mut self) {
        if !self.is_tight {
            self.queue = None;
        }
    }
}

/// Waits until `bytes` can be taken. `waits` is called once if that takes long.
pub(super) fn take(bytes: u64, waits: &dyn Fn()) -> Result<Turn, String> {
    let mut wait = Wait { since: Instant::now(), told: false, waits };
    let Some((queue_path, in_use_path)) = places() else {
        // Without a directory for locks, nobody else can be seen.
        return admit(bytes, None, &mut wait).map(|is_tight| Turn {
            queue: None,
            _in_use: None,
            is_tight,
        });
    };
    let queue = lock(&queue_path, &mut wait)?;
    let is_tight = admit(bytes, Some(&in_use_path), &mut wait)?;
    let in_use = open(&in_use_path)
        .ok()
        .map(Locked::new)
        .filter(|file| flock(&**file, FlockOperation::NonBlockingLockShared).is_ok());
    Ok(Turn { queue, _in_use: in_use, is_tight })
}

/// Waits for room. Returns whether little is left. If nobody else holds memory for a derivation and
/// there still is no room, refuses where a control group would kill the process, and goes on where
/// only the machine is short: it may have caches of which it does not tell.
fn admit(bytes: u64, in_use: Option<&Path>, wait: &mut Wait<'_>) -> Result<bool, String> {
    let (mut alone_since, mut pause) = (None, PAUSE);
    loop {
        let tightest = cgroup::limits().into_iter().min_by_key(|limit| limit.room);
        let of_group = tightest.as_ref().map_or(u64::MAX, |limit| limit.room);
        let room = of_group.min(machine::free_memory());
        let is_held = in_use.is_some_and(is_held);
        let with_besides = bytes.saturating_add(BESIDES);
        if bytes <= room && (!is_held || with_besides <= room) {
            return Ok(with_besides.saturating_mul(2) > room);
        }
        if is_held {
            alone_since = None;
        } else if OTHERS_SINCE.get().is_none_or(|since| since.elapsed() < PATIENCE_OTHERS)
            && others_derive(Path::new(PROCESSES))
        {
            OTHERS_SINCE.get_or_init(Instant::now);
            alone_since = None;
            pause = (2 * pause).min(PAUSE_OTHERS);
        } else if alone_since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE_ALONE {
            return match tightest.filter(|_| bytes > of_group) {
                None => Ok(true),
                Some(limit) => Err(format!(
                    "the key derivation needs {}, and {limit}; end what takes it, or {REMEDY}",
                    Bytes(bytes)
                )),
            };
        }
        wait.pause_for(pause)?;
    }
}

/// Whether a program of another user that derives keys holds much memory. `processes` is /proc, which
/// may hide them.
fn others_derive(processes: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let derives = |process: &Path| {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let is_known = DERIVING.contains(&name.trim_end());
        let is_other = || fs::metadata(process).is_ok_and(|found| found.uid() != own);
        // Without its program and other files.
        let pages = || {
            let sizes = fs::read_to_string(process.join("statm")).unwrap_or_default();
            let mut sizes = sizes.split(' ').skip(1).map_while(|size| size.parse::<u64>().ok());
            Some(sizes.next()?.saturating_sub(sizes.next()?))
        };
        let page = rustix::param::page_size() as u64;
        is_known && is_other() && pages().is_some_and(|pages| pages.saturating_mul(page) >= SMALL)
    };
    let entries = fs::read_dir(processes).into_iter().flatten().flatten();
    let mut numbered =
        entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    numbered.any(|entry| derives(&entry.path()))
}

/// Whether a derivation holds memory.
fn is_held(in_use: &Path) -> bool {
    let Ok(file) = open(in_use).map(Locked::new) else { return false };
    flock(&*file, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// Takes the queue. `None`: the file system has no locks.
fn lock(path: &Path, wait: &mut Wait<'_>) -> Result<Option<Locked>, String> {
    use rustix::io::Errno;
    loop {
        let Ok(file) = open(path).map(Locked::new) else { return Ok(None) };
        match flock(&*file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_still(&file, path) => return Ok(Some(file)),
            Ok(()) | Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => wait.pause()?,
            Err(_) => return Ok(None),
        }
    }
}

/// The queue, and the file of those who hold memory.
fn places() -> Option<(PathBuf, PathBuf)> {
    let of_root = || directory().map(|dir| (dir.join(QUEUE_OF_ROOT), dir.join("ucrypt-memory")));
    let usable = |places: &(PathBuf, PathBuf)| open(&places.0).is_ok() && open(&places.1).is_ok();
    of_root().filter(usable).or_else(|| {
        let dir = runtime_directory::path();
        runtime_directory::prepare(&dir).ok()?;
        Some((dir.join(".memory-queue"), dir.join(".memory"))).filter(usable)
    })
}

/// A wait for other processes.
struct Wait<'a> {
    since: Instant,
    told: bool,
    waits: &'a dyn Fn(),
}

impl Wait<'_> {
    fn pause(&mut self) -> Result<(), String> {
        self.pause_for(PAUSE)
    }

    fn pause_for(&mut self, pause: Duration) -> Result<(), String> {
        if self.since.elapsed() >= PATIENCE {
            return Err(format!(
                "other key derivations have held the memory for {} s; try again later",
                PATIENCE.as_secs()
            ));
        }
        if !self.told && self.since.elapsed() >= SILENCE {
            self.told = true;
            (self.waits)();
        }
        std::thread::sleep(pause);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// Needs root, to make a process's folder look like another user's.
    #[test]
    fn another_users_derivation_is_seen_by_its_name_and_its_memory() {
        let pages = SMALL / rustix::param::page_size() as u64;
        let much = format!("{} {} 7 0 0 0 0\n", 9 * pages, pages + 7);
        let little = format!("{} {} {pages} 0 0 0 0\n", 9 * pages, 2 * pages - 1);
        for (folder, name, memory, user, seen) in [
            ("17", "ucrypt\n", &much, 65534, true),
            ("17", "cryptsetup\n", &much, 65534, true),
            ("17", "systemd-cryptse\n", &much, 65534, true),
            ("17", "ucrypt\n", &little, 65534, false),
            ("17", "ucrypt-lab\n", &much, 65534, false),
            ("17", "ucrypt\n", &much, 0, false),
            ("self", "ucrypt\n", &much, 65534, false),
        ] {
            let processes = tempfile::tempdir().expect("a directory");
            let process = processes.path().join(folder);
            fs::create_dir(&process).expect("a folder");
            fs::write(process.join("comm"), name).expect("written");
            fs::write(process.join("statm"), memory).expect("written");
            chown(&process, Some(user), None).expect("given away");
            assert_eq!(others_derive(processes.path()), seen, "{folder} {name} {memory} {user}");
        }
        let none = tempfile::tempdir().expect("a directory");
        assert!(!others_derive(none.path()) && !others_derive(&none.path().join("none")));
    }
}
