"""Results files that grow: which runs of a sweep one lacks, what these would cost, and one more run in it.

A results file has an entry for each run (results.py). It may be filled on any machine, in any order, a few runs at a
time: a run that it has is never taken again, and every run is in the file as soon as it is done.
"""

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.simulation.durable import write_whole
from fedceo.studies.cells import Cell

Entry = dict[str, Any]


def read_entries(file: Path) -> list[Entry]:
    """The entries of a results file; none where there is no file yet."""
    if not file.exists():
        return []
    try:
        entries = json.loads(file.read_text())
    except (OSError, ValueError):
        raise UsageError(f"{file}: expected a results.json of a sweep") from None
    told = {"name", "seed", "experiment"}
    if not isinstance(entries, list) or not all(isinstance(each, dict) and told <= each.keys() for each in entries):
        raise UsageError(f"{file}: expected a results.json of a sweep")
    return entries


def lacking(cells: Sequence[Cell], entries: Sequence[Entry], file: Path) -> list[Cell]:
    """The cells whose results the entries do not have; one that failed counts as lacking.

    An entry of a cell's name and seed must be of its experiment, or a table would mix two.
    """
    known = {(each["name"], each["seed"]): each for each in entries if "result" in each}
    found = []
    for cell in cells:
        entry = known.get((cell.name, cell.experiment.seed))
        if entry is None:
            found.append(cell)
        elif other := difference(entry["experiment"], cell.experiment):
            raise UsageError(
                f"--fill: {file}: has {cell.name}, seed {cell.experiment.seed} with another {other}; "
                "give the changed one a file of its own"
            )
    return found


def expected_seconds(cell: Cell, entries: Sequence[Entry]) -> float | None:
    """The median seconds of the file's runs with the cell's model, data and mechanism, by rounds; None without any."""
    alike = [
        each["result"]["seconds"] / each["result"]["rounds"]
        for each in entries
        if "result" in each and each["result"]["rounds"] and _kind(each["experiment"]) == _kind(_told(cell.experiment))
    ]
    return statistics.median(alike) * cell.experiment.train.rounds if alike else None


def add_entry(file: Path, entry: Entry) -> None:
    """Put a run into the file, in the place of one of its name and seed; entries are in order of name and seed."""
    others = [each for each in read_entries(file) if (each["name"], each["seed"]) != (entry["name"], entry["seed"])]
    merged = sorted([*others, entry], key=lambda each: (each["name"], each["seed"]))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, (json.dumps(merged) + "\n").encode())


def remove_entries(file: Path, name: str, seeds: Collection[int]) -> None:
    """Take the runs of a cell with these seeds out of the file."""
    if seeds:
        kept = [each for each in read_entries(file) if each["name"] != name or each["seed"] not in seeds]
        write_whole(file, (json.dumps(kept) + "\n").encode())


def _told(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a results file tells it."""
    return experiment.model_dump(exclude_none=True)


def _kind(table: Mapping[str, Any]) -> tuple[Any, ...]:
    return table["model"]["name"], table["data"].get("name"), table["privacy"]["mechanism"]


def difference(table: Mapping[str, Any], experiment: Experiment) -> str | None:
    """The first field in which an entry's experiment is not this one, with the defaults of today for both."""
    told = (table, _told(experiment))
    there, here = (parse_experiment(_placed(each, experiment)).model_dump() for each in told)
    for section, fields in here.items():
        if fields != there[section]:
            names = fields.keys() | there[section].keys() if isinstance(fields, dict) else set()
            unequal = sorted(name for name in names if fields.get(name) != there[section].get(name))
            return ".".join([section, *unequal[:1]])
    return None


def _placed(table: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """The experiment with its data where the other's are: results files do not say where data lie."""
    data = {name: value for name, value in table["data"].items() if name not in ("path", "root")}
    path = experiment.data.path
    return {**table, "data": data if path is None else data | {"path": path}}
