# bench.py BENCH SCRATCH: devices that stay in use for a while after a measurement, and measurements that failed.
import pathlib
import sys
import types

sys.dont_write_bytecode = True
bench, scratch = sys.argv[1:]
sys.path.insert(0, bench)
import cache
import contenders
import run

# In use when it is closed first, and then: 5 is what the command answers.
ucrypt = pathlib.Path(scratch, "ucrypt")
tries = pathlib.Path(scratch, "tries")
ucrypt.write_text(f"#!/bin/sh\necho $1 >>{tries}\n[ $(grep -c close {tries}) -ge $CLOSES ] || exit 5\n")
ucrypt.chmod(0o755)
contender = contenders.Contender("LOOP", "ucrypt none", lambda *_: [ucrypt, "open"])


def close(after):
    tries.write_text("")
    attached = contenders.Attached(contender, ucrypt, None, pathlib.Path(scratch))
    attached.environment["CLOSES"] = str(after)
    attached.__exit__()


close(3)
assert tries.read_text() == "close\n" * 3, tries.read_text()
contenders.CLOSE_LIMIT = 0
try:
    close(1000)
    raise SystemExit("it is no failure that a device is still in use")
except contenders.Failed as error:
    assert "ucrypt none" in str(error), error

# What has failed has no part in a ratio.
found = {("fits", "a client", "a job", "page cache"): [None, 200.0, 220.0]}
found["fits", "a client", "a job", "direct"] = [100.0, 100.0, None]
found |= {("fits", "a client", "another", mode): [None] * 3 for mode in cache.MODES}
options = types.SimpleNamespace(memory=256, rounds=3)
text = cache.text(options, found, {"fits": 64, "does not fit": 768}, 0.0)
assert "| 210 (1 failed) | 100 (1 failed) | 2.0" in text, text
assert "| another | (3 failed) | (3 failed) |  |" in text, text
assert "*direct* loses a factor of 2.0" in text and "*page cache* loses a factor of 1.0" in text, text

sys.argv[1:] = ["--against-none", "--disk", scratch]
try:
    run.arguments()
    raise SystemExit("--against-none has no effect with --disk")
except SystemExit as error:
    assert error.code == 2, error
print("done")
