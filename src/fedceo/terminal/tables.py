"""Tables that fit the terminal: words are folded, numbers and names are never cut."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedceo.accounting.printed import in_hundredths

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column's name and how its cells may be broken.

    Words are folded at spaces, a name stays in one piece, a number's interval may move to the line below.
    """

    name: str
    kind: Literal["number", "name", "words"] = "number"


PRIVACY_COLUMNS = (
    Column("observer", "words"),
    *(Column(name, "name") for name in ("mechanism", "unit", "adjacency", "sampling")),
    Column("epsilon"),
    Column("delta", "name"),
    Column("accountant", "words"),
    Column("note", "name"),
)
VIEW_COLUMNS = (
    Column("view", "name"), Column("observer", "name"), "scores", "mu claimed", "mu at least (95 %)",
    "epsilon of the run claimed", "at that mu", Column("verdict", "words"),
)  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    text: Text
    kind: str

    def least(self, broken: bool) -> int:
        """The smallest width in which it can be shown; broken: with its interval on a line of its own."""
        parts = self.text.plain.split() if self.kind == "words" else self._parts() if broken else [self.text.plain]
        return max((Text(part).cell_len for part in parts), default=0)

    def within(self, width: int) -> Text:
        whole = self.kind != "number" or self.text.cell_len <= width
        return self.text if whole else Text("\n".join(self._parts()), self.text.style)

    def _parts(self) -> list[str]:
        return re.split(r" (?=[\[±])", self.text.plain)


@dataclass(frozen=True)
class _Grid:
    heads: list[_Entry]
    rows: list[list[_Entry]]
    left: list[bool]

    def widths(self, room: int, broken: bool) -> list[int] | None:
        """The width of each column; None where they do not fit."""
        columns = list(zip(self.heads, *self.rows, strict=True))
        found = [max(entry.least(broken) for entry in column) for column in columns]
        spare = room - sum(found) - 3 * len(found) - 1
        if spare < 0:
            return None
        for wanted in ([column[1:] for column in columns], columns):  # room for cells comes before room for heads
            for index, entries in enumerate(wanted):
                more = min(spare, max([e.text.cell_len for e in entries] + [found[index]]) - found[index])
                found[index] += more
                spare -= more
        return found

    def turned(self) -> "_Grid":
        """The transposed grid: every row as a column, with the names of the columns in front."""
        heads = [self.heads[0], *(_Entry(row[0].text, "words") for row in self.rows)]
        rest = list(zip(*self.rows, strict=True))[1:]
        rows = [[head, *entries] for head, entries in zip(self.heads[1:], rest, strict=True)]
        return _Grid(heads, rows, [True] + [False] * len(self.rows))

    def parts(self, room: int) -> "list[tuple[_Grid, list[int]]]":
        """Grids of as many columns as fit, each behind the first column, which is folded if it must be."""
        found: list[tuple[_Grid, list[int]]] = []
        indices: list[int] = []
        for index in range(1, len(self.heads)):
            if indices and self._of([*indices, index])._behind(room) is None:
                found.append(self._of(indices)._with_widths(room))
                indices = []
            indices.append(index)
        return [*found, self._of(indices)._with_widths(room)]

    def _of(self, indices: list[int]) -> "_Grid":
        """The first column and some others."""
        chosen = [0, *indices]
        rows = [[row[index] for index in chosen] for row in self.rows]
        return _Grid([self.heads[index] for index in chosen], rows, [self.left[index] for index in chosen])

    def _behind(self, room: int, broken: bool = False) -> list[int] | None:
        """Widths under which the first column takes at most half the room; None where the others do not fit."""
        others = _Grid(self.heads[1:], [row[1:] for row in self.rows], self.left[1:])
        first = max(row[0].text.cell_len for row in [self.heads, *self.rows])
        key = min(first, room // 2)
        rest = others.widths(room - key - 3, broken)
        return None if rest is None else [min(first, room - sum(rest) - 3 * len(rest) - 4), *rest]

    def _with_widths(self, room: int) -> "tuple[_Grid, list[int]]":
        last_resort = [room // 2, *([room // 2 - 7] * (len(self.heads) - 1))]
        return self, self._behind(room) or self._behind(room, broken=True) or last_resort

    def table(self, widths: Sequence[int], title: str | None) -> Table:
        table = Table(title=title)
        for head, width, left in zip(self.heads, widths, self.left, strict=True):
            table.add_column(head.text, width=width, justify="left" if left else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(entry.within(width) for entry, width in zip(row, widths, strict=True)))
        return table


def show_table(
    out: Console, columns: Sequence[Column | str], rows: Sequence[Sequence[Cell]], title: str | None = None
) -> None:
    """Print a table in the first form that fits: whole, transposed, or in parts below each other."""
    given = [Column(column) if isinstance(column, str) else column for column in columns]
    whole = _Grid(
        [_Entry(Text(column.name), "words") for column in given],
        [[_entry(cell, column) for cell, column in zip(row, given, strict=True)] for row in rows],
        [column.kind != "number" for column in given],
    )
    for broken in (False, True):
        for grid in (whole, whole.turned()) if rows else (whole,):
            widths = grid.widths(out.width, broken)
            if widths is not None:
                out.print(grid.table(widths, title))
                return
    for number, (part, widths) in enumerate(whole.parts(out.width)):
        out.print(part.table(widths, None if number else title))


def apart(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]], kept: Sequence[str]
) -> tuple[str, list[Column]]:
    """One line with the cells that are equal in all rows, and the columns that are left; those kept stay columns."""
    same = [c.name for c in columns if c.name not in kept and len({str(row[c.name]) for row in rows}) == 1]
    line = "; ".join(f"{name}: {rows[0][name]}" for name in same)
    return line, [column for column in columns if column.name not in same]


def console(stderr: bool = False) -> Console:
    """Standard output (or error), as wide as the terminal, or 160 columns wide where there is none.

    Every console of the program is made here, and shows text as it is: a run may be called run[fast] or [/], and a data
    set :smile:, which Rich would take for markup and emoji codes. Styles are given as `Text` or `style=`.
    """
    out = Console(stderr=stderr, markup=False, emoji=False)
    return out if out.is_terminal else _Unpadded(stderr=stderr, markup=False, emoji=False, width=160)


class _Unpadded(Console):
    """A file's lines end where their words do: Rich fills them up with spaces, which logs and diffs would show."""

    def print(self, *objects: Any, **options: Any) -> None:
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))


def percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.2f}"


def or_none(value: float | None) -> str:
    """An epsilon, or "none"."""
    return in_hundredths(value)


def _entry(cell: Cell, column: Column) -> _Entry:
    return _Entry(cell if isinstance(cell, Text) else Text(cell), column.kind)
