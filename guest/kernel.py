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


# A metapackage, an image, and what these consist of.
PARTS_MAX = 12


class KernelError(Exception):
    """The kernel cannot be had, or lacks a module."""


class Kernel:
    """An unpacked kernel package."""

    def __init__(self, root):
        self.image = image(root)
        self._modules = modules(root)
        self.version = self._modules.name
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


def modules(root):
    """The folder of the modules, whose name is the kernel's version."""
    return next(root.glob("lib/modules/*"), None)


def image(root):
    """The kernel itself; newer packages have it beside the modules."""
    return next(iter([*root.glob("boot/vmlinuz-*"), *root.glob("lib/modules/*/vmlinuz")]), None)


def module_name(path):
    """`kernel/drivers/md/dm-crypt.ko.xz` is called dm_crypt."""
    return pathlib.PurePath(path).name.split(".ko")[0].replace("-", "_")


def needs(file):
    """The names of the modules that the module in `file` needs itself."""
    listed = apt.call("modinfo", "-F", "depends", file).strip()
    return [module_name(name) for name in listed.split(",") if name]


def fetch(package, cache):
    """The kernel of `package`, from the folder `cache` or else from the Debian archive."""
    name = package.replace("/", "_")
    return Kernel(once(cache, name, lambda work: unpack(package, work, cache)))


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
    """Downloads `package`, and the parts of a kernel that it depends on, and unpacks all inside `work`."""
    suite, slash, _ = package.rpartition("/")
    root = work / "root"
    # Newer packages have modules in usr/lib.
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    parts = [package]
    for part in parts:
        deb = apt.download(part, work, cache)
        apt.call("sh", "-c", 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"',
                 "sh", deb, root)
        # A metapackage names the current image, and an image its parts.
        named = re.findall(r"\blinux-(?:image|base|binary|modules)-[^ ,]+", apt.field(deb, "Depends"))
        parts += {suite + slash + name for name in named} - set(parts)
        if len(parts) > PARTS_MAX:
            raise KernelError(f"package {package} depends on too many others")
    if not image(root) or not modules(root):
        raise KernelError(f"package {package} holds no kernel")
    apt.call("depmod", "-b", root, modules(root).name)
    return root
