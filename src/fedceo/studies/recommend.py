"""An experiment for a federation that somebody describes in numbers, by the rules of recommend.toml.

    found = recommend(clients=1000, records=50, epsilon=2.0, shape=(3, 32, 32))
    print(found.as_toml())

Nothing is trained or read: rules that measurements suggest choose the regime, cohort, rounds, model, rate and clip, the
accountant solves for the noise, and what it would cost is said row by row.
"""

import math
import textwrap
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import tomli_w

from fedceo.accounting.plan import default_delta
from fedceo.accounting.printed import in_hundredths
from fedceo.accounting.rows import OBSERVERS, Row
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.simulation.spending import planned_rows, privacy_plan, solve_noise

SMALLEST_IMAGE = 16
"""Pixels on the shorter side from which on a record counts as an image."""


@dataclass(frozen=True)
class Recommendation:
    """An experiment, why it is as it is, and what it costs.

    Attributes:
        table: the experiment's fields that are not at their defaults.
        reasons: one sentence or more for each choice.
        noise_multiplier: sigma, as the accountant solves for it.
        noise: of a mean, in standard deviations over the clip.
        rows: one for each observer, of the run as planned.
        stand_in: how the data of [data] are like the user's, and how they are not.
    """

    table: dict[str, Any]
    reasons: tuple[str, ...]
    noise_multiplier: float
    noise: float
    rows: tuple[Row, ...]
    stand_in: str

    def as_toml(self) -> str:
        """An experiment file, with reasons and costs as comments."""
        solved = f"Noise multiplier {self.noise_multiplier:.4g}: {self.noise:.2g} of the clip in a mean."
        costs = (
            f"- {row.observer}: epsilon {in_hundredths(row.epsilon)} at delta "
            f"{row.delta:.1e}, {row.unit} level, {row.adjacency}; {row.assumption}"
            for row in self.rows
        )
        words = [
            "Recommended by rules: docs/recommend.md",
            *self.reasons,
            solved,
            "What it will cost:",
            *costs,
            self.stand_in,
        ]
        comments = "\n#\n".join(textwrap.fill(each, 118, initial_indent="# ", subsequent_indent="# ") for each in words)
        return f"{comments}\n\n{tomli_w.dumps(self.table)}"


@cache
def rules() -> dict[str, Any]:
    """The content of recommend.toml."""
    return tomllib.loads(resources.files("fedceo.studies").joinpath("recommend.toml").read_text(encoding="utf-8"))


def recommend(clients: int, records: int, epsilon: float, shape: tuple[int, ...] | None = None) -> Recommendation:
    """What to run with so many clients of so many records each, for an epsilon.

    Args:
        shape: of one record, (channels, height, width) for images; left out: a table's row.
    """
    _check(clients, records, epsilon, shape)
    limit, tried = rules()["limits"]["noise"], []
    for regime in (_for_users, _for_records):
        table, reasons = regime(clients, records, epsilon, shape)
        experiment = parse_experiment(table)
        sigma, noise = _solved(experiment, clients, records)
        if noise <= limit:
            planned = planned_rows(experiment, [records] * clients)
            rows = tuple(row for row in planned if row.observer in OBSERVERS)
            return Recommendation(table, reasons, sigma, noise, rows, _stand_in(table["data"], records, shape))
        tried.append(noise)
    raise UsageError(
        f"--epsilon: {epsilon:g} for {clients} clients of {records} records would take noise of {tried[0]:.2g} of the "
        f"clip in a mean to hide a client, {tried[1]:.2g} to hide a record, expected at most {limit:g}"
    )


def _check(clients: int, records: int, epsilon: float, shape: tuple[int, ...] | None) -> None:
    if clients < 2:
        raise UsageError(f"--clients: {clients}, expected at least 2")
    if records < 1:
        raise UsageError(f"--records: {records}, expected at least 1")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise UsageError(f"--epsilon: {epsilon}, expected a finite number above zero")
    if shape is not None and min(shape, default=0) < 1:
        raise UsageError(f"--shape: {'x'.join(map(str, shape))}, expected whole numbers from 1 on")


def _for_users(
    clients: int, records: int, epsilon: float, shape: tuple[int, ...] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Whole clients are protected; each round has a part of them."""
    regime, cohort, settings = rules()["user"], rules()["cohort"], _settings(clients, epsilon, shape)
    data = _data(records, shape)
    drawn = {"name": data["name"], "partition": "resampled", "clients": clients}
    table = _joined({"data": drawn | {"records": min(records, data["records"])}}, regime, settings)
    table["cohort"]["size"] = _cohort(clients)
    table["privacy"] |= {"target_epsilon": epsilon, "delta": default_delta(clients)}
    return table, (regime["why"], cohort["why"], settings["why"])


def _for_records(
    clients: int, records: int, epsilon: float, shape: tuple[int, ...] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Single records are protected, and everybody is in every round."""
    regime, settings = rules()["record"], _settings(clients, epsilon, shape)
    data = _data(clients * records, shape)
    table = _joined({"data": {"name": data["name"], "clients": clients}}, {"model": settings["model"]}, regime)
    table["cohort"] = {"size": clients}
    table["train"]["batch_size"] = max(math.ceil(regime["batch_share"] * records), 1)
    table["privacy"] |= {"target_epsilon": epsilon, "delta": default_delta(clients * records)}
    return table, (regime["why"],)


def _solved(experiment: Experiment, clients: int, records: int) -> tuple[float, float]:
    """The noise multiplier and the noise of a mean in units of the clip, infinite where none is enough."""
    sizes = [records] * clients
    try:
        sigma = solve_noise(experiment, sizes)
    except UsageError:
        return math.inf, math.inf
    plan = privacy_plan(experiment, sizes, sigma)
    # of records, every client has noise of its own, and the mean over all of them averages these
    batch = experiment.train.batch_size * math.sqrt(clients) if plan.protects_records else experiment.cohort.size
    return sigma, sigma / batch


def _cohort(clients: int) -> int:
    """The clients of a round."""
    rule = rules()["cohort"]
    return int(min(max(round(rule["share"] * clients), rule["least"]), rule["most"], clients))


def _settings(clients: int, epsilon: float, shape: tuple[int, ...] | None) -> dict[str, Any]:
    """The first row of settings that fits."""
    is_image = shape is not None and len(shape) == 3 and min(shape[1:]) >= SMALLEST_IMAGE
    rows: list[dict[str, Any]] = rules()["settings"]
    groups = clients // _cohort(clients)
    fitting = (row for row in rows if epsilon <= row["epsilon"] and clients >= row.get("clients", 0))
    return next(row for row in fitting if row["image"] == is_image and groups >= row.get("groups", 1))


def _data(needed: int, shape: tuple[int, ...] | None) -> dict[str, Any]:
    """Data of this shape, or else the first of any that have as many records, or else the largest."""
    known: list[dict[str, Any]] = rules()["stand_in"]
    alike = [each for each in known if shape and tuple(each.get("shape", ())) == shape]
    fitting = alike or [each for each in known if "shape" not in each]
    return next((each for each in fitting if each["records"] >= needed), fitting[-1])


def _stand_in(data: dict[str, Any], records: int, shape: tuple[int, ...] | None) -> str:
    """How [data] is like the data that were told of, and how it is not."""
    known = [each for each in rules()["stand_in"] if each["name"] == data["name"]]
    held = data.get("records", max(each["records"] for each in known) // data["clients"])
    differs = [] if held == records else [f"{held:,} records a client instead of {records:,}"]
    if shape and not any(tuple(each.get("shape", ())) == shape for each in known):
        differs.append(f"records of another shape than {'x'.join(map(str, shape))}")
    told = f", with {' and '.join(differs)}" if differs else ""
    return f"[data] stands in for yours{told}: put data.path or data.name in its place."


def _joined(*parts: dict[str, Any]) -> dict[str, Any]:
    """The tables of all parts, later fields over earlier ones, without what the rules say in words."""
    table: dict[str, Any] = {}
    for part in parts:
        for section, fields in part.items():
            if isinstance(fields, dict):
                table[section] = table.get(section, {}) | fields
    return table
