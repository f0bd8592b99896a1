#!/usr/bin/env python3
"""Runs a script inside a real Linux kernel, in a virtual machine that lives as long as it.

The guest has BusyBox, the programs and files that are named, and nothing else: no network, no
disk but those given. Everything it prints is printed; what the script leaves in /out comes back.
The exit status is the script's; 124 if its time was over, 125 if it could not be run.
"""

import argparse
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

import apt
import initramfs
import kernel
import machine

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent
KERNEL = "linux-image-6.12-cloud-amd64"
TIMED_OUT = 124
FAILED = 125


def arguments(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="The kernel is kept in $UCRYPT_GUEST_CACHE, or else in target/guest.",
    )
    add = parser.add_argument
    add("--program", action="append", default=[], metavar="NAME",
        help="a program of this machine, by name or path, with its libraries, to /bin")
    add("--file", action="append", default=[], metavar="PATH[:GUEST]",
        help="a file or folder, to GUEST, or else to the script's working folder /work")
    add("--module", action="append", default=[], metavar="NAME[ PARAMETER=VALUE]...",
        help="a kernel module to load, after all that it needs")
    add("--module-file", action="append", default=[], type=pathlib.Path, metavar="FILE",
        help="a module of one's own for that kernel, loaded after the others")
    add("--disk", action="append", default=[], type=disk, metavar="NAME=IMAGE",
        help="a raw image or a URL of QEMU (nbd+unix://...), as /dev/disk/NAME")
    add("--out", type=pathlib.Path, metavar="FOLDER", help="where the guest's /out goes")
    add("--timeout", type=float, default=120, metavar="SECONDS", help="for the boot too (120)")
    add("--silence", type=float, metavar="SECONDS",
        help="also end a guest that has printed nothing for this long")
    add("--memory", type=int, default=1024, metavar="MIB", help="of the guest (1024)")
    add("--cpus", type=int, default=2, metavar="N", help="of the guest (2)")
    add("--accel", choices=["tcg", "kvm"], default="tcg", help="tcg works everywhere (tcg)")
    add("--kernel", default=KERNEL, metavar="PACKAGE",
        help=f"a Debian package, or one that depends on it ({KERNEL})")
    add("--append", default="", metavar="WORDS", help="more for the kernel's command line")
    add("--qemu", action="append", default=[], metavar="WORDS",
        help="more for QEMU's command line, quoted as in a shell")
    add("--prepare", action="store_true", help="only fetch what is missing, for use offline")
    add("script", nargs="?", type=pathlib.Path, help="what to run: any executable text")
    add("argument", nargs=argparse.REMAINDER, help="given to the script")
    options = parser.parse_args(words)
    if not options.script and not options.prepare:
        parser.error("a script is missing")
    return options


def disk(text):
    name, equals, image = text.partition("=")
    if not equals or not name.isidentifier() or len(name) > 20:
        raise argparse.ArgumentTypeError("give NAME=IMAGE, NAME a word of at most 20 characters")
    return name, image


def set_up_host():
    """Installs the packages that are missing here."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    needed = ["qemu-system-x86_64", "busybox", "depmod", "setpriv"]
    if not all(shutil.which(program, path=path) for program in needed):
        subprocess.run([REPOSITORY / "scripts/setup", "guest"], check=True, stdout=sys.stderr)


def cache_folder():
    """Where what was downloaded is kept."""
    folder = os.environ.get("UCRYPT_GUEST_CACHE") or REPOSITORY / "target/guest"
    return pathlib.Path(folder).resolve()


def build(options, linux):
    """The guest's root file system."""
    root = initramfs.Initramfs()
    root.character_device("/dev/console", 5, 1)
    root.add("/init", HERE / "init", 0o755)
    root.add("/script", options.script, 0o755)
    root.add("/arguments", shlex.join(options.argument).encode())
    for program in options.program:
        root.program(program)
    root.busybox()
    for file in options.file:
        source, _, path = file.partition(":")
        root.copy(source, path or f"/work/{pathlib.Path(source).name}")
    add_modules(root, linux, options)
    return root


def add_modules(root, linux, options):
    """The modules, and /modules/order: name and parameters of each."""
    parameters = {}
    for module in options.module + ["virtio_blk"] * bool(options.disk):
        name, _, words = module.partition(" ")
        parameters[kernel.module_name(name)] = words
    files = {kernel.module_name(file): file for file in options.module_file}
    needs = [need for file in files.values() for need in kernel.needs(file) if need not in files]
    names = linux.in_load_order([*needs, *parameters])
    for name in names:
        root.add(f"/modules/{name}.ko", linux.module(name))
    for name, file in files.items():
        root.add(f"/modules/{name}.ko", file)
    order = [f"{name} {parameters.get(name, '')}\n" for name in [*names, *files]]
    root.add("/modules/order", "".join(order).encode())


def run(options):
    """Boots the guest; the exit status of the script."""
    set_up_host()
    linux = kernel.fetch(options.kernel, cache_folder())
    if options.prepare:
        return 0
    with tempfile.TemporaryDirectory(prefix="guest-") as work:
        archive, results = pathlib.Path(work, "initramfs"), pathlib.Path(work, "results")
        with open(archive, "wb") as file:
            build(options, linux).write(file)
        line = machine.command(options, linux, archive, results)
        limits = machine.Limits(options.timeout, options.silence)
        return machine.run(line, limits, results, options.out)


def main():
    # Exit as on an interrupt: the way out ends everything that was started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return run(arguments())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except machine.GuestTimeout as error:
        print(f"guest: {error}", file=sys.stderr)
        return TIMED_OUT
    except (OSError, subprocess.CalledProcessError, apt.HostError,
            kernel.KernelError, machine.GuestError) as error:
        print(f"guest: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
