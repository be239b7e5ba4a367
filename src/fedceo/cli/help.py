"""Help that is plain text folded to the terminal: boxes of several columns cut names and values in one of 80."""

from collections.abc import Sequence
from shutil import get_terminal_size

from click import Context, HelpFormatter
from typer.core import TyperGroup

NARROW = 60
"""Columns below which an option and its meaning do not stand beside each other."""
WIDEST = 100
"""Columns beyond which lines are hard to read."""


class Folded(HelpFormatter):
    """Click's help, as wide as the terminal, also where that is narrower than click expects."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        room = width or get_terminal_size().columns
        super().__init__(indent_increment, min(max(room, 30), max_width or WIDEST))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names with their meanings; Typer escapes brackets for Rich, which is not asked here."""
        plain = [(name, meaning.replace("\\[", "[")) for name, meaning in rows]
        super().write_dl(plain, 4 if self.width < NARROW else col_max, col_spacing)


class Group(TyperGroup):
    """Commands with their whole sentences, where click shows so many words as fit a line."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(1000)) for name, command in known if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


Context.formatter_class = Folded
