#!/usr/bin/env python3
"""The two ways that requests of a FUSE file come: which is faster where, and on which core their threads run.

A volume is served by `/dev/fuse` and by io_uring, from an image in memory and from one on a disk, past the page
cache. Servers stay while clients of all kinds take turns with them in random order. Beside the mean latency and
the processor time of server and client stands how often the server's busiest thread was seen on the client's core:
waking a core that is idle takes tens of microseconds in a virtual machine, and a switch on the same core a few.
To tell what that costs, both are also bound: to the same core, and to two cores; and the threads with rings, whose
queues the kernel has for each core, to the cores of their queues.

Sets the kernel's parameter `enable_uring` while it mounts, and puts it back. Needs root and two cores.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True

import figures as fg

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
ENABLE = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
PLAIN = ["--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512", "--sector-size", "4096"]

# Name, transport, core of the client and cores of the server's threads, by their number.
ANY = None
WAYS = {
    "classic": ("classic", ANY, ANY),
    "io_uring": ("io_uring", ANY, ANY),
    "io_uring, each thread on its core": ("io_uring", ANY, lambda number: number),
    "classic, same core": ("classic", 0, lambda _: 0),
    "classic, two cores": ("classic", 0, lambda _: 1),
    "io_uring, same core": ("io_uring", 0, lambda _: 0),
    "io_uring, two cores": ("io_uring", 0, lambda _: 1),
}
JOBS = {
    "4k randread qd1, psync": "--ioengine=psync --rw=randread --bs=4k",
    "4k randread qd1": "--ioengine=io_uring --rw=randread --bs=4k --iodepth=1",
    "4k randwrite qd1": "--ioengine=io_uring --rw=randwrite --bs=4k --iodepth=1",
    "4k randread qd4": "--ioengine=io_uring --rw=randread --bs=4k --iodepth=4",
    "4k randread qd32": "--ioengine=io_uring --rw=randread --bs=4k --iodepth=32",
    "4k randwrite qd32": "--ioengine=io_uring --rw=randwrite --bs=4k --iodepth=32",
    "4k randread qd128": "--ioengine=io_uring --rw=randread --bs=4k --iodepth=128",
    "64k randread qd1": "--ioengine=io_uring --rw=randread --bs=64k --iodepth=1",
    "1m read qd8": "--ioengine=io_uring --rw=read --bs=1m --iodepth=8",
    "1m write qd8": "--ioengine=io_uring --rw=write --bs=1m --iodepth=8",
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ucrypt", default=REPOSITORY / "target/release/ucrypt", type=pathlib.Path)
    parser.add_argument("--disk", default="/var/tmp", help="a directory on a disk (/var/tmp)")
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--seconds", default=0.5, type=float)
    parser.add_argument("--size", default=512, type=int, help="MiB of each image (512)")
    parser.add_argument("--only", default="", metavar="WORD", help="jobs with this word in their name")
    parser.add_argument("--memory", metavar="SIZE", help="of the servers with rings; their default if not given")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep every figure")
    options = parser.parse_args()
    if os.geteuid() != 0 or not ENABLE.exists():
        parser.error("root is needed, and a kernel with FUSE over io_uring (Linux 6.14)")
    return options


class Server:
    """A volume served by one transport."""

    def __init__(self, options, scratch, image, transport, direct):
        self.place = scratch / f"{transport}-{'disk' if direct else 'memory'}"
        line = [options.ucrypt, "serve", image, *PLAIN, "--key-file", scratch / "key", "--json"]
        line += ["--fuse", self.place, f"--fuse-transport={transport}", *(["--direct"] if direct else [])]
        line += ["--memory", options.memory] if options.memory and transport == "io_uring" else []
        was = ENABLE.read_text()
        try:
            ENABLE.write_text("Y" if transport == "io_uring" else "N")
            self.process = subprocess.Popen([str(word) for word in line], stdout=subprocess.PIPE, text=True)
            try:
                used = json.loads(self.process.stdout.readline())["transport"]
            except BaseException:
                self.end()
                raise
        finally:
            ENABLE.write_text(was)
        if used != transport:
            self.end()
            sys.exit(f"transports: the kernel gave {used} where {transport} was asked for")

    def threads(self):
        """Number in its name, and identifier, of each thread that takes requests from the kernel."""
        found = []
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            name, _, number = (task / "comm").read_text().strip().rpartition("-")
            if name in ("fuse", "fuse-ring"):
                found.append((int(number), int(task.name)))
        return sorted(found)

    def bind(self, core):
        for number, thread in self.threads():
            cores = range(os.cpu_count()) if core is ANY else [core(number) % os.cpu_count()]
            os.sched_setaffinity(thread, cores)

    def end(self):
        self.process.terminate()
        self.process.wait()


def stat(task):
    """Processor time in seconds and core of a process or thread."""
    fields = pathlib.Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[36])


class Watch(threading.Thread):
    """Looks, now and then, whether the server's busiest thread and the client are on the same core."""

    def __init__(self, server, client):
        super().__init__(daemon=True)
        self.threads = [f"{server.process.pid}/task/{thread}" for _, thread in server.threads()]
        self.client, self.seen, self.ends = client, [], threading.Event()

    def run(self):
        switches = dict.fromkeys(self.threads, 0)
        while not self.ends.wait(0.02):
            try:
                before, switches = switches, {task: _switches(task) for task in self.threads}
                busiest = max(self.threads, key=lambda task: switches[task] - before[task])
                clients = pathlib.Path(f"/proc/{self.client}/task").iterdir()
                theirs = max((f"{self.client}/task/{task.name}" for task in clients), key=_switches)
                self.seen.append(stat(busiest)[1] == stat(theirs)[1])
            except (OSError, ValueError):
                pass


def _switches(task):
    text = pathlib.Path(f"/proc/{task}/status").read_text()
    return int(text.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])


def measure(options, job, place, server, core):
    """Requests a second, mean latency and processor time of client and server in µs, share on one core."""
    line = ["fio", "--name=job", *JOBS[job].split(), f"--filename={place}", "--allow_file_create=0", "--direct=1"]
    line += [f"--size={options.size}m", "--time_based", f"--runtime={round(options.seconds * 1000)}ms"]
    line += ["--ramp_time=200ms", "--norandommap", "--randrepeat=0", "--refill_buffers=0", "--thread"]
    line += ["--output-format=json"] + ([] if core is ANY else [f"--cpus_allowed={core}"])
    before = stat(server.process.pid)[0] if server else 0
    client = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    watch = Watch(server, client.pid) if server else None
    if watch:
        watch.start()
    said = client.communicate()[0]
    if watch:
        watch.ends.set()
        watch.join()
    done = json.loads(said[said.index("{") :])["jobs"][0]
    side = done["write" if "write" in job else "read"]
    served = stat(server.process.pid)[0] - before if server else 0
    # Nothing is counted before the ramp is over, but the server works as much then.
    operations = max(1, side["iops"] * (options.seconds + 0.2))
    share = statistics.mean(watch.seen) if watch and watch.seen else None
    return {
        "iops": side["iops"],
        "mean_us": side["clat_ns"]["mean"] / 1e3,
        "client_us": 1e4 * (done["usr_cpu"] + done["sys_cpu"]) / max(1, side["iops"]),
        "server_us": 1e6 * served / operations,
        "same_core": share,
    }


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    jobs = [job for job in JOBS if options.only in job]
    order, figures, servers = random.Random(1), [], {}
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="ucrypt-bench-", dir=options.disk) as disk,
        tempfile.TemporaryDirectory(prefix="ucrypt-bench-", dir="/dev/shm") as memory,
    ):
        try:
            for where, scratch in (("disk", pathlib.Path(disk)), ("memory", pathlib.Path(memory))):
                (scratch / "key").write_bytes(bytes(64))
                for transport in ("classic", "io_uring"):
                    image = scratch / f"{transport}.img"
                    fill(image, options.size)
                    direct = where == "disk"
                    servers[where, transport] = Server(options, scratch, image, transport, direct)
            raw = pathlib.Path(disk) / "classic.img"
            for turn in range(options.rounds):
                for job, where in ((job, where) for job in jobs for where in ("disk", "memory")):
                    ways = [*WAYS, *(["image"] if where == "disk" and "write" not in job else [])]
                    for way in order.sample(ways, len(ways)):
                        if way == "image":
                            figure = measure(options, job, raw, None, ANY)
                        else:
                            transport, core, cores = WAYS[way]
                            server = servers[where, transport]
                            server.bind(cores)
                            figure = measure(options, job, server.place, server, core)
                        figures.append({"round": turn, "contender": f"{where}: {way}", "job": job, **figure})
                if options.json:
                    options.json.write_text(json.dumps(figures, indent=1))
        finally:
            for server in servers.values():
                server.end()
    print(
        f"{os.cpu_count()} CPUs, Linux {os.uname().release}; {options.rounds} rounds of {options.seconds} s; load "
        f"before the start {load:.1f}. Requests a second over those of classic, median of the rounds (quartiles); "
        "mean latency, processor time of client + server, in µs; on one core.\n"
    )
    for where in ("disk", "memory"):
        print(table(figures, where, jobs), end="\n\n")


def fill(image, mib):
    data = random.Random(2)
    with open(image, "wb") as file:
        for _ in range(mib):
            file.write(data.randbytes(1 << 20))
        os.fsync(file.fileno())


def table(figures, where, jobs):
    rows = [f"| {where} | " + " | ".join(jobs) + " |", "|---|" + "---|" * len(jobs)]
    for way in [*WAYS, "image"]:
        cells = []
        for job in jobs:
            label, base = f"{where}: {way}", f"{where}: classic"
            both = fg.pairs(figures, label, base, job, "iops")
            if not both:
                cells.append("")
                continue
            ratio = fg.shown(fg.quartiles([mine / its for mine, its in both]))
            mean, client, server = (
                statistics.median(fg.values(figures, label, job, key))
                for key in ("mean_us", "client_us", "server_us")
            )
            shares = [share for share in fg.values(figures, label, job, "same_core") if share is not None]
            share = f", {100 * statistics.mean(shares):.0f} %" if shares else ""
            cells.append(f"{ratio}<br>{mean:.0f}, {client:.1f} + {server:.1f}{share}")
        if any(cells):
            rows.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
