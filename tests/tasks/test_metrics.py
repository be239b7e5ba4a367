"""Metrics against scikit-learn and closed forms; their direction, and how they are shown."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, mean_absolute_error, mean_squared_error, roc_auc_score

from fedceo.tasks import is_measured, metric_of
from fedceo.tasks.metrics import METRICS

SEEDS = st.integers(0, 2**32 - 1)


def value(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return METRICS[name].value(outputs, targets)


def drawn(seed: int, records: int, labels: int, levels: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of few levels, so that there are ties, and flags of which each label has both kinds."""
    rng = np.random.default_rng(seed)
    outputs = torch.from_numpy(rng.integers(-levels, levels, (records, labels)) / 2)
    flags = rng.integers(0, 2, (records, labels))
    flags[0], flags[1] = 0, 1
    return outputs, torch.from_numpy(flags).float()


@given(SEEDS, st.integers(2, 40), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_f1_and_auc_are_those_of_scikit_learn(seed: int, records: int, labels: int) -> None:
    outputs, flags = drawn(seed, records, labels)
    predicted = (outputs > 0).numpy()
    expected = np.mean([f1_score(flags[:, k], predicted[:, k]) for k in range(labels)])
    assert value("f1", outputs, flags) == pytest.approx(expected)
    assert value("auc", outputs, flags) == pytest.approx(roc_auc_score(flags, outputs, average="macro"))
    assert value("accuracy", outputs, flags) == pytest.approx((predicted == (flags > 0).numpy()).mean())


@given(SEEDS, st.integers(1, 30), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_errors_of_numbers_are_those_of_scikit_learn(seed: int, records: int, targets: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, y = (torch.from_numpy(rng.normal(size=(records, targets))) for _ in range(2))
    assert value("rmse", outputs, y) == pytest.approx(math.sqrt(mean_squared_error(y, outputs)))
    assert value("mae", outputs, y) == pytest.approx(mean_absolute_error(y, outputs))


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_f1_over_classes_is_that_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = torch.from_numpy(rng.normal(size=(30, 4))), torch.from_numpy(rng.integers(0, 4, 30))
    expected = f1_score(labels, logits.argmax(1), average="macro", zero_division=np.nan)
    assert value("f1", logits, labels) == pytest.approx(expected)


def test_perplexity_of_a_model_that_knows_nothing_is_the_number_of_tokens() -> None:
    targets = torch.tensor([[0, 3, -1], [2, -1, -1]])
    assert value("perplexity", torch.zeros(2, 3, 7), targets) == pytest.approx(7)


def test_perplexity_weighs_tokens_alike_and_leaves_filling_out() -> None:
    chances = torch.tensor([0.5, 0.25, 0.125])  # of the true token at the three places that count
    logits = torch.zeros(2, 2, 2)
    logits[0, 0, 0], logits[0, 1, 0], logits[1, 0, 0] = (chances / (1 - chances)).log()
    targets = torch.tensor([[0, 0], [0, -1]])
    assert value("perplexity", logits, targets) == pytest.approx(float(chances.log().mean().neg().exp()))
    assert value("accuracy", logits, targets) == pytest.approx(1 / 3)  # the first is a tie, which the first token wins


def test_what_is_not_defined_is_none() -> None:
    assert METRICS["auc"].measured(torch.ones(3, 1), torch.ones(3, 1)) is None
    assert METRICS["rmse"].measured(torch.full((3, 1), math.inf), torch.ones(3, 1)) is None
    assert METRICS["perplexity"].measured(torch.tensor([[[1e4, -1e4]]]), torch.tensor([[1]])) is None


@pytest.mark.parametrize("name", METRICS)
def test_a_better_value_has_a_higher_score_and_none_the_lowest(name: str) -> None:
    metric = METRICS[name]
    better, worse = (0.9, 0.2) if metric.higher_is_better else (0.2, 0.9)
    assert metric.score(better) > metric.score(worse) > metric.score(None)
    assert metric.value_of(metric.score(worse)) == worse


def test_records_say_which_metric_they_hold() -> None:
    assert not is_measured({"round": 1}) and is_measured({"test_accuracy": 0.5})
    rmse = {"metric": "rmse", "lower_is_better": True, "test_rmse": None}
    assert is_measured(rmse) and metric_of(rmse) is METRICS["rmse"]
    own = metric_of({"metric": "pinball", "lower_is_better": True})
    assert (own.words, own.higher_is_better, own.show(0.123456)) == ("pinball", False, "0.1235")
    assert METRICS["f1"].show(0.12345) == "12.35 %" and METRICS["rmse"].show(None) == "-"
