"""The bounds of an honest upload: they hold as often as they say, and what is beyond them is refused in a line."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from fedceo.data import Federation
from fedceo.deploy.honest import MISTAKE, Honest
from fedceo.deploy.upload_tests import UploadTests, orthonormal, public_slopes
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.uploads import Contribution, Senders
from fedceo.tensors.weights import Weights, repeat
from fedceo.training.schedule import Schedule
from tests.support.small_federation import SmallConv, federation

CLIENTS = 4
CLIP = 1.5


def made(sigma: float = 1.0, step: float = 0.5, **changes: Any) -> Mechanism:
    settings: dict[str, Any] = {"clip": CLIP, "noise_multiplier": sigma, "min_reports": CLIENTS, "step": step}
    return MECHANISMS["distributed"](schedule=Schedule(1), **(settings | changes))


def model() -> tuple[SmallConv, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    net = SmallConv()
    return net, {name: w.detach().clone() for name, w in net.named_parameters()}


def uploads(mechanism: Mechanism, weights: Weights, updates: Sequence[Weights], round_: int = 1) -> dict[int, Weights]:
    """The uploads of clients that moved so, as the mechanism makes them."""
    start = repeat(weights, len(updates))
    trained = {name: w + torch.stack([u[name] for u in updates]) for name, w in start.items()}
    senders = Senders(round_, tuple(range(len(updates))), torch.ones(len(updates)))
    found = mechanism.privatise(Contribution(start, trained), senders, weights).weights
    return {k: {name: w[k] for name, w in found.items()} for k in range(len(updates))}


def judge(mechanism: Mechanism, data: Federation | None = None) -> tuple[UploadTests, dict[str, torch.Tensor]]:
    net, weights = model()
    return UploadTests(mechanism, net, data or federation(), weights), weights


def worst(weights: Weights, data: Federation) -> Sequence[Weights]:
    """Updates that the tests look at: along the model, up the loss, one entry, one row, none at all; clipped later."""
    net, _ = model()
    zero = {name: torch.zeros_like(w) for name, w in weights.items()}
    entry, row = ({name: w.clone() for name, w in zero.items()} for _ in range(2))
    entry["fc.weight"][0, 0] = 1.0
    row["fc.weight"][1] = 1.0
    slope, rest = public_slopes(net, data, weights)[0], {}
    for name, w in weights.items():
        rest[name], slope = slope[: w.numel()].view_as(w), slope[w.numel() :]
    return [{name: 1e4 * u for name, u in each.items()} for each in (weights, rest, entry, row)] + [zero]


@pytest.mark.parametrize(
    ("sigma", "clipping", "noise"),
    [*itertools.product((0.0, 0.1, 1.0, 20.0), ("flat", "per_layer"), ("gaussian", "lattice"))],
)
def test_no_honest_upload_is_refused(sigma: float, clipping: str, noise: str) -> None:
    data = federation()
    mechanism = made(sigma, clipping=clipping, noise_kind=noise)
    tests, weights = judge(mechanism, data)
    updates = worst(weights, data)
    for round_ in range(1, 9):
        found = uploads(mechanism, weights, updates, round_)
        assert tests.lies(found, dict.fromkeys(found, weights), weights) == {}


@pytest.mark.parametrize("entries", [1, 10, 5000, 3_000_000])
@pytest.mark.parametrize("clip", [0.0, 0.3, 40.0])
def test_lengths_are_exceeded_as_seldom_as_they_say(entries: int, clip: float) -> None:
    """Held against the noncentral chi-squared distribution itself, or against its normal limit where it is too long."""
    for mistake in (1e-3, 1e-9):
        least, most = Honest(clip, clip, 1.0, mistake).lengths(clip, entries)
        if entries <= 5000:
            assert stats.ncx2.sf(most**2, entries, max(clip**2, 1e-12)) <= mistake
        room = -2 * math.sqrt(entries * -math.log(mistake))
        assert least**2 >= entries + room - 1e-6  # no looser than the tail inequality of Laurent and Massart
        assert stats.chi2.cdf(least**2, entries) == pytest.approx(mistake, rel=1e-3)
        assert most < clip + math.sqrt(entries) + math.sqrt(-2 * math.log(mistake)) + 1e-9


def test_singular_values_entries_and_directions_are_exceeded_as_seldom_as_they_say() -> None:
    rng, mistake, turns = np.random.default_rng(0), 0.02, 2000
    honest = Honest(1.0, 1.0, 0.5, mistake)
    rank_one = np.outer(np.ones(8), np.ones(12)) / math.sqrt(96)
    noised = rank_one + 0.5 * rng.standard_normal((turns, 8, 12))
    beyond = np.linalg.svd(noised, compute_uv=False)[:, 0] > honest.singular_value(8, 12)
    single = np.eye(96)[0].reshape(8, 12) + 0.5 * rng.standard_normal((turns, 8, 12))
    largest = np.abs(single).max((1, 2)) > honest.entry(96)
    along = np.linalg.norm(noised.reshape(turns, 96)[:, :3], axis=1) > honest.along(3)
    most = stats.binom.isf(1e-9, turns, mistake)
    assert max(beyond.sum(), largest.sum(), along.sum()) <= most
    # and the last is exact where the update lies along the direction
    straight = np.abs(1.0 + 0.5 * rng.standard_normal(100_000)) > honest.along(1)
    assert straight.mean() == pytest.approx(mistake / 2, rel=0.15)


def test_all_tests_together_are_failed_by_one_upload_in_a_thousand_million_million() -> None:
    _, weights = model()
    honest = Honest.under(made(), weights, directions=11)
    assert honest.mistake * (2 + 4 * len(weights) + 11) == pytest.approx(MISTAKE)
    assert honest.clip == CLIP * 0.5 and honest.share == pytest.approx(1.0 * CLIP * 0.5 / math.sqrt(CLIENTS))
    assert Honest.under(made(clipping="per_layer"), weights, 11).tensor_clip == pytest.approx(honest.clip / 2)


def lie(kind: str, weights: Weights, honest: dict[int, Weights], bounds: Honest, data: Federation) -> Weights:
    """The upload of client 2, changed."""
    changed = {name: w.clone() for name, w in honest[2].items()}
    if kind == "no noise":
        return {name: w + 1e-3 for name, w in weights.items()}
    if kind == "half the noise":
        return {name: weights[name] + 0.5 * (w - weights[name]) for name, w in changed.items()}
    if kind == "twice the noise":
        return {name: weights[name] + 2.0 * (w - weights[name]) for name, w in changed.items()}
    if kind == "one tensor":
        changed["conv.bias"] = weights["conv.bias"] + 0.51 * bounds.lengths(bounds.clip, 4)[1]
    if kind == "one entry":
        changed["fc.weight"][0, 0] = weights["fc.weight"][0, 0] + 1.01 * bounds.entry(108)
    if kind == "rank one":
        fan = torch.ones(3, 36) / math.sqrt(108)
        changed["fc.weight"] = weights["fc.weight"] + 1.05 * bounds.singular_value(3, 36) * fan
    if kind == "up the loss":
        net, _ = model()
        up = orthonormal(sum(public_slopes(net, data, weights))[None])[0]  # type: ignore[index]
        for w in changed.values():
            w += 1.3 * bounds.along(3) * up[: w.numel()].view_as(w).float()
            up = up[w.numel() :]
    return honest[1] if kind == "as another" else changed


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that honest uploads fail more often: a model of 150 entries shows less than a real one."""
    monkeypatch.setattr("fedceo.deploy.honest.MISTAKE", 1e-15)


LIES = {
    "no noise": "the upload is 0",
    "half the noise": "from its start, expected",
    "twice the noise": "from its start, expected",
    "one tensor": "conv.bias is",
    "one entry": "the largest entry of fc.weight is",
    "rank one": "the largest singular value of fc.weight is",
    "up the loss": "the part along the loss on the public records before the round is",
    "as another": "the part along the upload of client 1 is",
}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kind", LIES)
def test_what_no_honest_client_sends_is_refused_and_nobody_else(kind: str) -> None:
    data, mechanism = federation(), made(8.0)
    tests, weights = judge(mechanism, data)
    found = uploads(mechanism, weights, [{name: torch.zeros_like(w) for name, w in weights.items()}] * CLIENTS)
    found[2] = lie(kind, weights, found, tests.honest, data)
    lies = tests.lies(found, dict.fromkeys(found, weights), weights)
    assert LIES[kind] in lies[2]
    assert set(lies) == ({1, 2} if kind == "as another" else {2})


@pytest.mark.usefixtures("narrow")
def test_a_lie_that_is_told_again_is_refused_the_second_time() -> None:
    mechanism = made(8.0)
    tests, weights = judge(mechanism)
    starts = dict.fromkeys(range(CLIENTS), weights)
    still = [{name: torch.zeros_like(w) for name, w in weights.items()}] * CLIENTS
    first = uploads(mechanism, weights, still)
    assert tests.lies(first, starts, weights) == {}
    again = uploads(mechanism, weights, still, round_=2) | {3: first[0]}
    lies = tests.lies(again, starts, weights)
    assert list(lies) == [3] and "the part along the last upload of client 0 is" in lies[3]


@pytest.mark.parametrize("along", ["the model", "the way so far"])
def test_a_server_without_public_records_knows_the_model_and_its_way(along: str) -> None:
    data, mechanism = federation(), made(8.0)
    tests, first = judge(mechanism, replace(data, test_x=data.test_x[:0], test_y=data.test_y[:0]))
    now = {name: w + 0.1 for name, w in first.items()}
    direction = now if along == "the model" else {name: torch.ones_like(w) for name, w in now.items()}
    size = 1.4 * tests.honest.along(1) / math.sqrt(sum(float(d.square().sum()) for d in direction.values()))
    found = uploads(mechanism, now, [{name: torch.zeros_like(w) for name, w in now.items()}] * CLIENTS)
    found[2] = {name: w + size * direction[name] for name, w in found[2].items()}
    lies = tests.lies(found, dict.fromkeys(found, now), now)
    assert list(lies) == [2] and f"the part along {along} is" in lies[2]
