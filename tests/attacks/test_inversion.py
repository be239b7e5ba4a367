"""The attacks on small pictures: they find the records, and agree with plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedceo.attacks import Attack, Reconstruction, Sender, reconstruct
from fedceo.attacks import inversion as inversion_module
from fedceo.attacks.inversion import _Problem, read_labels, total_variation
from fedceo.errors import UsageError
from fedceo.models import build_model, parameters_of

SHAPE, CLASSES = (1, 8, 8), 4


def sender(steps: int = 1, name: str = "dlg-lenet", momentum: float = 0.0) -> Sender:
    model = build_model(name, SHAPE, CLASSES, seed=0)
    return Sender(model, parameters_of(model), 0.1, steps, momentum)


def records(count: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.rand(count, *SHAPE, generator=rng), torch.arange(count) % CLASSES


def box() -> tuple[Tensor, Tensor]:
    return torch.zeros(SHAPE), torch.ones(SHAPE)


def attacked(attack: Attack, client: Sender, count: int) -> tuple[Reconstruction, Tensor, Tensor]:
    x, labels = records(count)
    held = client.updates(x, F.one_hot(labels, CLASSES).float())
    return reconstruct(attack, client, held, CLASSES, box()), x, labels


@pytest.mark.parametrize("name", ["dlg-lenet", "small-cnn", "mlp"])
def test_updates_are_those_of_plain_torch(name: str) -> None:
    x, labels = records(3)
    client = sender(3, name, momentum=0.5)
    found = client.updates(x, F.one_hot(labels, CLASSES).float())
    for k in range(3):
        model = build_model(name, SHAPE, CLASSES, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x[k : k + 1]), labels[k : k + 1]).backward()
            optimizer.step()
        for key, trained in parameters_of(model).items():
            torch.testing.assert_close(found[key][k], (client.weights[key] - trained) / 0.1, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["dlg-lenet", "small-cnn"])
def test_labels_are_read_from_the_last_layer(name: str) -> None:
    x, labels = records(8)
    held = sender(name=name).updates(x, F.one_hot(labels, CLASSES).float())
    assert read_labels(held).tolist() == labels.tolist()


@pytest.mark.parametrize("name, steps", [("dlg", 1), ("idlg", 1), ("idlg", 3)])
def test_records_are_found_again(name: str, steps: int) -> None:
    found, x, labels = attacked(Attack(name, iterations=40), sender(steps), 3)
    assert found.labels.tolist() == labels.tolist()
    errors = (found.x - x).square().flatten(1).mean(1)
    assert float(errors.median()) < 1e-3
    assert list(found.path) == list(range(0, 41, 4)) and torch.equal(found.path[40], found.x)


def test_inverting_gradients_comes_nearer_and_stays_in_the_box() -> None:
    found, x, labels = attacked(Attack("ig", iterations=200), sender(), 2)
    assert found.labels.tolist() == labels.tolist() and found.x.min() >= 0 and found.x.max() <= 1
    rng = torch.rand(x.shape, generator=torch.Generator().manual_seed(9))
    assert ((found.x - x).square().mean() < 0.7 * (rng - x).square().mean()).item()
    assert float(found.mismatch.max()) < 0.1


def test_the_mismatch_in_parts_and_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = records(3)
    client = sender()
    held = client.updates(x, F.one_hot(labels, CLASSES).float())
    for cosine in (False, True):
        problem = _Problem(client, held, None, SHAPE, CLASSES, cosine, smoothness=0.1 * cosine)
        points, rows = torch.randn(6, 64 + CLASSES, generator=torch.Generator().manual_seed(0)), torch.arange(6)
        values, gradient = problem(points, rows)
        nudge = torch.randn(points.shape, generator=torch.Generator().manual_seed(1))
        ahead, behind = (problem(points + sign * 1e-2 * nudge, rows)[0] for sign in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2e-2, (gradient * nudge).sum(1), rtol=0.05, atol=1e-3)
        with monkeypatch.context() as patch:
            patch.setattr(inversion_module, "MOST_ENTRIES", 1)
            parts = problem(points, rows)
        torch.testing.assert_close(parts, (values, gradient), rtol=1e-3, atol=1e-5)


def test_total_variation() -> None:
    steps = torch.arange(4.0).view(1, 1, 1, 4).expand(1, 1, 3, 4)
    assert total_variation(steps).tolist() == [1.0]
    assert total_variation(torch.ones(2, 3, 4, 4)).tolist() == [0.0, 0.0]


def test_bad_settings() -> None:
    with pytest.raises(UsageError, match="--attack: unknown attack 'idgl', did you mean idlg"):
        Attack("idgl")
    with pytest.raises(UsageError, match="--iterations: 0"):
        Attack("dlg", iterations=0)
