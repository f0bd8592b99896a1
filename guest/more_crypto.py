"""Crypto modules that Debian's kernel is built without, built from Debian's source of it.

They are the kernel's own code, compiled against the headers of the very image that loads them, so
that its dm-crypt knows ARIA, SM4, SM3 and HCTR2 as other distributions' kernels do. Needs gcc-12
and make; downloads 170 MB once.
"""

import pathlib
import re
import tarfile

import apt
import kernel

# In load order.
MODULES = "aria_generic sm4 sm4_generic sm3 sm3_generic polyval-generic xctr hctr2".split()


def build(linux, cache):
    """The modules' files, from the cache if they were built before."""
    name = f"more-crypto-{linux.version}"
    folder = kernel.once(cache, name, lambda work: build_inside(work, linux, cache))
    return [folder / f"{module}.ko" for module in MODULES]


def build_inside(work, linux, cache):
    headers = apt.download(f"linux-headers-{linux.version}", work, cache)
    depends, version = apt.field(headers, "Depends"), apt.field(headers, "Version")
    parts = re.findall(r"\blinux-(?:headers-\S+-common|kbuild-\S+?)(?=[ ,])", depends)
    series = ".".join(linux.version.split(".")[:2])
    source = apt.download(f"linux-source-{series}={version}", work, cache)
    root = work / "root"
    for deb in [headers, source, *(apt.download(part, work, cache) for part in parts)]:
        apt.unpack(deb, root)
    tree = root / "usr/src" / f"linux-headers-{linux.version}"
    # The Makefile expects to be installed.
    makefile = tree / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{root}/usr/src/"))
    modules = work / "modules"
    modules.mkdir()
    take_sources(root / f"usr/src/linux-source-{series}.tar.xz", modules)
    (modules / "Kbuild").write_text(
        "obj-m := " + " ".join(f"{module}.o" for module in MODULES) + "\n"
    )
    # Skip the BPF type information, which needs one more program.
    apt.call("make", "-C", tree, f"M={modules}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
    return modules


def take_sources(archive, folder):
    """The modules' source files, without the rest of the kernel."""
    wanted = {f"crypto/{module}.c" for module in MODULES}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            if name in wanted:
                with tar.extractfile(member) as file:
                    (folder / pathlib.PurePath(name).name).write_bytes(file.read())
                wanted.remove(name)
                if not wanted:
                    return
    raise kernel.KernelError(f"the kernel's source lacks {' '.join(sorted(wanted))}")
