"""From figures to a table, and to the ratios that are aimed at."""

import dataclasses
import json
import os
import platform
import statistics

import contenders
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
    parts = [
        head,
        "MB/s: median (least–greatest); below it, mean / p99 latency in µs, and processor time of an "
        "operation in µs: fio + server.",
    ]
    for transport in ("FILE", "FUSE", "LOOP", "NBD"):
        table = _table(transport, figures)
        if table:
            parts += [f"### {transport}", table]
    if said["disk"]:
        return "\n\n".join([*parts, *_beside_the_disk(figures)])
    ratios = _ratios(figures)
    if ratios:
        parts += ["### Ratios: median of the rounds (least–greatest)", ratios]
    return "\n\n".join(parts)


def _values(figures, contender, job, key):
    """One value a round, in the order of the rounds."""
    chosen = [f for f in figures if f["contender"] == contender and f["job"] == job]
    return [f[key] for f in sorted(chosen, key=lambda f: f["round"])]


def _table(transport, figures):
    measured = {figure["contender"] for figure in figures}
    known = dict.fromkeys(contenders.ALL + contenders.DISK)
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
    speeds = _values(figures, contender, job, "mb_s")
    mean = statistics.median(_values(figures, contender, job, "mean_us"))
    p99 = statistics.median(_values(figures, contender, job, "p99_us"))
    spread = f" ({min(speeds):.0f}–{max(speeds):.0f})" if len(speeds) > 1 else ""
    spent = [
        statistics.median(_values(figures, contender, job, key))
        for key in ("client_us", "server_us")
    ]
    spent = " + ".join(f"{one:.1f}" for one in spent)
    return f"{statistics.median(speeds):.0f}{spread}<br>{mean:.0f} / {p99:.0f}<br>{spent}"


def _beside_the_disk(figures):
    """What each contender leaves of the image's speed, and at depth 1 what it adds to its latency."""
    measured = {figure["contender"] for figure in figures}
    labels = [c.label for c in contenders.DISK if c.label in measured and c != contenders.RAW]
    raw = contenders.RAW.label
    if raw not in measured or not labels:
        return []
    rows = ["| job | " + " | ".join(labels) + " |", "|---|" + "---:|" * len(labels)]
    added = list(rows)
    for job in _jobs(figures):
        speed = _values(figures, raw, job.name, "mb_s")
        cells = []
        for label in labels:
            ratios = [a / b for a, b in zip(_values(figures, label, job.name, "mb_s"), speed)]
            cells.append(_quartiles(ratios, 2))
        rows.append(f"| {job.name} | " + " | ".join(cells) + " |")
        if job.depth == 1:
            took = _values(figures, raw, job.name, "mean_us")
            cells = []
            for label in labels:
                mine = _values(figures, label, job.name, "mean_us")
                cells.append(_quartiles([a - b for a, b in zip(mine, took)], 0))
            added.append(f"| {job.name} | " + " | ".join(cells) + " |")
    parts = ["### Of the image's speed: median of the rounds (quartiles)", "\n".join(rows)]
    if len(added) > 2:
        parts += ["### Latency added to the image's at depth 1, µs", "\n".join(added)]
    return parts


def _quartiles(values, digits):
    if len(values) < 3:
        return " ".join(f"{value:.{digits}f}" for value in values)
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _ratios(figures):
    rows = []
    for bar in bars(_jobs(figures)):
        measured = _values(figures, bar.measured, bar.job, "mb_s")
        base = _values(figures, bar.base, bar.job, "mb_s")
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
