"""A Debian kernel and its modules, from a cache that is filled once and then needs no network.

The cache's key is the package that was asked for, so a metapackage such as
`linux-image-6.12-cloud-amd64` stays at the version it named first; removing its folder fetches the
newest.
"""

import fcntl
import lzma
import pathlib
import re
import tempfile

import apt


class KernelError(Exception):
    """The kernel cannot be had, or lacks a module."""


class Kernel:
    """An unpacked kernel package."""

    def __init__(self, root):
        self.image = next(root.glob("boot/vmlinuz-*"))
        self.version = self.image.name.removeprefix("vmlinuz-")
        self._modules = root / "lib/modules" / self.version
        self._paths, self._needs = {}, {}
        for line in (self._modules / "modules.dep").read_text().splitlines():
            path, _, needs = line.partition(":")
            self._paths[module_name(path)] = path
            self._needs[module_name(path)] = [module_name(need) for need in needs.split()]
        builtin = (self._modules / "modules.builtin").read_text().split()
        self._builtin = {module_name(path) for path in builtin}

    def in_load_order(self, names):
        """`names` and what they need, each once and after all that it needs."""
        order = []
        for name in map(module_name, names):
            if name in self._builtin:
                continue
            if name not in self._paths:
                raise KernelError(f"kernel {self.version} has no module '{name}'")
            # modules.dep lists the deepest dependency last.
            for module in [*reversed(self._needs[name]), name]:
                if module not in order:
                    order.append(module)
        return order

    def module(self, name):
        """The bytes of a module of `in_load_order`, uncompressed."""
        data = (self._modules / self._paths[name]).read_bytes()
        return lzma.decompress(data) if self._paths[name].endswith(".xz") else data


def module_name(path):
    """`kernel/drivers/md/dm-crypt.ko.xz` is called dm_crypt."""
    return pathlib.PurePath(path).name.split(".ko")[0].replace("-", "_")


def needs(file):
    """The names of the modules that the module in `file` needs itself."""
    listed = apt.call("modinfo", "-F", "depends", file).strip()
    return [module_name(name) for name in listed.split(",") if name]


def fetch(package, cache):
    """The kernel of `package`, from the folder `cache` or else from the Debian archive."""
    return Kernel(once(cache, package, lambda work: unpack(package, work, cache)))


def once(cache, name, make):
    """The folder `name` of the cache; if it is not there, the one that `make(work)` returns.

    `work` is a folder that goes away afterwards. Who comes in between waits.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with open(cache / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                make(pathlib.Path(work)).rename(folder)
    return folder


def unpack(package, work, cache):
    """Downloads `package`, or the image it depends on, and unpacks it inside `work`."""
    for attempt in range(3):
        deb = apt.download(package, work, cache)
        root = work / f"root{attempt}"
        apt.unpack(deb, root)
        images = list(root.glob("boot/vmlinuz-*"))
        if images:
            apt.call("depmod", "-b", root, images[0].name.removeprefix("vmlinuz-"))
            return root
        # A metapackage, which names the current image.
        named = re.search(r"\blinux-image-[^ ,]+", apt.field(deb, "Depends"))
        if not named:
            break
        package = named[0]
    raise KernelError(f"package {package} holds no kernel")
