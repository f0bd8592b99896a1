"""The fio jobs, and one run of fio against a served volume."""

import dataclasses
import json
import subprocess


class Failed(Exception):
    """fio did not give a figure."""


@dataclasses.dataclass(frozen=True)
class Job:
    block: str
    pattern: str
    depth: int

    @property
    def name(self):
        return f"{self.block} {self.pattern} qd{self.depth}"

    @property
    def direction(self):
        return "write" if self.pattern.endswith("write") else "read"


JOBS = [
    Job("4k", "randread", 1),
    Job("4k", "randread", 32),
    Job("4k", "randwrite", 32),
    Job("64k", "read", 1),
    Job("64k", "randwrite", 32),
    Job("1m", "read", 1),
    Job("1m", "read", 8),
    Job("1m", "write", 8),
]

# What encryption costs, at every depth: --against-none.
GRID = [
    Job(block, pattern, depth)
    for block, depths in (("4k", (1, 4, 32, 128)), ("1m", (1, 8, 32, 128)))
    for pattern in ("read", "randread", "write", "randwrite")
    for depth in depths
]

# Seconds before fio begins to count.
RAMP = 0.5


def run(job, target, size, runtime, scratch):
    """One measurement: MB/s (10^6 bytes), and the latencies in microseconds.

    `target` is the path of a served file, or the URI of an NBD export.
    """
    output = scratch / "fio.json"
    command = [
        "fio",
        "--name=job",
        f"--bs={job.block}",
        f"--rw={job.pattern}",
        f"--iodepth={job.depth}",
        f"--size={size}",
        "--time_based",
        f"--runtime={round(runtime * 1000)}ms",
        f"--ramp_time={round(RAMP * 1000)}ms",
        "--direct=1",
        "--norandommap",
        "--randrepeat=0",
        "--refill_buffers=0",
        "--thread",
        "--output-format=json",
        # On its standard output, the nbd engine writes lines of its own.
        f"--output={output}",
    ]
    if target.startswith("nbd"):
        command += ["--ioengine=nbd", f"--uri={target}"]
    else:
        command += [f"--ioengine={engine()}", f"--filename={target}", "--allow_file_create=0"]
    limit = runtime + RAMP + 60
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=scratch)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"fio hangs in '{job.name}' against {target}") from error
    if done.returncode != 0:
        raise Failed(f"fio failed in '{job.name}' against {target}: {done.stderr.strip()}")
    # Warnings may stand before the document.
    text = output.read_text()
    counted = json.loads(text[text.index("{") :])["jobs"][0]
    if counted["error"] != 0:
        raise Failed(f"fio counts error {counted['error']} in '{job.name}' against {target}")
    side = counted[job.direction]
    return {
        "job": job.name,
        "mb_s": side["bw_bytes"] / 1e6,
        "iops": side["iops"],
        "mean_us": side["clat_ns"]["mean"] / 1e3,
        "p99_us": side["clat_ns"]["percentile"]["99.000000"] / 1e3,
    }


def engine(known=[]):
    """io_uring where the system allows it, else libaio."""
    if not known:
        probe = ["fio", "--name=probe", "--ioengine=io_uring", "--rw=read", "--size=4k"]
        probe += ["--filename=/dev/zero", "--bs=4k"]
        works = subprocess.run(probe, capture_output=True).returncode == 0
        known.append("io_uring" if works else "libaio")
    return known[0]
