from os import PathLike
from types import TracebackType
from typing import Literal, final

from ._file import VolumeFile

__all__ = [
    "Denied",
    "Error",
    "HeaderError",
    "InUse",
    "NotEnoughMemory",
    "OptionsError",
    "Volume",
    "WrongKey",
    "open",
]

class Error(OSError):
    """What goes wrong with an image or a volume; the base of the others."""

class WrongKey(Error):
    """The passphrase or key opens nothing."""

class InUse(Error):
    """Another program uses the image."""

class Denied(Error):
    """The system refuses access to the image."""

class HeaderError(Error):
    """There is no header that can be used."""

class NotEnoughMemory(Error):
    """There is not enough memory for the keyslot."""

class OptionsError(Error):
    """The arguments do not go together, or not with the image."""

def open(
    path: str | PathLike[str],
    *,
    passphrase: str | bytes | bytearray | None = None,
    key_file: str | PathLike[str] | None = None,
    volume_key: bytes | bytearray | None = None,
    readonly: bool = True,
    shared: bool = False,
    header: str | PathLike[str] | None = None,
    keyslot: int | None = None,
    allow_discards: bool = False,
    direct: bool = False,
    strict: bool = False,
    memory: int | None = None,
) -> Volume:
    """Opens the LUKS volume in an image, by exactly one of `passphrase`, `key_file` and `volume_key`.

    `passphrase`: text counts as UTF-8. `key_file`: all of its bytes are the passphrase. `readonly`: refuse
    writes. `shared`: read the image although another program may write to it. `header`: the file of a detached
    header. `keyslot`: try only this one. `allow_discards`: let discards reach the image. `direct`: bypass the
    page cache. `strict`: refuse headers that luksFormat does not make. `memory`: bytes of
    buffers, half of which requests share.

    Raises `WrongKey`, `InUse`, `Denied`, `HeaderError`, `NotEnoughMemory`, `OptionsError` or their base `Error`.
    """

@final
class Volume:
    """An open volume; any number of threads may use it. `open` makes one."""

    @property
    def size(self) -> int:
        """Bytes of the volume."""
    @property
    def sector_size(self) -> int:
        """Bytes that are encrypted as one: 512, 1024, 2048 or 4096."""
    @property
    def cipher(self) -> str:
        """Cipher, mode and IV in dm-crypt's notation."""
    @property
    def key_bits(self) -> int:
        """Length of the volume key in bits."""
    @property
    def data_offset(self) -> int:
        """Where the data starts in the image, in bytes."""
    @property
    def format(self) -> str:
        """`luks1` or `luks2`."""
    @property
    def uuid(self) -> str | None:
        """The UUID of the header."""
    @property
    def label(self) -> str | None:
        """The label of a LUKS2 header, if it has one."""
    @property
    def keyslot(self) -> int | None:
        """The keyslot that the passphrase has opened."""
    @property
    def readonly(self) -> bool:
        """Whether writes are refused."""
    @property
    def in_use(self) -> bool:
        """Whether another program may write to the image."""
    @property
    def notices(self) -> list[str]:
        """What a person should be told, such as a header copy that is damaged; mostly empty."""
    @property
    def closed(self) -> bool:
        """Whether the volume is closed."""
    def pread(self, offset: int, length: int) -> bytes:
        """Reads `length` bytes from byte `offset` on; fewer only at the end of the volume."""
    def pwrite(self, offset: int, data: bytes | bytearray) -> int:
        """Writes all of `data` from byte `offset` on, or raises; returns its length."""
    def write_zeroes(self, offset: int, length: int) -> None:
        """Makes `length` bytes from byte `offset` on read as zeroes."""
    def discard(self, offset: int, length: int) -> None:
        """Tells the image that `length` bytes from byte `offset` on are no longer needed."""
    def flush(self) -> None:
        """Makes every write durable that has returned, on any thread."""
    def close(self) -> None:
        """Waits for the calls of other threads, flushes and closes the volume. Does nothing if it is closed
        already; if something was lost then, raises that again."""
    def file(self) -> VolumeFile:
        """The volume as a file with a position, at the start."""
    def __enter__(self) -> Volume: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Literal[None]: ...
