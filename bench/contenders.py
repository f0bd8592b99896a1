"""Who is measured: how each is started on an image, and how it is ended."""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import time

PASSPHRASE = b"benchmark"
# Seconds that a server may take to start or to end.
PATIENCE = 20
# Seconds that a device may stay in use after its measurement, as in the lab: requests of its last user drain.
CLOSE_LIMIT = 90
CLOSE_EVERY = 0.1
# Where the data of the LUKS2 image begins, in 512-byte sectors.
LUKS2_DATA = 32768


class Failed(Exception):
    """A contender could not be started."""


class Images:
    """The images: the same random bytes raw, as the data of LUKS1 and as the data of LUKS2.

    LUKS1 (aes-xts-plain64, 256 bits, 512-byte sectors) is what all peers open; LUKS2 is there for
    its 4096-byte sectors.
    """

    def __init__(self, scratch, size, direct):
        self.size = size
        # They are on a disk: whoever can, goes past the page cache.
        self.direct = direct
        self.key = scratch / "passphrase"
        self.raw = scratch / "raw.img"
        self.luks512 = scratch / "luks1-512.img"
        self.luks4096 = scratch / "luks2-4096.img"

    def make(self):
        self.key.write_bytes(PASSPHRASE)
        quiet = {"check": True, "stdout": subprocess.DEVNULL}
        secret = f"secret,id=key,file={self.key}"
        qemu = "key-secret=key,iter-time=10,cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64"
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "luks", "--object", secret]
            # QEMU measures the hash, and gives up on one that is done in less than a clock tick.
            + ["-o", f"{qemu},hash-alg=sha512", self.luks512, str(self.size)],
            **quiet,
        )
        self.luks4096.touch()
        os.truncate(self.luks4096, LUKS2_DATA * 512 + self.size)
        subprocess.run(
            ["cryptsetup", "luksFormat", "-q", "--type", "luks2", "--sector-size", "4096"]
            + ["--cipher", "aes-xts-plain64", "--key-size", "512", "--offset", str(LUKS2_DATA)]
            + ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]
            + ["--key-file", self.key, self.luks4096],
            **quiet,
        )
        # Offset of the data in a LUKS1 header: big endian, byte 104, in 512-byte sectors.
        with open(self.luks512, "rb") as image:
            data512 = int.from_bytes(image.read(108)[104:], "big") * 512
        self._fill([(self.raw, 0), (self.luks512, data512), (self.luks4096, LUKS2_DATA * 512)])

    def bound(self, name):
        """The program of a C file beside this one, built on its first use."""
        program = self.raw.with_name(name)
        if not program.exists():
            source = pathlib.Path(__file__).with_name(f"{name}.c")
            subprocess.run(["cc", "-O2", "-o", program, source, "-lpthread"], check=True)
        return program

    def _fill(self, places):
        chunk = 4 << 20
        source = random.Random(1)
        files = []
        for path, offset in places:
            files.append(open(path, "r+b" if path.exists() else "wb"))
            files[-1].seek(offset)
        for _ in range(0, self.size, chunk):
            block = source.randbytes(chunk)
            for file in files:
                file.write(block)
        for file in files:
            file.truncate()
            os.fsync(file.fileno())
            file.close()


@dataclasses.dataclass(frozen=True)
class Contender:
    transport: str
    name: str
    # Given the command under test, the images and the place to serve at: a command line.
    command: callable
    # The command to compare with, instead of the one under test.
    is_before: bool = False

    @property
    def label(self):
        return f"{self.transport} {self.name}"

    @property
    def is_ucrypt(self):
        return self.is_before or self.name.startswith("ucrypt")


def _ucrypt(transport, image, encrypted, *options):
    def command(ucrypt, images, place):
        key = ["--key-file", images.key] if encrypted else ["--cipher", "none"]
        key += ["--direct"] if images.direct else []
        if transport in ("LOOP", "UBLK"):
            kind = transport.lower()
            return [ucrypt, "open", "--as", kind, getattr(images, image), place.name, *key]
        where = ["--fuse", place] if transport == "FUSE" else ["--nbd", f"unix:{place}"]
        return [ucrypt, "serve", getattr(images, image), *key, *where, *options]

    return command


def _storage_daemon(encrypted):
    def command(_ucrypt, images, place):
        image = images.luks512 if encrypted else images.raw
        line = ["qemu-storage-daemon"]
        direct = ",cache.direct=on,aio=native" if images.direct else ""
        line += ["--blockdev", f"driver=file,node-name=file,filename={image}{direct}"]
        node = "file"
        if encrypted:
            node = "luks"
            line += ["--object", f"secret,id=key,file={images.key}"]
            line += ["--blockdev", "driver=luks,node-name=luks,file=file,key-secret=key"]
        export = f"type=fuse,id=export,node-name={node},mountpoint={place},writable=on"
        return [*line, "--export", export]

    return command


def _nbdkit(encrypted):
    def command(_ucrypt, images, place):
        line = ["nbdkit", "--foreground", "--exit-with-parent", "--unix", place]
        # It has no direct I/O, but drops what it has read and written from the page cache.
        cache = ["cache=none"] if images.direct else []
        if encrypted:
            line += ["--filter=luks", "file", images.luks512, *cache]
            return [*line, f"passphrase=+{images.key}"]
        return [*line, "file", images.raw, *cache]

    return command


def _qemu_nbd(_ucrypt, images, place):
    image = f"driver=luks,key-secret=key,file.driver=file,file.filename={images.luks512}"
    image += ",file.cache.direct=on,file.aio=native" if images.direct else ""
    return ["qemu-nbd", "--object", f"secret,id=key,file={images.key}", "--image-opts", image] + [
        *["--persistent", "--shared=8", f"--socket={place}"]
    ]


def _losetup(image):
    def command(_ucrypt, images, _place):
        return _attach(getattr(images, image), images.direct)

    return command


def _attach(path, direct):
    return ["losetup", "--find", "--show", *(["--direct-io=on"] if direct else []), path]


def _bound(name):
    def command(_ucrypt, images, place):
        return [images.bound(name), images.raw, place]

    return command


ALL = [
    Contender("FUSE", "ucrypt none", _ucrypt("FUSE", "raw", encrypted=False)),
    Contender("FUSE", "ucrypt 512", _ucrypt("FUSE", "luks512", encrypted=True)),
    Contender("FUSE", "ucrypt 4096", _ucrypt("FUSE", "luks4096", encrypted=True)),
    # The same by each of the two ways that requests come.
    Contender(
        "FUSE",
        "ucrypt 4096 classic",
        _ucrypt("FUSE", "luks4096", True, "--fuse-transport=classic"),
    ),
    Contender(
        "FUSE",
        "ucrypt 4096 io_uring",
        _ucrypt("FUSE", "luks4096", True, "--fuse-transport=io_uring"),
    ),
    Contender("FUSE", "qsd raw", _storage_daemon(encrypted=False)),
    Contender("FUSE", "qsd LUKS", _storage_daemon(encrypted=True)),
    Contender("LOOP", "kernel", _losetup("raw")),
    Contender("LOOP", "ucrypt none", _ucrypt("LOOP", "raw", encrypted=False)),
    Contender("LOOP", "ucrypt 512", _ucrypt("LOOP", "luks512", encrypted=True)),
    Contender("LOOP", "ucrypt 4096", _ucrypt("LOOP", "luks4096", encrypted=True)),
    Contender("NBD", "ucrypt none", _ucrypt("NBD", "raw", encrypted=False)),
    Contender("NBD", "ucrypt 512", _ucrypt("NBD", "luks512", encrypted=True)),
    Contender("NBD", "ucrypt 4096", _ucrypt("NBD", "luks4096", encrypted=True)),
    Contender("NBD", "nbdkit file", _nbdkit(encrypted=False)),
    Contender("NBD", "nbdkit luks", _nbdkit(encrypted=True)),
    Contender("NBD", "qemu-nbd LUKS", _qemu_nbd),
]

_NO_PEERS = ("FUSE qsd raw", "NBD nbdkit file")

# On a disk: the image itself, servers that only copy, the kernel's dm-crypt, and block devices of ublk.
RAW = Contender("FILE", "raw", None)
BOUND = Contender("FUSE", "bound", _bound("bound"))
BOUND_LOOP = Contender("LOOP", "bound", _bound("bound"))
BOUND_NBD = Contender("NBD", "bound", _bound("bound-nbd"))
DM_CRYPT = Contender("LOOP", "dm-crypt 512", _losetup("luks512"))
DISK = [
    RAW,
    BOUND,
    BOUND_LOOP,
    BOUND_NBD,
    DM_CRYPT,
    *[contender for contender in ALL if contender.label not in _NO_PEERS],
    Contender("UBLK", "ucrypt none", _ucrypt("UBLK", "raw", encrypted=False)),
    Contender("UBLK", "ucrypt 512", _ucrypt("UBLK", "luks512", encrypted=True)),
    Contender("UBLK", "ucrypt 4096", _ucrypt("UBLK", "luks4096", encrypted=True)),
]

# Another build, to compare with: --before.
BEFORE = [
    Contender(transport, "before 512", _ucrypt(transport, "luks512", True), is_before=True)
    for transport in ("FUSE", "LOOP", "NBD")
]

# Without rings in the kernel all are served by read(2) and write(2).
OVER_IO_URING = "FUSE ucrypt 4096 io_uring"
CLASSIC = "FUSE ucrypt 4096 classic"


def kernel_has_fuse_over_io_uring():
    parameter = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
    return parameter.exists() and parameter.read_text().strip() == "Y"


def kernel_has_dm_crypt():
    subprocess.run(["modprobe", "-q", "dm-crypt"], capture_output=True)
    return "device-mapper" in pathlib.Path("/proc/devices").read_text()


def kernel_has_ublk():
    return pathlib.Path("/dev/ublk-control").exists()


# Ours, with 4096-byte sectors and without encryption.
ENCRYPTED_AND_NOT = [c for c in ALL if c.name in ("ucrypt none", "ucrypt 4096")]


def running(contender, ucrypt, images, scratch):
    """A contender while it serves: a context that gives fio's target."""
    special = {RAW: Itself, BOUND_LOOP: Stacked, DM_CRYPT: DmCrypt}
    kind = {"LOOP": Attached, "UBLK": Attached}.get(contender.transport, Running)
    return special.get(contender, kind)(contender, ucrypt, images, scratch)


@contextlib.contextmanager
def ended_on_failure(contender):
    """Takes back what `__enter__` has done, if the rest of it fails or is interrupted."""
    try:
        yield
    except BaseException:
        contender.__exit__()
        raise


def insist(is_ended, what):
    """Tries to end something until that succeeds; fails after a limited time."""
    deadline = time.monotonic() + CLOSE_LIMIT
    while not is_ended():
        if time.monotonic() > deadline:
            raise Failed(f"{what} is still in use after {CLOSE_LIMIT} s")
        time.sleep(CLOSE_EVERY)


def detach(device):
    """Detaches a loop device. One in use goes with its last user."""
    subprocess.run(["losetup", "--detach", device], capture_output=True)
    attached = pathlib.Path("/sys/block") / pathlib.Path(device).name / "loop/backing_file"
    insist(lambda: not attached.exists(), device)


class Itself:
    """The image, without anything on top."""

    # Processor time is also asked of those without a process.
    pid = None

    def __init__(self, _contender, _ucrypt, images, _scratch):
        self.image = str(images.raw)

    def __enter__(self):
        return self.image

    def __exit__(self, *_):
        pass


class Attached:
    """A loop device; detached in any case."""

    def __init__(self, contender, ucrypt, images, scratch):
        self.contender = contender
        self.ucrypt = ucrypt
        # The name of a device is the whole machine's.
        self.name = f"{scratch.name}-{os.getpid()}".lower()
        self.line = contender.command(ucrypt, images, pathlib.Path(self.name))
        self.environment = os.environ | {"XDG_RUNTIME_DIR": str(scratch)}
        self.device = None
        self.pid = None

    def _run(self, line):
        line = [str(word) for word in line]
        return subprocess.run(line, env=self.environment, capture_output=True, text=True)

    def __enter__(self):
        done = self._run(self.line)
        if done.returncode != 0:
            raise Failed(f"{self.contender.label} does not start: {done.stderr.strip()}")
        self.device = done.stdout.strip()
        with ended_on_failure(self):
            if self.contender.is_ucrypt:
                status = self._run([self.ucrypt, "status", self.name, "--json"])
                self.pid = json.loads(status.stdout)["server"]["pid"]
        return self.device

    def _is_closed(self):
        return self._run([self.ucrypt, "close", self.name]).returncode == 0

    def __exit__(self, *_):
        if not self.contender.is_ucrypt:
            if self.device:
                detach(self.device)
            return
        try:
            insist(self._is_closed, f"{self.contender.label} ({self.device})")
        except Failed:
            # Its control socket goes with the scratch directory: nobody could close it any more.
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
                self._is_closed()
            raise


class DmCrypt:
    """The kernel's dm-crypt on a loop device."""

    pid = None

    def __init__(self, contender, ucrypt, images, scratch):
        self.below = Attached(contender, ucrypt, images, scratch)
        self.key = images.key

    def __enter__(self):
        device = self.below.__enter__()
        name = self.below.name
        line = ["cryptsetup", "open", "--type", "luks1", "--key-file", self.key, device, name]
        with ended_on_failure(self):
            done = subprocess.run(line, capture_output=True, text=True)
            if done.returncode != 0:
                raise Failed(f"dm-crypt does not start: {done.stderr.strip()}")
        return f"/dev/mapper/{name}"

    def __exit__(self, *_):
        device = pathlib.Path("/dev/mapper") / self.below.name

        def is_closed():
            subprocess.run(["cryptsetup", "close", self.below.name], capture_output=True)
            return not device.exists()

        try:
            insist(is_closed, str(device))
        finally:
            self.below.__exit__()


class Running:
    """A contender while it serves: gives fio's target, and ends the server in any case."""

    def __init__(self, contender, ucrypt, images, scratch):
        self.contender = contender
        self.size = images.size
        self.place = scratch / ("file" if contender.transport == "FUSE" else "socket")
        self.line = contender.command(ucrypt, images, self.place)
        self.log = scratch / "server.log"
        self.process = None

    def __enter__(self):
        if self.contender.transport == "FUSE":
            self.place.touch()
        with ended_on_failure(self):
            with open(self.log, "wb") as log:
                # A session of its own: Ctrl-C reaches this program, which ends the server.
                self.process = subprocess.Popen(
                    [str(word) for word in self.line],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            self._await()
        if self.contender.transport == "FUSE":
            return str(self.place)
        return f"nbd+unix:///?socket={self.place}"

    @property
    def pid(self):
        return self.process.pid

    def _await(self):
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace").strip()
                raise Failed(f"{self.contender.label} does not start: {said}")
            time.sleep(0.01)

    def _is_ready(self):
        if self.contender.is_ucrypt:
            # It says so, once.
            return bool(select.select([self.process.stdout], [], [], 0.1)[0]) and bool(
                self.process.stdout.readline()
            )
        if self.contender.transport == "FUSE":
            return os.stat(self.place).st_size >= self.size
        probe = socket.socket(socket.AF_UNIX)
        with probe:
            return probe.connect_ex(str(self.place)) == 0

    def __exit__(self, *_):
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
        # The server took its mount away; one that was killed did not.
        if os.path.ismount(self.place) or _is_dead_mount(self.place):
            subprocess.run(["fusermount3", "-u", "-z", self.place], capture_output=True)
        self.place.unlink(missing_ok=True)


def _is_dead_mount(place):
    """Whether a FUSE mount is left whose server has gone."""
    mounts = pathlib.Path("/proc/self/mounts").read_text()
    return any(line.split()[1] == str(place) for line in mounts.splitlines())


class Stacked:
    """A loop device over the file that a server by FUSE gives."""

    def __init__(self, contender, ucrypt, images, scratch):
        server = dataclasses.replace(contender, transport="FUSE")
        self.server = Running(server, ucrypt, images, scratch)
        self.direct = images.direct
        self.device = None

    def __enter__(self):
        path = self.server.__enter__()
        with ended_on_failure(self):
            done = subprocess.run(_attach(path, self.direct), capture_output=True, text=True)
            if done.returncode != 0:
                raise Failed(f"no loop device over {path}: {done.stderr.strip()}")
            self.device = done.stdout.strip()
        return self.device

    @property
    def pid(self):
        return self.server.pid

    def __exit__(self, *_):
        try:
            if self.device:
                detach(self.device)
        finally:
            self.server.__exit__()
