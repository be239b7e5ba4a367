"""The federation against the simulation, and the files that the server writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import Error, Message

import fedceo
from fedceo.deploy.records import dealt_public_records
from fedceo.deploy.strategy import MethodStrategy
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.simulation.folder import RunFolder
from fedceo.training.schedule import Schedule
from tests.support.grid import LocalGrid, as_seeded, experiment, local_grid, pem, simulated_schedule

Weights = dict[str, torch.Tensor]


def strategy(given: Experiment, out: Path, timeout: float = 0.01) -> MethodStrategy:
    return MethodStrategy(given, dealt_public_records(given), out, timeout, Schedule(given.seed))


def simulated(given: Experiment) -> fedceo.Run:
    return fedceo.run(as_seeded(given))


def distance(one: Weights, other: Weights) -> float:
    return max(float((one[name] - w).abs().max()) for name, w in other.items())


METHODS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedceo", "interval": 2, "strength": 10.0},
    {"name": "fedceo", "interval": 2, "strength": 10.0, "restart": "slot"},
    {"name": "fedceo", "interval": 2, "strength": 10.0, "restart": "stored"},
    {"name": "fedceo", "interval": 2, "strength": 10.0, "restart": "mean", "threshold": "noise"},
    {"name": "dp-fedsgd"},
    {"name": "blur-lus", "score": "first-order"},
    {"name": "dp-fedsam"},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method['name']}-{method.get('restart', '')}")
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_federation_ends_where_the_simulation_does(method: dict[str, Any], engine: str, tmp_path: Path) -> None:
    train = {"engine": engine, "server_learning_rate": 0.5}
    given = experiment(method=method, train=train, cohort={"size": 3})
    server = strategy(given, tmp_path / "run")
    result = server.run(local_grid(given, simulated_schedule(given)))
    expected = simulated(given)
    assert distance(server.state.weights, expected.weights) < 1e-6
    assert [(e.cohort, e.reported, e.smoothed) for e in server.ledger.entries] == [
        (e.cohort, e.reported, e.smoothed) for e in expected.ledger.entries
    ]
    assert result["accuracy"]["last"] == expected.result["accuracy"]["last"]
    assert [row["epsilon"] for row in result["privacy"]] == [row["epsilon"] for row in expected.result["privacy"]]
    assert not any("remove the noise" in row["assumption"] for row in result["privacy"])


def test_poisson_cohorts_caps_and_an_optimiser_end_there_too(tmp_path: Path) -> None:
    given = experiment(
        method={"name": "fedavg"},
        cohort={"sampling": "poisson"},
        privacy={"participation_cap": 2, "clipping": "per_layer"},
        train={"rounds": 6, "server_optimizer": "adam", "schedule": "cosine"},
    )
    server = strategy(given, tmp_path / "run")
    server.run(local_grid(given, simulated_schedule(given)))
    expected = simulated(given)
    assert any(entry.capped for entry in expected.ledger.entries)
    assert server.ledger.entries == expected.ledger.entries
    assert distance(server.state.weights, expected.weights) < 1e-6


def test_noise_is_new_in_every_run_unless_a_source_is_given(tmp_path: Path) -> None:
    given = experiment(method={"name": "fedavg"}, train={"rounds": 1})
    ends = []
    for name in ("one", "two"):
        server = strategy(given, tmp_path / name)
        server.run(local_grid(given))
        ends.append(server.state.weights)
    assert distance(*ends) > 1e-3


def test_every_message_has_weights_of_its_own(tmp_path: Path) -> None:
    """Cohorts are everybody, so that each client restarts from its own smoothed model in round 3, and is measured."""
    given = experiment(cohort={"size": 5}, train={"rounds": 3})
    grid = local_grid(given)
    server = strategy(given, tmp_path / "run")
    server.run(grid)
    contents = [message.content for message in grid.seen]
    assert len({id(content) for content in contents}) == len(contents)
    records = [content["arrays"] for content in contents if "arrays" in content]
    assert len({id(record) for record in records}) == len(records)

    def weights(kind: str, t: int) -> list[bytes]:
        return [
            b"".join(array.data for array in message.content.array_records["arrays"].values())
            for message in grid.seen
            if message.metadata.message_type == kind and message.content.config_records["config"]["round"] == t
        ]

    assert len(set(weights("train", 1))) == 1
    assert len(set(weights("train", 3))) == 5
    assert weights("evaluate", 2) == weights("train", 3)
    nonces = [content.config_records["config"]["nonce"] for content in contents]
    assert len(set(nonces)) == len(nonces)


def test_the_run_folder_is_read_by_show_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedceo.cli.app import show

    given = experiment()
    server = strategy(given, tmp_path / "run")
    server.run(local_grid(given))
    show(tmp_path / "run")
    assert "user-level, distributed noise" in capsys.readouterr().out
    loaded = fedceo.load(tmp_path / "run")
    assert distance(loaded.weights, server.state.weights) == 0
    pytest.importorskip("plotly")
    from fedceo.report.page import write_report

    assert write_report([tmp_path / "run"], tmp_path / "page.html", "outsider").stat().st_size > 0


def test_a_node_that_fails_or_vanishes_is_a_report_that_never_came(tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5}, privacy={"min_reports": 3})
    grid = local_grid(given)
    failing, vanished, slow = (grid.nodes[1000 - 7 * client] for client in (0, 1, 2))
    failing.tamper = lambda reply: Message(Error(2, "boom\nat home " * 100), reply_to=grid.seen[-1])
    vanished.connected = False
    server = strategy(given, tmp_path / "run")
    slow.tamper = lambda reply: None if server.round == 0 else reply
    server.run(grid)
    history = RunFolder(tmp_path / "run").history()
    assert [record["reports"] for record in history] == [2, 3, 3, 3]
    assert [record.get("discarded", False) for record in history] == [True, False, False, False]
    assert history[0]["absent"] == [1, 2] and history[1]["absent"] == [1]
    assert history[0]["refused"]["0"].startswith("error 2: boom at home") and len(history[0]["refused"]["0"]) < 250
    first, second, *_ = server.ledger.entries
    assert (first.reported, first.unused, first.released) == ((3, 4), (0, 2), False)
    assert (second.reported, second.unused) == ((2, 3, 4), (0,))
    # asked four times, whatever came of it; never asked; asked four times
    assert [server.ledger.participations[client] for client in (0, 1, 2)] == [4, 0, 4]


def test_where_nobody_comes_nothing_is_released_and_nothing_is_spent(tmp_path: Path) -> None:
    given = experiment(train={"rounds": 2})
    server = strategy(given, tmp_path / "run")
    before = {name: w.clone() for name, w in server.state.weights.items()}
    result = server.run(LocalGrid({}))
    assert distance(server.state.weights, before) == 0
    assert result["discarded_rounds"] == 2
    assert not server.ledger.participations
    assert all(row["epsilon"] == 0 for row in result["privacy"] if row["observer"] in ("outsider", "server"))


def test_a_node_that_comes_back_goes_on_and_is_counted_once(tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5}, privacy={"min_reports": 3})
    grid = local_grid(given)
    server = strategy(given, tmp_path / "run")
    node = grid.nodes[1000]

    def leave(reply: Message) -> Message | None:
        node.connected = server.round != 1  # dies while it trains in round 2
        return reply if node.connected else None

    node.tamper = leave

    def wake(reply: Message) -> Message:
        node.connected = node.connected or server.round == 2  # and is back during round 3
        return reply

    grid.nodes[993].tamper = wake
    server.run(grid)
    reported = [entry.reported for entry in server.ledger.entries]
    assert reported == [(0, 1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4)]
    assert server.ledger.participations[0] == 3


def test_a_number_belongs_to_the_first_node_and_its_key(tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5}, train={"rounds": 2})
    grid = local_grid(given)
    twin = grid.nodes[1000]
    grid.nodes[2000] = type(twin)(twin.app, twin.number, key=pem("other"))
    grid.nodes[3000] = type(twin)(twin.app, 17, key=pem("seventeen"))
    server = strategy(given, tmp_path / "run")
    server.run(grid)
    history = RunFolder(tmp_path / "run").history()
    assert [record["reports"] for record in history] == [5, 5]
    assert history[0]["refused"] == {
        "node 2000": "partition-id: 0 is that of node 1000 already",
        "node 3000": "partition-id: 17, expected 0 to 4",
    }
    assert set(json.loads((tmp_path / "run" / "nodes.json").read_text())) == set("01234")


class Killed(BaseException):
    """As kill -9: nothing of the program runs after it."""


def kill_in_round(grid: LocalGrid, server: MethodStrategy, t: int) -> None:
    """The server dies while uploads are on their way."""
    plain = grid.pull_messages

    def pull(names: Any) -> list[Message]:
        found = plain(names)
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


def test_the_budget_ends_the_run_before_the_round_that_would_exceed_it(tmp_path: Path) -> None:
    privacy = {"noise_multiplier": 4.0, "observer": "server"}
    free = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=privacy)
    rows = strategy(free, tmp_path / "free").run(local_grid(free))["privacy"]
    spent = next(row["epsilon"] for row in rows if row["observer"] == "server")
    given = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=privacy | {"max_epsilon": 0.8 * spent})
    result = strategy(given, tmp_path / "run").run(local_grid(given))
    assert 0 < result["rounds"] < 4
    assert "max_epsilon" in result["ended_early"]
    assert next(r["epsilon"] for r in result["privacy"] if r["observer"] == "server") <= 0.8 * spent


def test_fewer_reports_than_planned_may_exceed_the_budget_and_are_then_not_released(tmp_path: Path) -> None:
    """Two reports of five carry much less noise: known only after they came."""
    base: dict[str, Any] = {"noise_multiplier": 4.0, "observer": "outsider"}
    full = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=base)
    rows = strategy(full, tmp_path / "full").run(local_grid(full))["privacy"]
    planned = next(row["epsilon"] for row in rows if row["observer"] == "outsider")
    given = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=base | {"max_epsilon": 1.05 * planned})
    grid = local_grid(given)
    server = strategy(given, tmp_path / "run")
    for node in list(grid.nodes.values())[:3]:
        node.tamper = lambda reply: None if server.round == 2 else reply
    result = server.run(grid)
    assert [entry.released for entry in server.ledger.entries] == [True, True, False]
    assert result["ended_early"] and result["rounds"] == 3
    assert next(r["epsilon"] for r in result["privacy"] if r["observer"] == "outsider") <= 1.05 * planned


def test_nobody_is_there_in_the_round_after_a_smoothing_and_the_budget_is_not_touched(tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5}, privacy={"noise_multiplier": 4.0, "max_epsilon": 50.0, "min_reports": 2})
    grid = local_grid(given)
    server = strategy(given, tmp_path / "run")

    def leave(reply: Message) -> Message:
        if server.round == 1:
            for node in grid.nodes.values():
                node.connected = False
        return reply

    grid.nodes[1000 - 7 * 4].tamper = leave  # the last to be asked in round 2, which smooths
    server.run(grid)
    assert [len(entry.reported) for entry in server.ledger.entries] == [5, 5, 0, 0]
    assert [entry.released for entry in server.ledger.entries] == [True, True, False, False]
    assert set(server.ledger.participations.values()) == {2}


def test_a_run_that_the_budget_ends_says_how_good_its_last_model_is(tmp_path: Path) -> None:
    privacy = {"noise_multiplier": 4.0, "observer": "server"}
    free = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=privacy, train={"rounds": 3})
    rows = strategy(free, tmp_path / "free").run(local_grid(free))["privacy"]
    spent = next(row["epsilon"] for row in rows if row["observer"] == "server")
    given = experiment(
        method={"name": "fedavg"},
        cohort={"size": 5},
        privacy=privacy | {"max_epsilon": 1.001 * spent},
        train={"rounds": 9},
        evaluation={"every": 9},
    )
    server = strategy(given, tmp_path / "run")
    result = server.run(local_grid(given))
    assert result["rounds"] == 3 and result["ended_early"]
    history = RunFolder(tmp_path / "run").history()
    assert [("test_accuracy" in record) for record in history] == [False, False, True]
    assert result["accuracy"]["last"] == history[-1]["test_accuracy"]
