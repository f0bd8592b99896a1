"""What a client may ask of an NBD export with discards: URI SIZE."""

import errno
import random
import sys

import nbd

uri, size = sys.argv[1], int(sys.argv[2])
MAX = 32 << 20


def connect():
    handle = nbd.NBD()
    # The server is judged, not the client's own checks.
    handle.set_strict_mode(0)
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.connect_uri(uri)
    assert handle.get_size() == size
    assert handle.get_structured_replies_negotiated()
    assert handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    return handle


def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, (error, number)
        return
    raise AssertionError("not refused")


h, other = connect(), connect()

# Unaligned writes leave their neighbours alone, across sectors and requests of every length.
source = random.Random(5)
model = bytearray(h.pread(1 << 20, 0))
for _ in range(200):
    length = source.choice([1, 3, 511, 512, 513, 4095, 4096, 5000, 65537])
    offset = source.randrange((1 << 20) - length)
    data = source.randbytes(length)
    h.pwrite(data, offset, source.choice([0, nbd.CMD_FLAG_FUA]))
    model[offset : offset + length] = data
assert h.pread(1 << 20, 0) == model
assert h.pread(4097, 511, nbd.CMD_FLAG_DF) == model[511 : 511 + 4097]

# One connection's flush covers the other's writes: that is what multi-conn promises.
other.pwrite(b"other", 2 << 20)
h.flush()
assert h.pread(5, 2 << 20) == b"other"

# The largest request.
large = source.randbytes(MAX)
h.pwrite(large, size - MAX)
assert h.pread(MAX, size - MAX) == large

# Zeroes are plaintext zeroes, with and without holes, aligned or not.
h.zero(100_000, 777)
model[777:100_777] = bytes(100_000)
h.zero(8192, 200_704, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
model[200_704:208_896] = bytes(8192)
assert h.pread(1 << 20, 0) == model

# A discard leaves the rest alone; what it leaves behind is undefined, but can be read.
h.trim(1 << 20, 4 << 20, nbd.CMD_FLAG_FUA)
assert len(h.pread(1 << 20, 4 << 20)) == 1 << 20
assert h.pread(1 << 20, 0) == model
assert h.pread(MAX, size - MAX) == large

# Block status covers the range that was asked for, and says data where there is data.
entries = []
h.block_status(size, 0, lambda context, offset, found, error: entries.extend(found) or 0)
lengths, flags = entries[::2], entries[1::2]
assert 0 < sum(lengths) <= size and all(lengths), entries
assert flags[0] == 0, entries

# Refusals. The connection lives on after each.
fails(errno.EINVAL, lambda: h.pread(2, size - 1))
fails(errno.EINVAL, lambda: h.pread(1, size))
fails(errno.ENOSPC, lambda: h.pwrite(b"xx", size - 1))
fails(errno.ENOSPC, lambda: h.pwrite(b"x", 1 << 62))
fails(errno.ENOSPC, lambda: h.zero(2, size - 1))
fails(errno.EINVAL, lambda: h.trim(2, size - 1))
fails(errno.EINVAL, lambda: h.pread(MAX + 512, 0))
fails(errno.EINVAL, lambda: h.pread(512, 0, 1 << 14))
fails(errno.EINVAL, lambda: h.cache(512, 0))
assert h.pread(1 << 20, 0) == model
assert other.pread(1 << 20, 0) == model
h.shutdown()
other.shutdown()
