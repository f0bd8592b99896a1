"""Durable writes at the same time, on a volume whose backend stores none of them: URI."""

import errno
import sys

import nbd

COUNT = 64
h = nbd.NBD()
h.connect_uri(sys.argv[1])
data = nbd.Buffer.from_bytearray(bytearray(b"x" * 4096))
cookies = [h.aio_pwrite(data, at << 16, flags=nbd.CMD_FLAG_FUA) for at in range(COUNT)]
while h.aio_in_flight() > 0:
    h.poll(-1)
succeeded = 0
for cookie in cookies:
    try:
        succeeded += h.aio_command_completed(cookie)
    except nbd.Error as error:
        assert error.errnum in (errno.EIO, errno.ENOSPC), error
assert succeeded == 0, f"{succeeded} of {COUNT} writes that are lost are durable by their replies"
