"""Clipping and noise: the bound, the size and independence of the noise, and what happens to NaN."""

from collections.abc import Mapping

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedceo.mechanisms.base import Mechanism
from fedceo.mechanisms.clipping import clip_updates, zero_nonfinite
from fedceo.training.schedule import Schedule
from tests.support.privatising import SIZE, K, cohort, mechanism, privatised


def flat(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([w.flatten(1) for w in weights.values()], 1).double()


def clipped_by_hand(starts: Mapping[str, Tensor], trained: Mapping[str, Tensor], clip: float) -> Tensor:
    """The updates as rows, each scaled down to the clip."""
    updates = flat({name: trained[name] - starts[name] for name in starts})
    return updates * (clip / updates.norm(dim=1, keepdim=True)).clamp_max(1.0)


def residuals(made: Mechanism, round_: int, scale: float = 1.0) -> Tensor:
    """(upload - start) / step - clip(update): what must be pure noise, (K, SIZE)."""
    starts, trained = cohort(scale)
    uploads = privatised(made, starts, trained, round_)
    return (flat(uploads.weights) - flat(starts)) / made.step - clipped_by_hand(starts, trained, made.clip)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e4])
@pytest.mark.parametrize("randomness", ["seeded", "system"])
def test_distributed_noise_is_what_it_should_be(scale: float, randomness: str) -> None:
    made = mechanism(schedule=Schedule(0, randomness))
    std = 1.5 * 2.0 / K**0.5
    first, second = residuals(made, 1, scale), residuals(made, 2, scale)
    noise = torch.cat([first, second])
    for row in noise:
        assert 1e-7 < stats.chi2.cdf(float(row.square().sum()) / std**2, SIZE) < 1 - 1e-7
        assert stats.kstest(row.numpy() / std, "norm").pvalue > 1e-7
    correlation = torch.corrcoef(noise) - torch.eye(2 * K)
    assert float(correlation.abs().max()) * SIZE**0.5 < 6, "independent between clients and rounds"


def test_central_noise_is_added_once_to_the_sum() -> None:
    made = mechanism(kind="central", divisor=7.0)
    starts, trained = cohort()
    start = {name: w[0] for name, w in starts.items()}
    mean = privatised(made, starts, trained)
    from_one_start = {name: w[:1].expand_as(w) for name, w in starts.items()}
    total = clipped_by_hand(from_one_start, trained, 2.0).sum(0)
    noise = (flat({n: w[None] for n, w in mean.weights.items()}) - flat({n: w[None] for n, w in start.items()}))[0]
    noise = noise * 7.0 / 0.5 - total
    assert 1e-7 < stats.chi2.cdf(float(noise.square().sum()) / 3.0**2, SIZE) < 1 - 1e-7


def test_clipping_is_over_all_tensors_together() -> None:
    updates = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([[4.0], [0.4]])}
    clipped = clip_updates(updates, 1.0)
    assert torch.allclose(clipped["a"], torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    assert torch.allclose(clipped["b"], torch.tensor([[0.8], [0.4]]))
    assert torch.equal(clip_updates({"a": torch.zeros(1, 3)}, 1.0)["a"], torch.zeros(1, 3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["none", "distributed", "record"])
def test_a_nonfinite_update_becomes_zero_and_is_still_noised(bad: float, kind: str) -> None:
    starts, trained = cohort()
    trained["b"][3, 0, 0] = bad
    uploads = privatised(mechanism(kind), starts, trained)
    assert uploads.nonfinite == 1
    assert all(bool(torch.isfinite(w).all()) for w in uploads.weights.values())
    moved = float((uploads.weights["a"][3] - starts["a"][3]).norm())
    assert (moved > 1) if kind == "distributed" else (moved == 0)


def test_nothing_nonfinite_is_counted_where_there_is_none() -> None:
    _, count = zero_nonfinite({"a": torch.ones(3, 2)})
    assert count == 0


def test_system_noise_does_not_repeat() -> None:
    made = mechanism(schedule=Schedule(0, "system"))
    assert not torch.equal(residuals(made, 1), residuals(made, 1))
    seeded = mechanism()
    assert torch.equal(residuals(seeded, 1), residuals(seeded, 1))


def test_min_reports_sizes_the_share() -> None:
    few = residuals(mechanism(min_reports=5), 1)
    assert float(few.std()) == pytest.approx(1.5 * 2.0 / 5**0.5, rel=0.01)


def test_no_two_noise_streams_begin_alike() -> None:
    """Torch's CPU generator keeps 32 bits of a seed: among these draws two would be equal."""
    firsts = {
        float(Schedule(0).generator("upload noise", t, k).standard_normal()) for t in range(1, 1001) for k in range(100)
    }
    assert len(firsts) == 100_000
