"""Help that is plain text folded to the terminal: boxes of several columns cut names and values in one of 80."""

from collections.abc import Sequence
from difflib import get_close_matches
from shutil import get_terminal_size

import click
from click import Command, Context, HelpFormatter
from typer.core import TyperGroup

from fedceo.errors import UsageError

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
    """Commands with their whole sentences, where click shows so many words as fit a line, and answers to guesses."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UsageError(f"No such command {args[0]!r}; {self._meant(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Context, word: str) -> str:
        """What to type instead of a word that is no command."""
        if word.endswith(".toml"):
            return f"an experiment file is run by: fedceo run {word}"
        below = [(name, each) for name, each in self.commands.items() if isinstance(each, click.Group)]
        known = {name: name for name in self.list_commands(ctx)}
        known |= {command: f"{name} {command}" for name, each in below for command in each.commands}
        if close := get_close_matches(word, known, n=1):
            return f"did you mean {ctx.command_path} {known[close[0]]}?"
        return f"expected one of {', '.join(self.list_commands(ctx))}"

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(1000)) for name, command in known if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


Context.formatter_class = Folded
