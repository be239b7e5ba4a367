"""The loaders on the files their authors publish, where somebody has downloaded them."""

import os
from pathlib import Path

import pytest
import torch

from fedceo.data import build_federation, known, load_source
from fedceo.experiment.sections import Data

ROOT = Path(os.environ.get("FEDCEO_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(path: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (ROOT / path).exists(), reason=f"no {path} in FEDCEO_DATA or ../shared/data")


@needs("mnist")
def test_mnist() -> None:
    assert {each.verdict for each in known("mnist").check(ROOT)} == {"as published"}
    source = load_source("mnist", ROOT)
    assert source.x.shape == (60_000, 1, 28, 28) and source.test_x.shape == (10_000, 1, 28, 28)
    assert source.y[:5].tolist() == [5, 0, 4, 1, 9]
    values = source.x.double() / 255
    assert (round(values.mean().item(), 4),) == source.mean and (round(values.std().item(), 4),) == source.std


@needs("cifar-10-batches-bin")
def test_cifar10() -> None:
    assert {each.verdict for each in known("cifar10").check(ROOT)} == {"as published"}
    source = load_source("cifar10", ROOT)
    assert source.x.shape == (50_000, 3, 32, 32) and source.test_x.shape == (10_000, 3, 32, 32)
    assert source.y.bincount().tolist() == [5000] * 10 and source.test_y.bincount().tolist() == [1000] * 10
    means = source.x.float().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0)  # red, green, blue


@needs("femnist/femnist_subset.npz")
def test_femnist_writers_are_natural_clients() -> None:
    path = str(ROOT / "femnist" / "femnist_subset.npz")
    settings = Data(name="femnist", root=str(ROOT), partition="natural", local_test=0.1)
    for given in (settings, Data(path=path, partition="natural", local_test=0.1)):
        federation = build_federation(given, seed=0)
        assert federation.clients == 540 and federation.classes == 62 and federation.shape == (1, 28, 28)
        kept = sum(map(len, federation.train)) + len(federation.validation)
        assert kept + len(federation.test_y) == 55_950
        assert torch.equal(federation.test_y, federation.y[torch.cat(list(federation.local_test))])
    assert build_federation(settings.model_copy(update={"min_records": 50}), 0).clients == 294
    letters = settings.model_copy(update={"name": "femnist-letters"})
    assert build_federation(letters, 0).classes == 26


@needs("sent140/sent140_subset.csv.gz")
def test_sent140_by_user_and_pooled() -> None:
    settings = Data(name="sent140", root=str(ROOT), partition="natural", min_records=10)
    federation = build_federation(settings, seed=0)
    assert federation.clients == 394 and federation.shape == (25,) and federation.classes == 2
    pooled = build_federation(Data(name="sent140", root=str(ROOT), partition="pooled", clients=100), seed=0)
    assert pooled.clients == 100 and len(pooled.y) == 60_591
    assert int(pooled.sizes.sum()) + len(pooled.validation) + len(pooled.test_y) == 60_591
