#!/usr/bin/env python3
"""The benchmark: ucrypt beside what people would use instead, through the same transport.

What distorts this measurement, before any number:

- Client and server share the same cores. On two cores, fio and the server fight for them; a
  faster client leaves less for the server. Only contenders behind the same transport compare.
- The images are in memory (tmpfs). No disk hides the cost of a server here: real disks make the
  differences smaller. With --disk they are on a disk, which has moods of its own: the quartiles of
  one contender's rounds tell how far to trust its median.
- Absolute figures move by a third from run to run on shared or virtual machines. Within one run,
  every contender takes its turn in every round; the ratios are taken round by round, and their
  median with the least and the greatest is what to quote.
- Images hold random bytes, so nothing is a hole and nothing compresses; real file systems may.
- The kernel's loop device has the page cache of tmpfs below it and no server at all: what a loop
  device of ucrypt costs beside it is the way through FUSE and the cipher.
- The FUSE side reads with direct I/O: the page cache of the served file is left out. With it,
  repeated reads cost the same whoever serves.
- Key derivation costs are set to the least. They are not measured; each server is started anew
  for each measurement and a ramp is left out of it.
- One job, one file or connection. More jobs favour servers with more threads.
- Peers run with their defaults. Tuning may help each of them.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

import contenders
import fio
import report

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
TOOLS = {
    "cryptsetup": "cryptsetup-bin",
    "fio": "fio",
    "fusermount3": "fuse3",
    "losetup": "mount",
    "nbdkit": "nbdkit",
    "qemu-img": "qemu-utils",
    "qemu-nbd": "qemu-utils",
    "qemu-storage-daemon": "qemu-utils",
}


def arguments():
    parser = argparse.ArgumentParser(
        description="Measures ucrypt beside its peers and prints a table and ratios.",
        epilog="bench/run.py begins with what distorts the measurement.",
    )
    parser.add_argument(
        "--ucrypt",
        type=pathlib.Path,
        default=REPOSITORY / "target/release/ucrypt",
        help="the command to measure (default: target/release/ucrypt)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (3)")
    parser.add_argument("--runtime", type=float, default=3, help="seconds per measurement (3)")
    parser.add_argument("--size", type=int, default=512, help="MiB of each image (512)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="measure only jobs and contenders with this word in their name; several words may "
        "be given: those that match a job choose jobs, the others choose contenders",
    )
    parser.add_argument(
        "--against-none",
        action="store_true",
        help="measure what encryption costs, through both exports, at every queue depth; "
        "without peers. --only may split it",
    )
    parser.add_argument(
        "--disk",
        type=pathlib.Path,
        metavar="DIR",
        help="measure with images in this directory of a disk, by direct I/O, beside the image itself "
        "and the kernel's loop device; 7 rounds or more are worth their time. Needs root and cc",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order in each round (1)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep every figure")
    chosen = parser.parse_args()
    if chosen.rounds < 1 or chosen.runtime <= 0 or chosen.size < 64:
        parser.error("--rounds and --runtime are positive, --size is at least 64")
    return chosen


def check_tools(ucrypt):
    if not os.access(ucrypt, os.X_OK):
        sys.exit(f"{ucrypt} is not there; build it with cargo build --release")
    packages = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if packages:
        sys.exit(f"programs to measure against are missing; apt-get install {' '.join(packages)}")


def select(options):
    """The jobs and contenders of the set that was chosen, as far as --only leaves them."""
    jobs, chosen, words = fio.JOBS, contenders.ALL, options.only
    if options.against_none:
        jobs, chosen = fio.GRID, contenders.ENCRYPTED_AND_NOT
    elif options.disk:
        jobs, chosen = fio.DISK, contenders.DISK
    of_jobs = [word for word in words if any(word in job.name for job in jobs)]
    of_contenders = [word for word in words if word not in of_jobs]
    jobs = [job for job in jobs if not of_jobs or job.name in matching(of_jobs, jobs)]
    chosen = [c for c in chosen if not of_contenders or any(w in c.label for w in of_contenders)]
    if os.geteuid() != 0 and any(contender.transport == "LOOP" for contender in chosen):
        print("bench: loop devices are left out, they need root", file=sys.stderr)
        chosen = [contender for contender in chosen if contender.transport != "LOOP"]
    if not contenders.kernel_has_fuse_over_io_uring():
        print("bench: FUSE over io_uring is left out, enable_uring is not set", file=sys.stderr)
        chosen = [contender for contender in chosen if contender.label != contenders.OVER_IO_URING]
    if not chosen:
        names = ", ".join(contender.label for contender in contenders.ALL)
        sys.exit(f"--only leaves no contender; there are: {names}")
    return jobs, chosen


def matching(words, jobs):
    """The names of the jobs that have one of these words in them; a whole name is only itself."""
    names = [job.name for job in jobs]
    return [n for word in words for n in names if n == word or word not in names and word in n]


def measure(options, scratch):
    """Every figure, in the order of measuring."""
    jobs, chosen = select(options)
    images = contenders.Images(scratch, options.size << 20, options.disk is not None)
    images.make()
    figures = []
    order = random.Random(options.seed)
    total = options.rounds * len(jobs) * len(chosen)
    for turn in range(options.rounds):
        for job in jobs:
            for contender in order.sample(chosen, len(chosen)):
                progress(len(figures), total, f"{contender.label}: {job.name}")
                server = contenders.running(contender, options.ucrypt, images, scratch)
                with server as target:
                    pid, size = server.pid, images.size
                    figure = fio.run(job, target, pid, size, options.runtime, scratch)
                figures.append({"round": turn, "contender": contender.label, **figure})
    progress(total, total, "")
    return figures


def progress(done, total, what):
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r\x1b[K{done}/{total} {what}", end=end, file=sys.stderr, flush=True)


def main():
    options = arguments()
    check_tools(options.ucrypt)
    # A signal becomes an exception, so that everything below is cleaned up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    before = os.getloadavg()[0]
    place = options.disk or "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="ucrypt-bench-", dir=place) as scratch:
        figures = measure(options, pathlib.Path(scratch))
    context = report.context(options, before)
    if options.json:
        report.write_json(options.json, context, figures)
    print(report.text(context, figures))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (contenders.Failed, fio.Failed, subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"bench: {error}")
