"""The types, and the examples of the documents."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from images import REPOSITORY, Image


def test_the_stubs_are_what_the_package_has(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "ucrypt"]
    environment = os.environ | {"MYPY_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_and_a_program_pass_a_strict_type_check(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import io\nimport ucrypt\n\n"
        "with ucrypt.open('x', passphrase=b'y', readonly=False) as volume:\n"
        "    data: bytes = volume.pread(0, 1)\n"
        "    count: int = volume.pwrite(0, data)\n"
        "    reader: io.BufferedReader = io.BufferedReader(volume.file())\n"
        "    name: str | None = volume.uuid\n"
        "try:\n    pass\nexcept ucrypt.WrongKey as error:\n    print(error.errno)\n"
    )
    source = REPOSITORY / "python/package"
    environment = os.environ | {"MYPY_CACHE_DIR": str(tmp_path / "cache"), "MYPYPATH": str(source)}
    command = [sys.executable, "-m", "mypy", "--strict", str(source / "ucrypt"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def examples(page: pathlib.Path) -> list[str]:
    """All blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/library.md", "python/README.md"])
def test_the_examples_of_a_page_run(page: str, make: Callable[..., Image], monkeypatch: pytest.MonkeyPatch) -> None:
    image = make()
    image.path.rename(image.path.with_name("disk.img"))
    monkeypatch.chdir(image.path.parent)
    found = examples(REPOSITORY / page)
    assert len(found) >= 3
    for example in found:
        exec(compile(example, page, "exec"), {"__name__": "__main__"})
