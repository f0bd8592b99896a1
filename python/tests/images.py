"""Images that cryptsetup makes, and what others see in them."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess

import ucrypt

PASSPHRASE = "correct horse battery staple"
MIB = 1 << 20
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def run(*command: str | pathlib.Path) -> bytes:
    """Runs a program that has to succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done.stdout


@dataclasses.dataclass
class Image:
    """An image of cryptsetup."""

    path: pathlib.Path
    key: pathlib.Path
    version: int
    size: int

    @property
    def offset(self) -> int:
        """Where the data begins."""
        return (2 if self.version == 1 else 16) * MIB

    @property
    def sector(self) -> int:
        """Bytes that are encrypted as one."""
        return 512 if self.version == 1 else 4096

    def open(self, **options: object) -> ucrypt.Volume:
        """Opens it by its passphrase."""
        return ucrypt.open(self.path, passphrase=PASSPHRASE, **options)  # type: ignore[arg-type]

    def volume_key(self) -> pathlib.Path:
        """The volume key, by cryptsetup."""
        out = self.path.with_suffix(".volume-key")
        out.unlink(missing_ok=True)
        run("cryptsetup", "luksDump", "--dump-volume-key", "--batch-mode", "--key-file", self.key,
            "--volume-key-file", out, self.path)  # fmt: skip
        return out

    def decrypted(self) -> bytes:
        """What is in it as another program decrypts it, of which nothing is ucrypt's."""
        script = REPOSITORY / "crates/ucrypt/tests/command/scripts/decrypt.py"
        return run("/usr/bin/python3", script, self.path, self.volume_key(), "aes-xts-plain64",
                   str(self.offset), str(self.sector))  # fmt: skip
