"""Volumes as file objects."""

from __future__ import annotations

import errno
import io
import os
import pathlib
import random
import secrets
from collections.abc import Callable

import pytest
from dissect.extfs import ExtFS

import ucrypt
from images import MIB, Image, run


def test_a_file_does_what_a_file_in_memory_does(image: Image) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    chance = random.Random(seed)
    with image.open(readonly=False) as volume:
        volume.write_zeroes(0, image.size)
        file, model = volume.file(), io.BytesIO(bytes(image.size))
        for _ in range(300):
            match chance.randrange(6):
                case 0:
                    position = chance.randrange(image.size + 100)
                    assert file.seek(position) == model.seek(position)
                case 1:
                    distance = chance.randrange(-MIB, MIB)
                    if model.tell() + distance >= 0:
                        assert file.seek(distance, os.SEEK_CUR) == model.seek(distance, os.SEEK_CUR)
                case 2:
                    distance = chance.randrange(-MIB, 10)
                    assert file.seek(distance, os.SEEK_END) == model.seek(distance, os.SEEK_END)
                case 3:
                    count = chance.choice([0, 1, 511, 4096, 100_000, -1, None])
                    assert file.read(count) == model.read(count)
                case 4:
                    one, other = bytearray(chance.randrange(5000)), bytearray()
                    other[:] = one
                    assert file.readinto(one) == model.readinto(other)
                    assert one == other
                case 5:
                    room = max(image.size - model.tell(), 0)
                    data = chance.randbytes(min(chance.choice([1, 700, 4096, 200_000]), room))
                    assert file.write(memoryview(data)) == model.write(data)
            assert file.tell() == model.tell()
        file.seek(0)
        assert file.readall() == model.getvalue()


def test_the_end_is_where_writes_end(image: Image) -> None:
    with image.open(readonly=False) as volume, volume.file() as file:
        file.seek(-3, os.SEEK_END)
        assert file.write(b"12345") == 3
        with pytest.raises(OSError, match=f"ends at byte {image.size}") as caught:
            file.write(b"45")
        assert caught.value.errno == errno.ENOSPC
        assert file.write(b"") == 0
        assert file.read() == b""
        with pytest.raises(OSError, match="position"):
            file.seek(-1)
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 9)
        with pytest.raises(io.UnsupportedOperation):
            file.truncate(5)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()


def test_a_call_that_is_refused_leaves_the_position(image: Image) -> None:
    with image.open(readonly=False) as volume, volume.file() as file:
        file.write(b"0123456789")
        file.seek(2)
        for buffer in [bytes(3), memoryview(bytearray(9))[::2], [1, 2]]:
            with pytest.raises(TypeError):
                file.readinto(buffer)  # type: ignore[arg-type]
        for data in [memoryview(b"abcdefghi")[::2], "text"]:
            with pytest.raises((TypeError, NotImplementedError)):
                file.write(data)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            file.seek(1.5)  # type: ignore[arg-type]
        assert file.tell() == 2
        target = bytearray(3)
        assert file.readinto(target) == 3 and target == b"234"


def test_an_image_whose_name_is_no_text_is_opened(image: Image) -> None:
    name = os.fsdecode(b"na\xffme.img")
    image.path = image.path.rename(image.path.with_name(name))
    with image.open(readonly=False) as volume:
        volume.pwrite(0, b"data")
        with pytest.raises(ucrypt.InUse):
            image.open()
    with pytest.raises(ucrypt.Error, match="Invalid argument"):
        ucrypt.open("na\0me", passphrase="x")


def test_it_is_an_unbuffered_binary_file_for_the_io_module(image: Image) -> None:
    with image.open(readonly=False) as volume:
        assert isinstance(volume.file(), io.RawIOBase) and isinstance(volume.file(), ucrypt.VolumeFile)
        assert volume.file().volume is volume
        with io.BufferedRandom(volume.file()) as both:
            both.write(b"one\ntwo\n")
            both.seek(0)
            assert both.readline() == b"one\n"
        with io.BufferedReader(volume.file(), 1 << 16) as reader:
            assert [next(reader), next(reader)] == [b"one\n", b"two\n"]
            assert reader.raw.seekable() and reader.raw.readable() and reader.raw.writable()
    with image.open() as volume, volume.file() as file:
        assert not file.writable()
        with pytest.raises(io.UnsupportedOperation, match="read-only"):
            file.write(b"x")
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_a_reader_of_file_systems_reads_ext4_in_a_volume(make: Callable[..., Image], tmp_path: pathlib.Path) -> None:
    image = make(2, 16 * MIB)
    tree = tmp_path / "tree"
    (tree / "folder").mkdir(parents=True)
    (tree / "folder" / "text").write_text("read by dissect\n")
    large = random.Random(3).randbytes(3 * MIB + 17)
    (tree / "large").write_bytes(large)
    (tree / "link").symlink_to("folder/text")
    plain = tmp_path / "ext4"
    with plain.open("wb") as file:
        file.truncate(image.size)
    run("mkfs.ext4", "-q", "-F", "-d", tree, plain)
    with image.open(readonly=False) as volume:
        volume.pwrite(0, plain.read_bytes())
    with image.open() as volume:
        for disk in [volume.file(), io.BufferedReader(volume.file())]:
            system = ExtFS(disk)
            assert {"folder", "large", "link"} <= {node.filename for node in system.root.iterdir()}
            assert system.get("folder/text").open().read() == b"read by dissect\n"
            assert system.get("large").open().read() == large
            assert system.get("link").link == "folder/text"
