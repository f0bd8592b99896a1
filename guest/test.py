#!/usr/bin/env python3
"""What run.py promises, each by a boot of its own: guest/test.py (one or two minutes)."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

RUN = pathlib.Path(__file__).resolve().parent / "run.py"


class Guest(unittest.TestCase):
    """A script in the guest, given as text."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="guest-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, script, *words, arguments=()):
        path = self.folder / "script"
        path.write_text(f"#!/bin/sh\n{script}\n")
        return [RUN, *words, path, *arguments]

    def run_guest(self, script, *words, **others):
        return subprocess.run(
            self.command(script, *words, **others), capture_output=True, text=True, check=False
        )

    def test_output_arguments_and_status_are_the_scripts(self):
        done = self.run_guest('echo "<$1> <$2>"; exit 7', arguments=["a  b", "it's"])
        self.assertEqual((done.stdout, done.returncode), ("<a  b> <it's>\n", 7), done.stderr)

    def test_files_go_in_and_come_out(self):
        content = os.urandom(300_000)
        (self.folder / "given").mkdir()
        (self.folder / "given/file").write_bytes(content)
        out = self.folder / "out"
        script = "mkdir /out/sub && cat given/file > /out/sub/copy && cmp /etc/one given/file"
        done = self.run_guest(
            script,
            *("--file", self.folder / "given"),
            *("--file", f"{self.folder / 'given/file'}:/etc/one"),
            *("--out", out),
        )
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual((out / "sub/copy").read_bytes(), content)

    def test_modules_programs_and_disks_make_a_dm_crypt_device(self):
        disk = self.folder / "a,b.img"
        disk.write_bytes(bytes(1 << 20))
        script = (
            'echo "0 2048 crypt aes-xts-plain64 $(printf %0128d 7) 0 /dev/disk/data 0" |'
            " dmsetup create c && printf secret | dd of=/dev/mapper/c conv=fsync"
        )
        words = ["--module", "dm-crypt", "--module", "xts", "--program", "dmsetup"]
        done = self.run_guest(script, *words, "--disk", f"data={disk}")
        self.assertEqual(done.returncode, 0, done)
        first = disk.read_bytes()[:512]
        self.assertTrue(any(first))
        self.assertNotIn(b"secret", first)

    def test_module_parameters_are_passed_on(self):
        script = "cat /sys/block/nullb0/size /sys/block/nullb0/queue/zoned"
        done = self.run_guest(script, "--module", "null_blk gb=1 zoned=1 memory_backed=1")
        self.assertEqual(done.stdout, f"{1 << 21}\nhost-managed\n", done)

    def test_an_unknown_module_is_named(self):
        done = self.run_guest("true", "--module", "dm-cript")
        self.assertEqual(done.returncode, 125)
        self.assertIn("no module 'dm_cript'", done.stderr)

    def test_a_panic_is_an_error_that_shows_the_kernels_words(self):
        done = self.run_guest("echo c > /proc/sysrq-trigger", "--out", self.folder / "out")
        self.assertEqual(done.returncode, 125)
        self.assertIn("sysrq triggered crash", done.stdout)

    def test_time_is_bounded(self):
        begin = time.monotonic()
        done = self.run_guest("echo before; sleep 1000", "--timeout", "20")
        self.assertEqual((done.stdout, done.returncode), ("before\n", 124), done)
        self.assertLess(time.monotonic() - begin, 40)

    def test_silence_is_bounded_too(self):
        done = self.run_guest("echo before; sleep 1000", "--timeout", "900", "--silence", "20")
        self.assertEqual((done.stdout, done.returncode), ("before\n", 124), done)
        self.assertIn("because it printed nothing for 20.0 s", done.stderr)

    def test_nothing_outlives_a_run_that_is_killed(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            command = self.command("echo up; sleep 1000", "--qemu", f"-name {self.folder.name}")
            # A killed run cannot remove its own files.
            environment = os.environ | {"TMPDIR": str(self.folder)}
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=environment
            ) as run:
                self.assertEqual(run.stdout.readline(), "up\n")
                self.assertTrue(self.processes())
                run.send_signal(number)
            deadline = time.monotonic() + 10
            while self.processes() and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertEqual(self.processes(), [])

    def processes(self):
        """QEMUs that carry this test's name."""
        found = subprocess.run(
            ["pgrep", "-f", f"^qemu-system.*-name {self.folder.name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.split()

    def test_two_at_once_do_not_meet(self):
        script = "echo $1 > /out/name; sleep 3; cat /out/name"
        runs = []
        for name in "AB":
            words = ["--out", self.folder / name, "--cpus", "1"]
            command = self.command(script, *words, arguments=[name])
            runs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self.assertEqual([run.communicate()[0] for run in runs], ["A\n", "B\n"])
        came_out = [(self.folder / name / "name").read_text() for name in "AB"]
        self.assertEqual(came_out, ["A\n", "B\n"])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
