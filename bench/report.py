"""From figures to a table, and to the ratios that are aimed at."""

import dataclasses
import json
import os
import platform
import shlex
import statistics
import sys
import textwrap

import bars as disk_bars
import contenders
import figures as fg
import fio


@dataclasses.dataclass(frozen=True)
class Bar:
    """The throughput of `measured` over that of `base`, and the least that it is to be, if any."""

    measured: str
    base: str
    job: str
    least: float | None


# How much of the speed without encryption is to be left, by block size.
LEFT = {"4k": 0.95, "1m": 0.85}


def bars(jobs):
    wanted = []
    for size in ("512", "4096"):
        for transport in ("FUSE", "NBD"):
            ours = f"{transport} ucrypt {size}"
            wanted += [
                Bar(ours, f"{transport} ucrypt none", job.name, LEFT[job.block])
                for job in jobs
                if job.block in LEFT
            ]
        fuse = f"FUSE ucrypt {size}"
        wanted.append(Bar(fuse, "FUSE qsd LUKS", "1m read qd8", 8))
        for job in ("4k randread qd32", "4k randwrite qd32"):
            wanted.append(Bar(fuse, "FUSE qsd LUKS", job, 4))
        for job in ("1m read qd8", "1m write qd8"):
            wanted.append(Bar(f"NBD ucrypt {size}", "NBD nbdkit luks", job, 2))
    return wanted + _beside_the_kernel()


def _beside_the_kernel():
    """Every transport, with a cipher and without, beside the kernel's own loop device."""
    wanted = []
    for transport, small, large in (("FUSE", 0.8, None), ("LOOP", 0.6, 0.8), ("NBD", None, None)):
        for name in ("none", "512", "4096"):
            for job in ("4k randread qd32", "4k randwrite qd32", "1m read qd8", "1m write qd8"):
                least = small if job.startswith("4k") else large
                least = None if name == "none" else least
                wanted.append(Bar(f"{transport} ucrypt {name}", "LOOP kernel", job, least))
    return wanted


def _jobs(figures):
    """The jobs that were measured, in their order."""
    measured = {figure["job"] for figure in figures}
    known = fio.JOBS + fio.GRID + fio.DISK
    known.sort(key=lambda job: (("4k", "64k", "1m").index(job.block), job.pattern, job.depth))
    return [job for job in dict.fromkeys(known) if job.name in measured]


def context(options, load_before):
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "rounds": options.rounds,
        "runtime_s": options.runtime,
        "image_mib": options.size,
        "engine": fio.engine(),
        "disk": options.disk and str(options.disk),
        "load_before": load_before,
        "command": ["bench/run.py", *sys.argv[1:]],
    }


def _cpu():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_json(path, said, figures):
    path.write_text(json.dumps({"context": said, "figures": figures}, indent=1) + "\n")


def text(said, figures):
    where = f"in {said['disk']}, past the page cache" if said["disk"] else "on tmpfs"
    head = (
        f"{said['cpu']}, {said['cpus']} CPUs, Linux {said['kernel']}; images of "
        f"{said['image_mib']} MiB {where}; {said['rounds']} interleaved rounds of "
        f"{said['runtime_s']:g} s; files and devices by fio's {said['engine']}, direct; load before the start "
        f"{said['load_before']:.1f}."
    )
    beside_memory = [figure for figure in figures if not figure["in_memory"]]
    parts = [head]
    if said["disk"]:
        verdicts = disk_bars.text(figures)
        parts += ["## The bars", verdicts] if verdicts else []
        parts += _beside_the_disk(beside_memory)
        parts += ["## All figures", *_tables(beside_memory)]
        memory = [figure for figure in figures if figure["in_memory"]]
        if memory:
            parts += ["## In memory", "The same on tmpfs, beside the build of before.", *_tables(memory)]
        return "\n\n".join(parts)
    parts += _tables(figures)
    ratios = _ratios(figures)
    if ratios:
        parts += ["### Ratios: median of the rounds (least–greatest)", ratios]
    return "\n\n".join(parts)


def page(said, figures):
    """The text as a document, which says how it was made."""
    about = (
        "The same contenders as in [the tables of images in memory](benchmarks.md), on images that are files of "
        "a disk, written in full before, by direct I/O. *Raw* is the image itself. *Bound* is a server that only "
        "copies (`bench/bound.c`, `bench/bound-nbd.c`; behind `LOOP`, the loop device over it). *Kernel* is the "
        "kernel's loop device with direct I/O, which encrypts nothing. nbdkit has no direct I/O and drops the "
        "page cache behind itself. `bench/run.py` begins with what distorts such a measurement."
    )
    parts = ["# Benchmarks on a real disk", about, "Printed by", _command(said["command"])]
    parts += text(said, figures).split("\n\n")
    return "\n\n".join(part if part[0] in " |#" else textwrap.fill(part, 120) for part in parts)


def _command(words):
    """A command line as a block of code."""
    lines = [""]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) > 108:
            lines.append("   ")
        lines[-1] += f" {word}"
    return "    " + " \\\n    ".join(line[1:] for line in lines)


def _tables(figures):
    parts = [
        "MB/s: median (least–greatest); below it, mean / p99 latency in µs, and processor time of an "
        "operation in µs: fio + server + the rest of the machine."
    ]
    for transport in ("FILE", "FUSE", "LOOP", "UBLK", "NBD"):
        table = _table(transport, figures)
        if table:
            parts += [f"### {transport}", table]
    return parts


def _table(transport, figures):
    measured = {figure["contender"] for figure in figures}
    known = dict.fromkeys(contenders.DISK + contenders.ALL + contenders.BEFORE)
    of_it = [c for c in known if c.transport == transport and c.label in measured]
    if not of_it:
        return ""
    jobs = [job.name for job in _jobs(figures)]
    rows = ["| job | " + " | ".join(c.name for c in of_it) + " |"]
    rows.append("|---|" + "---|" * len(of_it))
    for job in jobs:
        cells = [_cell(figures, contender.label, job) for contender in of_it]
        rows.append(f"| {job} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(figures, contender, job):
    speeds = fg.values(figures, contender, job, "mb_s")
    if not speeds:
        return ""
    mean = statistics.median(fg.values(figures, contender, job, "mean_us"))
    p99 = statistics.median(fg.values(figures, contender, job, "p99_us"))
    spread = f" ({min(speeds):.0f}–{max(speeds):.0f})" if len(speeds) > 1 else ""
    spent = [
        statistics.median(fg.values(figures, contender, job, key))
        for key in ("client_us", "server_us", "kernel_us")
    ]
    spent = " + ".join(f"{one:.1f}" for one in spent)
    return f"{statistics.median(speeds):.0f}{spread}<br>{mean:.0f} / {p99:.0f}<br>{spent}"


def _beside_the_disk(figures):
    """What each contender leaves of the image's speed, and at depth 1 what it adds to its latency."""
    measured = {figure["contender"] for figure in figures}
    labels = [c.label for c in contenders.DISK if c.label in measured and c != contenders.RAW]
    raw = contenders.RAW.label
    jobs = [job.name for job in _jobs(figures)]

    def table(jobs, key, relate, digits):
        rows = ["| | " + " | ".join(jobs) + " |", "|---|" + "---:|" * len(jobs)]
        for label in labels:
            cells = []
            for job in jobs:
                both = fg.pairs(figures, label, raw, job, key)
                related = [relate(mine, its) for mine, its in both]
                cells.append(fg.shown(fg.quartiles(related), digits) if related else "")
            if any(cells):
                rows.append(f"| {label} | " + " | ".join(cells) + " |")
        return "\n".join(rows)

    lone = [job for job in jobs if job.endswith(" qd1")]
    parts = []
    if raw in measured and labels:
        for block in ("4k", "64k", "1m"):
            of_it = [job for job in jobs if job.startswith(f"{block} ")]
            if of_it:
                parts.append(table(of_it, "mb_s", lambda mine, its: mine / its, 2))
        parts[:0] = ["## Of the image's speed: median of the rounds (quartiles)"]
        if lone:
            parts.append("## Latency added to the image's at depth 1, µs")
            parts.append(table(lone, "mean_us", lambda mine, its: mine - its, 0))
    return parts


def _ratios(figures):
    rows = []
    for bar in bars(_jobs(figures)):
        measured = fg.values(figures, bar.measured, bar.job, "mb_s")
        base = fg.values(figures, bar.base, bar.job, "mb_s")
        if not measured or len(measured) != len(base):
            continue
        ratios = [ours / theirs for ours, theirs in zip(measured, base)]
        middle = statistics.median(ratios)
        aim, verdict = "", ""
        if bar.least is not None:
            aim = f"≥ {bar.least:g}"
            verdict = "reached" if middle >= bar.least else "**not reached**"
        spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
        rows.append(
            f"| {bar.job} | {bar.measured} : {bar.base} | {middle:.2f}{spread} "
            f"| {aim} | {verdict} |"
        )
    if not rows:
        return ""
    return "\n".join(["| job | ratio | measured | aim | |", "|---|---|---|---|---|", *rows])
