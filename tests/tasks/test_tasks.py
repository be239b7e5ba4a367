"""Losses of tasks against torch, their gradients against autograd, and the targets that each task takes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedceo.data import Federation, federate, from_arrays, from_texts
from fedceo.data.texts import ALPHABET, TOKENS, encoded
from fedceo.errors import UsageError
from fedceo.experiment.registry import TASKS
from fedceo.experiment.sections import Data
from fedceo.experiment.task_table import Task as Settings
from fedceo.tasks import Task, make_task

X = np.ones((40, 3), np.float32)
KINDS = {
    "labels": from_arrays(X, np.arange(40) % 3),
    "two labels": from_arrays(X, np.arange(40) % 2),
    "numbers": from_arrays(X, np.linspace(0, 1, 40)),
    "flags": from_arrays(X, np.arange(80).reshape(40, 2) % 2),
    "one flag": from_arrays(X, np.arange(40)[:, None] % 2),
    "texts": from_texts(["hello, world"] * 40, length=8),
}
TAKES = {
    "classification": {"labels", "two labels"},
    "binary": {"two labels", "one flag"},
    "regression": {"numbers", "flags", "one flag"},
    "multi-label": {"flags", "one flag"},
    "next-token": {"texts"},
}


def task_named(name: str) -> Task:
    return make_task(Settings(name=name))


def dealt(kind: str) -> Federation:
    return federate(KINDS[kind], Data(name=kind, clients=4), 0)


def test_every_task_is_tested() -> None:
    assert set(TASKS) == set(TAKES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TAKES)
def test_a_task_takes_its_targets_and_refuses_all_others_in_one_line(name: str, kind: str) -> None:
    if kind in TAKES[name]:
        prepared = task_named(name).prepared(dealt(kind))
        assert task_named(name).prepared(prepared).digest == prepared.digest
        return
    with pytest.raises(UsageError, match=f'task.name: "{name}" needs') as refused:
        task_named(name).prepared(dealt(kind))
    assert "\n" not in str(refused.value)


def test_binary_has_one_output_and_the_second_label_is_positive() -> None:
    before = dealt("two labels")
    after = task_named("binary").prepared(before)
    assert after.classes == 1 and after.y.shape == (len(before.y), 1)
    assert torch.equal(after.y[:, 0].long(), before.y) and torch.equal(after.test_y[:, 0].long(), before.test_y)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_losses_are_those_of_torch(seed: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(6, width, generator=generator, dtype=torch.float64)
    numbers = torch.randn(6, width, generator=generator, dtype=torch.float64)
    flags = (numbers > 0).double()
    labels = torch.randint(width, (6,), generator=generator)
    assert task_named("regression").loss(outputs, numbers) == pytest.approx(float(F.mse_loss(outputs, numbers)))
    expected = F.binary_cross_entropy_with_logits(outputs, flags)
    assert task_named("multi-label").loss(outputs, flags) == pytest.approx(float(expected))
    assert torch.equal(task_named("classification").loss(outputs, labels), F.cross_entropy(outputs, labels))


@pytest.mark.parametrize("name", TASKS)
def test_reductions_agree(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 4, 3, generator=generator) if name == "next-token" else torch.randn(5, 3)
    if name == "classification":
        targets = torch.randint(3, (5,))
    elif name == "next-token":
        targets = torch.randint(-1, 3, (5, 4))
    else:
        targets = torch.randint(2, (5, 3)).float()
    task = task_named(name)
    each = task.loss(outputs, targets, "none")
    assert each.shape == (5,)
    assert task.loss(outputs, targets, "sum") == pytest.approx(float(each.sum()))
    assert task.loss(outputs, targets) == pytest.approx(float(each.mean()))
    alone = torch.cat([task.loss(outputs[k : k + 1], targets[k : k + 1], "none") for k in range(5)])
    torch.testing.assert_close(alone, each)  # a record's loss depends on no other record


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 60))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", ["regression", "multi-label", "binary"])
def test_written_gradients_are_those_of_autograd(name: str, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    width = 1 if name == "binary" else 3
    outputs = scale * torch.randn(2, 5, width, generator=generator, dtype=torch.float64)
    targets = (torch.randn(2, 5, width, generator=generator) > 0).double()
    leaf = outputs.clone().requires_grad_()
    each = task_named(name).loss(leaf.flatten(0, 1), targets.flatten(0, 1), "none").view(2, 5)
    (expected,) = torch.autograd.grad(each.sum(), leaf)
    losses, found = task_named(name).derivative(outputs, targets)
    torch.testing.assert_close(losses, each.detach())
    torch.testing.assert_close(found, expected)


def test_a_text_counts_by_the_mean_over_its_own_tokens() -> None:
    outputs = torch.randn(2, 4, 5)
    targets = torch.tensor([[1, 2, 3, 4], [2, -1, -1, -1]])
    each = task_named("next-token").loss(outputs, targets, "none")
    by_hand = [-outputs.log_softmax(-1)[0, range(4), [1, 2, 3, 4]].mean(), -outputs.log_softmax(-1)[1, 0, 2]]
    torch.testing.assert_close(each, torch.stack(by_hand))
    assert task_named("next-token").loss(outputs[:1], torch.full((1, 4), -1)) == 0  # nothing but filling


@given(st.lists(st.text(max_size=30), min_size=6, max_size=10), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_pieces_put_together_are_the_texts(texts: list[str], length: int) -> None:
    if not any(texts):
        with pytest.raises(UsageError, match="no text has a character"):
            from_texts(texts)
        return
    source = from_texts(texts, client=list(range(len(texts))), length=length)
    assert source.x.shape == source.y.shape and source.x.shape[1] == length and source.classes == TOKENS
    tokens = source.y[source.y >= 0].tolist()
    assert tokens == [token for text in texts for token in encoded(text)]
    for x, y in zip(source.x, source.y, strict=True):
        real = int((y >= 0).sum())
        assert x[0] == 0 and x[1:real].tolist() == y[: real - 1].tolist()


def test_the_alphabet_is_fixed() -> None:
    assert encoded("\n a~é") == [2, 3, 2 + ALPHABET.index("a"), TOKENS - 1, 1]


def test_a_task_without_labels_cannot_be_dealt_by_labels() -> None:
    with pytest.raises(UsageError, match='"shards" goes by labels, and arrays has none'):
        federate(KINDS["numbers"], Data(name="x", clients=4, partition="shards"), 0)
