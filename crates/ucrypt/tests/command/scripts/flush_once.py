"""Two connections to a volume whose backend loses what is written back: URI.

The kernel tells of lost data once for each open file, and forgets it then.
"""

import errno
import sys

import nbd


def connect():
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    return h


def refused(ask):
    try:
        ask()
    except nbd.Error as error:
        return error.errnum in (errno.EIO, errno.ENOSPC)
    return False


a, b = connect(), connect()
assert a.can_multi_conn()
for index in range(16):
    b.pwrite(bytes([index + 1]) * (1 << 20), index << 20)
for number, h in enumerate((a, b, b, a, connect())):
    assert refused(h.flush), f"flush {number} succeeds although data is lost"
assert refused(lambda: a.pwrite(b"x" * 4096, 0, nbd.CMD_FLAG_FUA)), "a durable write succeeds"
# What needs no promise goes on.
a.pwrite(b"y" * 4096, 0)
assert a.pread(4096, 0) == b"y" * 4096
