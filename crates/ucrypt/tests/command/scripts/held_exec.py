"""held_exec.py DIRECTORY: a process that hangs while it runs another program, for as long as standard input is open.

Serves a file system with one file. A child opens the file and runs another program, for which the kernel closes the
file, and asks the server to flush it; the answer does not come. Whoever reads the child's table of memory meanwhile
waits for the child. Prints its number once it hangs.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import stat
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 18, 25, 26
# Numbers of the directory and of the file.
ROOT, FILE = 1, 2


def attributes(node):
    mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o600
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node):
    if opcode == INIT:
        return struct.pack("<4I2H2I32x", 7, 31, 0, 0, 1, 1, 4096, 1)
    if opcode == LOOKUP:
        return struct.pack("<4Q2I", FILE, 0, 60, 60, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return struct.pack("<Q2I", 60, 0, 0) + attributes(node)
    if opcode == OPEN:
        return struct.pack("<Q2I", 0, 0, 0)
    return b""


def reply(unique, error, body=b""):
    os.write(device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)


directory = sys.argv[1]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"held_exec", directory.encode(), b"fuse", 0, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
child = os.fork()
if child == 0:
    os.close(device)
    os.open(os.path.join(directory, "file"), os.O_RDONLY)
    os.execv("/bin/sleep", ["sleep", "600"])
held = None
while True:
    ready, _, _ = select.select([device, 0], [], [])
    if 0 in ready:
        break
    request = os.read(device, 1 << 17)
    _, opcode, unique, node = struct.unpack_from("<2I2Q", request)
    if opcode == FLUSH:
        held = unique
        print(child, flush=True)
    elif opcode != FORGET:
        known = opcode in (INIT, LOOKUP, GETATTR, OPEN, RELEASE)
        reply(unique, 0 if known else errno.ENOSYS, answer(opcode, node))
os.kill(child, signal.SIGKILL)
with contextlib.suppress(OSError):
    if held is not None:
        reply(held, 0)
os.close(device)
os.waitpid(child, 0)
libc.umount2(directory.encode(), 2)
