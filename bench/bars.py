"""The bars for real disks: what ucrypt is to reach, and what was measured.

Where a bar is missed, the bound tells whether anybody could reach it: a server that only copies, through the
same door, measured in the same rounds.
"""

import dataclasses

import contenders
import figures as fg
import fio

RAW = contenders.RAW.label
KERNEL = "LOOP kernel"
# Each door, who else serves LUKS through it, and who only copies.
PEERS = {"FUSE": "FUSE qsd LUKS", "NBD": "NBD qemu-nbd LUKS"}
DOORS = ("FUSE", "LOOP", "NBD")


def ours(door):
    """LUKS1 with sectors of 512 bytes, which all peers have."""
    return f"{door} ucrypt 512"


def before(door):
    return f"{door} before 512"


def bound(door):
    return f"{door} bound"


def speed(figures, contender, base, job):
    """Throughput over that of the base."""
    both = fg.pairs(figures, contender, base, job, "mb_s")
    return fg.quartiles([a / b for a, b in both]) if both else None


def added(figures, contender, base, job):
    """Latency added to that of the image, over what the base adds."""
    mine = fg.pairs(figures, contender, RAW, job, "mean_us")
    theirs = fg.pairs(figures, base, RAW, job, "mean_us")
    if not mine or len(mine) != len(theirs):
        return None
    return fg.quartiles_of_ratio([(a - raw, b - raw) for (a, raw), (b, _) in zip(mine, theirs)])


def spent(figures, contender, base, job):
    """Processor time of an operation, of client, server and kernel together, over that of the base."""
    whole = []
    for key in ("client_us", "server_us", "kernel_us"):
        whole.append(fg.pairs(figures, contender, base, job, key))
    if not all(whole):
        return None
    sums = [[sum(side) for side in zip(*one)] for one in zip(*whole)]
    return fg.quartiles([a / b for a, b in sums if b > 0]) if sums else None


@dataclasses.dataclass(frozen=True)
class Bar:
    # Figures, two labels and a job: lower quartile, median and upper quartile, or None.
    measure: callable
    contender: str
    base: str
    job: str
    aim: float
    # Not to be exceeded, instead of not to be missed.
    is_most: bool = False
    bound: str | None = None
    in_memory: bool = False

    def is_met(self, value):
        return value <= self.aim if self.is_most else value >= self.aim

    @property
    def labels(self):
        beside = (RAW,) if self.measure is added else ()
        return [label for label in (self.contender, self.base, self.bound, *beside) if label]


@dataclasses.dataclass(frozen=True)
class Row:
    what: str
    bars: list


def rows():
    """All bars, by what they are about."""
    small = ("4k randread", "4k randwrite")
    large = ("64k randread", "64k randwrite", "1m read", "1m write")
    depths = (1, 4, 32, 128)
    deep = [f"{pattern} qd{depth}" for pattern in small for depth in (32, 128)]
    long = [f"{pattern} qd{depth}" for pattern in large for depth in depths]
    every = [job.name for job in fio.DISK]
    lone = "4k randread qd1"

    def one(measure, door, base, job, aim, **more):
        more = {"bound": bound(door)} | more
        return Bar(measure, ours(door), base, job, aim, **more)

    return [
        Row(
            "FUSE: latency added to the image's, over what the kernel's loop device adds",
            [one(added, "FUSE", KERNEL, lone, 0.75, is_most=True)],
        ),
        Row(
            "Loop: the same",
            [one(added, "LOOP", KERNEL, lone, 1.4, is_most=True)],
        ),
        Row(
            "Against QEMU's LUKS through the same door: 1.2 at depth 1, 1.5 elsewhere",
            [
                one(speed, door, peer, job, 1.2 if job.endswith("qd1") else 1.5)
                for door, peer in PEERS.items()
                for job in every
            ],
        ),
        Row(
            "64k and 1m: of the image",
            [one(speed, door, RAW, job, 0.95) for door in DOORS for job in long],
        ),
        Row(
            "64k and 1m: of the kernel's loop device",
            [one(speed, door, KERNEL, job, 1.0) for door in DOORS for job in long],
        ),
        Row(
            "4k at depths 32 and 128: of the image",
            [one(speed, door, RAW, job, 0.92) for door in DOORS for job in deep],
        ),
        Row(
            "Encrypted, of not encrypted",
            [
                one(speed, door, f"{door} ucrypt none", job, 0.98, bound=None)
                for door in DOORS
                for job in every
            ],
        ),
        Row(
            "In memory: of the speed of before",
            [
                one(speed, door, before(door), job.name, 0.98, bound=None, in_memory=True)
                for door in DOORS
                for job in fio.JOBS
            ],
        ),
        Row(
            "4k at depth 32: processor time of an operation, of that of before",
            [
                one(spent, door, before(door), f"{pattern} qd32", 0.7, is_most=True)
                for door in DOORS
                for pattern in small
            ],
        ),
    ]


def wanted(in_memory):
    """Which contenders each job needs, by name."""
    needed = {}
    for bar in (bar for row in rows() for bar in row.bars if bar.in_memory == in_memory):
        needed.setdefault(bar.job, set()).update(bar.labels)
    return needed


REACHED, BOUND, CLOSE, MISSED = "reached", "bound", "within the quartiles", "**not reached**"


def judged(bar, figures):
    """What was measured, the same of the bound, and the verdict; None if it was not measured."""
    figures = [f for f in figures if f["in_memory"] == bar.in_memory]
    measured = bar.measure(figures, bar.contender, bar.base, bar.job)
    if measured is None:
        return None
    limit = bar.bound and bar.measure(figures, bar.bound, bar.base, bar.job)
    low, middle, high = measured
    if bar.is_met(middle):
        verdict = REACHED
    elif limit and not bar.is_met(limit[1]):
        verdict = BOUND
    elif bar.is_met(low if bar.is_most else high):
        verdict = CLOSE
    else:
        verdict = MISSED
    return measured, limit, verdict


def text(figures):
    """Two tables: each row of bars with its verdicts, and every bar."""
    summary = [
        "| bars | measured | reached | bound | within the quartiles | not reached |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    every = [
        "| job | measured | median (quartiles) | bar | a server that only copies | |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in rows():
        found = [(bar, judged(bar, figures)) for bar in row.bars]
        found = [(bar, result) for bar, result in found if result]
        if not found:
            continue
        verdicts = [verdict for _, (_, _, verdict) in found]
        counts = [verdicts.count(kind) for kind in (REACHED, BOUND, CLOSE, MISSED)]
        summary.append(f"| {row.what} | {len(found)} | " + " | ".join(map(str, counts)) + " |")
        every.append(f"| *{row.what}* | | | | | |")
        for bar, (measured, limit, verdict) in found:
            sign = "≤" if bar.is_most else "≥"
            limit = fg.shown(limit) if limit else ""
            every.append(
                f"| {bar.job} | {bar.contender} : {bar.base} | {fg.shown(measured)} "
                f"| {sign} {bar.aim:g} | {limit} | {verdict} |"
            )
    if len(summary) == 2:
        return ""
    legend = (
        "*Bound*: missed, and a server that only copies misses it too. *Within the quartiles*: the median "
        "misses it, and one of the quartiles does not."
    )
    return "\n\n".join(["\n".join(summary), legend, "\n".join(every)])
