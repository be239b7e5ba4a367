"""On real Ray workers: the answer of one machine, also when workers are killed while they train."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedceo
from fedceo.errors import UsageError
from fedceo.scale.cluster import Workers, _room, ray
from fedceo.scale.pool import pool_of
from fedceo.scale.remote import on_workers, split_starts
from fedceo.scale.worker import WorkerSetup
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from fedceo.tensors import truncated_tsvd
from tests.support.small_federation import federation

pytestmark = [
    pytest.mark.slow,  # Ray takes seconds to start, and each worker takes seconds to import torch
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 30},
    "cohort": {"size": 6},
    "train": {"rounds": 4, "local_epochs": 1, "batch_size": 16, "device": "cpu"},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
    "method": {"name": "fedceo", "interval": 2, "strength": 5.0},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 1},
}


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    return TABLE | {name: TABLE.get(name, {}) | fields for name, fields in sections.items()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One small Ray for all tests; runs must use it and leave it."""
    ray.init(
        "local", num_cpus=4, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR",
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def used_and_left(cluster: None) -> Iterator[None]:
    yield
    assert ray.is_initialized()
    assert _eventually(lambda: ray.available_resources().get("CPU") == 4.0), "a run has left workers behind"


def _eventually(condition: Any) -> bool:
    for _ in range(100):
        if condition():
            return True
        time.sleep(0.1)
    return False


def difference(a: fedceo.Run, b: fedceo.Run) -> float:
    return max(float((a.weights[name] - b.weights[name]).abs().max()) for name in a.weights)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_number_of_workers_does_not_show(engine: str) -> None:
    """A loop's bits do not depend on the task; a batch's may, in the last digits."""
    table = changed(train={"engine": engine})
    here = fedceo.run(table)
    assert here.result["workers"] is None
    for count in (1, 2, 4):
        there = fedceo.run(table, workers=Workers(count))
        assert there.result["workers"] == {"ray": ray.__version__, "count": count, "machines": 1, "lost": 0}
        assert difference(here, there) <= (0 if engine == "loop" or count == 1 else 1e-6)
        assert [r["cohort"] for r in here.history] == [r["cohort"] for r in there.history]
        assert here.ledger.entries == there.ledger.entries and here.result["privacy"] == there.result["privacy"]


def test_two_workers_give_the_bits_of_two_threads() -> None:
    """They cut a cohort in the same halves, if the model convolves: short steps of linear layers take one thread."""
    table, before = changed(train={"engine": "batched"}, model={"name": "small-cnn"}), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert difference(fedceo.run(table), fedceo.run(table, workers=Workers(2))) == 0
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "sections",
    [
        {"privacy": {"mechanism": "record", "noise_multiplier": 1.0}, "method": {"name": "fedavg"}},
        {"method": {"name": "ppsgd"}},
        {"method": {"name": "mr-mtl", "strength": 0.3}},
        {"data": {"clients": 100}, "cohort": {"size": 50, "sampling": "poisson"}, "method": {"name": "fedavg"}},
        {"privacy": {"participation_cap": 1, "noise_multiplier": 1.0}, "train": {"precision": "float64"}},
    ],
    ids=["record", "personal heads", "pulled to the mean", "turns", "capped clients"],
)
def test_every_kind_of_round(sections: dict[str, Any]) -> None:
    table = TABLE | {
        name: fields if name == "method" else TABLE.get(name, {}) | fields for name, fields in sections.items()
    }
    here, there = fedceo.run(table), fedceo.run(table, workers=Workers(2))
    assert difference(here, there) <= 1e-6


def test_a_run_may_go_on_elsewhere(tmp_path: Path) -> None:
    """Started here and finished by workers, and the other way round: Ray is no part of the experiment."""
    whole = fedceo.run(TABLE)
    for name, first, second in (("a", None, Workers(2)), ("b", Workers(2), None)):
        out = tmp_path / name
        begun = fedceo.run(TABLE, out=out, workers=first, should_stop=lambda: True)
        assert not begun.finished and len(begun.history) == 1
        assert difference(whole, fedceo.resume(out, workers=second)) <= 1e-6
        assert len((out / "ledger.jsonl").read_text().splitlines()) == 4


class Fragile(nn.Module):
    """Kills its process in the fourth forward pass there, unless it is that of the test or `deaths` have died."""

    def __init__(self, folder: Path, deaths: int) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)
        self.folder, self.deaths, self.home, self.passes = folder, deaths, os.getpid(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += os.getpid() != self.home
        if os.getpid() != self.home and self.passes == 4 and len(list(self.folder.iterdir())) < self.deaths:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.out(x.flatten(1))


def fragile_run(folder: Path, deaths: int, randomness: str = "seeded", **where: Any) -> fedceo.Run:
    folder.mkdir()
    torch.manual_seed(0)
    table = {
        "data": {"name": "small", "clients": 4},
        "cohort": {"size": 4},
        "train": {"rounds": 3, "local_epochs": 2, "batch_size": 4, "engine": "loop", "device": "cpu"},
        "privacy": {"mechanism": "record", "noise_multiplier": 1.0, "clip": 1.0, "randomness": randomness},
        "method": {"name": "fedavg"},
    }
    return fedceo.run(table, data=federation(), model=Fragile(folder, deaths), **where)


def test_workers_killed_in_mid_round_change_nothing(tmp_path: Path) -> None:
    here = fragile_run(tmp_path / "here", 0)
    there = fragile_run(tmp_path / "there", 3, workers=Workers(2), out=tmp_path / "run")
    died = len(list((tmp_path / "there").iterdir()))
    assert there.result["workers"]["lost"] == died >= 3, "two that start at once may both find two dead before them"
    assert difference(here, there) == 0
    assert here.ledger.entries == there.ledger.entries
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 3, "nothing is counted twice"
    assert here.history == there.history and here.result["privacy"] == there.result["privacy"]


def test_a_task_that_is_lost_under_system_randomness_is_one_entry(tmp_path: Path) -> None:
    run = fragile_run(tmp_path / "there", 1, "system", workers=Workers(2), out=tmp_path / "run")
    entries = list(RunFolder(tmp_path / "run").ledger(repeatable=False).entries)
    assert run.result["workers"]["lost"] >= 1
    assert [entry.round for entry in entries] == [1, 2, 3] and list(run.ledger.entries) == entries


def test_a_task_that_ends_every_worker_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--workers: 3 in a row did not survive clients 0 to 3 of round 1; .*$"):
        fragile_run(tmp_path / "there", 10**6, workers=Workers(1))


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out, self.home = nn.Linear(16, 3), os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home:
            raise ZeroDivisionError("in the worker")
        return self.out(x.flatten(1))


def test_an_error_in_a_worker_arrives_as_itself() -> None:
    table = changed(train={"engine": "loop"}, cohort={"size": 4}, data={"name": "small", "clients": 4})
    with pytest.raises(ZeroDivisionError, match="in the worker"):
        fedceo.run(table, data=federation(), model=Raising(), workers=Workers(1))


def test_frequencies_spread_over_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real and complex, wide and tall, an odd and an even number of them; small ones stay here."""
    simulation = simulated()
    torch.manual_seed(0)
    with on_workers(Workers(2), simulation.context, simulation.engine) as remote:
        done: list[str] = []
        run = remote.pool.run

        def noted(method: str, tasks: Any) -> Any:
            done.append(method)
            return run(method, tasks)

        monkeypatch.setattr(remote.pool, "run", noted)
        tensors = [torch.randn(shape) for shape in ((130, 70, 9), (64, 300, 8), (10, 70, 9))]
        found = remote.smooth(tensors, [30.0, 30.0, 8.0])
        for w, threshold, smoothed in zip(tensors, (30.0, 30.0, 8.0), found, strict=True):
            assert torch.allclose(smoothed, truncated_tsvd(w, threshold), atol=1e-6)
        assert done == ["shrink", "shrink"]
        assert torch.equal(remote.smooth(tensors[2:], [8.0])[0], found[2]) and len(done) == 2


def simulated() -> Simulation:
    return prepare(fedceo.parse_experiment(TABLE))


def test_what_all_clients_start_from_is_sent_once() -> None:
    simulation = simulated()
    same, _ = split_starts(simulation.method.starts(simulation.state, [1, 2, 3], 1))
    assert {name: w.shape for name, w in same.items()} == {n: w.shape for n, w in simulation.state.weights.items()}
    own = {name: torch.stack([w, w]) for name, w in simulation.state.weights.items()}
    assert split_starts(own)[0] == {}


def test_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    for workers, words in (
        (Workers(5), "--workers: 5, but Ray has room for 4 with 1 CPU each"),
        (Workers(1, address="127.0.0.1:1"), "--ray-address: this process uses Ray already"),
    ):
        with pytest.raises(UsageError, match=words):
            fedceo.run(TABLE, out=tmp_path / "run", workers=workers)
        assert not (tmp_path / "run").exists(), "nothing half-written"
    with pytest.raises(UsageError, match=r"^--gpus-per-worker: 0.5, but Ray has 0 GPUs$"):
        _room(1, 0.5)


def test_workers_of_another_version_are_refused() -> None:
    simulation = simulated()
    setup = WorkerSetup.of(simulation.context, "loop", simulation.model)
    object.__setattr__(setup, "versions", ("0.0.1", "1.0"))
    with pytest.raises(UsageError, match=r"^--ray-address: a worker has fedceo .* but this machine fedceo 0.0.1 "):  # noqa: SIM117
        with pool_of(setup, 1, 0.0):
            pass
