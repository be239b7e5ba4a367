"""Models whose head alone is trained: features are computed once, and nothing else changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedceo
from fedceo.data import Federation
from fedceo.data.cache import cache_folder
from fedceo.models import OnFeatures, build_model, parameters_of
from fedceo.simulation.preparing import as_experiment, prepare
from fedceo.training.features import on_features
from tests.support.small_federation import federation


class Whole(nn.Module):
    """The same network as an OnFeatures, but one that does not say that its first part is fixed."""

    def __init__(self, model: OnFeatures) -> None:
        super().__init__()
        self.transform, self.head = model.transform, model.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.transform(x))


def settings(**sections: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "data": {"name": "digits", "clients": 20, "local_test": 0.1},
        "model": {"name": "scattering"},
        "cohort": {"size": 5},
        "train": {"rounds": 3, "local_epochs": 2, "batch_size": 16, "learning_rate": 0.05},
        "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
        "method": {"name": "fedavg"},
        "evaluation": {"every": 1},
    }
    return {**table, **{name: table.get(name, {}) | fields for name, fields in sections.items()}}


@pytest.fixture
def images() -> Federation:
    return federation(shape=(1, 9, 8))


def test_a_model_without_features_stays_as_it_is(images: Federation) -> None:
    model = build_model("logistic", images.shape, 3, 0)
    assert on_features(model, images) == (model, images)


def test_the_head_on_features_is_the_model_on_records(images: Federation) -> None:
    model = build_model("scattering", images.shape, 3, 0, {"hidden": 5})
    assert isinstance(model, OnFeatures)
    head, features = on_features(model, images)
    assert torch.allclose(head(features.inputs(features.x)), model(images.inputs(images.x)), atol=1e-5)
    assert torch.allclose(head(features.inputs(features.test_x)), model(images.inputs(images.test_x)), atol=1e-5)
    assert parameters_of(head).keys() == parameters_of(model).keys()
    with torch.no_grad():
        next(head.parameters()).add_(1)
    assert torch.equal(next(head.parameters()), next(model.head.parameters())), "they are the same parameters"
    assert features.origin is images and features.digest == images.digest
    assert features.test_digest == images.test_digest


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(
    "privacy",
    [
        {"mechanism": "distributed", "noise_multiplier": 0.5},
        {"mechanism": "record", "noise_multiplier": 0.5, "clip": 0.5},
        {"mechanism": "central", "noise_multiplier": 0.5},
    ],
)
def test_training_on_features_is_training_the_whole_network(engine: str, privacy: dict[str, Any]) -> None:
    """Noise is left out: a run with a model of the user's own draws other noise."""
    quiet = privacy | {"noise_multiplier": 0.0}
    table = settings(privacy=quiet, train={"engine": engine, "precision": "float64", "rounds": 2, "local_epochs": 1})
    fast = fedceo.run(table)
    model = build_model("scattering", (1, 8, 8), 10, prepare(as_experiment(table)).schedule.number("model"))
    assert isinstance(model, OnFeatures)
    slow = fedceo.run(table, model=Whole(model))
    for name, w in fast.weights.items():
        assert torch.allclose(w, slow.weights[name], atol=1e-8)
    assert fast.history[-1]["test_accuracy"] == slow.history[-1]["test_accuracy"]
    assert fast.history[-1]["local_accuracy"] == pytest.approx(slow.history[-1]["local_accuracy"])


def test_both_engines_agree_under_noise() -> None:
    runs = [fedceo.run(settings(train={"engine": engine})) for engine in ("loop", "batched")]
    assert all(torch.allclose(w, runs[1].weights[name], atol=1e-5) for name, w in runs[0].weights.items())
    assert prepare(as_experiment(settings())).engine == "batched"


def test_personal_models_are_measured_on_features() -> None:
    table = settings(model={"hidden": 8}, method={"name": "ppsgd"})
    assert 0.2 < fedceo.run(table).history[-1]["local_accuracy"] <= 1


def test_a_run_gives_back_a_model_of_images(tmp_path: Path) -> None:
    run = fedceo.run(settings(), out=tmp_path / "run")
    back = fedceo.load(tmp_path / "run")
    data = prepare(run.experiment).federation.origin
    x = data.inputs(data.test_x)
    hits = (back.model(x).argmax(1) == data.test_y).double().mean()
    assert float(hits) == pytest.approx(run.result["accuracy"]["last"]) and torch.equal(back.model(x), run.model(x))
    assert run.result["record_shape"] == [1, 8, 8] and run.result["data_digest"] == data.digest
    assert run.weights.keys() == back.weights.keys() == {"head.weight", "head.bias"}
    resumed = fedceo.run(settings(), out=tmp_path / "part", should_stop=lambda: True)
    assert not resumed.finished
    ended = fedceo.resume(tmp_path / "part")
    assert ended.history == run.history


class Counted(nn.Module):
    """A transform that counts the records it has seen."""

    version = "counted 1"

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x.flatten(1) + 1


def test_features_of_published_records_are_kept_on_disk(images: Federation) -> None:
    model = OnFeatures(transform := Counted(), nn.Linear(72, 3))
    published = replace(images, name="digits")
    total = len(images.x) + len(images.test_x)
    _, first = on_features(model, published)
    assert transform.seen >= total
    transform.seen = 0
    _, again = on_features(model, published)
    assert transform.seen == 0 and torch.equal(first.x, again.x) and torch.equal(first.test_x, again.test_x)
    other = replace(published, x=published.x + 1)
    _, changed = on_features(model, other)
    assert transform.seen >= len(images.x) and torch.equal(changed.x, other.inputs(other.x).flatten(1) + 1)


def test_a_damaged_file_of_features_is_made_anew(images: Federation) -> None:
    published = replace(images, name="digits", x=images.x + 2, test_x=images.test_x + 2)
    before = set(cache_folder().glob("digits-features-*"))
    model = OnFeatures(Counted(), nn.Linear(72, 3))
    _, first = on_features(model, published)
    kept = first.x.clone()
    for path in set(cache_folder().glob("digits-features-*")) - before:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink()
        path.write_bytes(content)
    _, again = on_features(model, published)
    assert torch.equal(again.x, kept)


def test_a_users_own_records_leave_no_file_behind(images: Federation) -> None:
    before = set(cache_folder().glob("*features*"))
    on_features(OnFeatures(Counted(), nn.Linear(72, 3)), images)
    assert set(cache_folder().glob("*features*")) == before
