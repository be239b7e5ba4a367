"""Runs of every task: engines agree, records are clipped one by one, own losses count, tuning has a direction."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedceo
from fedceo.data import federate, from_arrays, from_texts
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.experiment.task_table import Task as Settings
from fedceo.models import build_model, parameters_of
from fedceo.simulation.identity import identity
from fedceo.simulation.preparing import prepare
from fedceo.studies.cells import Cell
from fedceo.studies.private import Question, tune_privately
from fedceo.studies.table import rows_of
from fedceo.studies.tune import tune_on_grid
from fedceo.tasks import make_task
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.user_modules import module_here

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5)).astype(np.float32)
Y = X @ RNG.normal(size=(5, 2)) + 0.1 * RNG.normal(size=(300, 2))
WHO = np.arange(300) % 10
SOURCES = {
    "classification": from_arrays(X, Y.argmax(1), client=WHO),
    "binary": from_arrays(X, (Y[:, 0] > 0).astype(int), client=WHO),
    "regression": from_arrays(X, Y, client=WHO),
    "multi-label": from_arrays(X, (Y > 0).astype(int), client=WHO),
    "next-token": from_texts(["abcabcabc" * 2] * 60, client=np.arange(60) % 10, length=6),
}
BASE: dict[str, Any] = {
    "data": {"name": "mine", "partition": "natural", "local_test": 0.2},
    "cohort": {"size": 4},
    "model": {"name": "logistic"},
    "train": {"rounds": 2, "local_epochs": 1, "batch_size": 8, "learning_rate": 0.1, "precision": "float64"},
    "privacy": {"mechanism": "none"},
    "method": {"name": "fedavg"},
    "evaluation": {"every": 1},
}
PRIVACY: dict[str, dict[str, Any]] = {
    "none": {"mechanism": "none"},
    "record": {"mechanism": "record", "noise_multiplier": 0.5},
}
OWN = """
import torch

def pinball(outputs, targets):
    error = targets - outputs
    return torch.maximum(0.9 * error, -0.1 * error).mean(-1)

def mean_of_batch(outputs, targets):
    return (outputs - targets).square().mean()

def beside_others(outputs, targets):
    return (outputs - outputs.mean(0)).square().mean(-1)

def without_gradient(outputs, targets):
    return (outputs - targets).detach().square().mean(-1)

def bias(outputs, targets):
    return (outputs - targets).mean().abs()

bias.lower_is_better = True

def rmse(outputs, targets):
    return 0.0

def words(outputs, targets):
    return "many"

number = 3
"""


def experiment(name: str, **changed: Mapping[str, Any]) -> dict[str, Any]:
    model = {"name": "char-lstm"} if name == "next-token" else BASE["model"]
    merged = {section: {**BASE.get(section, {}), **fields} for section, fields in changed.items()}
    return BASE | {"task": {"name": name}, "model": model} | merged


def run(name: str, **changed: Mapping[str, Any]) -> fedceo.Run:
    return fedceo.run(experiment(name, **changed), data=SOURCES[name], progress=False)


@pytest.mark.parametrize("regime", PRIVACY)
@pytest.mark.parametrize("name", SOURCES)
def test_engines_agree(name: str, regime: str) -> None:
    found = [run(name, privacy=PRIVACY[regime], train={"engine": engine}) for engine in ("loop", "batched")]
    assert [each.result["engine"] for each in found] == ["loop", "batched"]
    for key, w in found[0].weights.items():
        torch.testing.assert_close(found[1].weights[key], w, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_measured_is_what_the_model_does(name: str) -> None:
    done = run(name)
    metric = make_task(Settings(name=name)).main
    federation = make_task(Settings(name=name)).prepared(federate(SOURCES[name], done.experiment.data, 0))
    with torch.no_grad():
        outputs = done.model(federation.inputs(federation.test_x, torch.float64))
    assert done.history[-1][f"test_{metric.name}"] == pytest.approx(metric.measured(outputs, federation.test_y))
    summary = done.result[metric.name]
    values = [record[f"test_{metric.name}"] for record in done.history]
    assert summary["last"] == values[-1]
    assert summary["best"] == (max if metric.higher_is_better else min)(values)
    assert f"test {metric.words} {metric.show(values[-1])}" in repr(done)


def test_the_worst_tenth_of_clients_has_the_highest_errors() -> None:
    done = run("regression")
    federation = federate(SOURCES["regression"], done.experiment.data, 0)
    errors = []
    for client in range(federation.clients):
        x, y = federation.local_test_records(client)
        with torch.no_grad():
            errors.append(math.sqrt(float((done.model(x.double()) - y).square().mean())))
    last = done.history[-1]
    assert last["local_rmse"] == pytest.approx(np.mean(errors))
    assert last["local_rmse_worst"] == pytest.approx(max(errors))  # one of ten clients
    assert done.result["rmse"]["local_rmse_worst_last"] == last["local_rmse_worst"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_record_moves_a_private_step_by_no_more_than_the_clip(name: str) -> None:
    """One client of one record, without noise: the step is its clipped gradient, however many targets it has."""
    task = make_task(Settings(name=name))
    federation = task.prepared(federate(SOURCES[name], parse_experiment(experiment(name)).data, 0))
    shown = federation.train[0][:1]
    one = replace(federation, train=[shown])
    architecture = "char-lstm" if name == "next-token" else "logistic"
    model = build_model(architecture, federation.shape, federation.classes, 0).double()
    context = TrainingContext(model, one, Schedule(0), torch.device("cpu"), torch.float64, task=task)
    start = {key: w[None] for key, w in parameters_of(model).items()}
    clip = 1e-4
    work = Work(epochs=1, batch_size=1, learning_rate=1.0, record=RecordPrivacy(clip, 0.0))
    trained = LoopTrainer(context).train(start, [0], 1, work).weights
    moved = math.sqrt(sum(float((trained[key] - w).square().sum()) for key, w in start.items()))
    assert 0.99 * clip < moved <= clip


def test_a_language_model_learns_a_text_that_repeats() -> None:
    done = run("next-token", train={"rounds": 8, "learning_rate": 2.0, "local_epochs": 3, "precision": "float32"})
    assert done.result["perplexity"]["last"] < 6
    assert done.history[-1]["test_accuracy"] > 0.6


def test_own_loss_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = module_here("own_task", OWN, tmp_path, monkeypatch)
    task = {"name": "regression", "loss": f"{own}:pinball", "metrics": [f"{own}:bias", "mae"]}
    done = fedceo.run(experiment("regression") | {"task": task}, data=SOURCES["regression"], progress=False)
    assert done.result["engine"] == "loop" and "a loss of your own" in caplog.text
    assert done.result["metric"] == "bias" and done.result["lower_is_better"]
    values = [record["test_bias"] for record in done.history]
    assert done.result["bias"]["best"] == min(values) and "test_mae" in done.history[-1]
    plain = run("regression", train={"engine": "loop"})
    assert not torch.equal(done.weights["linear.weight"], plain.weights["linear.weight"])
    changed = experiment("regression", train={"engine": "batched"}) | {"task": task}
    with pytest.raises(UsageError, match="cannot compute a loss of your own"):
        fedceo.run(changed, data=SOURCES["regression"])


def test_a_loss_with_other_code_has_other_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for number, weight in enumerate(("0.9", "0.8")):
        folder = tmp_path / str(number)
        folder.mkdir()
        name = module_here("changed", OWN.replace("0.9", weight), folder, monkeypatch)
        found.add(make_task(Settings(name="regression", loss=f"{name}:pinball")).identity()["own_loss"])
    assert len(found) == 2
    simulation = prepare(parse_experiment(experiment("regression")), SOURCES["regression"])
    assert simulation.task.identity() == {}
    key, before = simulation.schedule.noise_key, identity(simulation, simulation.experiment)
    simulation.task = make_task(Settings(name="regression", loss=f"{name}:pinball"))
    assert identity(simulation, simulation.experiment) != before
    own = experiment("regression") | {"task": {"name": "regression", "loss": f"{name}:pinball"}}
    assert prepare(parse_experiment(own), SOURCES["regression"]).schedule.noise_key != key


@pytest.mark.parametrize(
    "task, words",
    [
        ({"loss": "own:mean_of_batch"}, "gives shape (), expected (2,), one a record"),
        ({"loss": "own:beside_others"}, "gives a record another loss beside others than alone"),
        ({"loss": "own:without_gradient"}, "gives losses without a gradient"),
        ({"loss": "own:number"}, "is a int, expected a function of outputs and targets"),
        ({"loss": "own:nowhere"}, "has no 'nowhere'"),
        ({"metrics": ["own:rmse"]}, "has the name of the library's rmse"),
        ({"metrics": ["own:words"]}, "failed with ValueError"),
    ],
)
def test_wrong_losses_and_metrics_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: dict[str, Any], words: str
) -> None:
    own = module_here("wrong_task", OWN, tmp_path, monkeypatch)
    named = json.loads(json.dumps(task).replace("own:", f"{own}:"))
    asked = experiment("regression") | {"task": {"name": "regression"} | named}
    with pytest.raises(UsageError) as refused:
        fedceo.run(asked, data=SOURCES["regression"], progress=False)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_tuning_takes_the_lower_error_and_the_table_names_the_metric(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=Y, client=WHO)
    data = {"path": str(tmp_path / "mine.npz"), "partition": "natural"}
    asked = parse_experiment(experiment("regression") | {"data": data})
    found = tune_on_grid({"a": asked}, ["train.learning_rate=[1e-6, 0.1, 1e-5]"], tmp_path / "out", jobs=1)
    tuned, score = found["a"]
    trials = json.loads((tmp_path / "out" / "trials.json").read_text())["a"]
    errors = [trial["validation_rmse"] for trial in trials]
    assert tuned.train.learning_rate == 0.1 and -score == min(errors) == errors[1]
    done = fedceo.run(asked, progress=False)
    (row,) = rows_of([Cell("a", asked, tmp_path)], [done.result])
    assert row["metric"] == "RMSE" and row["last"] == done.result["rmse"]["last"]


def test_no_private_study_by_a_metric_that_one_record_can_move_without_bound(tmp_path: Path) -> None:
    from fedceo.accounting.trials import Trials

    np.savez(tmp_path / "mine.npz", x=X, y=Y, client=WHO)
    privacy = {"mechanism": "central", "noise_multiplier": 1.0, "randomness": "system"}
    data = {"path": str(tmp_path / "mine.npz"), "partition": "natural"}
    asked = parse_experiment(experiment("regression") | {"data": data, "privacy": privacy})
    question = Question(asked, ({"train.learning_rate": 0.1},), Trials("geometric", 2.0), 0.05)
    with pytest.raises(UsageError, match="nobody knows by how much one record changes the RMSE"):
        tune_privately(question, tmp_path / "study", 1)


def test_cross_entropy_of_more_metrics_is_the_same_training() -> None:
    plain = run("classification")
    more = fedceo.run(
        experiment("classification") | {"task": {"metrics": ["f1", "accuracy"]}},
        data=SOURCES["classification"],
        progress=False,
    )
    for key, w in plain.weights.items():
        assert torch.equal(w, more.weights[key])
    assert more.history[-1]["test_accuracy"] == plain.history[-1]["test_accuracy"]
    assert more.result["metric"] == "f1"
