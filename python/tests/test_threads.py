"""Other threads run while a call waits, and calls of many threads do not mix."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import ucrypt
from images import MIB, PASSPHRASE, Image


@pytest.fixture
def only_whoever_waits_lets_others_run() -> Iterator[None]:
    """No thread is interrupted: another one runs only once it releases the interpreter by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def test_the_interpreter_is_free_while_a_volume_is_opened(make: Callable[..., Image]) -> None:
    image = make()
    pipe = image.path.with_suffix(".pipe")
    os.mkfifo(pipe)
    opened: list[ucrypt.Volume] = []
    # Opening waits for the passphrase, which only this thread can give.
    thread = threading.Thread(target=lambda: opened.append(ucrypt.open(image.path, key_file=pipe)))
    thread.start()
    with pipe.open("w") as file:
        file.write(PASSPHRASE)
    thread.join()
    assert opened[0].size == image.size
    opened[0].close()


@pytest.mark.usefixtures("only_whoever_waits_lets_others_run")
@pytest.mark.parametrize("call", ["pread", "pwrite", "flush", "write_zeroes"])
def test_the_interpreter_is_free_during_requests(make: Callable[..., Image], call: str) -> None:
    image = make()
    is_over = threading.Event()
    with image.open(readonly=False) as volume:
        calls = {
            "pread": lambda: volume.pread(0, MIB),
            "pwrite": lambda: volume.pwrite(0, bytes(MIB)),
            "flush": volume.flush,
            "write_zeroes": lambda: volume.write_zeroes(0, MIB),
        }

        def request_without_end() -> None:
            while not is_over.is_set():
                calls[call]()

        thread = threading.Thread(target=request_without_end)
        thread.start()
        # This thread gets here again only if a call lets it run.
        is_over.set()
        thread.join()


def test_threads_find_what_they_have_written(make: Callable[..., Image]) -> None:
    image = make()
    count, area = 16, 100_000
    problems: list[str] = []
    with image.open(readonly=False) as volume:

        def work(number: int) -> None:
            chance, file = random.Random(number), volume.file()
            for _ in range(8):
                data = chance.randbytes(area)
                volume.pwrite(number * area, data)
                file.seek(number * area)
                if file.read(area) != data:
                    problems.append(f"thread {number}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


@pytest.mark.usefixtures("only_whoever_waits_lets_others_run")
def test_a_close_waits_for_the_writes_of_other_threads(make: Callable[..., Image]) -> None:
    image = make(2, 16 * MIB)
    for _ in range(5):
        volume, is_closed, late, begun = image.open(readonly=False), threading.Event(), [], threading.Event()

        def write(volume: ucrypt.Volume = volume, is_closed: threading.Event = is_closed, late: list[bool] = late,
                  begun: threading.Event = begun) -> None:  # fmt: skip
            while True:
                begun.set()
                try:
                    volume.pwrite(0, bytes(16 * MIB))
                except ValueError:
                    return
                # Nobody makes it durable any more.
                late.append(is_closed.is_set())

        thread = threading.Thread(target=write)
        thread.start()
        begun.wait()
        volume.close()
        is_closed.set()
        thread.join()
        assert True not in late
