"""The federation against the simulation, and the files that the server writes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import Context, Error, Message

import fedceo
from fedceo.deploy import node_registry
from fedceo.deploy.messages import NOT_COME
from fedceo.deploy.node_registry import NodeRegistry
from fedceo.simulation.folder import RunFolder
from tests.support.flower_grid import LocalGrid, experiment, local_grid, pem, simulated, simulated_schedule, strategy
from tests.support.weights import distance

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


@pytest.mark.parametrize("average", ["ema", "tail"])
def test_features_and_averages_end_where_the_simulation_does(average: str, tmp_path: Path) -> None:
    given = experiment(model={"name": "scattering"}, release={"average": average, "length": 2})
    server = strategy(given, tmp_path / "run")
    result = server.run(local_grid(given, simulated_schedule(given)))
    expected = simulated(given)
    assert expected.average is not None and server.log.average is not None
    assert distance(server.state.weights, expected.weights) < 1e-6
    assert distance(server.log.average.weights, expected.average) < 1e-6
    assert result["accuracy"]["average"] == expected.result["accuracy"]["average"]
    assert result["record_shape"] == [1, 8, 8]
    back = fedceo.load(tmp_path / "run")
    assert back.average is not None and distance(back.average, expected.average) < 1e-6
    assert back.model(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_poisson_cohorts_caps_and_an_optimiser_end_where_the_simulation_does(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("aggregation", ["median", "trimmed_mean"])
def test_a_robust_aggregate_is_that_of_the_simulation(aggregation: str, tmp_path: Path) -> None:
    given = experiment(method={"name": "fedavg"}, train={"aggregation": aggregation})
    server = strategy(given, tmp_path / "run")
    result = server.run(local_grid(given, simulated_schedule(given)))
    assert distance(server.state.weights, simulated(given).weights) < 1e-6
    assert {row["observer"] for row in result["privacy"] if row["epsilon"] is not None} == {"server", "paper"}


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


@pytest.mark.parametrize("code", NOT_COME)
def test_a_silent_node_is_absent_and_not_refused(code: int, tmp_path: Path) -> None:
    """Flower answers in its place once the message is void."""
    given = experiment(cohort={"size": 5}, privacy={"min_reports": 3}, train={"rounds": 2})
    grid = local_grid(given)
    grid.nodes[1000].tamper = lambda reply: Message(Error(code, "Message Unavailable"), reply_to=grid.seen[-1])
    server = strategy(given, tmp_path / "run")
    server.run(grid)
    for record in RunFolder(tmp_path / "run").history():
        assert (record["absent"], record["refused"], record["reports"]) == ([0], {}, 4)
    assert [entry.unused for entry in server.ledger.entries] == [(0,), (0,)]


def test_a_node_that_says_no_number_is_not_refused_and_is_asked_again() -> None:
    given = experiment()
    grid, registry = local_grid(given), NodeRegistry(5, {}, 1.0)
    node = grid.nodes[1000]
    plain, node.app = node.app, lambda message, context: Message(Error(3, "void"), reply_to=message)  # type: ignore[assignment]
    registry.update(grid)
    assert 0 not in registry.present() and not registry.refused and not registry.failed
    node.app = plain
    registry.update(grid)
    assert registry.present() == {client: 1000 - 7 * client for client in range(5)}


@pytest.mark.parametrize("lost", ["silent", "failing"])
def test_a_node_whose_question_is_lost_is_asked_again_long_before_that_expires(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a node whose process dies with the question; rounds later it would still be unknown."""
    given, now = experiment(), 0.0
    monkeypatch.setattr(node_registry, "time", SimpleNamespace(monotonic=lambda: now))
    grid, registry = local_grid(given), NodeRegistry(5, {}, 300.0)
    node = grid.nodes[1000]

    def lose(message: Message, context: Context) -> Message | None:
        return None if lost == "silent" else Message(Error(0, "killed"), reply_to=message)

    plain, node.app = node.app, lose  # type: ignore[assignment]
    asked = []
    for second in range(100):
        now, before = float(second), len(grid.seen)
        registry.update(grid)
        asked += [second] * (len(grid.seen) - before)
        assert 0 not in registry.present() and not registry.refused
    assert asked == [0] * 5 + [15, 45]
    node.app, now = plain, 105.0
    registry.update(grid)
    assert set(registry.present()) == set(range(5)) and not registry.failed


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
    assert set(RunFolder(tmp_path / "run").nodes()) == set(range(5))


def test_a_key_keeps_one_number_after_a_restart_of_the_server() -> None:
    """A node that comes back under another number would keep that from whom it belongs to."""
    given = experiment()
    grid, first = local_grid(given), NodeRegistry(5, {}, 1.0)
    del grid.nodes[1000 - 7]
    first.update(grid)
    assert set(first.keys) == {0, 2, 3, 4}
    grid.nodes[1000].number = 1
    again = NodeRegistry(5, first.keys, 1.0)
    again.update(grid)
    assert again.refused == {1000: "partition-id: 1, but its key holds client 0 (nodes.json)"}
    assert again.keys == first.keys and set(again.present()) == {2, 3, 4}
