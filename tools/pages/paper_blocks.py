"""The paper's cells that are still to be run, in blocks, the most worthwhile first; `tools/measure_paper.py` runs them.

Costs are GPU seconds of one round of one run on an H200, runs stacked; `measure_paper.py --plan` adds them up.

A block with seed 0 comes before the same cells' other seeds: every cell once, then three times.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Changes = dict[str, Any]
"""Fields of an experiment, "section.field", and their values."""

MLP, LENET5, ALEXNET, LSTM, LETTERS, USERS = 0.015, 0.085, 0.5, 0.7, 0.006, 0.1


def untuned(cell: str) -> None:
    """No trials: the cell is run as it is."""


@dataclass(frozen=True)
class Block:
    """Cells of one table that are run in one way.

    Attributes:
        table: the cells are those of experiments/TABLE.toml, their runs go to results/TABLE.json.
        cells: patterns of their names.
        cost: GPU seconds of a round and run.
        trials: the settings that a cell is tuned over, by its name; None where it is run as it is.
        length: rounds of a trial; None: all.
        finalists: the best trials that are run again at full length; the best of them is chosen.
        changes: "section.field=value" for all cells, which their names say.
        kind: the mark of another results file of the same table, results/TABLE{kind}.json.
    """

    name: str
    table: str
    cells: tuple[str, ...]
    cost: float
    seeds: tuple[int, ...] = (0,)
    trials: Callable[[str], list[Changes] | None] = untuned
    length: int | None = None
    finalists: int = 1
    changes: tuple[str, ...] = ()
    kind: str = ""

    def seconds(self, cell: str, seeds: tuple[int, ...], is_tuned: bool, rounds: int = 300) -> float:
        """The GPU seconds that these seeds of a cell are expected to take, with its trials where these are not done.

        The whole run of the trial that is chosen is the run of seed 0.
        """
        runs: float = len(seeds)
        trials = None if is_tuned else self.trials(cell)
        if trials:
            whole = self.finalists if self.finalists > 1 else 0
            runs += len(trials) * min(self.length or rounds, rounds) / rounds + whole
            runs -= (whole > 0 or self.length is None) and 0 in seeds
        return runs * rounds * self.cost


def product(**values: Iterable[Any]) -> list[Changes]:
    """Every combination; "train__learning_rate" stands for train.learning_rate."""
    fields = [name.replace("__", ".") for name in values]
    return [dict(zip(fields, chosen, strict=True)) for chosen in itertools.product(*values.values())]


LAMBDA = {"sigma-1.0": 85.0, "sigma-1.5": 10.0, "sigma-2.0": 0.6}
"""The paper's lambda for LeNet-5 on CIFAR-10."""
RATIO = {"sigma-1.0": 1.03, "sigma-1.5": 1.07, "sigma-2.0": 1.04}


def of_fedceo(cell: str, points: list[Changes], restarts: tuple[str, ...] = ("own",)) -> list[Changes]:
    """The rivals' points with FedCEO's own settings beside each, in turns: the paper's first, then larger lambdas,
    a constant threshold, longer intervals and other restarts, so that it has as many trials as they."""
    (sigma,) = (each for each in LAMBDA if each in cell.split("/"))
    factors, ratios, intervals = (1, 10, 3, 30), (RATIO[sigma], 1.0), (10, 10, 20, 30)
    found = []
    for number, point in enumerate(points):
        settings = {
            "method.strength": LAMBDA[sigma] * factors[number % 4],
            "method.ratio": ratios[number // 2 % 2],
            "method.interval": intervals[(number + number // 4) % 4],
            "method.restart": restarts[number % len(restarts)],
        }
        found.append(point | settings)
    return found


def steps(cell: str) -> list[Changes] | None:
    """The MLP at user level: rates and server steps; the letter of Algorithm 1 leaves nothing to tune."""
    points = product(train__server_learning_rate=[0.03, 0.06, 0.1, 0.3], train__learning_rate=[0.1, 0.01])
    return _for_method(cell, points)


def few_steps(cell: str) -> list[Changes] | None:
    """LeNet-5 at user level: a run that is six times as dear has half the trials."""
    points = product(train__server_learning_rate=[0.01, 0.03], train__learning_rate=[0.1, 0.01])
    return _for_method(cell, points)


def _for_method(cell: str, points: list[Changes]) -> list[Changes] | None:
    if cell.startswith("literal/"):
        return None
    return of_fedceo(cell, points) if cell.endswith("/fedceo") else points


def rates(cell: str) -> list[Changes]:
    return product(train__learning_rate=[0.003, 0.01, 0.03, 0.1])


def whole_runs(cell: str) -> list[Changes]:
    """Eight whole runs for either: UDP-FedAvg's rates; FedCEO with two rates, and all of its own settings."""
    iid = cell.startswith("iid/")
    if not cell.endswith("/fedceo"):
        many = [0.003, 0.005, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05]
        return product(train__learning_rate=many if iid else [each / 10 for each in many])
    points = product(train__learning_rate=[0.03, 0.01] if iid else [0.003, 0.001]) * 4
    return of_fedceo(cell, sorted(points, key=lambda each: -each["train.learning_rate"]), ("own", "stored", "mean"))


TWO = ("*/udp-fedavg", "*/fedceo")
RIVALS = ("*/ppsgd", "*/centaur")
USER_MLP, USER_LENET5 = "paper/user/heterogeneity", "paper/user/cifar10-lenet5"
LENET5_TABLE = "paper/table1/cifar10-lenet5"
NEW_INTERVALS = tuple(
    f"sigma-{sigma}/interval-{each}"
    for sigma, known in (("1.0", 15), ("1.5", 10), ("2.0", 10))
    for each in (10, 15, 20, 25, 30)
    if each != known  # Table 1 has those
)
WHOLE = tuple(f"sigma-{s}/{m}" for s in ("2.0", "1.5") for m in ("udp-fedavg", "fedceo-ratio-1", "fedceo"))
"""Cells that Table 1 has at 0.03, which short trials chose; the other rate at full length stands beside them."""
AT_01 = ("sigma-1.5/udp-fedavg", "sigma-2.0/udp-fedavg", "*/stored")
"""The paper's rate; Table 1 has sigma = 1 there."""
BLOCKS = (
    Block("user-mlp", USER_MLP, TWO, MLP, trials=steps, length=60, finalists=2),
    Block("user-lenet5", USER_LENET5, TWO, LENET5, trials=few_steps, length=40),
    Block("femnist-letters", "paper/table1/femnist-letters-mlp", ("*",), LETTERS, (0, 1, 2), rates, 60),
    Block("intervals", "paper/intervals", NEW_INTERVALS, LENET5),
    Block("fair-mlp", "paper/fair/heterogeneity", ("*",), MLP, (0, 1, 2), whole_runs),
    Block("user-mlp-seeds", USER_MLP, TWO, MLP, (1, 2), steps, 60, 2),
    Block("whole-at-0.01", LENET5_TABLE, WHOLE, LENET5, changes=("train.learning_rate=0.01",), kind=".whole"),
    Block("lenet5-at-0.1", "modes/cifar10-lenet5", AT_01, LENET5, (0, 1, 2), changes=("train.learning_rate=0.1",)),
    Block("second-rates", LENET5_TABLE, ("sigma-1.?/*-fixed-rate",), LENET5, (0, 1, 2), rates, 60),
    Block("user-rivals-mlp", USER_MLP, RIVALS, MLP, trials=steps, length=60, finalists=2),
    Block("user-rivals-lenet5", USER_LENET5, (*RIVALS, "*/fedceo-ratio-1"), LENET5, trials=few_steps, length=40),
    Block("whole-seeds", LENET5_TABLE, WHOLE, LENET5, (1, 2), changes=("train.learning_rate=0.01",), kind=".whole"),
    Block("intervals-seeds", "paper/intervals", NEW_INTERVALS, LENET5, (1, 2)),
    Block("user-lenet5-seeds", USER_LENET5, TWO, LENET5, (1, 2), few_steps, 40),
    Block("sent140-users", "paper/more/sent140-users", ("*",), USERS, trials=rates, length=30),
    Block("alexnet", "paper/more/cifar10-alexnet", ("*",), ALEXNET, trials=rates, length=30),
    Block("sent140", "paper/more/sent140-lstm", ("*",), LSTM, trials=rates, length=30),
)
