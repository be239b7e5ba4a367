"""Draws of the operating system: their laws, and that none comes twice."""

import os

import numpy as np
import pytest
import torch
from scipy import stats

from fedceo.training.per_example import standard_normal
from fedceo.training.schedule import SECRET, Schedule
from fedceo.training.system_draws import CHUNK, SystemGenerator


def test_every_secret_purpose_draws_from_the_operating_system() -> None:
    system = Schedule(0, "system")
    assert all(isinstance(system.generator(purpose, 1, 2), SystemGenerator) for purpose in SECRET)
    assert not any(isinstance(system.generator(purpose), SystemGenerator) for purpose in ("model", "dropout"))


def test_bits_are_those_of_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask(length: int) -> bytes:
        asked.append(length)
        return bytes(length)

    monkeypatch.setattr(os, "urandom", ask)
    assert SystemGenerator().standard_normal(10).tolist() == [0.0] * 10, "which says nothing but zeros here"
    assert sum(asked) == 80, "64 bits for each normal"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_laws(dtype: type) -> None:
    generator = SystemGenerator()
    normals = generator.standard_normal(3 * CHUNK + 1, dtype=dtype)
    assert normals.dtype == dtype and stats.kstest(normals, "norm").pvalue > 1e-7
    assert 1e-7 < stats.chi2.cdf(float(normals.astype(np.float64) @ normals), normals.size) < 1 - 1e-7
    uniform = generator.random((500, 400), dtype=dtype)
    assert uniform.dtype == dtype and uniform.min() >= 0 and uniform.max() < 1
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-7
    firsts = np.bincount([generator.permutation(5)[0] for _ in range(5000)], minlength=5)
    assert stats.chisquare(firsts).pvalue > 1e-7 and sorted(generator.permutation(50)) == list(range(50))
    keys = [generator.integers(2**63) for _ in range(2000)]
    assert stats.kstest(np.array(keys) / 2.0**63, "uniform").pvalue > 1e-7


def test_shapes_are_those_of_numpy() -> None:
    system, numpy = SystemGenerator(), np.random.default_rng(0)
    for generator in (system, numpy):
        assert isinstance(generator.standard_normal(), float) and isinstance(generator.random(), float)
        assert generator.standard_normal((2, 3)).shape == generator.random((2, 3)).shape == (2, 3)
        row = np.zeros(7, np.float32)
        generator.standard_normal(out=row, dtype=row.dtype)
        assert np.all(row != 0) and len(generator.bytes(9)) == 9


def test_nothing_comes_twice() -> None:
    device = torch.device("cpu")
    rows = [standard_normal(5, Schedule(0, "system").generator("upload noise", 1, 1), device, torch.float64)]
    rows += [standard_normal(5, Schedule(0, "system").generator("upload noise", 1, 1), device, torch.float64)]
    assert not torch.equal(*rows)
