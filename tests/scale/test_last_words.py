"""What is said when a process is ended past its own handlers, and only then."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from fedceo.scale.last_words import last_words
with last_words("go on with: this"):
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("os._exit(1)", 1, "go on with: this\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "go on with: this\n"),
        ("pass", 0, ""),
        ("raise SystemExit(2)", 2, ""),
        ("raise SystemExit('a line')", 1, "a line\n"),
    ],
)
def test_only_an_end_from_outside_has_last_words(end: str, code: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)
