"""What all tests are given."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from images import MIB, PASSPHRASE, Image, run


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Callable[..., Image]:
    """Makes images."""

    def make_image(version: int = 2, size: int = 2 * MIB) -> Image:
        path, key = tmp_path / f"luks{version}.img", tmp_path / "disk.key"
        key.write_text(PASSPHRASE)
        image = Image(path, key, version, size)
        with path.open("wb") as file:
            file.truncate(image.offset + size)
        sector = ["--sector-size", "4096"] if version == 2 else []
        run("cryptsetup", "luksFormat", "--batch-mode", "--type", f"luks{version}", "--cipher", "aes-xts-plain64",
            "--key-size", "512", *sector, "--offset", str(image.offset // 512), "--pbkdf", "pbkdf2",
            "--pbkdf-force-iterations", "1000", "--key-file", key, path)  # fmt: skip
        return image

    return make_image


@pytest.fixture(params=[1, 2], ids=["luks1", "luks2"])
def image(request: pytest.FixtureRequest, make: Callable[..., Image]) -> Image:
    """An image of each version."""
    return make(request.param)
