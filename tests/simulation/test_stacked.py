"""Runs in lockstep: each is what it is alone, whatever becomes of the others."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fedceo
from fedceo.simulation import stacked
from fedceo.simulation.rounds import Simulation
from fedceo.simulation.runs import OnStart
from fedceo.simulation.stacked import run_stacked
from fedceo.training.batched import joining
from fedceo.training.batched.trainer import BatchedTrainer
from tests.support.small_runs import KilledError, changed, kill, same_weights

EXACT = {"precision": "float64", "rounds": 3, "local_epochs": 1, "batch_size": 16}
RECORD = {"mechanism": "record", "noise_multiplier": 0.8}
TABLES = {
    "fedceo": changed(train=EXACT, method={"name": "fedceo", "interval": 2, "strength": 5.0, "restart": "own"}),
    "other seed": changed(train=EXACT) | {"seed": 3},
    "own rate, Poisson": changed(train=EXACT | {"learning_rate": 0.2}, cohort={"size": 4, "sampling": "poisson"}),
    "record": changed(train=EXACT, privacy=RECORD) | {"method": {"name": "fedavg"}},
    "record, other clip": changed(train=EXACT, privacy=RECORD | {"clip": 0.3}) | {"method": {"name": "fedprox"}},
    "two phases": changed(train=EXACT | {"rounds": 2}) | {"method": {"name": "ppsgd"}},
    "other model": changed(train=EXACT, model={"name": "logistic"}) | {"method": {"name": "fedavg"}},
    "loop": changed(train=EXACT | {"engine": "loop"}) | {"method": {"name": "fedavg"}},
}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Join cohorts on a CPU too; how many calls came at a time."""
    monkeypatch.setattr(joining, "DEVICES", {"cpu"})
    sizes: list[int] = []
    train = joining.train_all

    def watched(calls: Sequence[Any]) -> Any:
        sizes.append(len(calls))
        return train(calls)

    monkeypatch.setattr(stacked, "train_all", watched)
    return sizes


def task(table: dict[str, Any], **options: Any) -> Callable[[OnStart], fedceo.Run]:
    return lambda on_start: fedceo.run(table, on_start=on_start, **options)


def outcomes(tasks: Sequence[Callable[[OnStart], fedceo.Run]], size: int) -> list[fedceo.Run]:
    found = dict(run_stacked(tasks, size))
    return [found[number]() for number in range(len(tasks))]


def test_every_run_of_a_stack_is_the_run_alone(joined: list[int]) -> None:
    """Methods, seeds, cohorts, rates, clips, phases and models in one stack, in float64."""
    for table, found in zip(TABLES.values(), outcomes([task(table) for table in TABLES.values()], 8), strict=True):
        alone = fedceo.run(table)
        assert found.ledger.entries == alone.ledger.entries
        assert [record["cohort"] for record in found.history] == [record["cohort"] for record in alone.history]
        for name, w in alone.weights.items():
            assert torch.allclose(found.weights[name], w, atol=1e-9), name
        assert found.result["accuracy"] == alone.result["accuracy"]
    assert joined[0] == 8 and len(joined) < sum(joined) / 6


def test_places_are_filled_again(joined: list[int]) -> None:
    """Five runs of unequal length on two places: two cohorts at a time until only the last run is left."""
    tables = [changed(train=EXACT | {"rounds": rounds}) | {"seed": rounds} for rounds in (1, 4, 2, 1, 2)]
    order = [number for number, _ in run_stacked([task(table) for table in tables], 2)]
    assert sorted(order) == [0, 1, 2, 3, 4] and order[0] == 0
    assert joined == [2, 2, 2, 2, 1, 1]


def test_on_a_cpu_the_bits_are_those_of_the_run_alone() -> None:
    tables = [changed(train={"rounds": 3}) | {"seed": seed} for seed in (0, 1)]
    for table, found in zip(tables, outcomes([task(table) for table in tables], 2), strict=True):
        assert same_weights(found, fedceo.run(table))


def test_a_run_that_fails_or_ends_early_leaves_the_others_alone(joined: list[int]) -> None:
    good, spent = TABLES["other seed"], changed(train=EXACT, privacy={"max_epsilon": 15.0, "observer": "outsider"})
    first = fedceo.run(spent)
    assert 0 < len(first.history) < 3, "the budget ends it"
    fails = task(TABLES["fedceo"], on_round=kill), task(changed(model={"name": "nothing"}))
    found = dict(run_stacked([task(good), task(spent), *fails], 4))
    assert found[1]().finished and found[1]().ledger.entries == first.ledger.entries
    with pytest.raises(KilledError):
        found[2]()
    with pytest.raises(fedceo.UsageError, match="unknown model 'nothing'"):
        found[3]()
    assert found[0]().result["accuracy"] == fedceo.run(good).result["accuracy"]


def test_an_error_in_training_ends_those_who_trained_together(
    joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: BatchedTrainer, calls: Sequence[Any]) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(BatchedTrainer, "train_together", fails)
    found = dict(run_stacked([task(TABLES["fedceo"]), task(TABLES["loop"])], 2))
    with pytest.raises(RuntimeError, match="out of memory"):
        found[0]()
    assert found[1]().finished


def test_an_interrupt_ends_all_runs_and_each_can_be_resumed(
    joined: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train = joining.train_all
    tables = [TABLES["fedceo"] | {"seed": seed, "checkpoint": {"every": 1}} for seed in (0, 1)]

    def interrupted(calls: Sequence[Any]) -> Any:
        if calls[0][1].round_ == 2:
            raise KeyboardInterrupt
        return train(calls)

    monkeypatch.setattr(stacked, "train_all", interrupted)
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        dict(run_stacked([task(table, out=tmp_path / str(table["seed"])) for table in tables], 2))
    assert threading.active_count() == threads
    for table in tables:
        again = fedceo.resume(tmp_path / str(table["seed"]))
        assert [record["round"] for record in again.history] == [1, 2, 3]
        for name, w in fedceo.run(table).weights.items():
            assert torch.allclose(again.weights[name], w, atol=1e-9)


def test_one_thread_is_awake_at_a_time(joined: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a run does between two questions, no other run does anything."""
    awake: list[str] = []

    def noted(name: str, on_start: OnStart) -> fedceo.Run:
        def watch(simulation: Simulation) -> None:
            on_start(simulation)
            step = simulation.step

            def watched(*args: Any) -> Any:
                awake.append(name)
                return step(*args)

            monkeypatch.setattr(simulation, "step", watched)

        return fedceo.run(TABLES["fedceo"], on_start=watch)

    outcomes([partial(noted, name) for name in "ab"], 2)
    assert awake == list("ababab")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "privacy", [{"mechanism": "distributed", "noise_multiplier": 0.5}, RECORD], ids=["updates", "record"]
)
def test_on_a_gpu_a_stack_ends_near_the_runs_alone(privacy: dict[str, Any]) -> None:
    """To a thousandth of the way from the first model, in float32: cuBLAS may sum otherwise where rows are more."""
    train = {"rounds": 3, "device": "cuda", "tf32": False}
    tables = [
        changed(train=train | {"learning_rate": rate}, privacy=privacy) | {"seed": seed, "method": {"name": "fedavg"}}
        for seed, rate in ((0, 0.01), (1, 0.05), (2, 0.02))
    ]
    for table, found in zip(tables, outcomes([task(table) for table in tables], 3), strict=True):
        alone, begin = fedceo.run(table), fedceo.run(table, should_stop=lambda: True)
        rows = [torch.cat([w.flatten().double() for w in run.weights.values()]) for run in (found, alone, begin)]
        assert float((rows[0] - rows[1]).norm() / (rows[1] - rows[2]).norm()) < 1e-3
