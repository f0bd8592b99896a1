#!/usr/bin/env python3
"""The tree test: what does encryption cost a file system with many small files?

A tree of source-like files is unpacked, copied three times, removed, and everything is synced, on
a file system on a loop device of ucrypt: without a cipher, and with aes-xts. The time of the whole
is compared. It repeats the measurement of the Linux kernel's source tree that was published in
2011, when dm-crypt cost ext3 40 % (docs/benchmarks.md).

What distorts this measurement: the images are in memory, so nothing hides the cost of the way
down; the page cache holds everything, so much of what is removed was never written, as it would be
on a machine of one's own; file system, server and cipher share the cores. A virtual machine gets
memory from its host when it first touches it, which can double the time of a turn: one that does
not count goes before the others. Rounds are interleaved, ratios are of medians within one run.
Needs root.
"""

import argparse
import io
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# How each is made, and how it is mounted. ext2 and ext3 are the ext4 driver's.
FILE_SYSTEMS = {
    "ext3": (["mkfs.ext3", "-q", "-b", "4096"], ["-t", "ext4", "-o", "data=journal"]),
    "ext2": (["mkfs.ext2", "-q", "-b", "4096"], ["-t", "ext4"]),
    "ext4": (["mkfs.ext4", "-q", "-b", "4096"], ["-t", "ext4"]),
    "xfs": (["mkfs.xfs", "-q", "-f"], ["-t", "xfs"]),
    "btrfs": (["mkfs.btrfs", "-q", "-f"], ["-t", "btrfs"]),
}
CONTENDERS = {
    "none": ["--cipher", "none"],
    "aes-xts": ["--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512"],
}
IMAGE_LEN = 6 << 30
# A file system that is there already is made over.
SCRIPT = """
set -eu
mkdir -p m
mount $2 "$1" m
begin=$(date +%s%N)
tar -C m -xf tree.tar
for copy in 1 2 3; do cp -a m/tree m/copy$copy; done
rm -r m/tree m/copy*
sync
end=$(date +%s%N)
umount m
echo $((end - begin))
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = REPOSITORY / "target/release/ucrypt"
    parser.add_argument("--ucrypt", type=pathlib.Path, default=default)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--files", type=int, default=70_000, help="in the tree (70000)")
    parser.add_argument("--fs", action="append", choices=FILE_SYSTEMS, help="only these")
    return parser.parse_args()


def make_tree(path, files):
    """A tar of files of a few KiB, 17 to a directory, as in a kernel's source."""
    source = random.Random(2011)
    text = source.randbytes(1 << 20)
    with tarfile.open(path, "w") as tar:
        for number in range(files):
            size = min(int(source.lognormvariate(8.2, 1.1)), 1 << 19)
            start = source.randrange(len(text) - size)
            name = f"tree/{number // 289 % 251}/{number // 17 % 17}-{number // 72539}/{number}.c"
            entry = tarfile.TarInfo(name)
            entry.size = size
            tar.addfile(entry, io.BytesIO(text[start : start + size]))


def checked(line, **others):
    done = subprocess.run(
        [str(word) for word in line], capture_output=True, text=True, check=False, **others
    )
    if done.returncode != 0:
        raise RuntimeError(f"{line[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def measure(options, scratch, system, contender):
    """Seconds of one run."""
    image, name = scratch / "image", f"tree-{os.getpid()}"
    image.unlink(missing_ok=True)
    image.touch()
    os.truncate(image, IMAGE_LEN)
    environment = os.environ | {"XDG_RUNTIME_DIR": str(scratch)}
    words = [options.ucrypt, "open", "--as", "loop", *CONTENDERS[contender]]
    device = checked([*words, "--key-file", scratch / "key", image, name], env=environment)
    try:
        make, mount = FILE_SYSTEMS[system]
        checked([*make, device])
        # A mount namespace of its own: nothing stays mounted, however it ends.
        line = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", SCRIPT]
        spent = checked([*line, "sh", device, " ".join(mount)], cwd=scratch)
    finally:
        checked([options.ucrypt, "close", name], env=environment)
        image.unlink()
    return int(spent) / 1e9


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("tree: loop devices and mounts need root")
    rows = ["| file system | none, s | aes-xts, s | ratio | aim | |", "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="ucrypt-tree-", dir="/dev/shm") as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "key").write_bytes(bytes(range(64)))
        make_tree(scratch / "tree.tar", options.files)
        for system in options.fs or FILE_SYSTEMS:
            measure(options, scratch, system, "none")
            spent = {contender: [] for contender in CONTENDERS}
            for turn in range(options.rounds):
                order = list(CONTENDERS) if turn % 2 == 0 else list(CONTENDERS)[::-1]
                for contender in order:
                    spent[contender].append(measure(options, scratch, system, contender))
            base, ours = (statistics.median(spent[contender]) for contender in CONTENDERS)
            ratio = ours / base
            verdict = "reached" if ratio <= 1.03 else "**not reached**"
            cells = [
                f"{statistics.median(times):.1f} ({min(times):.1f}–{max(times):.1f})"
                for times in spent.values()
            ]
            rows.append(f"| {system} | {' | '.join(cells)} | {ratio:.2f} | ≤ 1.03 | {verdict} |")
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"{options.files} files, {options.rounds} interleaved rounds, median (least–greatest).\n")
    print("\n".join(rows))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (RuntimeError, OSError) as error:
        sys.exit(f"tree: {error}")
