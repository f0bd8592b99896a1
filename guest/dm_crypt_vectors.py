#!/usr/bin/env python3
"""Makes the vector files of crates/ucrypt-sector/tests/dm_crypt: what a real dm-crypt writes.

Every case of dm_crypt_cases.py becomes a table of the guest's device mapper. Known plaintext is
written through it to a disk image, which is read here. Nothing of ucrypt takes part.
"""

import argparse
import collections
import hashlib
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

import dm_crypt_cases
import kernel
import more_crypto
import run

RUN = 8192
RUN_SECTORS = RUN // 512
RUNS_MAX = 16
MODULES = (
    "dm-crypt xts lrw pcbc cts essiv adiantum nhpoly1305 chacha_generic crypto_null "
    "serpent_generic twofish_generic camellia_generic cast5_generic cast6_generic "
    "blowfish_generic des_generic rmd160 wp512 md4 blake2b_generic streebog_generic crc32_generic"
).split()
HEADER = """\
# dm-crypt of Linux {version} (target crypt {target}); made by guest/dm_crypt_vectors.py.
# ARIA, SM4, SM3 and HCTR2 are that kernel's source too, built by guest/more_crypto.py.
#
# A line without indentation is a specification and the length of its key in bytes. Those under it
# are runs of 8192 bytes: sector size in bytes (L: iv_large_sectors), iv_offset in 512-byte
# sectors, the first 16 bytes of the SHA-256 of the ciphertext, and in the first run of a key the
# first 32 bytes of the ciphertext itself. The run starts at sector 0 of the device. A line that
# ends with ! is one that dm-crypt itself did not read back as it was written.
#
# Key and plaintext: the first bytes of SHA-256("key 0") || SHA-256("key 1") || ..., and of
# SHA-256("plaintext 0") || SHA-256("plaintext 1") || ...
"""
REFUSED_HEADER = """\
# What dm-crypt of Linux {version} (target crypt {target}) refuses; by guest/dm_crypt_vectors.py.
#
# Specification, length of the key in bytes, the layouts (sector size, L for iv_large_sectors,
# iv_offset; * for all), and the kernel's reason.
"""


def stream(label, length):
    """Bytes that follow from `label`: see HEADER."""
    parts = (
        hashlib.sha256(f"{label} {number}".encode()).digest() for number in range(-(-length // 32))
    )
    return b"".join(parts)[:length]


def table(case, first_sector):
    """The table of a case; its runs go to the disk from `first_sector` on."""
    key = stream("key", case.key_len).hex() or "-"
    lines = []
    for number, layout in enumerate(case.layouts):
        start = number * RUN_SECTORS
        options = [f"sector_size:{layout.sector_size}"] + ["iv_large_sectors"] * layout.large
        lines.append(
            f"{start} {RUN_SECTORS} crypt {case.spec} {key} {layout.iv_offset} "
            f"/dev/disk/vectors {first_sector + start} {len(options)} {' '.join(options)}\n"
        )
    return "".join(lines)


def write_inputs(cases, work):
    """The tables, the plaintext, the disk image and the script, in `work`."""
    (work / "tables").mkdir()
    for number, case in enumerate(cases):
        text = table(case, number * RUNS_MAX * RUN_SECTORS)
        (work / "tables" / f"{number:05}").write_text(text)
    (work / "plaintext").mkdir()
    for count in {1, *(len(case.layouts) for case in cases)}:
        (work / "plaintext" / str(count)).write_bytes(stream("plaintext", RUN) * count)
    with open(work / "vectors", "wb") as file:
        file.truncate(len(cases) * RUNS_MAX * RUN)
    (work / "script").write_text(
        (run.HERE / "dm_crypt_vectors.sh").read_text()
        + "uname -r > /out/version\ndmsetup targets | grep ^crypt > /out/target\n"
    )


def in_guest(cases, work, options):
    """Boots the guest once for all cases. Returns the folder of its lists and the disk image."""
    write_inputs(cases, work)
    # The cases run one after the other: a second processor would only slow them down.
    words = ["--cpus", "1", "--timeout", str(options.timeout), "--accel", options.accel]
    words += ["--program", "dmsetup", "--disk", f"vectors={work / 'vectors'}"]
    words += ["--file", work / "tables", "--file", work / "plaintext", "--out", work / "out"]
    for module in MODULES:
        words += ["--module", module]
    linux = kernel.fetch(run.KERNEL, run.cache_folder())
    for file in more_crypto.build(linux, run.cache_folder()):
        words += ["--module-file", file]
    subprocess.run([run.HERE / "run.py", *words, work / "script"], check=True)
    return work / "out", work / "vectors"


def listed(path):
    """(case number, run number) -> the rest of its line."""
    entries = {}
    for line in path.read_text().splitlines():
        name, number, *rest = line.split(" ", 2)
        entries[int(name), int(number)] = "".join(rest)
    return entries


def vectors(cases, lists, image):
    """The text of each vector file by its name, without headers."""
    refused, unreadable = listed(lists / "refused"), listed(lists / "unreadable")
    files = collections.defaultdict(list)
    with open(image, "rb") as disk:
        for number, case in enumerate(cases):
            files_of_case = vectors_of(case, number, disk, refused, unreadable)
            if files_of_case:
                files[file_name(case.spec)] += [f"{case.spec} {case.key_len}", *files_of_case]
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def vectors_of(case, number, disk, refused, unreadable):
    lines = []
    for run_number, layout in enumerate(case.layouts):
        if (number, run_number) in refused:
            continue
        disk.seek((number * RUNS_MAX + run_number) * RUN)
        ciphertext = disk.read(RUN)
        words = [str(layout), hashlib.sha256(ciphertext).hexdigest()[:32]]
        words += [] if lines else [ciphertext[:32].hex()]
        words += ["!"] * ((number, run_number) in unreadable)
        lines.append("  " + " ".join(words))
    return lines


def file_name(spec):
    """Vectors are kept by cipher; Adiantum's, and those in other notations, by themselves."""
    if "adiantum" in spec:
        return "adiantum"
    cipher = spec.partition("-")[0]
    return cipher if cipher.replace("_", "").isalnum() else "other"


def refusals(cases, refused):
    """One line for each case and reason."""
    lines = []
    for number, case in enumerate(cases):
        by_reason = collections.defaultdict(list)
        for run_number, layout in enumerate(case.layouts):
            if (number, run_number) in refused:
                by_reason[refused[number, run_number]].append(str(layout))
        for reason, of_layouts in by_reason.items():
            # If the plainest layout is refused along with all others, the reason is not the layout.
            plain = case.layouts[0].sector_size == 512 and len(of_layouts) == len(case.layouts)
            where = "*" if plain else ", ".join(of_layouts)
            lines.append(f"{case.spec} {case.key_len} {where}: {reason}\n")
    return "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = run.REPOSITORY / "crates/ucrypt-sector/tests/dm_crypt"
    parser.add_argument("--folder", type=pathlib.Path, default=default, help="where they go")
    parser.add_argument("--timeout", default=1800, help="seconds for the guest (1800)")
    parser.add_argument("--accel", choices=["tcg", "kvm"], default="tcg", help="as of run.py")
    options = parser.parse_args()
    cases = dm_crypt_cases.all_cases()
    with tempfile.TemporaryDirectory(prefix="dm-crypt-vectors-") as work:
        lists, image = in_guest(cases, pathlib.Path(work), options)
        names = {
            "version": (lists / "version").read_text().strip(),
            "target": (lists / "target").read_text().split()[1],
        }
        files = vectors(cases, lists, image)
        refused = refusals(cases, listed(lists / "refused"))
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (options.folder / f"{name}.txt").write_text(HEADER.format(**names) + text)
    (options.folder / "refused.txt").write_text(REFUSED_HEADER.format(**names) + refused)
    print(f"{len(cases)} cases, {sum(text.count('  ') for text in files.values())} runs")


if __name__ == "__main__":
    main()
