"""Packages of the Debian archive: downloaded and unpacked, not installed.

apt checks what it downloads against its signed index. Without root, and for another suite than this
machine's, the system's index stays as it is, and a fresh one is kept in the cache.
"""

import contextlib
import os
import subprocess


ARCHIVE = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class HostError(Exception):
    """A program of this machine failed; the message is its last line."""


def call(*command, cwd=None):
    """Runs a program of the host. Returns what it prints."""
    environment = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    done = subprocess.run(
        [os.fspath(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        line = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise HostError(f"{command[0]}: {line}")
    return done.stdout


def download(package, folder, cache):
    """The .deb of `package` (or PACKAGE=VERSION), in a new folder of its name inside `folder`.

    SUITE/PACKAGE is one of another suite of Debian than this machine's. Where the present index does
    not know the package, or knows a version that is gone, a fresh one does.
    """
    suite, _, package = package.rpartition("/")
    folder = folder / package
    folder.mkdir()
    get = ["apt-get", "-qq", "-o", "APT::Sandbox::User="]
    if suite:
        cache = cache / suite
        get += private_index(cache) + sources(suite, cache)
    with contextlib.suppress(HostError):
        call(*get, "download", package, cwd=folder)
    if not any(folder.glob("*.deb")):
        if os.geteuid() != 0 and not suite:
            get += private_index(cache)
        call(*get, "update")
        call(*get, "download", package, cwd=folder)
    return next(folder.glob("*.deb"))


def private_index(cache):
    """apt's options for an index of one's own."""
    (cache / "apt/lists/partial").mkdir(parents=True, exist_ok=True)
    (cache / "apt/archives/partial").mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::Lists={cache / 'apt/lists'}", "-o", f"Dir::Cache={cache / 'apt'}"]


def sources(suite, cache):
    """apt's options for this suite instead of the system's."""
    names = cache / "apt/sources.list"
    names.write_text(f"deb [signed-by={KEYS}] {ARCHIVE} {suite} main\n")
    return ["-o", f"Dir::Etc::SourceList={names}", "-o", "Dir::Etc::SourceParts=-",
            "-o", "Acquire::Languages=none"]


def field(deb, name):
    """A field of the package's description."""
    return call("dpkg-deb", "-f", deb, name).strip()


def unpack(deb, root):
    """The package's files, below `root`."""
    call("dpkg-deb", "-x", deb, root)
