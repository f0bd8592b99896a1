"""A volume as a file object."""

from __future__ import annotations

import errno
import io
import operator
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from ._native import Volume


class VolumeFile(io.RawIOBase):
    """A volume as a file with a position; `Volume.file` makes one.

    It has no buffer: each call is a request to the volume. `io.BufferedReader` or `io.BufferedRandom` around
    it makes small reads fast; close that one before the volume, which knows nothing of what it still holds:
    `with volume.file() as file, io.BufferedRandom(file) as buffered`. One thread at a time may use it; each thread
    can have its own.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._position = 0

    @property
    def volume(self) -> Volume:
        """The volume."""
        return self._volume

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")
        if self._volume.closed:
            raise ValueError("the volume is closed")

    def readable(self) -> bool:
        self._check()
        return True

    def writable(self) -> bool:
        self._check()
        return not self._volume.readonly

    def seekable(self) -> bool:
        self._check()
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes, or all that are left; fewer only at the end."""
        self._check()
        left = max(self._volume.size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        data = self._volume.pread(self._position, count)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._check()
        with memoryview(buffer) as view, view.cast("B") as target:
            data = self._volume.pread(self._position, len(target))
            target[: len(data)] = data
        # Not before they have taken it.
        self._position += len(data)
        return len(data)

    def write(self, data: ReadableBuffer, /) -> int:
        """Writes as much as there is room for; `OSError` (`ENOSPC`) at the end of the volume."""
        self._check()
        if self._volume.readonly:
            raise io.UnsupportedOperation("the volume is read-only; open it with readonly=False")
        with memoryview(data) as view, view.cast("B") as source:
            count = min(len(source), max(self._volume.size - self._position, 0))
            if count == 0 and len(source) > 0:
                raise OSError(errno.ENOSPC, f"the volume ends at byte {self._volume.size}; write less")
            self._volume.pwrite(self._position, bytes(source[:count]))
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        if whence == os.SEEK_SET:
            base = 0
        elif whence == os.SEEK_CUR:
            base = self._position
        elif whence == os.SEEK_END:
            base = self._volume.size
        else:
            raise ValueError(f"whence is {whence}; use os.SEEK_SET, os.SEEK_CUR or os.SEEK_END")
        position = base + operator.index(offset)
        if not 0 <= position < 1 << 63:
            raise OSError(errno.EINVAL, f"the position would be {position}; it has to be in 0 to 2^63")
        self._position = position
        return position

    def tell(self) -> int:
        self._check()
        return self._position

    def flush(self) -> None:
        """Makes everything durable that was written. Closing the file does the same."""
        super().flush()
        if self._volume.closed:
            # It was flushed then. If something was lost, this raises it again.
            self._volume.close()
        elif not self._volume.readonly:
            self._volume.flush()
