#!/usr/bin/env python3
"""Page cache or direct I/O: which loses least, on an image that fits into memory and on one that does not?

A volume is served from its image through the page cache (the default) and past it (`--direct`), in turns.
Server and client each have a memory group with --memory MiB, as a host and its guest: the small image fits into
either, the large one, three times as large, into neither. Two kinds of client: one without a cache, as a virtual
machine whose disk has `cache=none` (by FUSE, whose file is not cached), and one with a page cache of its own, as a
file system on a loop device, where the one memory holds ciphertext and the other plaintext.

What distorts this measurement: the host of a virtual machine has a page cache too, so that reads which the
machine's memory does not hold need not be reads of a disk. Version 1 of memory groups does not throttle a group
that writes too much: its writers wait for memory instead. (In one group of version 1 with its client, a server
without CAP_SYS_RESOURCE and `--direct` may wait for itself.) Needs root.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import figures as fg
from contenders import Failed, insist

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
GROUPS = pathlib.Path("/sys/fs/cgroup")
PLAIN = ["--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512"]
MODES = {"page cache": [], "direct": ["--direct"]}
# Seconds that a program may take.
PATIENCE = 600
CLIENTS = ("without a cache", "with a cache")

# Name, fio's options, whether the image is read once before. `{timed}` and `{part}` are filled in. A job
# without a time counts until everything is on the disk.
JOBS = [
    ("64k read, one at a time, first time", "--rw=read --bs=64k --iodepth=1", False),
    ("1m read, 4 at a time, first time", "--rw=read --bs=1m --iodepth=4", False),
    ("1m read, 4 at a time, again", "--rw=read --bs=1m --iodepth=4", True),
    ("4k random read, one at a time", "--rw=randread --bs=4k --iodepth=1 {timed}", True),
    ("4k random read, 32 at a time", "--rw=randread --bs=4k --iodepth=32 {timed}", True),
    (
        "4k random read, 32 at a time, some places more often",
        "--rw=randread --bs=4k --iodepth=32 --random_distribution=zipf:1.2 {timed}",
        True,
    ),
    ("1m write, 4 at a time, then fsync", "--rw=write --bs=1m --iodepth=4 --end_fsync=1", False),
    (
        "4k random write, 32 at a time, then fsync",
        "--rw=randwrite --bs=4k --iodepth=32 --io_size={part}m --end_fsync=1",
        True,
    ),
    ("4k random write, fsync after each 32", "--rw=randwrite --bs=4k --iodepth=32 --fsync=32 {timed}", True),
]
TIMED = "--time_based --runtime={ms}ms --ramp_time=500ms --norandommap"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ucrypt", default=REPOSITORY / "target/release/ucrypt", type=pathlib.Path)
    parser.add_argument("--dir", default="/var/tmp", help="a directory on a disk (/var/tmp)")
    parser.add_argument("--memory", default=256, type=int, help="MiB of the server, and of the client (256)")
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--seconds", default=2, type=float, help="of a job that has no other end (2)")
    parser.add_argument("--only", default="", metavar="WORD", help="jobs with this word in their name")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep every figure")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("root is needed, for memory groups and loop devices")
    return options


@contextlib.contextmanager
def memory_group(who, mib):
    """A memory group; gives the file to which a process writes itself."""
    is_v1 = (GROUPS / "memory").is_dir()
    group = GROUPS / ("memory" if is_v1 else "") / f"ucrypt-bench-{who}-{os.getpid()}"
    if not is_v1:
        (GROUPS / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(mib << 20))
        yield group / "cgroup.procs"
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def run(line, group, **more):
    def enter():
        group.write_text(str(os.getpid()))

    line = [str(word) for word in line]
    done = subprocess.run(
        line, preexec_fn=enter, capture_output=True, text=True, timeout=PATIENCE, **more
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(line)}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def served(options, group, scratch, image, client, mode):
    """Where the volume can be used."""
    kind = "fuse" if client == CLIENTS[0] else "loop"
    name = f"{scratch.name}-{os.getpid()}".lower()
    environment = os.environ | {"XDG_RUNTIME_DIR": str(scratch)}
    line = [options.ucrypt, "open", "--as", kind, *PLAIN, "--key-file", scratch / "key", *MODES[mode]]
    place = run([*line, image, name], group, env=environment).strip()
    try:
        yield place
    finally:
        insist(lambda: is_closed([options.ucrypt, "close", name], group, environment), place)


def is_closed(line, group, environment):
    try:
        run(line, group, env=environment)
    except Failed:
        return False
    return True


def forget(image):
    """Drops the image from the page cache."""
    with open(image, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(options, groups, scratch, image, job, client, mode):
    """MB/s (10^6 bytes) of one job."""
    _, words, is_warm = job
    size = image.stat().st_size >> 20
    words = words.replace("{timed}", TIMED)
    words = words.format(ms=round(options.seconds * 1000), part=options.memory // 2).split()
    fio = ["fio", "--name=job", "--ioengine=io_uring", f"--direct={int(client == CLIENTS[0])}"]
    fio += [f"--size={size}m", "--allow_file_create=0", "--randrepeat=0", "--refill_buffers=0"]
    fio += ["--invalidate=0", "--thread", "--output-format=json"]
    forget(image)
    host, guest = groups
    with served(options, host, scratch, image, client, mode) as place:
        fio.append(f"--filename={place}")
        if is_warm:
            run([*fio, "--rw=read", "--bs=1m", "--iodepth=4"], guest, cwd=scratch)
        started = startup(guest, scratch)
        start = time.monotonic()
        said = run([*fio, *words], guest, cwd=scratch)
        took = time.monotonic() - start - started
        done = json.loads(said[said.index("{") :])["jobs"][0]
        side = done["write" if "write" in words[0] else "read"]
        # What is timed ends before the last fsync.
        timed = side["bw_bytes"] if "--time_based" in words else side["io_bytes"] / took
    return timed / 1e6


def startup(group, scratch, known=[]):
    """Seconds that fio takes beside its job."""
    if not known:
        probe = ["fio", "--name=job", "--ioengine=io_uring", "--rw=read", "--bs=4k", "--size=4k"]
        took = []
        for _ in range(5):
            start = time.monotonic()
            run([*probe, "--filename=/dev/zero", "--thread", "--output-format=json"], group, cwd=scratch)
            took.append(time.monotonic() - start)
        known.append(min(took))
    return known[0]


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    jobs = [job for job in JOBS if options.only in job[0]]
    sizes = {"fits": options.memory // 4, "does not fit": options.memory * 3}
    found = {}
    order = random.Random(1)
    before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="ucrypt-cache-", dir=options.dir) as scratch,
        memory_group("host", options.memory) as host,
        memory_group("guest", options.memory) as guest,
    ):
        scratch = pathlib.Path(scratch)
        (scratch / "key").write_bytes(order.randbytes(64))
        images = {}
        for fit, mib in sizes.items():
            images[fit] = scratch / f"{mib}.img"
            with open(images[fit], "wb") as file:
                for _ in range(mib):
                    file.write(order.randbytes(1 << 20))
                os.fsync(file.fileno())
        for turn in range(options.rounds):
            for fit, client, job in ((f, c, j) for f in images for c in CLIENTS for j in jobs):
                for mode in order.sample(list(MODES), len(MODES)):
                    if sys.stderr.isatty():
                        print(f"\r\x1b[K{turn}: {fit}, {client}, {job[0]}", end="", file=sys.stderr)
                    # What has failed has no speed.
                    speed = None
                    try:
                        speed = measure(options, (host, guest), scratch, images[fit], job, client, mode)
                    except Failed as error:
                        # The server may have been killed, because its group has no memory left.
                        print(f"cache: {error}", file=sys.stderr)
                    found.setdefault((fit, client, job[0], mode), []).append(speed)
            if options.json:
                options.json.write_text(json.dumps([[*key, values] for key, values in found.items()], indent=1))
    print(text(options, found, sizes, before))


def text(options, found, sizes, before):
    rows = [
        f"{os.cpu_count()} CPUs, Linux {os.uname().release}; {options.memory} MiB of memory for the server, and as "
        f"much for the client; images of {sizes['fits']} MiB (fits) and {sizes['does not fit']} MiB; "
        f"{options.rounds} rounds; load before the start {before:.1f}. MB/s: medians; ratio: median of the "
        "rounds (quartiles).",
        "",
        "| image | client | job | page cache | direct | page cache : direct |",
        "|---|---|---|---:|---:|---:|",
    ]
    worst = dict.fromkeys(MODES, (1.0, ""))
    for fit, client, name in dict.fromkeys(key[:3] for key in found):
        cached, direct = (found[fit, client, name, mode] for mode in MODES)
        speeds = []
        for of in (cached, direct):
            failed = of.count(None)
            known = [speed for speed in of if speed is not None]
            median = f"{statistics.median(known):.0f} " if known else ""
            speeds.append((median + (f"({failed} failed)" if failed else "")).strip())
        # Of the rounds in which both have a speed.
        ratios = [a / b for a, b in zip(cached, direct) if a is not None and b is not None]
        ratio = fg.quartiles(ratios) if ratios else None
        shown = fg.shown(ratio) if ratio else ""
        rows.append(f"| {fit} | {client} | {name} | {' | '.join(speeds)} | {shown} |")
        if not ratio:
            continue
        for mode, loss in zip(MODES, (1 / ratio[1], ratio[1])):
            worst[mode] = max(worst[mode], (loss, f"{name}, {client}, {fit}"))
    rows.append("")
    for mode, (loss, where) in worst.items():
        rows.append(f"At most, *{mode}* loses a factor of {loss:.1f} ({where}).")
    return "\n".join(rows)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (Failed, subprocess.TimeoutExpired) as error:
        sys.exit(f"cache: {error}")
