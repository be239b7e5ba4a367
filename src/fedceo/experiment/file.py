"""The experiment file: everything a run depends on, in one TOML file that is checked before anything is trained.

    experiment = load_experiment("my.toml", overrides=["method.strength=6"])
    text = to_toml(experiment)

Fields carry the paper's symbols in their descriptions. Unknown fields are refused, with the nearest known name.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fedceo.errors import UsageError
from fedceo.experiment.grid import Grid, read_grid
from fedceo.experiment.sections import (
    Checkpoint,
    Cohort,
    Data,
    Evaluation,
    Location,
    Model,
    Privacy,
    Record,
    Section,
    Train,
    first_mistake,
    one_line,
)
from fedceo.methods.settings import METHODS, BlurLus, FedCEO, Method


class Experiment(Section):
    """A federation, a model, a method and a privacy setting."""

    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Everything random follows from it, the noise too unless privacy.randomness = "system"."""
    note: str | None = None
    """A remark for tables, such as how the settings were chosen; `fedceo tune` writes one."""
    data: Data
    model: Model = Model()
    cohort: Cohort = Cohort()
    train: Train = Train()
    privacy: Privacy
    method: Method
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    record: Record = Record()

    @property
    def may_lose_noise(self) -> bool:
        """Whether a round may be released with less noise than planned."""
        privacy = self.privacy
        return self.cohort.dropout > 0 and privacy.mechanism == "distributed" and privacy.min_reports is None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        user_level = self.privacy.mechanism in ("distributed", "central")
        if self.data.clients is not None and self.cohort.size > self.data.clients:
            raise ValueError(f"cohort.size is {self.cohort.size}, more than data.clients, {self.data.clients}")
        if user_level and self.train.weighting == "records":
            raise ValueError('train.weighting "records" is refused under user-level privacy: weights would leak sizes')
        if self.privacy.clipping != "flat" and not user_level:
            raise ValueError(
                f'privacy.clipping "{self.privacy.clipping}" is of updates, which only user-level privacy clips'
            )
        if self.train.schedule != "constant" and self.method.steps_at_server:
            raise ValueError(
                f'train.schedule "{self.train.schedule}" is of local steps, and method "{self.method.name}" sends one '
                "gradient, whose step is train.server_learning_rate"
            )
        if isinstance(self.method, BlurLus) and self.privacy.mechanism == "record" and self.method.score != "magnitude":
            raise ValueError('method.score "first-order" would look at the records once more, without noise')
        if isinstance(self.method, FedCEO):
            if self.method.threshold == "noise" and self.privacy.mechanism not in ("distributed", "central"):
                raise ValueError('method.threshold "noise" needs user-level privacy, whose noise in an upload is known')
            if self.method.unseen == "resubmit" and self.method.restart != "stored":
                raise ValueError('method.unseen "resubmit" needs method.restart "stored"')
            growth = math.log(self.method.ratio) * self.train.rounds / self.method.interval
            if self.method.threshold == "scheduled" and max(growth, growth - math.log(2 * self.method.strength)) > 700:
                raise ValueError(
                    "method.ratio: the threshold ratio^(T/I) / (2 strength) grows beyond the largest number, "
                    "expected a smaller ratio or a larger strength"
                )
            if self.privacy.mechanism == "central" and self.method.restart != "mean":
                raise ValueError(
                    f'method.restart "{self.method.restart}" needs each client\'s upload, which mechanism "central" '
                    'does not release; use restart "mean" or mechanism "distributed"'
                )
            if self.train.weighting != "equal":
                raise ValueError('method "fedceo" needs train.weighting "equal"')
            if self.train.server_optimizer != "sgd":
                raise ValueError('method "fedceo" needs train.server_optimizer "sgd"')
        if self.record.every is not None and self.privacy.mechanism == "central":
            raise ValueError('record.every: records single uploads, which mechanism "central" does not release')
        if self.privacy.mechanism == "record" and self.data.partition == "resampled":
            raise ValueError(
                'data.partition "resampled" gives one record to several clients, and record privacy counts the rounds '
                "of one of them"
            )
        aims = self.privacy.target_epsilon is not None and self.privacy.observer != "server"
        if aims and self.may_lose_noise:
            raise ValueError(
                "privacy.target_epsilon: with cohort.dropout noise goes missing that was counted on, expected "
                "privacy.min_reports, for which shares are then sized"
            )
        if self.privacy.min_reports is not None and self.privacy.min_reports > self.cohort.size:
            raise ValueError(f"privacy.min_reports is {self.privacy.min_reports}, more than cohort.size")
        if self.privacy.min_reports is not None and self.privacy.mechanism != "distributed":
            raise ValueError('privacy.min_reports belongs to mechanism "distributed", whose noise comes in shares')
        return self


def load_experiment(path: str | Path, overrides: Sequence[str] = (), cell: str | None = None) -> Experiment:
    """Read and check an experiment file; overrides are "section.field=value" with TOML values.

    A file may say `extends = ["part.toml", ...]`: it then begins with what these say, later ones over earlier ones.

    Args:
        cell: the name of one cell, for a file with a `[grid]`.
    """
    table = _read(Path(path), ())
    grid = _grid_of(path, table)
    try:
        if grid is not None:
            for layer in grid.layers(cell):
                _put_all(table, layer.fields)
        elif cell is not None:
            raise UsageError(f"--cell: {cell!r}, but the file has no [grid]")
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    for override in overrides:
        _apply(table, override)
    try:
        return parse_experiment(table)
    except UsageError as error:
        if grid is None or cell is None:
            raise
        raise UsageError(f"{path}: {grid.place_of_mistake(cell, str(error))}: {error}") from None


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
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such experiment file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: a folder, expected an experiment file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
    """Tables are merged field by field; a [method] of another name replaces the whole one below it."""
    merged = below | above
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            other = name == "method" and above[name].get("name") not in (None, below[name].get("name"))
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


def _apply(table: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    *sections, field = name.strip().split(".")
    if not equals or not field:
        raise UsageError(f"--set {override}: expected section.field=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {override}: {section} is not a section")
    put(table, ".".join([*sections, field]), value)


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
"""What a field rules out in its section; `mechanism` where it is "none"."""


def put(section: dict[str, Any], name: str, value: Any) -> None:
    """Set "section.field" in its section, without what the new value leaves no room for.

    A method of another name takes none of the fields of the one before; noise_multiplier and target_epsilon are two
    ways to say the same; without a mechanism there is neither.
    """
    if name == "method.name" and value != section.get("name"):
        section.clear()
    if name in NO_ROOM and (name != "privacy.mechanism" or value == "none"):
        for field in NO_ROOM[name]:
            section.pop(field, None)
    section[name.rpartition(".")[2]] = value


METHOD_NAMES = {str(kind.model_fields["name"].default): kind for kind in METHODS}
TAGS = {"known", "own", *METHOD_NAMES}
"""Parts of an error's place that no experiment file has."""


def _one_line(error: ValidationError) -> str:
    first = first_mistake(error)
    if first["type"] == "union_tag_invalid":
        given = first["input"].get("name") if isinstance(first["input"], dict) else first["input"]
        return f"method.name: unknown method {given!r}, expected one of {', '.join(METHOD_NAMES)}, or module:Class"
    return one_line(first, _fields_beside, hidden=TAGS)


def _fields_beside(location: Location) -> list[str]:
    """The names known where an unknown one was found."""
    kind: Any = Experiment
    for part in location[:-1]:
        if part in METHOD_NAMES:
            kind = METHOD_NAMES[str(part)]
        elif part not in TAGS and part in kind.model_fields:
            kind = kind.model_fields[part].annotation
    return list(kind.model_fields)
