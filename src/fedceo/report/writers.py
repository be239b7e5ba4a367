"""Tables as LaTeX, Markdown and CSV.

A column's numbers have a fixed number of decimals and are padded on the left, so that decimal points stand below each
other in any LaTeX document that has booktabs. The S columns of siunitx would align them too, but they hold neither a
bold mean beside its spread nor an interval, and their options have other names in its second and third version.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Value = float | int | str | None

LATEX = (
    {each: f"\\{each}" for each in "&%_#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"±": r"$\pm$", "−": "$-$", "+": "$+$", "σ": r"$\sigma$", "ε": r"$\varepsilon$", "δ": r"$\delta$"}
)
"""What text may hold and LaTeX would read as something else, or not set at all."""
MARKDOWN = str.maketrans({"|": r"\|", "*": r"\*", "_": r"\_", "<": "&lt;", "\n": " ", "\r": " "})


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: its name.
        parts: what the numbers behind the first one of a cell are, such as "sd"; CSV has a column for each.
        joints: the text before each of them, and after the last.
        show: a value as text, of the same number of decimals in all rows.
        is_text: whether the cells are words, which stand on the left.
        best: which value of a block is set in bold: max or min; None: no value.
    """

    head: str
    parts: tuple[str, ...] = ()
    joints: tuple[str, ...] = ("",)
    show: Callable[[Value], str] = str
    is_text: bool = False
    best: Callable[..., Value] | None = None


@dataclass(frozen=True)
class Table:
    """A table: blocks of rows, and in each row a tuple of values for each column, shorter where parts are missing.

    Attributes:
        caption: whole sentences that say what all rows share and how to read the columns.
    """

    columns: tuple[Column, ...]
    blocks: tuple[tuple[tuple[tuple[Value, ...], ...], ...], ...]
    caption: str

    def best(self, block: int, column: int) -> str | None:
        """The text of the best value in a block, which several rows may have; None where there is nothing to win."""
        shown = self.columns[column]
        found = [row[column][0] for row in self.blocks[block] if row[column] and row[column][0] is not None]
        return shown.show(shown.best(found, key=float)) if shown.best is not None and len(found) > 1 else None

    def texts(self, column: int, cell: Sequence[Value]) -> list[str]:
        """The parts of a cell as text; none for a missing one."""
        known = [value for value in cell if value is not None]
        return [self.columns[column].show(value) for value in known]


def escaped(text: str) -> str:
    """Text that LaTeX sets as it is; what cannot be printed becomes a space."""
    plain = "".join(LATEX.get(each, each if each.isprintable() else " ") for each in text)
    return re.sub("-(?=-)", "-{}", plain)  # two hyphens would be a dash


def to_latex(table: Table) -> str:
    """A table environment; the document loads booktabs."""
    kinds = "".join("l" if column.is_text else "r" for column in table.columns)
    head = " & ".join(
        escaped(c.head) if c.is_text else rf"\multicolumn{{1}}{{c}}{{{escaped(c.head)}}}" for c in table.columns
    )
    blocks = []
    for number, block in enumerate(table.blocks):
        rows = (
            " & ".join(_latex_cell(table, number, column, cell) for column, cell in enumerate(row)) for row in block
        )
        blocks.append("\n".join("{}" * row.startswith(("[", "*")) + row + r" \\" for row in rows))
    body = "\n\\midrule\n".join(blocks)
    return "\n".join(
        (
            r"\begin{table}", r"\centering", rf"\caption{{{escaped(table.caption)}}}", rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule", head + r" \\", r"\midrule", body, r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        )
    )  # fmt: skip


def _latex_cell(table: Table, block: int, number: int, cell: Sequence[Value]) -> str:
    column, parts = table.columns[number], table.texts(number, cell)
    if not parts:
        return "--"
    if column.is_text:
        return escaped(parts[0])
    every = [table.texts(number, row[number]) for rows in table.blocks for row in rows]
    first = [each[0] for each in every if each]
    shown = rf"\textbf{{{escaped(parts[0])}}}" if parts[0] == table.best(block, number) else escaped(parts[0])
    shown += _phantom(_longest_decimals(first)[len(_decimals(parts[0])) :])
    tail = max(every, key=lambda each: sum(map(len, each[1:])))  # the room that the widest tail takes
    if len(parts) == 1:
        return shown + _phantom(_joined(column, tail[1:]))
    widths = [max(len(each[k]) for each in every if len(each) > k) for k in range(1, len(parts))]
    padded = [
        _phantom("0" * (width - len(part))) + escaped(part) for part, width in zip(parts[1:], widths, strict=True)
    ]
    return shown + _joined(column, padded, escaped)


def _joined(column: Column, parts: Sequence[str], escape: Callable[[str], str] = str) -> str:
    """The parts behind the first one with the column's joints between them."""
    joints = [escape(joint) for joint in column.joints]
    return "".join(joint + part for joint, part in zip(joints, parts, strict=False)) + joints[-1] if parts else ""


def _phantom(text: str) -> str:
    """Empty room as wide as the text."""
    return rf"\phantom{{{escaped(text)}}}" if text else ""


def _decimals(number: str) -> str:
    """A number's decimals with their point."""
    return number[number.index(".") :] if "." in number else ""


def _longest_decimals(numbers: Sequence[str]) -> str:
    return max(map(_decimals, numbers), key=len, default="")


def to_markdown(table: Table) -> str:
    """A Markdown table with its caption below it."""
    lines = ["| " + " | ".join(column.head.translate(MARKDOWN) for column in table.columns) + " |"]
    lines.append("|" + "".join("---|" if column.is_text else "---:|" for column in table.columns))
    for block, rows in enumerate(table.blocks):
        for row in rows:
            cells = [_markdown_cell(table, block, number, cell) for number, cell in enumerate(row)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", table.caption.translate(MARKDOWN), ""])


def _markdown_cell(table: Table, block: int, number: int, cell: Sequence[Value]) -> str:
    column, parts = table.columns[number], [each.translate(MARKDOWN) for each in table.texts(number, cell)]
    if not parts:
        return "-"
    shown = f"**{parts[0]}**" if parts[0] == table.best(block, number) else parts[0]
    return shown + _joined(column, parts[1:])


def to_csv(table: Table) -> str:
    """The numbers as they are, each in a column of its own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for c in table.columns for name in (c.head, *(f"{c.head} {part}" for part in c.parts))])
    for row in (row for block in table.blocks for row in block):
        cells: list[Value] = []
        for column, cell in zip(table.columns, row, strict=True):
            cells += [*cell, *[None] * (1 + len(column.parts) - len(cell))]
        writer.writerow(cells)
    return out.getvalue()


WRITERS = {".tex": to_latex, ".md": to_markdown, ".csv": to_csv}
"""The writer for a file's ending."""
