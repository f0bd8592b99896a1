"""A client writes what is lost, another program is told, and a new client flushes: URI DEVICE."""

import errno
import os
import sys

import nbd


def connect():
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    return h


writer = connect()
writer.pwrite(b"x" * (1 << 20), 8 << 20)
writer.shutdown()
other = os.open(sys.argv[2], os.O_RDONLY)
try:
    os.fsync(other)
except OSError as error:
    assert error.errno in (errno.EIO, errno.ENOSPC), error
else:
    raise AssertionError("nothing was lost")
os.close(other)
try:
    connect().flush()
except nbd.Error as error:
    assert error.errnum in (errno.EIO, errno.ENOSPC), error
else:
    raise AssertionError("a flush succeeds although acknowledged data is lost")
