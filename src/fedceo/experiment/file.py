"""The experiment file: everything a run depends on, in one TOML file that is checked before anything is trained.

    experiment = load_experiment("my.toml", overrides=["method.strength=6"])
    text = to_toml(experiment)

Fields carry the paper's symbols in their descriptions. Unknown fields are refused, with the nearest known name.
"""

import logging
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from fedceo.errors import UsageError
from fedceo.experiment.base import Location, Section, first_mistake, one_line
from fedceo.experiment.evaluation_table import Evaluation
from fedceo.experiment.grid import Grid, read_grid
from fedceo.experiment.method_table import METHOD_MISTAKE, AnyMethodSettings
from fedceo.experiment.registry import MECHANISMS
from fedceo.experiment.sections import Checkpoint, Cohort, Data, Model, Privacy, Record, Release, Train
from fedceo.experiment.task_table import Task

LOG = logging.getLogger(__name__)
ENCODING = "utf-8-sig"
"""That of experiment files: UTF-8, with the byte-order mark that some editors put first or without it."""
NOT_TOML = (ValueError, RecursionError)
"""What tomllib raises for a text that is no TOML: an error of its own or, for bytes that are not UTF-8, a number of
thousands of digits or brackets within brackets, one of Python's."""


class Experiment(Section):
    """A federation, a model, a method and a privacy setting."""

    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Everything random follows from it, noise also from the rest of the run; see privacy.randomness."""
    note: str | None = None
    """A remark for tables, such as how the settings were chosen; `fedceo tune` writes one."""
    data: Data
    task: Task = Task()
    model: Model = Model()
    cohort: Cohort = Cohort()
    train: Train = Train()
    privacy: Privacy
    method: AnyMethodSettings
    release: Release = Release()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    record: Record = Record()

    @property
    def mechanism(self) -> Any:
        """The class of fedceo.mechanisms that privacy.mechanism names."""
        return MECHANISMS[self.privacy.mechanism]

    @property
    def may_lose_noise(self) -> bool:
        """Whether a round may be released with less noise than planned."""
        return self.cohort.dropout > 0 and self.mechanism.noise_in_shares and self.privacy.min_reports is None

    @property
    def release_kind(self) -> str:
        """The kind of release, as the accountant knows it: a robust aggregate is made from single uploads."""
        return "stored" if self.train.is_robust else self.method.release

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.data.clients is not None and self.cohort.size > self.data.clients:
            raise ValueError(f"cohort.size is {self.cohort.size}, more than data.clients, {self.data.clients}")
        if self.train.schedule != "constant" and self.method.steps_at_server:
            raise ValueError(
                f'train.schedule "{self.train.schedule}" is of local steps, and method "{self.method.name}" sends one '
                "gradient, whose step is train.server_learning_rate"
            )
        self._check_optimizer()
        self._check_task()
        self._check_aggregation()
        self._check_average()
        self.evaluation.check(self.train.rounds)
        self.mechanism.check(self)
        self.method.check(self)
        return self

    def _check_optimizer(self) -> None:
        """Raises ValueError, in one line, where the client's optimiser has nothing to do or two kinds of momentum."""
        train = self.train
        if train.momentum and train.optimizer != "sgd":
            raise ValueError(f'train.momentum: {train.momentum:g} is of optimizer "sgd", not of "{train.optimizer}"')
        if self.method.steps_at_server and (train.optimizer != "sgd" or train.weight_decay):
            raise ValueError(
                f'train.optimizer and train.weight_decay are of local steps, and method "{self.method.name}" sends one '
                "gradient"
            )

    def _check_task(self) -> None:
        """Raises ValueError, in one line, where something needs one label a record and the task has none."""
        if self.task.measures_classes:
            return
        by_class = {
            "evaluation.choose_by": "personal" if self.evaluation.choose_by == "personal" else None,
            "record.every": self.record.every,
            "data.local_test_from": "test" if self.data.local_test_from == "test" else None,
        }
        for field, value in by_class.items():
            if value is not None:
                raise ValueError(
                    f"{field}: {value!r} goes by the accuracy on each class, which this [task] does not have"
                )

    def _check_aggregation(self) -> None:
        """Raises ValueError, in one line, where there is nothing of which to take a robust aggregate."""
        train = self.train
        if train.is_robust and not self.mechanism.shows_uploads:
            raise ValueError(
                f'train.aggregation "{train.aggregation}" needs each client\'s upload, which mechanism '
                f'"{self.privacy.mechanism}" does not release; use aggregation "mean" or mechanism "distributed"'
            )
        if train.is_robust and train.weighting != "equal":
            raise ValueError(f'train.aggregation "{train.aggregation}" needs train.weighting "equal"')

    def _check_average(self) -> None:
        """Raises ValueError, in one line, where there is nothing of which to take an average."""
        average, length, rounds = self.release.average, self.release.length, self.train.rounds
        if average != "none" and self.method.keeps_heads:
            raise ValueError(
                f'release.average "{average}" is of global models, and with method "{self.method.name}" nobody has one'
            )
        if average == "tail" and length > rounds:
            raise ValueError(f"release.length is {length}, more than the models of train.rounds, {rounds}")

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without [release] where nothing is averaged, and without [task] where it is what it always was.

        Checkpoints are known by this text, and older ones must stay.
        """
        table: dict[str, Any] = written(self)
        if self.task.is_standard:
            table.pop("task", None)
        if self.release.average == "none":
            table.pop("release", None)
        return table


def load_experiment(path: str | Path, overrides: Sequence[str] = (), cell: str | None = None) -> Experiment:
    """Read and check an experiment file; overrides are "section.field=value" with TOML values.

    A file may say `extends = ["part.toml", ...]`: it then begins with what these say, later ones over earlier ones.

    Args:
        cell: the name of one cell, for a file with a `[grid]`.
    """
    table = _read(Path(path), ())
    if not table and not overrides:
        raise UsageError(
            f"{path}: empty, expected at least [data], [privacy] and [method]; `fedceo fields` explains them"
        )
    grid = _grid_of(path, table)
    try:
        if grid is not None:
            for layer in grid.layers(cell):
                _put_all(table, layer.fields)
        elif cell is not None:
            raise UsageError(f"--cell: {cell!r}, but the file has no [grid]")
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    dropped = {override: _apply(table, override) for override in overrides}
    try:
        experiment = parse_experiment(table)
    except UsageError as error:
        if grid is None or cell is None:
            raise
        raise UsageError(f"{path}: {grid.place_of_mistake(cell, str(error))}: {error}") from None
    for override, fields in dropped.items():
        if fields:
            _say_once(f"--set {override}: drops {', '.join(fields)} of {path}")
    return experiment


def load_grid(path: str | Path) -> Grid | None:
    """The grid of an experiment file, where it has one."""
    return _grid_of(path, _read(Path(path), ()))


def _grid_of(path: str | Path, table: dict[str, Any]) -> Grid | None:
    """Take the [grid] out of a file's table."""
    if "grid" not in table:
        return None
    try:
        return read_grid(table.pop("grid"))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _read(path: Path, within: tuple[Path, ...]) -> dict[str, Any]:
    """A file's table on top of those it extends; paths are relative to the file that names them."""
    try:
        table = tomllib.loads(path.read_text(encoding=ENCODING))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such experiment file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: a folder, expected an experiment file; go on with a run by --resume") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except NOT_TOML as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from None
    parts = table.pop("extends", [])
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UsageError(f"{path}: extends: expected a list of files")
    if path.resolve() in within:
        raise UsageError(f"{path}: extends itself")
    whole: dict[str, Any] = {}
    for part in parts:
        whole = _merged(whole, _read(path.parent / part, (*within, path.resolve())))
    return _merged(whole, table)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged field by field; a [method] or [model] of another name replaces the whole one below it."""
    merged = below | above
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            other = name in ("method", "model") and above[name].get("name") not in (None, below[name].get("name"))
            merged[name] = above[name] if other else _merged(below[name], above[name])
    return merged


def parse_experiment(table: Mapping[str, Any]) -> Experiment:
    """Check a nested mapping as an experiment; every mistake is one line that names its field."""
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise UsageError(_one_line(error)) from None


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML, every field written out."""
    return tomli_w.dumps(experiment.model_dump(exclude_none=True))


@cache
def _say_once(words: str) -> None:
    """Warn of a change to a file, which a sweep reads once for every cell."""
    LOG.warning(words)


def _apply(table: dict[str, Any], override: str) -> list[str]:
    """Change a field; returns what that left no room for, as "section.field = value"."""
    name, equals, text = override.partition("=")
    *sections, field = name.strip().split(".")
    if not equals or not field:
        raise UsageError(f"--set {override}: expected section.field=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except NOT_TOML:
        value = text.strip()  # a bare word is a string
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {override}: {section} is not a section")
    before = dict(table)
    put(table, ".".join([*sections, field]), value)
    return [f"{'.'.join([*sections, left])} = {before[left]!r}" for left in before if left not in table]


def _put_all(table: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Put sections of fields over a table; what clears a section comes before the fields that stay in it."""
    for section, values in fields.items():
        if not isinstance(values, dict):
            table[section] = values
            continue
        below = table.setdefault(section, {})
        if not isinstance(below, dict):
            raise UsageError(f"{section}: {below!r}, expected a table")
        for field in sorted(values, key=lambda field: field not in ("name", "mechanism")):
            put(below, f"{section}.{field}", values[field])


NO_ROOM = {
    "privacy.noise_multiplier": ("target_epsilon",),
    "privacy.target_epsilon": ("noise_multiplier",),
    "privacy.mechanism": ("noise_multiplier", "target_epsilon", "max_epsilon", "min_reports", "participation_cap"),
}
"""The fields that a field rules out in its section; `mechanism` does so where it adds no noise."""


def put(section: dict[str, Any], name: str, value: Any) -> None:
    """Set "section.field" in its section, without what the new value leaves no room for.

    A method or model of another name takes none of the fields of the one before; noise_multiplier and target_epsilon
    are two ways to say the same; without a mechanism there is neither.
    """
    if name in ("method.name", "model.name") and value != section.get("name"):
        section.clear()
    is_known = isinstance(value, str) and value in MECHANISMS
    rules_out = name != "privacy.mechanism" or (is_known and not MECHANISMS[value].adds_noise)
    if name in NO_ROOM and rules_out:
        for field in NO_ROOM[name]:
            section.pop(field, None)
    section[name.rpartition(".")[2]] = value


def _one_line(error: ValidationError) -> str:
    if (first := first_mistake(error))["type"] == METHOD_MISTAKE:
        return first["msg"]
    elsewhere = _sections_with(first["loc"][-1]) if first["type"] == "extra_forbidden" else []
    return one_line(first, _fields_beside) if not elsewhere else _misplaced(first["loc"], elsewhere)


def _misplaced(location: Location, sections: list[str]) -> str:
    known = " or ".join(f"{section}.{location[-1]}" for section in sections)
    return f"{'.'.join(map(str, location))}: unknown field, did you mean {known}?"


def _sections_with(field: int | str) -> list[str]:
    """The sections that have a field of this name."""
    sections = Experiment.model_fields.items()
    return [name for name, each in sections if field in getattr(each.annotation, "model_fields", ())]


def _fields_beside(location: Location) -> list[str]:
    """The names known where an unknown one was found."""
    kind: Any = Experiment
    for part in location[:-1]:
        kind = kind.model_fields[part].annotation
    return list(kind.model_fields)
