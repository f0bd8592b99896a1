#!/usr/bin/env python3
"""Many volumes open at once: time to open and to close, memory, threads, and wake-ups while nobody uses them.

Each volume has an image of its own, a LUKS2 header with PBKDF2 of 1000 iterations, and a server of its own; every
volume is read once before anything is counted. Memory is what the machine has less after opening (MemAvailable), so
nothing else may take or free any meanwhile. Wake-ups are the context switches of all threads of all servers.
Needs root.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FORMAT = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--batch-mode"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ucrypt", default=REPOSITORY / "target/release/ucrypt", type=pathlib.Path)
    parser.add_argument("--dir", default="/var/tmp", help="a directory on a disk (/var/tmp)")
    parser.add_argument("--volumes", default=100, type=int)
    parser.add_argument("--size", default=64, type=int, help="MiB of each image (64)")
    parser.add_argument("--as", dest="kinds", action="append", choices=["loop", "fuse", "nbd", "ublk"])
    parser.add_argument("--idle", default=10, type=float, help="seconds in which wake-ups are counted (10)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("root is needed")
    return options


class Volumes:
    """The images, and what is done with all of them."""

    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.key = scratch / "key"
        self.key.write_bytes(b"many")
        self.environment = os.environ | {"XDG_RUNTIME_DIR": str(scratch)}
        self.opened = []
        self.names = [f"many-{os.getpid()}-{index}" for index in range(options.volumes)]
        for name in self.names:
            with open(self.image(name), "wb") as file:
                file.truncate(options.size << 20)
            self._run("luksFormat", *FORMAT, "--key-file", self.key, self.image(name))

    def image(self, name):
        return self.scratch / f"{name}.img"

    def _run(self, *words):
        line = [str(word) for word in (self.options.ucrypt, *words)]
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"many: {' '.join(line)}: {done.stderr.strip()}")
        return done.stdout

    def open(self, name, kind):
        key = ["--key-file", self.key]
        place = self._run("open", self.image(name), name, "--as", kind, "--direct", *key).strip()
        self.opened.append(name)
        if kind != "nbd":
            with open(place, "rb") as file:
                file.read(1 << 20)

    def close(self, name):
        self.opened.remove(name)
        self._run("close", name)

    def end(self):
        """Closes what is still open, also if one of them cannot be closed."""
        for name in self.opened:
            subprocess.run([self.options.ucrypt, "close", name], env=self.environment)

    def servers(self):
        """Processes that have one of our names in their command line."""
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if any(word.decode(errors="replace") in self.names for word in words):
                    yield path.parent

    def timed(self, act, names):
        """Milliseconds of each, one after the other."""
        took = []
        for name in list(names):
            start = time.monotonic()
            act(name)
            took.append(1e3 * (time.monotonic() - start))
        return statistics.median(took or [0])


def available():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(text.partition("MemAvailable:")[2].split()[0]) / 1024


def switches(servers):
    count = 0
    for server in servers:
        for status in server.glob("task/*/status"):
            with contextlib.suppress(OSError):
                lines = status.read_text().splitlines()
                count += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return count


def rss(server):
    text = (server / "status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def main():
    options = arguments()
    print("| `open --as` | to open each | to close | memory of the machine, each | of a server | threads | wake-ups |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="ucrypt-many-", dir=options.dir) as scratch:
        volumes = Volumes(options, pathlib.Path(scratch))
        for kind in options.kinds or ["loop", "fuse", "nbd"]:
            before = available()
            try:
                opening = volumes.timed(lambda name: volumes.open(name, kind), volumes.names)
                # For some seconds after the first requests, threads of io_uring end.
                time.sleep(8)
                servers = list(volumes.servers())
                each = (before - available()) / options.volumes
                sizes = statistics.median(rss(server) for server in servers)
                threads = statistics.median(len(list(server.glob("task/*"))) for server in servers)
                counted = switches(servers)
                time.sleep(options.idle)
                woken = (switches(servers) - counted) / options.idle
                closing = volumes.timed(volumes.close, volumes.opened)
            finally:
                volumes.end()
            print(
                f"| {kind} | {opening:.0f} ms | {closing:.0f} ms | {each:.1f} MiB | {sizes:.1f} MiB "
                f"| {threads:.0f} | {woken:.1f} a second |"
            )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
