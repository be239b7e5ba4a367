"""The grid of an experiment file: one file for a whole table, whose cells are all combinations of its axes' values.

    [grid]
    noise = ["low", "high"]
    method = ["fedavg", "fedceo"]

    [grid.values.noise]
    low = { privacy.noise_multiplier = 0.2 }
    high = { privacy.noise_multiplier = 0.6 }

    [grid.values.method]
    fedavg = { method.name = "fedavg" }
    fedceo = { method = { name = "fedceo", strength = 20 } }

The cells are low/fedavg, low/fedceo, high/fedavg and high/fedceo. A cell is the file's own tables with the fields of
its values put over them, axis by axis, and then those of the exceptions that hold for it:

    [[grid.except]]
    where = { noise = "high", method = ["fedceo"] }
    method.strength = 5        # or: drop = true, which leaves these cells out

    [grid.also]                # cells outside the cross, by name
    "without-privacy/fedavg" = { privacy.mechanism = "none", method.name = "fedavg" }
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from fedceo.errors import UsageError

Fields = Mapping[str, Any]
"""Sections of an experiment with the fields that are to be put over what stands there."""

NOT_AXES = ("values", "except", "also")
CELL_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")
"""A name becomes a run folder, so it must neither leave its parent folder nor need escaping."""


@dataclass(frozen=True)
class Layer:
    """Fields that a cell puts over the file's own, and the place in the file where they are written."""

    place: str
    fields: Fields


@dataclass(frozen=True)
class Grid:
    """The design of a file that holds many experiments.

    Attributes:
        axes: the names of each axis's values.
        cells: the layers of every cell by the cell's name, those of the cross first.
        outside: how many of the cells are outside the cross.
    """

    axes: dict[str, list[str]]
    cells: dict[str, list[Layer]]
    outside: int

    def layers(self, cell: str | None) -> list[Layer]:
        if cell is None:
            pattern, first = "/".join(self.axes).upper(), next(iter(self.cells))
            raise UsageError(f"a grid of {len(self.cells)} cells, expected --cell {pattern}, such as --cell {first}")
        if cell not in self.cells:
            raise UsageError(f"--cell: {cell!r} is not among the {len(self.cells)} cells{nearest(cell, self.cells)}")
        return self.cells[cell]

    def place_of_mistake(self, cell: str, message: str) -> str:
        """The place where the file sets the field with which a message about the cell begins, or the cell's name."""
        for layer in reversed(self.cells[cell]):
            for section, fields in layer.fields.items():
                names = [f"{section}.{field}" for field in fields] if isinstance(fields, Mapping) else []
                if re.match(r"[^\s:]*", message)[0] in [*names, section]:  # type: ignore[index]  # which always matches
                    return layer.place
        return f"cell {cell}"

    def __str__(self) -> str:
        crossed = " x ".join(f"{len(values)} {axis}" for axis, values in self.axes.items())
        dropped = math.prod(map(len, self.axes.values())) + self.outside - len(self.cells)
        less, more = f" - {dropped}" if dropped else "", f" + {self.outside}" if self.outside else ""
        return f"{len(self.cells)} cells: {crossed}{less}{more}"


def read_grid(table: Any) -> Grid:
    """Check the [grid] of an experiment file and name its cells; every mistake is one line that names its axis."""
    table = _table("grid", table)
    axes = {axis: _names(f"grid.{axis}", values) for axis, values in table.items() if axis not in NOT_AXES}
    if not axes:
        raise UsageError('grid: no axis, expected AXIS = ["name of a value", ...]')
    defined = _table("grid.values", table.get("values", {}))
    layers = {
        (axis, value): Layer(f"grid.values.{axis}.{value}", _value(axis, value, defined))
        for axis, values in axes.items()
        for value in values
    }
    cross = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    cells = [("/".join(chosen.values()), chosen, [layers[each] for each in chosen.items()]) for chosen in cross]
    exceptions = table.get("except", [])
    if not isinstance(exceptions, list):
        raise UsageError("grid.except: expected entries [[grid.except]]")
    for number, exception in enumerate(exceptions, 1):
        place = f"grid.except, entry {number}"
        where, fields = _exception(place, exception, axes)
        matching = [cell for cell in cells if _holds(where, cell[1])]
        if not matching:
            raise UsageError(f"{place}: where {where} matches no cell")
        if fields is None:
            cells = [cell for cell in cells if cell not in matching]
        else:
            for _, _, of_cell in matching:
                of_cell.append(Layer(place, fields))
    also = _table("grid.also", table.get("also", {}))
    found = [(name, of_cell) for name, _, of_cell in cells]
    found += [(name, [Layer(f"grid.also.{name}", _table(f"grid.also.{name}", also[name]))]) for name in also]
    if not found:
        raise UsageError("grid: no cell is left, its exceptions drop all of them")
    _check_names([name for name, _ in found])
    return Grid(axes, dict(found), len(also))


def nearest(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """The end of a message about an unknown name: the known one that is most like it, where there is one."""
    near = get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else f", expected one such as {next(iter(known))}" if known else ""


def _value(axis: str, value: str, defined: Fields) -> Fields:
    values = _table(f"grid.values.{axis}", defined.get(axis, {}))
    if value not in values:
        raise UsageError(f"grid.{axis}: {value!r} is not defined in [grid.values.{axis}]{nearest(value, values)}")
    return _table(f"grid.values.{axis}.{value}", values[value])


def _exception(place: str, exception: Any, axes: Mapping[str, list[str]]) -> tuple[dict[str, list[str]], Fields | None]:
    """The values of each axis for which an exception holds, and its fields; no fields where it drops the cells."""
    rest = dict(_table(place, exception))
    where = _table(f"{place}: where", rest.pop("where", {}))
    if not where:
        raise UsageError(f'{place}: where: missing, expected {{ AXIS = "value" or ["value", ...] }}')
    chosen = {}
    for axis, values in where.items():
        if axis not in axes:
            raise UsageError(f"{place}: where: {axis!r} is not an axis{nearest(axis, axes)}")
        chosen[axis] = _names(f"{place}: where.{axis}", [values] if isinstance(values, str) else values)
        for value in chosen[axis]:
            if value not in axes[axis]:
                raise UsageError(
                    f"{place}: where.{axis}: {value!r} is not a value of that axis{nearest(value, axes[axis])}"
                )
    drop = rest.pop("drop", False)
    if not isinstance(drop, bool) or drop == bool(rest):
        raise UsageError(f"{place}: expected either fields to set or drop = true")
    return chosen, None if drop else rest


def _holds(where: Mapping[str, list[str]], chosen: Mapping[str, str]) -> bool:
    return all(chosen[axis] in values for axis, values in where.items())


def _table(place: str, value: Any) -> Fields:
    if not isinstance(value, dict):
        raise UsageError(f"{place}: {value!r}, expected a table")
    return value


def _names(place: str, values: Any) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise UsageError(f'{place}: {values!r}, expected a list of names of values, ["name", ...]')
    return values


def _check_names(names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"grid: {count} cells are named {name}, expected names that differ")
        if not CELL_NAME.fullmatch(name):
            raise UsageError(f"grid: {name!r} names a cell, expected letters, digits and _ . = - between slashes")
