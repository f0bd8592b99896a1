"""Volumes: bytes in and out, keys, locks, errors."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

import ucrypt
from images import MIB, PASSPHRASE, Image, run


def test_what_a_volume_says_of_itself_is_what_cryptsetup_has_made(image: Image) -> None:
    with image.open() as volume:
        assert (volume.size, volume.sector_size) == (image.size, image.sector)
        assert (volume.format, volume.cipher, volume.key_bits) == (f"luks{image.version}", "aes-xts-plain64", 512)
        assert volume.uuid == run("cryptsetup", "luksUUID", image.path).decode().strip()
        assert (volume.data_offset, volume.keyslot, volume.label) == (image.offset, 0, None)
        assert (volume.readonly, volume.in_use, volume.closed, volume.notices) == (True, False, False, [])
        assert repr(volume) == f"<ucrypt.Volume: luks{image.version}, aes-xts-plain64, {image.size} bytes>"


def test_what_is_written_is_there_for_others(image: Image) -> None:
    data = random.Random(image.version).randbytes(MIB + 1234)
    with image.open(readonly=False) as volume:
        assert volume.pwrite(77, data) == len(data)
        assert volume.pwrite(image.size - 4, bytearray(b"last")) == 4
        volume.write_zeroes(77, 5)
    seen = image.decrypted()
    assert len(seen) == image.size
    assert seen[77:82] == bytes(5)
    assert seen[82 : 77 + len(data)] == data[5:]
    assert seen[-4:] == b"last"


def test_what_others_have_written_is_read(make: object, tmp_path: object) -> None:
    image = make(1)  # type: ignore[operator]
    data = random.Random(9).randbytes(image.size)
    plain = image.path.with_suffix(".raw")
    plain.write_bytes(data)
    secret = f"secret,id=key,file={image.key}"
    run("qemu-img", "convert", "-n", "--object", secret, "--target-image-opts", "-f", "raw", plain,
        f"driver=luks,key-secret=key,file.filename={image.path}")  # fmt: skip
    with image.open() as volume:
        assert volume.pread(0, image.size) == data


def test_reads_end_with_the_volume_and_writes_beyond_it_are_refused(image: Image) -> None:
    with image.open(readonly=False) as volume:
        assert len(volume.pread(image.size - 10, 100)) == 10
        assert volume.pread(image.size, 1) == volume.pread(1 << 63, 1 << 62) == b""
        assert volume.pread(0, 0) == b""
        with pytest.raises(ucrypt.Error, match=f"which has {image.size} bytes") as caught:
            volume.pwrite(image.size - 1, b"12")
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(ucrypt.Error) as caught:
            volume.discard(0, 4096)
        assert caught.value.errno == errno.EOPNOTSUPP
        for bad in [(-1, 1), (0, -1), (1 << 64, 1)]:
            with pytest.raises(OverflowError):
                volume.pread(*bad)
        for other in ["text", 5, None]:
            with pytest.raises(TypeError):
                volume.pwrite(0, other)  # type: ignore[arg-type]


def test_each_kind_of_key_opens_and_a_wrong_one_does_not(image: Image) -> None:
    key = image.volume_key().read_bytes()
    for kind in [
        {"passphrase": PASSPHRASE},
        {"passphrase": PASSPHRASE.encode()},
        {"passphrase": bytearray(PASSPHRASE.encode())},
        {"key_file": image.key},
        {"key_file": str(image.key)},
        {"volume_key": key},
    ]:
        with ucrypt.open(image.path, **kind) as volume:  # type: ignore[arg-type]
            assert volume.size == image.size
    with pytest.raises(ucrypt.WrongKey, match="no keyslot is available with this passphrase"):
        ucrypt.open(image.path, passphrase="guess")
    with pytest.raises(ucrypt.WrongKey):
        ucrypt.open(image.path, volume_key=bytes(64))
    for kinds in [{}, {"passphrase": "a", "key_file": "b"}]:
        with pytest.raises(TypeError, match="exactly one of"):
            ucrypt.open(image.path, **kinds)  # type: ignore[arg-type]


def test_errors_tell_what_to_do_and_are_of_their_kind(image: Image, tmp_path: object) -> None:
    missing = image.path.with_suffix(".missing")
    with pytest.raises(ucrypt.Error, match="missing"):
        ucrypt.open(missing, passphrase="x")
    empty = image.path.with_suffix(".empty")
    empty.write_bytes(bytes(MIB))
    with pytest.raises(ucrypt.HeaderError, match="no LUKS header"):
        ucrypt.open(empty, passphrase="x")
    with pytest.raises(ucrypt.OptionsError, match="1 MiB"):
        image.open(memory=5)
    assert issubclass(ucrypt.WrongKey, ucrypt.Error) and issubclass(ucrypt.Error, OSError)


def test_one_may_write_or_many_may_read(image: Image) -> None:
    with image.open(readonly=False):
        with pytest.raises(ucrypt.InUse, match="close it there first"):
            image.open()
        with image.open(shared=True) as beside:
            assert beside.in_use and beside.readonly
    with image.open(), image.open(), pytest.raises(ucrypt.InUse):
        image.open(readonly=False)
    image.open(readonly=False).close()


def test_a_volume_is_read_only_unless_asked(image: Image) -> None:
    before = image.path.read_bytes()
    with image.open() as volume:
        for change in [
            lambda: volume.pwrite(0, b"x"),
            lambda: volume.write_zeroes(0, 1),
            lambda: volume.discard(0, 1),
        ]:
            with pytest.raises(ucrypt.Error, match="read-only") as caught:
                change()
            assert caught.value.errno == errno.EROFS
        volume.flush()
    assert image.path.read_bytes() == before


def test_a_closed_volume_raises_value_error_and_closes_again(image: Image) -> None:
    volume = image.open()
    file = volume.file()
    volume.close()
    volume.close()
    assert volume.closed and "closed" in repr(volume) and volume.size == image.size
    for use in [lambda: volume.pread(0, 1), volume.flush, volume.file, volume.__enter__, file.read]:
        with pytest.raises(ValueError, match="the volume is closed"):
            use()
    file.close()
    image.open(readonly=False).close()


def test_a_detached_header(image: Image) -> None:
    header = image.path.with_suffix(".header")
    run("cryptsetup", "luksHeaderBackup", "--header-backup-file", header, image.path)
    with image.path.open("r+b") as file:
        file.write(bytes(2 * MIB))
    with pytest.raises(ucrypt.HeaderError):
        image.open()
    with image.open(header=header, keyslot=0) as volume:
        assert volume.size == image.size


def test_a_forked_process_is_refused_and_opens_the_image_itself(image: Image) -> None:
    volume = image.open(readonly=False)
    volume.pwrite(0, b"parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            volume.pread(0, 1)
        except ucrypt.Error as error:
            os.write(writer, str(error).encode())
        del volume
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert "opened by another process" in os.read(reader, 1000).decode()
    os.close(reader)
    assert volume.pread(0, 6) == b"parent"
    volume.close()


def let_flushes_fail(image: Image) -> None:
    """Puts a pipe, which cannot be flushed, in place of every open file of the image."""
    reader, writer = os.pipe()
    for name in os.listdir("/proc/self/fd"):
        link = pathlib.Path("/proc/self/fd", name)
        if link.is_symlink() and os.readlink(link) == str(image.path):
            os.dup2(writer, int(name), inheritable=False)
    os.close(reader)
    os.close(writer)


def test_a_close_that_failed_is_no_success_when_somebody_asks_again(image: Image) -> None:
    volume = image.open(readonly=False)
    file = volume.file()
    volume.pwrite(0, b"lost")
    let_flushes_fail(image)
    for call in [volume.flush, volume.close, volume.close, file.flush, file.close]:
        with pytest.raises(ucrypt.Error, match="flush at byte 0 failed") as caught:
            call()
        assert caught.value.errno is not None
    assert volume.closed
    with pytest.raises(ucrypt.Error, match="flush at byte 0 failed"), image.open(readonly=False) as volume:
        let_flushes_fail(image)


def test_a_parents_volume_is_not_closed_with_success_in_a_forked_process(image: Image) -> None:
    with image.open(readonly=False) as volume:
        file = volume.file()
        child = os.fork()
        if child == 0:
            said = []
            for call in [volume.close, volume.close, file.flush]:
                try:
                    call()
                except ucrypt.Error as error:
                    said.append("opened by another process" in str(error))
            os._exit(0 if said == [True] * 3 else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert volume.pread(0, 0) == b""


def test_a_closed_image_is_free_while_a_forked_process_lives(image: Image) -> None:
    volume = image.open(readonly=False)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        # Until the parent has closed the other end.
        os.read(reader, 1)
        os._exit(0)
    try:
        volume.close()
        image.open(readonly=False).close()
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_a_bytearray_that_was_overwritten_leaves_no_key(image: Image) -> None:
    key = image.volume_key().read_bytes()
    script = (
        "import sys, ucrypt\n"
        "path, key = sys.argv[1:]\n"
        "secret = bytearray(64)\n"
        "with open(key, 'rb', buffering=0) as file:\n"
        "    assert file.readinto(secret) == 64\n"
        "volume = ucrypt.open(path, volume_key=secret)\n"
        "secret[:] = bytes(64)\n"
        "volume.close()\n"
        "print('closed', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, image.path, image.path.with_suffix(".volume-key")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"closed\n"
        memory = memory_of(child.pid)
    assert child.returncode == 0
    assert str(image.path).encode() in memory, "the search finds what is there"
    for part in [key[:32], key[32:]]:
        assert part not in memory


def memory_of(pid: int) -> bytes:
    """All that another process has in its memory."""
    found = []
    with pathlib.Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            places, rights, rest = line.split(maxsplit=2)
            start, end = (int(place, 16) for place in places.split("-"))
            if rights.startswith("r") and "[v" not in rest:
                memory.seek(start)
                # Of what is mapped beyond the end of a file there is nothing.
                with contextlib.suppress(OSError):
                    found.append(memory.read(end - start))
    return b"".join(found)


def test_a_signal_ends_the_wait_for_a_volume(make: Callable[..., Image]) -> None:
    image = make()
    key = image.path.with_suffix(".pipe")
    os.mkfifo(key)

    class Woken(Exception):
        pass

    def wake(*_: object) -> None:
        raise Woken

    before = signal.signal(signal.SIGALRM, wake)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Woken):
            ucrypt.open(image.path, key_file=key)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # The thread that waited for the pipe gets it, and lets go of the image.
    key.write_text(PASSPHRASE)
    with image.open() as volume:
        assert not volume.closed
