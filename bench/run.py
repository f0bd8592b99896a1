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
- A block device splits requests of 1 MiB whose pages lie apart in memory, at 128 of them by a loop device:
  by chance fio's buffers do, and halves cost a fifth. With huge pages reserved (sysctl vm.nr_hugepages=32)
  fio takes its buffers from them.
- Peers run with their defaults. Tuning may help each of them.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

import bars
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
    parser.add_argument(
        "--before",
        type=pathlib.Path,
        metavar="COMMAND",
        help="with --disk: another build of ucrypt, for the bars that compare with what was before; also "
        "measures images in memory",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order in each round (1)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep every figure")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", help="write the tables as a document")
    parser.add_argument(
        "--again",
        type=pathlib.Path,
        metavar="FILE",
        help="measure nothing: print the figures that --json has kept, also of a run that was ended",
    )
    chosen = parser.parse_args()
    if chosen.rounds < 1 or chosen.runtime <= 0 or chosen.size < 64:
        parser.error("--rounds and --runtime are positive, --size is at least 64")
    if chosen.against_none and chosen.disk:
        parser.error("--against-none measures images in memory: leave it or --disk out")
    if chosen.before and not chosen.disk:
        parser.error("--before goes with --disk")
    return chosen


def check_tools(*commands):
    for command in commands:
        if not os.access(command, os.X_OK):
            sys.exit(f"{command} is not there; build it with cargo build --release")
    packages = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if packages:
        sys.exit(f"programs to measure against are missing; apt-get install {' '.join(packages)}")


@dataclasses.dataclass(frozen=True)
class Part:
    """What is measured with images in one place: which contenders, by job."""

    in_memory: bool
    cells: dict


def select(options):
    """The parts of the measurement, as far as --only leaves anything of them."""
    if options.disk:
        # In memory, there is nothing but the build of before to compare with.
        parts = [of_disk(), *([of_bars(in_memory=True)] if options.before else [])]
    elif options.against_none:
        parts = [Part(True, {job: contenders.ENCRYPTED_AND_NOT for job in fio.GRID})]
    else:
        parts = [Part(True, {job: contenders.ALL for job in fio.JOBS})]
    absent = {contender.label: why for contender, why in lacking(options)}
    chosen = {c.label for part in parts for of_job in part.cells.values() for c in of_job}
    for why in dict.fromkeys(why for label, why in absent.items() if label in chosen):
        print(f"bench: {why}", file=sys.stderr)
    jobs = {job.name: job for part in parts for job in part.cells}
    of_jobs = [word for word in options.only if any(word in name for name in jobs)]
    of_contenders = [word for word in options.only if word not in of_jobs]
    left = matching(of_jobs, list(jobs.values()))

    def stays(contender):
        named = not of_contenders or any(word in contender.label for word in of_contenders)
        return named and contender.label not in absent

    parts = [
        Part(part.in_memory, {
            job: [contender for contender in of_job if stays(contender)]
            for job, of_job in part.cells.items()
            if not of_jobs or job.name in left
        })
        for part in parts
    ]
    parts = [part for part in parts if any(part.cells.values())]
    if not parts:
        sys.exit(f"--only leaves no contender; there are: {', '.join(sorted(chosen))}")
    return parts


def of_disk():
    """Every contender, and of the build of before what the bars need."""
    needed = of_bars(in_memory=False).cells
    older = {job: [c for c in of_job if c.is_before] for job, of_job in needed.items()}
    return Part(False, {job: contenders.DISK + older.get(job, []) for job in fio.DISK})


def of_bars(in_memory):
    """What the bars for real disks need."""
    known = {contender.label: contender for contender in contenders.DISK + contenders.BEFORE}
    wanted = bars.wanted(in_memory)
    jobs = fio.JOBS if in_memory else fio.DISK
    return Part(in_memory, {
        job: [known[label] for label in sorted(wanted[job.name])] for job in jobs if job.name in wanted
    })


def lacking(options):
    """Contenders that this machine lacks what they need, and why they are left out."""
    reasons = [
        (
            os.geteuid() != 0,
            "loop and ublk devices and servers that only copy are left out, they need root",
            lambda c: c.transport in ("LOOP", "UBLK") or c.name == "bound",
        ),
        (
            not contenders.kernel_has_fuse_over_io_uring(),
            "FUSE over io_uring is left out, enable_uring is not set",
            lambda c: c.label in (contenders.OVER_IO_URING, contenders.CLASSIC),
        ),
        (
            not contenders.kernel_has_dm_crypt(),
            "dm-crypt is left out, the kernel has no device mapper",
            lambda c: c == contenders.DM_CRYPT,
        ),
        (
            not contenders.kernel_has_ublk(),
            "ublk is left out, the kernel lacks it",
            lambda c: c.transport == "UBLK",
        ),
        (
            options.before is None,
            "what was before is left out, --before names no build",
            lambda c: c.is_before,
        ),
    ]
    known = dict.fromkeys(contenders.DISK + contenders.ALL + contenders.BEFORE)
    return [(c, why) for is_so, why, of in reasons if is_so for c in known if of(c)]


def matching(words, jobs):
    """The names of the jobs that have one of these words in them; a whole name is only itself."""
    names = [job.name for job in jobs]
    return [n for word in words for n in names if n == word or word not in names and word in n]


def measure(options, part, scratch, keep):
    """Every figure of a part, in the order of measuring; `keep` gets those so far after each round."""
    direct = options.disk is not None and not part.in_memory
    images = contenders.Images(scratch, options.size << 20, direct)
    images.make()
    figures = []
    order = random.Random(options.seed)
    total = options.rounds * sum(len(of_job) for of_job in part.cells.values())
    for turn in range(options.rounds):
        for job, chosen in part.cells.items():
            for contender in order.sample(chosen, len(chosen)):
                progress(len(figures), total, f"{contender.label}: {job.name}")
                command = options.before if contender.is_before else options.ucrypt
                server = contenders.running(contender, command, images, scratch)
                with server as target:
                    pid, size = server.pid, images.size
                    figure = fio.run(job, target, pid, size, options.runtime, scratch)
                known = {"round": turn, "in_memory": part.in_memory, "contender": contender.label}
                figures.append(known | figure)
        keep(figures)
    progress(total, total, "")
    return figures


def progress(done, total, what):
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r\x1b[K{done}/{total} {what}", end=end, file=sys.stderr, flush=True)


def main():
    options = arguments()
    if options.again:
        kept = json.loads(options.again.read_text())
        return show(options, kept["context"], kept["figures"])
    check_tools(options.ucrypt, *filter(None, [options.before]))
    # A signal becomes an exception, so that everything below is cleaned up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    context = report.context(options, os.getloadavg()[0])
    figures = []

    def keep(more):
        if options.json:
            report.write_json(options.json, context, figures + more)

    for part in select(options):
        place = "/dev/shm" if part.in_memory else options.disk
        with tempfile.TemporaryDirectory(prefix="ucrypt-bench-", dir=place) as scratch:
            figures += measure(options, part, pathlib.Path(scratch), keep)
    show(options, context, figures)


def show(options, context, figures):
    if options.page:
        options.page.write_text(report.page(context, figures) + "\n")
    print(report.text(context, figures))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (contenders.Failed, fio.Failed, subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"bench: {error}")
