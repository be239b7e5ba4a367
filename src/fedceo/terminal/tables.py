"""Tables that fit the terminal: words are folded, numbers and names are never cut."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column by its name; words may be folded at spaces, a name stays whole, a number may lose its interval below."""

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
        """The width it cannot do without; broken: with its interval on a line of its own."""
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
        """Of each column; None where they do not fit."""
        columns = list(zip(self.heads, *self.rows, strict=True))
        found = [max(entry.least(broken) for entry in column) for column in columns]
        spare = room - sum(found) - 3 * len(found) - 1
        if spare < 0:
            return None
        for wanted in ([column[1:] for column in columns], columns):  # what is said before what it is called
            for place, entries in enumerate(wanted):
                more = min(spare, max([e.text.cell_len for e in entries] + [found[place]]) - found[place])
                found[place] += more
                spare -= more
        return found

    def turned(self) -> "_Grid":
        """Every row as a column, with the names of the columns in front."""
        heads = [self.heads[0], *(_Entry(row[0].text, "words") for row in self.rows)]
        rest = list(zip(*self.rows, strict=True))[1:]
        rows = [[head, *entries] for head, entries in zip(self.heads[1:], rest, strict=True)]
        return _Grid(heads, rows, [True] + [False] * len(self.rows))

    def parts(self, room: int) -> "list[tuple[_Grid, list[int]]]":
        """As many columns as fit, then the others, each time behind the first one, which is folded if it must be."""
        found: list[tuple[_Grid, list[int]]] = []
        places: list[int] = []
        for place in range(1, len(self.heads)):
            if places and self._of([*places, place])._behind(room) is None:
                found.append(self._of(places)._with_widths(room))
                places = []
            places.append(place)
        return [*found, self._of(places)._with_widths(room)]

    def _of(self, places: list[int]) -> "_Grid":
        chosen = [0, *places]
        rows = [[row[place] for place in chosen] for row in self.rows]
        return _Grid([self.heads[place] for place in chosen], rows, [self.left[place] for place in chosen])

    def _behind(self, room: int, broken: bool = False) -> list[int] | None:
        """Widths with a first column of at most half the room."""
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
    """Print a table as it is, else turned by a quarter, else in parts below each other, whichever fits first."""
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
    """What is the same in all rows as one line, and the columns that are left; those kept stay columns."""
    same = [c.name for c in columns if c.name not in kept and len({str(row[c.name]) for row in rows}) == 1]
    line = "; ".join(f"{name}: {rows[0][name]}" for name in same)
    return line, [column for column in columns if column.name not in same]


def percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.2f}"


def or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _entry(cell: Cell, column: Column) -> _Entry:
    return _Entry(cell if isinstance(cell, Text) else Text(cell), column.kind)
