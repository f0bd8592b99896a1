"""The guest's root file system: a cpio archive that the kernel unpacks into memory.

Written here rather than by `cpio`, so that it needs neither root (for the device node) nor a copy
of every file.
"""

import os
import pathlib
import re
import shutil
import stat
import subprocess

# ldd does not name this library: the C library opens it when a thread is cancelled.
LIBGCC = "libgcc_s.so.1"


class Initramfs:
    """Entries by their path in the guest."""

    def __init__(self):
        # path without the leading slash -> (mode, bytes or the path of a file here, device)
        self._entries = {}

    def add(self, path, content, mode=0o644):
        """A file; `content` is bytes, or the path of the file to take it from."""
        self._put(path, stat.S_IFREG | mode, content)

    def directory(self, path):
        """A directory and those above it."""
        self._put(path, stat.S_IFDIR | 0o755)

    def symlink(self, path, target):
        """A link, unless the path is taken."""
        if path.strip("/") not in self._entries:
            self._put(path, stat.S_IFLNK | 0o777, os.fsencode(target))

    def character_device(self, path, major, minor):
        """A device node."""
        self._put(path, stat.S_IFCHR | 0o600, device=(major, minor))

    def copy(self, source, path):
        """A file or a whole folder of this machine."""
        source = pathlib.Path(source)
        if not source.is_dir():
            self.add(path, source, source.stat().st_mode & 0o777)
            return
        self.directory(path)
        for child in sorted(source.iterdir()):
            self.copy(child, f"{path}/{child.name}")

    def program(self, name):
        """A program by name or path, to /bin, with the libraries it is linked to."""
        found = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if not found:
            raise FileNotFoundError(f"no program '{name}'")
        self.add(f"/bin/{pathlib.Path(found).name}", pathlib.Path(found), 0o755)
        for library in libraries(found):
            self.add(library, pathlib.Path(library), 0o755)

    def busybox(self):
        """BusyBox under every name it has that no program has."""
        self.program("busybox")
        listed = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
        for applet in listed.stdout.split():
            self.symlink(f"/bin/{applet}", "busybox")

    def _put(self, path, mode, content=b"", device=(0, 0)):
        path = path.strip("/")
        above = os.path.dirname(path)
        if above and above not in self._entries:
            self.directory(above)
        self._entries[path] = (mode, content, device)

    def write(self, out):
        """The archive, in the format that cpio calls newc."""
        for number, (path, (mode, content, device)) in enumerate(self._entries.items(), 1):
            data = content.read_bytes() if isinstance(content, pathlib.Path) else content
            record(out, number, path, mode, data, device)
        record(out, 0, "TRAILER!!!", 0, b"", (0, 0))


def record(out, number, path, mode, data, device):
    """One entry: a header of hexadecimal fields, the name and the data, each padded to 4."""
    name = os.fsencode(path) + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device, device of the node, name, checksum
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    for part in (header + name, data):
        out.write(part)
        out.write(bytes(-len(part) % 4))


def libraries(program):
    """The shared libraries of a program, none if it is static."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    paths = re.findall(r"(/\S+) \(0x", listed.stdout)
    for path in paths:
        libgcc = os.path.join(os.path.dirname(path), LIBGCC)
        if "/libc.so" in path and os.path.exists(libgcc) and libgcc not in paths:
            paths.append(libgcc)
    return paths
