"""One boot of the guest under QEMU: the console is passed on, the results come back as a tar.

Nothing outlives it. QEMU is killed when the time is over or anything fails, and the kernel kills
it should this process itself be killed.
"""

import contextlib
import os
import pathlib
import selectors
import shlex
import shutil
import subprocess
import sys
import tarfile
import time

# Between these lines the console belongs to the script. The output of firmware and kernel before and after
# is printed only after a failure.
BEGINS = "guest: begins"
ENDS = "guest: ends"


class GuestError(Exception):
    """The guest ended, or was ended, before its script did."""


class GuestTimeout(GuestError):
    """The guest took longer than it was given."""


class Limits:
    """How long a guest may run, and how long it may print nothing; in seconds."""

    def __init__(self, timeout_s, silence_s=None):
        self.timeout_s, self.silence_s = timeout_s, silence_s or timeout_s
        self.end = None

    def begin(self):
        self.end = time.monotonic() + self.timeout_s

    def left_s(self):
        """How long to wait for the next output."""
        return max(0, min(self.end - time.monotonic(), self.silence_s))

    def __str__(self):
        if time.monotonic() >= self.end:
            return f"after {self.timeout_s} s"
        return f"because it printed nothing for {self.silence_s} s"


def command(options, kernel, initramfs, results):
    """The command line of QEMU."""
    # One thread for all processors. With a thread for each, QEMU before 8.1 may translate code while another
    # processor writes it ("accel/tcg: Always lock pages before translation"), as Linux does when it patches itself:
    # a boot ended with "Oops: int3".
    accel = "tcg,thread=single" if options.accel == "tcg" else options.accel
    append = f"console=ttyS0 reboot=t panic=-1 quiet {options.append}".strip()
    line = ["qemu-system-x86_64", "-M", "q35", "-accel", accel, "-cpu", "max"]
    line += ["-smp", str(options.cpus), "-m", str(options.memory)]
    line += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    line += ["-serial", "stdio"]
    line += ["-kernel", str(kernel.image), "-initrd", str(initramfs), "-append", append]
    line += ["-device", "virtio-serial-pci"]
    line += ["-chardev", f"file,id=results,path={quoted(results)}"]
    line += ["-device", "virtserialport,chardev=results,name=results"]
    for name, image in options.disk:
        line += ["-drive", f"file={quoted(image)},format=raw,if=none,id={name},discard=unmap"]
        line += ["-device", f"virtio-blk-pci,drive={name},serial={name}"]
    for words in options.qemu:
        line += shlex.split(words)
    return line


def quoted(value):
    """A value inside one of QEMU's option lists."""
    return str(value).replace(",", ",,")


def run(line, limits, results, out):
    """Boots, prints what the guest prints, and puts its /out into `out`, if that is given.

    Returns the exit status of its script.
    """
    # With setpriv, QEMU ends with this process, however this process ends.
    guarded = ["setpriv", "--pdeathsig", "KILL", "--", *line]
    with subprocess.Popen(guarded, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as qemu:
        try:
            limits.begin()
            rest = pass_on(qemu.stdout, limits)
        except TimeoutError:
            raise GuestTimeout(f"the guest was ended {limits}") from None
        finally:
            qemu.kill()
    status = take_results(results, out)
    if status is None:
        sys.stdout.write(rest)
        raise GuestError("the guest ended without a result; its kernel's last words are above")
    return status


def pass_on(console, limits):
    """Prints what the console says between BEGINS and ENDS, up to its end. Returns the rest."""
    rest, text, is_script = "", "", False
    with selectors.DefaultSelector() as selector:
        selector.register(console, selectors.EVENT_READ)
        while True:
            if not selector.select(limits.left_s()):
                sys.stdout.write(rest + text)
                sys.stdout.flush()
                raise TimeoutError
            chunk = os.read(console.fileno(), 65536)
            lines = (text + chunk.decode(errors="replace")).replace("\r", "").split("\n")
            # The last line is incomplete, unless the console is closed.
            text = lines.pop() if chunk else ""
            for line in lines:
                if line.endswith((BEGINS, ENDS)):
                    is_script, rest = line.endswith(BEGINS), ""
                elif is_script:
                    print(line)
                else:
                    rest += line + "\n"
            sys.stdout.flush()
            if not chunk:
                return rest


def take_results(results, out):
    """Unpacks what the guest sent. Returns the exit status, None if nothing whole arrived."""
    status = None
    with contextlib.suppress(tarfile.TarError, EOFError), tarfile.open(results) as tar:
        for member in tar:
            name = pathlib.PurePosixPath(member.name)
            if member.name == "status":
                status = int(tar.extractfile(member).read())
            elif out and member.isfile() and name.parts[0] == "out" and ".." not in name.parts:
                path = out.joinpath(*name.parts[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                with tar.extractfile(member) as source, open(path, "wb") as file:
                    shutil.copyfileobj(source, file)
    return status
