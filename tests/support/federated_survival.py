"""Federations to kill: real servers and nodes in one process, with noise that repeats itself."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedceo.experiment.file import Experiment
from fedceo.simulation.folder import RunFolder
from tests.support.flower_grid import experiment, local_grid, simulated_schedule, strategy
from tests.support.survival import End, uploads_beside

TINY: dict[str, Any] = {
    "data": {"clients": 3},
    "cohort": {"size": 2},
    "model": {"name": "logistic"},
    "train": {"rounds": 5, "batch_size": 256},
    "evaluation": {"every": 4},
    "checkpoint": {"every": 2},
}
PLAIN = experiment(**TINY)
BUDGET = experiment(
    **TINY | {"data": {"clients": 2}, "train": {"rounds": 9, "batch_size": 256}},
    method={"name": "fedavg"},
    privacy={"noise_multiplier": 2.53, "observer": "server", "max_epsilon": 6.5},
)
"""Ends after round 6, by its budget, with a checkpoint and without having been measured then."""


def federated(given: Experiment, out: Path) -> None:
    """Begin a federation in a folder, or go on with it; a file beside the folder gets the client of each upload."""
    server, grid = strategy(given, out), local_grid(given, simulated_schedule(given))
    push = grid.push_messages

    def noted(messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        nodes = [each.metadata.dst_node_id for each in sent if each.metadata.message_type == "train"]
        with uploads_beside(out).open("a") as file:
            file.write("".join(f"{grid.nodes[node].number}\n" for node in nodes))
        return push(sent)

    grid.push_messages = noted  # type: ignore[method-assign]
    try:
        server.run(grid)
    finally:
        server.log.release()


def plain(out: Path) -> None:
    federated(PLAIN, out)


def with_budget(out: Path) -> None:
    federated(BUDGET, out)


def differences_by_budget(end: End, undisturbed: End) -> list[str]:
    """Rounds that were lost count, so that the budget ends a disturbed federation sooner, but it is measured then.

    Where all of the budget was lost before the first checkpoint, there is no round to measure.
    """
    found = [] if end.files == undisturbed.files else ["files"]
    return [*found, "accuracy"] if end.metrics and end.accuracy["last"] is None else found


def asking(out: Path) -> None:
    """Leave a federation as a kill does while uploads are on their way."""

    class Killed(BaseException):
        pass

    server, grid = strategy(PLAIN, out), local_grid(PLAIN, simulated_schedule(PLAIN))
    pull = grid.pull_messages

    def killed(message_ids: Any) -> Any:
        if server.round == 3 and RunFolder(out).ledger(repeatable=False).entries[-1].round == 4:
            raise Killed
        return pull(message_ids)

    grid.pull_messages = killed  # type: ignore[method-assign]
    try:
        server.run(grid)
    except Killed:
        server.log.release()
