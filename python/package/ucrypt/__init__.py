"""LUKS volumes in user space: what is in an image, decrypted, without device-mapper and without root."""

from ._file import VolumeFile
from ._native import (
    Denied,
    Error,
    HeaderError,
    InUse,
    NotEnoughMemory,
    OptionsError,
    Volume,
    WrongKey,
    open,
)

__all__ = [
    "Denied",
    "Error",
    "HeaderError",
    "InUse",
    "NotEnoughMemory",
    "OptionsError",
    "Volume",
    "VolumeFile",
    "WrongKey",
    "open",
]
