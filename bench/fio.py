"""The fio jobs, and one run of fio against a served volume."""

import dataclasses
import json
import os
import pathlib
import resource
import statistics
import subprocess
import time


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

# On a disk: --disk.
DISK = [
    Job(block, pattern, depth)
    for block, patterns in (
        ("4k", ("randread", "randwrite")),
        ("64k", ("randread", "randwrite")),
        ("1m", ("read", "write")),
    )
    for pattern in patterns
    for depth in (1, 4, 32, 128)
]

# Seconds before fio begins to count.
RAMP = 0.5


def run(job, target, server, size, runtime, scratch):
    """One measurement: MB/s (10^6 bytes), the latencies in microseconds, and the processor time of an
    operation in microseconds: of fio and of the server, what the kernel does in their calls included, and
    of all else on the machine, which is the kernel's threads and interrupts if nobody else is there.

    `target` is the path of a served file, or the URI of an NBD export; `server` is a process or None.
    """
    output = scratch / "fio.json"
    started = startup(scratch)
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
    command += memory(job)
    limit = runtime + RAMP + 60
    before = _busy(server)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=scratch)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"fio hangs in '{job.name}' against {target}") from error
    after = _busy(server)
    if done.returncode != 0:
        raise Failed(f"fio failed in '{job.name}' against {target}: {done.stderr.strip()}")
    # Warnings may stand before the document.
    text = output.read_text()
    counted = json.loads(text[text.index("{") :])["jobs"][0]
    if counted["error"] != 0:
        raise Failed(f"fio counts error {counted['error']} in '{job.name}' against {target}")
    side = counted[job.direction]
    # Nothing is counted before the ramp is over, but it takes time like the rest.
    operations = max(1, side["iops"] * (runtime + RAMP))
    client, served, busy = (1e6 * (b - a) / operations for a, b in zip(before, after))
    client = max(0.0, client - 1e6 * started / operations)
    return {
        "job": job.name,
        "mb_s": side["bw_bytes"] / 1e6,
        "iops": side["iops"],
        "mean_us": side["clat_ns"]["mean"] / 1e3,
        "p99_us": side["clat_ns"]["percentile"]["99.000000"] / 1e3,
        "client_us": client,
        "server_us": served,
        "kernel_us": max(0.0, busy - 1e6 * started / operations - client - served),
    }


def memory(job):
    """Huge pages for the buffers, where so many are reserved. A block device splits a request whose pages lie
    apart, so its length would depend on which pages fio happens to get."""
    fields = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    # Not every kernel has them.
    size = 1024 * int(fields.get("Hugepagesize", "0 kB").split()[0])
    wanted = job.depth * {"k": 1 << 10, "m": 1 << 20}[job.block[-1]] * int(job.block[:-1])
    if int(fields.get("HugePages_Free", 0)) * size < wanted + size:
        return []
    return ["--mem=shmhuge", f"--hugepage-size={size}"]


def startup(scratch, known=[]):
    """Seconds of processor time that fio takes before and after its job."""
    if not known:
        probe = ["fio", "--name=job", "--ioengine=psync", "--rw=read", "--bs=4k", "--size=4k"]
        probe += ["--filename=/dev/zero", "--thread", "--output-format=json"]
        spent = []
        for _ in range(5):
            before = _busy(None)[0]
            subprocess.run(probe, capture_output=True, cwd=scratch, check=True)
            spent.append(_busy(None)[0] - before)
        known.append(statistics.median(spent))
    return known[0]


def _busy(server):
    """Seconds of processor time so far: of our children that have ended, of the server, and of the whole
    machine, up to a constant."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    # Idle time is counted exactly; busy time by looking at each clock tick. Also: waiting for a disk, and
    # what the host took away.
    idle = (ticks[3] + ticks[4] + ticks[7]) / os.sysconf("SC_CLK_TCK")
    machine = os.cpu_count() * time.monotonic() - idle
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    served = 0
    if server is not None:
        fields = pathlib.Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        served = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return children.ru_utime + children.ru_stime, served, machine


def engine(known=[]):
    """io_uring where the system allows it, else libaio."""
    if not known:
        probe = ["fio", "--name=probe", "--ioengine=io_uring", "--rw=read", "--size=4k"]
        probe += ["--filename=/dev/zero", "--bs=4k"]
        works = subprocess.run(probe, capture_output=True).returncode == 0
        known.append("io_uring" if works else "libaio")
    return known[0]
