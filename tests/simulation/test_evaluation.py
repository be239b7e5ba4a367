"""Accuracies against counting by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedceo.models import build_model, parameters_of
from fedceo.models.logistic import Logistic
from fedceo.simulation.evaluation import Evaluator
from tests.support.small_federation import SmallConv, federation


def measured(*local_test: list[int]) -> tuple[Evaluator, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = SmallConv()
    data = replace(federation(), local_test=[torch.tensor(places, dtype=torch.int64) for places in local_test])
    return Evaluator(model, data, torch.device("cpu"), torch.float32), parameters_of(model)


def test_one_model_for_all_is_measured_client_by_client() -> None:
    evaluator, weights = measured([0, 1, 2], [], [20, 21, 22, 23, 24], [40])
    data = evaluator.federation
    logits = evaluator.model(data.x)
    hits = (logits.argmax(1) == data.y).double()
    by_hand = (hits[:3].mean() + hits[20:25].mean() + hits[40]) / 3
    assert evaluator.measure_local(weights, range(4)) == pytest.approx(float(by_hand))
    each = evaluator.measure_personal([(client, weights) for client in range(4)], most=0)
    assert each["local_accuracy"] == pytest.approx(float(by_hand))
    assert evaluator.measure_local(weights, [1]) is None, "nobody has a record"


def test_classes_without_records_have_no_accuracy() -> None:
    evaluator, weights = measured([], [], [], [])
    data = evaluator.federation
    evaluator.federation = replace(data, classes=data.classes + 1)
    found = evaluator.measure(weights)
    hits = evaluator.model(data.test_x).argmax(1) == data.test_y
    expected = [float(hits[data.test_y == label].double().mean()) for label in range(data.classes)]
    assert found["test_accuracy_per_class"] == pytest.approx([*expected, None])
    assert found["test_accuracy"] == pytest.approx(float(hits.double().mean()))


def test_p_dist_weighs_classes_as_a_client_has_them() -> None:
    """Records of the test set drawn with a client's label shares are classified right as often as P-dist says."""
    evaluator, weights = measured([], [], [], [])
    data = evaluator.federation
    hits = (evaluator.model(data.test_x).argmax(1) == data.test_y).double()
    own = []
    for client in range(data.clients):
        labels = data.y[data.train[client]]
        odds = [float((labels == label).double().mean() / (data.test_y == label).sum()) for label in data.test_y]
        own.append(float((hits * torch.tensor(odds, dtype=torch.float64)).sum()))
    found = evaluator.measure_personal([(client, weights) for client in range(data.clients)], most=data.clients)
    assert found["distribution_accuracy"] == pytest.approx(sum(own) / len(own))
    assert found["distribution_accuracy_worst"] == pytest.approx(min(own))
    labels = data.y[data.validation]
    right = (evaluator.model(data.x[data.validation]).argmax(1) == labels).double()
    by_hand = [
        sum(float((data.y[data.train[k]] == each).double().mean() * right[labels == each].mean()) for each in range(3))
        for k in (0, 2)
    ]
    validated = evaluator.validate_personal([(0, weights), (2, weights), (3, weights)], most=2)
    assert validated == pytest.approx(sum(by_hand) / 2)
    evaluator.federation = replace(data, validation=data.validation[:0])
    assert evaluator.validate_personal([(0, weights)], most=1) is None, "there are no validation records"
    few = evaluator.measure_personal([(client, weights) for client in range(data.clients)], most=1)
    assert few["distribution_accuracy"] == pytest.approx(own[0])


class Rectified(nn.Linear):
    """One linear layer by its modules, and yet no linear model: a product of its weights would be wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x.flatten(1)).relu()


@pytest.mark.parametrize("model", [Logistic((1, 4, 4), 3), nn.Sequential(nn.Flatten(), Rectified(16, 3))])
def test_models_that_are_measured_together_are_measured_as_alone(model: nn.Module) -> None:
    data = replace(federation(), local_test=[torch.arange(3)] * 4)
    evaluator = Evaluator(model, data, torch.device("cpu"), torch.float32)
    torch.manual_seed(0)
    models = [(k, {name: torch.randn_like(w) for name, w in parameters_of(model).items()}) for k in range(4)]
    alone = [evaluator.measure_personal([each], most=1) for each in models]
    for most in (1, 2, 4):
        together = evaluator.measure_personal(models, most)
        for name in ("personal_accuracy", "distribution_accuracy"):
            assert together[name] == pytest.approx(sum(each[name] for each in alone[:most]) / most)
        validated = [evaluator.validate_personal([each], most=1) or 0.0 for each in models[:most]]
        assert evaluator.validate_personal(models, most) == pytest.approx(sum(validated) / most)
    everybodys = [(k, models[0][1]) for k in range(4)]
    shared = evaluator.validate_shared(models[0][1], range(4))
    assert shared == pytest.approx(evaluator.validate_personal(everybodys, most=4))


@pytest.mark.parametrize("name", ["small-cnn", "mlp", "lenet5"])
def test_models_that_differ_by_their_heads_share_one_pass_and_others_do_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (3, 32, 32) if name == "lenet5" else (1, 8, 8)
    data, model = federation(shape=shape), build_model(name, shape, 3, 0)
    evaluator, start = Evaluator(model, data, torch.device("cpu"), torch.float32), parameters_of(model)
    heads = list(start)[-2 if "bias" in list(start)[-1] else -1 :]
    torch.manual_seed(0)
    models = [(k, {n: torch.randn_like(w) if n in heads else w for n, w in start.items()}) for k in range(3)]
    alone = {k: evaluator._run(w, data.test_x, data.test_y)[0] for k, w in models}
    passes, body, run = [], Evaluator._body, Evaluator._run

    def counted(function: Any, *given: Any) -> Any:
        passes.append(function)
        return function(*given)

    monkeypatch.setattr(Evaluator, "_body", lambda *given: counted(body, *given))
    monkeypatch.setattr(Evaluator, "_run", lambda *given: counted(run, *given))
    together = dict(evaluator._hits(models, data.test_x, data.test_y))
    assert len(passes) == 1 and all(torch.equal(together[k], alone[k]) for k in alone)
    first = next(iter(start))
    others = [(k, weights | {first: weights[first] + k}) for k, weights in models]
    apart = dict(evaluator._hits(others, data.test_x, data.test_y))
    assert len(passes) == 4
    assert all(torch.equal(apart[k], run(evaluator, w, data.test_x, data.test_y)[0]) for k, w in others)


def test_the_worst_tenth_and_classes_that_nobody_tests() -> None:
    """Twenty-one clients of one class each but the last, whose class has no test records."""
    evaluator, _ = measured([], [], [], [])
    data = evaluator.federation
    classes = torch.arange(3).repeat(7)
    evaluator.federation = replace(
        data, y=classes, train=[torch.tensor([k]) for k in range(21)], test_y=data.test_y.clamp_max(1), classes=3
    )
    accuracies = [(k, [k / 100, 0.5 + k / 100, None]) for k in range(21)]
    counted = sorted(k / 100 if k % 3 == 0 else 0.5 + k / 100 for k in range(21) if k % 3 < 2)
    found = evaluator.measure_distribution(accuracies)
    assert found["distribution_accuracy"] == pytest.approx(sum(counted) / 14)
    assert found["distribution_accuracy_worst"] == pytest.approx(sum(counted[:2]) / 2)
    assert evaluator.measure_distribution([])["distribution_accuracy"] is None
