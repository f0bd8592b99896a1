#!/usr/bin/env python3
"""The unlock test: how long does a passphrase take, beside cryptsetup?

One LUKS2 volume with argon2id, 1 GiB and 4 lanes by default, is unlocked by `open --test-passphrase`
of both programs, in turns. The ratio is of medians within one run.

What distorts this measurement: the derivation takes as many cores as there are lanes, and all of the
memory's bandwidth, so anything else on the machine counts twice. A virtual machine gets memory from its
host when it first touches it: one turn of each program that does not count goes before the others. The
memory is taken from the system and given back by each process, which both of them pay for.
With --limit, ends with exit code 1 if the ratio is above it.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PASSPHRASE = b"correct horse battery staple"
CORES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
long sysconf(int name)
{
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_ONLN ? %d : real(name);
}
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ucrypt", default=REPOSITORY / "target/release/ucrypt", type=pathlib.Path)
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--pbkdf", default="argon2id", choices=["argon2id", "argon2i", "pbkdf2"])
    parser.add_argument("--memory", default=1 << 20, type=int, help="KiB")
    parser.add_argument("--lanes", default=4, type=int)
    parser.add_argument("--passes", default=4, type=int, help="iterations with pbkdf2")
    parser.add_argument("--limit", type=float)
    return parser.parse_args()


def with_cores(cores, directory):
    """An environment in which programs find so many cores: no program makes more lanes than there are."""
    if cores <= (os.cpu_count() or 1):
        return None
    source = directory / "cores.c"
    source.write_text(CORES % cores)
    library = directory / "cores.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


def make(given, image):
    """A volume by cryptsetup."""
    image.write_bytes(b"")
    with image.open("r+b") as file:
        file.truncate(20 << 20)
    costs = ["--pbkdf", given.pbkdf, "--pbkdf-force-iterations", str(given.passes)]
    if given.pbkdf != "pbkdf2":
        costs += ["--pbkdf-memory", str(given.memory), "--pbkdf-parallel", str(given.lanes)]
    format_line = ["cryptsetup", "luksFormat", "-q", "--type", "luks2", *costs, image]
    environment = with_cores(given.lanes, image.parent)
    subprocess.run(format_line, input=PASSPHRASE, check=True, env=environment)
    shown = subprocess.run([given.ucrypt, "luksDump", image], capture_output=True, check=True)
    wanted = ("PBKDF:", "Time cost:", "Memory:", "Threads:", "Iterations:")
    lines = [line.strip() for line in shown.stdout.decode().splitlines()]
    costs = [" ".join(line.split()) for line in lines if line.startswith(wanted)]
    print("; ".join(costs[:4]))


def unlock(program, image):
    begin = time.monotonic()
    line = [program, "open", "--test-passphrase", image]
    subprocess.run(line, input=PASSPHRASE, check=True)
    return time.monotonic() - begin


def main():
    given = arguments()
    programs = {"ucrypt": given.ucrypt, "cryptsetup": "cryptsetup"}
    times = {name: [] for name in programs}
    with tempfile.TemporaryDirectory(prefix="ucrypt-bench-") as directory:
        image = pathlib.Path(directory) / "image"
        make(given, image)
        for turn in range(1 + given.rounds):
            # Each goes first as often as second.
            for name in sorted(programs, reverse=turn % 2 == 1):
                took = unlock(programs[name], image)
                if turn > 0:
                    times[name].append(took)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        print(f"{name:<10} {medians[name]:7.3f} s  (least {min(taken):.3f}, most {max(taken):.3f})")
    ratio = medians["ucrypt"] / medians["cryptsetup"]
    pairs = [one / other for one, other in zip(times["ucrypt"], times["cryptsetup"])]
    print(f"ratio {ratio:.3f} of medians; of each turn {min(pairs):.3f} to {max(pairs):.3f}")
    if given.limit and ratio > given.limit:
        sys.exit(f"above {given.limit}")


if __name__ == "__main__":
    main()
