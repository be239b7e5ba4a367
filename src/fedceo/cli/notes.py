"""Lines on standard error, beside what a command prints."""

import logging
import sys


def note(words: str) -> None:
    """Print one line on standard error; what would break it, or move the cursor, is written out: names may hold any
    character."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)
    print(f"fedceo: {shown}", file=sys.stderr)


class Notes(logging.Handler):
    """Shows what the library warns of as the commands show their own notes."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())
