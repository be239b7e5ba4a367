"""A user's own records from a table: a CSV or Parquet file, or a data frame, whose columns are named.

source = read_table(Path("patients.csv"), Columns(label="outcome", client="hospital"))
source = from_frame(frame, label="outcome", client="hospital")

Values stay as they are: means and standard deviations of the clients' records would be a release that nobody accounts
for. Scale columns beforehand by numbers that are public, such as their ranges.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.data.files import check_growth, first_line, read_file
from fedceo.data.source import Integers, Source, with_test_set
from fedceo.data.texts import LENGTH, from_texts
from fedceo.errors import UsageError

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet",)
ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS)
"""How the names of files that hold tables end."""
MISSING = ("nan", "None", "<NA>", "NaT")
"""How values that are not there are written by the libraries that make tables."""

Table = Mapping[str, npt.NDArray[Any]]
"""A table: the name of each column to its values, (rows,)."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table by what they are for.

    Attributes:
        label: that of the labels, words or whole numbers.
        client: that of the natural clients, words or numbers; None where records have none.
        features: those of the numbers that a record consists of; None: all others.
        targets: in the place of the label, those of the numbers to predict, or of a 0 or 1 for each label.
        text: in the place of label and features, that of texts.
    """

    label: str | None = None
    client: str | None = None
    features: Sequence[str] | None = None
    targets: Sequence[str] | None = None
    text: str | None = None


def from_frame(
    frame: Any,
    *,
    label: str | None = None,
    client: str | None = None,
    features: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    text: str | None = None,
    text_length: int = LENGTH,
    name: str = "table",
) -> Source:
    """A source made from a data frame (of pandas or polars) or from a mapping of columns, each of which is copied.

    Args:
        label: the column of labels, words or whole numbers; the classes are its distinct values in ascending order.
        client: the column of natural clients, words or numbers.
        features: the columns of numbers that a record consists of; left out: all others.
        targets: in the place of the label, the columns of numbers to predict, or of a 0 or 1 for each label.
        text: in the place of label and features, the column of texts, whose pieces of `text_length` characters are the
            records of task "next-token".
        name: the data's name in tables and errors.
    """
    columns = frame.columns if hasattr(frame, "columns") else frame
    try:
        table = {str(column): np.asarray(frame[column]) for column in columns}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"{name}: not a data frame or a mapping of columns: {first_line(error)}") from None
    return from_table(table, Columns(label, client, features, targets, text), name, text_length)


def read_table(path: Path, columns: Columns, text_length: int = LENGTH) -> Source:
    """A source from a CSV file (UTF-8, commas, names in the first row; gzip or not) or a Parquet file."""
    if not path.is_file():
        raise UsageError(f"data.path: {path}: no such file")
    table = _read_csv(path) if path.name.endswith(CSV_ENDINGS) else _read_parquet(path)
    return from_table(table, columns, path.name, text_length)


def from_table(table: Table, columns: Columns, name: str, text_length: int = LENGTH) -> Source:
    """A source from a table whose columns have been read."""
    if sum(map(bool, (columns.label, columns.targets, columns.text))) != 1:
        raise UsageError(
            "data.label_column: needed for a table, or one of target_columns and text_column in its place; the columns "
            f"of {name} are {_listed(table)}"
        )
    _check(table, columns, name)
    owners, clients = None, tuple[str, ...]()
    if columns.client is not None:
        numbers, clients = _numbered(table[columns.client], f"{name}: column {columns.client!r}")
        owners = torch.from_numpy(numbers)
    if columns.text is not None:
        texts = table[columns.text].tolist()
        return replace(from_texts(texts, client=owners, length=text_length, name=name), client_names=clients)
    taken = {columns.label, columns.client, *(columns.targets or ())}
    features = [each for each in table if each not in taken] if columns.features is None else list(columns.features)
    if not features:
        raise UsageError(f"{name}: no columns of numbers beside {_listed(each for each in taken if each)}")
    x = _matrix(table, features, name)
    if columns.targets is not None:
        y, labels = _matrix(table, columns.targets, name), tuple(columns.targets)
    else:
        numbers, labels = _numbered(table[str(columns.label)], f"{name}: column {columns.label!r}", are_labels=True)
        y = torch.from_numpy(numbers)
    source = with_test_set(name, x, y, len(labels), owners)
    return replace(source, label_names=labels, client_names=clients)


def _matrix(table: Table, columns: Sequence[str], name: str) -> Tensor:
    """(rows, columns) float32, the columns in this order."""
    numbers = [_numbers(table[column], f"{name}: column {column!r}") for column in columns]
    return torch.from_numpy(np.stack(numbers, axis=1))


def _check(table: Table, columns: Columns, name: str) -> None:
    """Refuse columns that are not there, twice there, used twice or of several lengths."""
    named: dict[str, list[str | None]] = {
        "label": [columns.label], "client": [columns.client], "text": [columns.text],
        "features": list(columns.features or ()), "targets": list(columns.targets or ()),
    }  # fmt: skip
    for use, wanted in named.items():
        for column in wanted:
            if column is not None and column not in table:
                raise UsageError(f"{name}: no column {column!r} ({use}); the columns are {_listed(table)}")
    used = [column for wanted in named.values() for column in wanted if column is not None]
    twice = [column for column in used if used.count(column) > 1]
    if twice:
        raise UsageError(f"{name}: column {twice[0]!r} is named for two uses")
    for column in table:
        if table[column].ndim != 1:
            raise UsageError(f"{name}: column {column!r} is there twice or holds arrays, expected one value a row")
    if len({len(values) for values in table.values()}) > 1:
        raise UsageError(f"{name}: columns of several lengths")


def _numbered(values: npt.NDArray[Any], where: str, are_labels: bool = False) -> tuple[Integers, tuple[str, ...]]:
    """Each value's place among the distinct ones in ascending order, and these as words.

    are_labels: whether numbers that are not whole are refused, since nobody means them as classes.
    """
    words = [_word(value, f"{where}, row {row}") for row, value in enumerate(values.tolist(), 1)]
    distinct = set(words)
    numbers = {word: found for word in distinct if (found := _as_number(word)) is not None}
    if len(numbers) < len(distinct):
        ordered = sorted(distinct)
    else:
        broken = sorted(word for word, number in numbers.items() if not number.is_integer())
        if are_labels and broken:
            raise UsageError(
                f"{where}: {broken[0]}, expected labels: words or whole numbers; numbers to predict are target_columns"
            )
        ordered = sorted(distinct, key=lambda word: (numbers[word], word))
    place = {word: number for number, word in enumerate(ordered)}
    return np.array([place[word] for word in words], np.int64), tuple(ordered)


def _word(value: Any, where: str) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers of which some are missing is read as floats
    word = str(value).strip()
    if not word or (not isinstance(value, str) and word in MISSING):
        raise UsageError(f"{where}: no value")
    return word


def _as_number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _numbers(values: npt.NDArray[Any], where: str) -> npt.NDArray[np.float32]:
    """A column as float32, each of which must be finite."""
    try:
        with np.errstate(over="ignore"):  # a number too large for float32 becomes Inf, which is refused
            numbers = values.astype(np.float64).astype(np.float32)
    except (ValueError, TypeError):
        row, value = next((row, value) for row, value in enumerate(values.tolist(), 1) if not _is_number(value))
        raise UsageError(
            f"{where}, row {row}: {value!r}, expected a number; name the columns of numbers in data.feature_columns"
        ) from None
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise UsageError(f"{where}, row {wrong[0] + 1}: {values[wrong[0]]}, expected a finite number")
    return numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _read_csv(path: Path) -> Table:
    try:
        rows = list(csv.reader(io.StringIO(read_file(path).data.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a CSV file in UTF-8: {first_line(error)}") from None
    if not rows:
        raise UsageError(f"{path}: empty, expected a row of column names")
    head, *rows = rows
    twice = [column for column in head if head.count(column) > 1]
    if twice:
        raise UsageError(f"{path}: column {twice[0]!r} is there twice")
    rows = [row for row in rows if row]  # a line without anything is no row
    uneven = next((number for number, row in enumerate(rows, 1) if len(row) != len(head)), None)
    if uneven is not None:
        raise UsageError(f"{path}: row {uneven} has {len(rows[uneven - 1])} values, expected {len(head)}")
    return {column: np.array([row[place] for row in rows], dtype=object) for place, column in enumerate(head)}


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError(f"data.path: {path} needs the extra fedceo[parquet]") from None
    try:
        about = pq.read_metadata(path)
        check_growth(str(path), path.stat().st_size, 4 * about.num_rows * about.num_columns)
        table = pq.read_table(path)
        columns = {}
        for column in table.column_names:
            values = table.column(column)
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            columns[column] = values.to_numpy()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UsageError(f"{path}: not a Parquet file: {first_line(error)}") from None
    return columns


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(columns) or "none"
