"""A volume whose backend has room for 4 MiB: URI."""

import errno
import sys

import nbd

h = nbd.NBD()
h.connect_uri(sys.argv[1])
kept = bytes(range(256)) * 4096
h.pwrite(kept, 0)
try:
    h.pwrite(b"x" * (16 << 20), 4 << 20)
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error
else:
    raise AssertionError("there was room")
assert h.pread(len(kept), 0) == kept
h.pwrite(kept[::-1], 0)
h.flush()
assert h.pread(len(kept), 0) == kept[::-1]
h.shutdown()
