#!/usr/bin/env python3
"""Compares two builds of the command through the same exports, in turn, so that both see the same machine.

    bench/ab_exports.py OLD NEW [--rounds N] [--runtime S] [--size MIB] [--only WORD]... [--disk DIR]

In each round OLD, NEW and OLD again serve each job in random order: the second time that OLD takes its turn
is the control, which shows how much of a difference is the machine's. Prints, for each export and job, the
median of the rounds' ratios of throughput, with the quartiles. `run.py` begins with what distorts such a
measurement; loop devices need root, and huge pages for fio (sysctl vm.nr_hugepages=32).
"""

import argparse
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

import contenders
import fio

EXPORTS = ["FUSE ucrypt 512", "LOOP ucrypt 512", "NBD ucrypt 512"]


def ratios(figures, contender, job, who, rounds):
    each = [figures[contender, job, turn] for turn in range(rounds)]
    return [found[who] / found["old"] for found in each]


def show(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runtime", type=float, default=0.7, help="seconds per measurement (0.7)")
    parser.add_argument("--size", type=int, default=256, help="MiB of each image (256)")
    parser.add_argument("--only", action="append", default=[], metavar="WORD")
    parser.add_argument("--disk", type=pathlib.Path, metavar="DIR", help="images there, direct I/O")
    parser.add_argument("--seed", type=int, default=1, help="of the order in each round (1)")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("quartiles take two rounds at least")
    chosen = [each for each in contenders.ALL if each.label in EXPORTS]
    labels = [each.label for each in chosen]
    of_exports = [word for word in options.only if any(word in label for label in labels)]
    of_jobs = [word for word in options.only if word not in of_exports]
    chosen = [c for c in chosen if not of_exports or any(word in c.label for word in of_exports)]
    jobs = [job for job in fio.JOBS if not of_jobs or any(word in job.name for word in of_jobs)]
    programs = {"old": options.old, "new": options.new, "control": options.old}
    order, figures = random.Random(options.seed), {}
    place = options.disk or "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="ucrypt-bench-", dir=place) as scratch:
        scratch = pathlib.Path(scratch)
        images = contenders.Images(scratch, options.size << 20, options.disk is not None)
        images.make()
        for turn in range(options.rounds):
            for contender in chosen:
                for job in jobs:
                    found = figures.setdefault((contender.label, job.name, turn), {})
                    for who in order.sample(sorted(programs), len(programs)):
                        server = contenders.running(contender, programs[who].resolve(), images, scratch)
                        with server as target:
                            figure = fio.run(
                                job, target, server.pid, images.size, options.runtime, scratch
                            )
                        found[who] = figure["mb_s"]
    print("| export | job | old MB/s | new / old | control / old |")
    print("|---|---|---:|---:|---:|")
    for contender in chosen:
        for job in jobs:
            key = (contender.label, job.name)
            old = statistics.median(figures[*key, turn]["old"] for turn in range(options.rounds))
            shown = [show(ratios(figures, *key, who, options.rounds)) for who in ("new", "control")]
            print(f"| {contender.label} | {job.name} | {old:.0f} | {shown[0]} | {shown[1]} |")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (contenders.Failed, fio.Failed, subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"bench: {error}")
