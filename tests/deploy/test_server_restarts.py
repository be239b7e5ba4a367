"""A server that dies: what is on the disk by then, and how the federation goes on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import Message

from fedceo.deploy.strategy import MethodStrategy
from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder
from tests.support.flower_grid import LocalGrid, experiment, local_grid, pem, simulated, simulated_schedule, strategy
from tests.support.weights import distance


class Killed(BaseException):
    """As kill -9: nothing of the program runs after it."""


def kill_in_round(grid: LocalGrid, server: MethodStrategy, t: int) -> None:
    """The server dies while uploads are on their way."""
    plain = grid.pull_messages

    def pull(message_ids: Iterable[str]) -> list[Message]:
        found = plain(message_ids)
        if server.round == t - 1 and any(reply.metadata.message_type == "train" for reply in found):
            raise Killed
        return found

    grid.pull_messages = pull  # type: ignore[method-assign]


def test_a_server_that_dies_goes_on_from_its_checkpoint_and_forgets_no_upload(tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5})
    noise = simulated_schedule(given)
    grid = local_grid(given, noise)
    server = strategy(given, tmp_path / "run")
    kill_in_round(grid, server, 3)
    with pytest.raises(Killed):
        server.run(grid)
    assert len(server.ledger.entries) == 2
    with pytest.raises(UsageError, match="another process is at work there"):
        strategy(given, tmp_path / "run")
    server.log.release()  # which the end of its process does
    again = strategy(given, tmp_path / "run")
    assert again.round == 2
    again.run(local_grid(given, noise))
    assert distance(again.state.weights, simulated(given).weights) < 1e-6
    entries = RunFolder(tmp_path / "run").ledger(repeatable=False).entries
    assert [(e.round, e.reported, e.unused, e.released) for e in entries] == [
        (1, (0, 1, 2, 3, 4), (), True),
        (2, (0, 1, 2, 3, 4), (), True),
        (3, (), (0, 1, 2, 3, 4), False),
        (3, (0, 1, 2, 3, 4), (), True),
        (4, (0, 1, 2, 3, 4), (), True),
    ]
    assert set(again.ledger.participations.values()) == {5}
    assert [record["round"] for record in RunFolder(tmp_path / "run").history()] == [1, 2, 3, 4]


@pytest.mark.parametrize("t", [2, 4])
def test_a_server_that_dies_goes_on_with_its_average(t: int, tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5}, release={"average": "tail", "length": 3})
    noise = simulated_schedule(given)
    grid = local_grid(given, noise)
    server = strategy(given, tmp_path / "run")
    kill_in_round(grid, server, t)
    with pytest.raises(Killed):
        server.run(grid)
    server.log.release()
    again = strategy(given, tmp_path / "run")
    again.run(local_grid(given, noise))
    expected = simulated(given).average
    assert expected is not None and again.log.average is not None and again.log.average.models == 3
    assert distance(again.log.average.weights, expected) < 1e-6


def test_what_is_spent_is_on_the_disk_before_the_method_takes_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = experiment()
    server = strategy(given, tmp_path / "run")
    found = []

    def aggregate(*args: Any) -> Any:
        found.append(len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()))
        return type(server.method).aggregate(server.method, *args)

    monkeypatch.setattr(server.method, "aggregate", aggregate)
    server.run(local_grid(given))
    assert found == [1, 2, 3, 4]


def test_after_a_restart_a_number_stays_with_its_key(tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5})
    grid = local_grid(given)
    server = strategy(given, tmp_path / "run")
    kill_in_round(grid, server, 2)
    with pytest.raises(Killed):
        server.run(grid)
    server.log.release()
    grid = local_grid(given)
    grid.nodes[1000].key = pem("a thief")
    again = strategy(given, tmp_path / "run")
    again.run(grid)
    record = RunFolder(tmp_path / "run").history()[-1]
    assert record["reports"] == 4
    assert record["refused"] == {"node 1000": "partition-id: 0 belongs to another key"}


def test_another_experiment_or_a_finished_run_is_refused(tmp_path: Path) -> None:
    given = experiment(train={"rounds": 1})
    strategy(given, tmp_path / "run").log.release()
    with pytest.raises(UsageError, match="another experiment"):
        strategy(experiment(train={"rounds": 2}), tmp_path / "run")
    strategy(given, tmp_path / "run").run(local_grid(given))
    with pytest.raises(UsageError, match="finished run"):
        strategy(given, tmp_path / "run")
