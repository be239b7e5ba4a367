"""Clipping per layer and adaptive clipping: what is bounded, what is noised, what is spent."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedceo
from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.errors import UsageError
from fedceo.mechanisms.clipping import noise_beside_count
from fedceo.mechanisms.uploads import Contribution, Senders
from fedceo.methods.fedceo import FedCEO
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from tests.support import independent_epsilons
from tests.support.privatising import K, cohort, mechanism
from tests.support.privatising import privatised as privatised_by
from tests.support.small_runs import changed

TINY = {"w": torch.zeros(K, 1)}
"""Updates of one entry, where only the count matters."""


def starts() -> dict[str, torch.Tensor]:
    return cohort()[0]


def updates(scale: float) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return {name: scale * torch.randn(w.shape, generator=rng, dtype=w.dtype) for name, w in starts().items()}


def privatised(scale: float, **fields: Any) -> tuple[dict[str, torch.Tensor], Any]:
    trained = {name: w + updates(scale)[name] for name, w in starts().items()}
    made = privatised_by(mechanism(noise_multiplier=0.0, step=1.0, **fields), starts(), trained)
    return {name: w - starts()[name] for name, w in made.weights.items()}, made


def test_per_layer_bounds_every_tensor_and_so_the_whole() -> None:
    sent, _ = privatised(50.0, clipping="per_layer")
    bound = 2.0 / math.sqrt(len(sent))
    for update in sent.values():
        assert torch.allclose(update.flatten(1).norm(dim=1), torch.full((K,), bound, dtype=update.dtype), rtol=1e-4)
    whole = torch.cat([u.flatten(1) for u in sent.values()], 1).norm(dim=1)
    assert torch.allclose(whole, torch.full((K,), 2.0, dtype=whole.dtype), rtol=1e-4)


@pytest.mark.parametrize("scale, share", [(1e-6, 1.0), (1e3, 0.0)])
def test_the_share_within_the_clip_is_told(scale: float, share: float) -> None:
    assert privatised(scale, clipping="adaptive")[1].unclipped == share
    assert privatised(scale)[1].unclipped is None


def test_the_count_is_noised_by_the_server_too() -> None:
    """A tenth of the cohort is there: the count is still divided by the planned K, and its noise is whole."""
    one = {name: w[:1] for name, w in starts().items()}
    start = {name: w[0] for name, w in starts().items()}
    server = mechanism(kind="central", clipping="adaptive", count_noise=2.0)
    sizes = torch.ones(1)
    made = [server.privatise(Contribution(one, one), Senders(t, (0,), sizes), start).unclipped for t in range(1, 2001)]
    found = torch.tensor(made, dtype=torch.float64)
    assert float(found.mean()) == pytest.approx(0.5 + 0.5 / K, abs=0.03)
    assert float(found.std()) == pytest.approx(2.0 / K, rel=0.06)


def test_shares_of_the_counts_noise_are_sized_for_min_reports() -> None:
    shares = mechanism(clipping="adaptive", count_noise=2.0, min_reports=2)
    made = [privatised_by(shares, TINY, TINY, t).unclipped for t in range(1, 2001)]
    found = torch.tensor(made, dtype=torch.float64)
    assert float(found.std()) == pytest.approx(2.0 * math.sqrt(K / 2) / K, rel=0.06)


def test_the_count_is_noised() -> None:
    made = [privatised_by(mechanism(clipping="adaptive", count_noise=2.0), TINY, TINY, t) for t in range(1, 2001)]
    found = torch.tensor([each.unclipped for each in made], dtype=torch.float64)
    assert float(found.mean()) == pytest.approx(1.0, abs=0.02)
    assert float(found.std()) == pytest.approx(2.0 / K, rel=0.06)


@pytest.mark.parametrize("sigma, count", [(1.0, 2.0), (2.0, 1.5), (0.5, 10.0)])
def test_updates_and_counts_together_cost_what_was_planned(sigma: float, count: float) -> None:
    """D10: a client moves the noised sums of updates and of indicators by 1 and by 1/2."""
    mu = math.hypot(1 / noise_beside_count(sigma, count), 0.5 / count)
    assert mu == pytest.approx(1 / sigma), "the privacy of one Gaussian with the noise that was planned"
    planned = independent_epsilons.gaussian_epsilon(1 / sigma, 1e-5)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(planned, rel=1e-6)


def test_a_count_that_spends_everything_is_refused() -> None:
    with pytest.raises(UsageError, match=r"privacy.count_noise: 0.2, expected more than half"):
        fedceo.run(changed(privacy={"clipping": "adaptive", "count_noise": 0.2, "noise_multiplier": 0.5}))


@pytest.mark.parametrize("mechanism_", ["distributed", "central"])
def test_the_clip_follows_the_norms(mechanism_: str) -> None:
    far = {"mechanism": mechanism_, "clipping": "adaptive", "clip": 1e-3, "noise_multiplier": 1e-4}
    run = fedceo.run(changed(privacy=far, method={"restart": "mean"}, train={"rounds": 12}))
    clips = [record["clip"] for record in run.history]
    assert clips == sorted(clips) and clips[-1] == pytest.approx(1e-3 * math.exp(0.1 * 11), rel=0.05)


def test_the_clip_survives_a_resume(tmp_path: Any) -> None:
    table = changed(privacy={"clipping": "adaptive", "noise_multiplier": 0.3})
    count = iter(range(100))
    fedceo.run(table, out=tmp_path / "run", should_stop=lambda: next(count) == 4)
    resumed, whole = fedceo.resume(tmp_path / "run"), fedceo.run(table)
    assert all(torch.equal(resumed.weights[name], w) for name, w in whole.weights.items())


METHODS: dict[str, dict[str, Any]] = {
    "fedceo": {"restart": "mean", "threshold": "noise", "interval": 2},
    "dp-fedavg": {},
    "blur-lus": {"sparsity": 0.0},
}


def follows(simulation: Simulation) -> float:
    """C as the method has it: in its threshold, radius or ball."""
    method, (work, *_) = simulation.method, simulation.phases(1)
    if isinstance(method, FedCEO):
        share = simulation.mechanism.noise * simulation.mechanism.step
        return method.filter.threshold((4, 9), 1.0, 1) / (share * (2 + 3))
    return work.outside_radius if work.radius is None else work.radius


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_makes_of_the_clip_follows_it(name: str) -> None:
    table = changed(privacy={"clipping": "adaptive", "clip": 0.3, "noise_multiplier": 0.3}, train={"rounds": 4})
    simulation = prepare(fedceo.parse_experiment(table | {"method": {"name": name} | METHODS[name]}))
    assert follows(simulation) == pytest.approx(0.3)
    for _ in range(4):
        simulation.step()
        assert follows(simulation) == pytest.approx(simulation.clip)
    assert simulation.clip != pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_look_at_the_clip_survive_a_resume(name: str, tmp_path: Path) -> None:
    table = changed(privacy={"clipping": "adaptive", "clip": 0.3, "noise_multiplier": 0.3}, train={"rounds": 6})
    table = table | {"method": {"name": name} | METHODS[name]}
    count = iter(range(100))
    fedceo.run(table, out=tmp_path / "run", should_stop=lambda: next(count) == 3)
    resumed, whole = fedceo.resume(tmp_path / "run"), fedceo.run(table)
    assert all(torch.equal(resumed.weights[name], w) for name, w in whole.weights.items())


def test_rows_do_not_depend_on_how_updates_are_clipped() -> None:
    flat, adaptive = (fedceo.run(changed(privacy={"clipping": kind})) for kind in ("flat", "adaptive"))
    assert flat.result["privacy"] == adaptive.result["privacy"]
    noises = [run.ledger.entries[0].noise for run in (flat, adaptive)]
    assert noises[1] > noises[0]  # updates carry more noise, to pay for the counts


def test_record_privacy_clips_records_not_updates() -> None:
    with pytest.raises(UsageError, match="only user-level privacy clips"):
        fedceo.run(changed(privacy={"mechanism": "record", "clipping": "adaptive"}))
