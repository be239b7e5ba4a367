"""A line for the case that this process is ended past every handler of Python.

Ray does so, without a word, when its object store is touched after the raylet has died; the system does so when memory
runs out. Another process waits for that, and says what there is to say. Any other end speaks for itself.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = "import sys; sys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"
"""What the other process does: read until the pipe is closed, which the system does for a process that is no more."""


@contextmanager
def last_words(line: str) -> Iterator[None]:
    """Print the line to standard error if this process is ended from outside while the context lasts."""
    command = [sys.executable, "-I", "-S", "-c", WAITING, line]
    # in a session of its own, since Ctrl-C is meant for this process
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as waiting:
        try:
            yield
        finally:
            waiting.communicate(b".")
