"""FedCEO's filters of the client axis against a naive Fourier transform, and what each of them costs in privacy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedceo.errors import UsageError
from fedceo.mechanisms.uploads import Stack
from fedceo.methods.base import State
from fedceo.methods.fedceo import FedCEO, FedCEOSettings
from fedceo.simulation.spending import planned_rows
from tests.support import naive_tsvd
from tests.support.small_experiments import experiment, simulate, stacked
from tests.support.weights import distance

PERSONAL: dict[str, Any] = {"name": "fedceo", "interval": 1}


def filtered_naively(w: torch.Tensor, settings: FedCEOSettings) -> torch.Tensor:
    """(K, d, h) models of which the frequencies of the client axis, all but the zeroth, are damped or thresholded."""
    slices = np.fft.fft(w.double().numpy(), axis=0)
    for k in range(1, len(w)):
        if settings.filter == "damp":
            slices[k] *= settings.alpha
        else:
            slices[k] = naive_tsvd.soft_threshold(slices[k], settings.ratio / (2 * settings.strength))
    return torch.from_numpy(np.fft.ifft(slices, axis=0).real)


@given(clients=st.integers(1, 9), alpha=st.floats(0.0, 1.0), filter_=st.sampled_from(["damp", "spare-mean"]))
def test_a_filter_keeps_the_zero_frequency_and_works_on_the_others(clients: int, alpha: float, filter_: str) -> None:
    settings = FedCEOSettings(filter=filter_, alpha=alpha, interval=1, strength=2.0)  # type: ignore[arg-type]
    uploads = stacked(clients)
    state, about = FedCEO(settings).aggregate(State({}), uploads, 1)
    assert about == {"smoothed": True} | ({"threshold": settings.ratio / 4} if filter_ == "spare-mean" else {})
    assert distance(state.weights, uploads.mean()) < 1e-6, "the mean is as it was"
    for name, w in uploads.weights.items():
        if w.ndim == 3:
            expected = filtered_naively(w, settings)
            for k, client in enumerate(uploads.clients):
                assert torch.allclose(state.personal[client][name].double(), expected[k], atol=1e-5)


def test_damping_by_one_changes_nothing_and_by_zero_leaves_the_mean() -> None:
    uploads = stacked()
    for alpha in (0.0, 1.0):
        state, _ = FedCEO(FedCEOSettings(filter="damp", alpha=alpha, interval=1)).aggregate(State({}), uploads, 1)
        for k, client in enumerate(uploads.clients):
            own = {name: w[k] for name, w in uploads.weights.items()}
            assert distance(state.personal[client], own if alpha else uploads.mean()) < 1e-6


def test_a_memory_of_all_smooths_everybodys_last_upload() -> None:
    """Clients 10 to 14, then 12 to 16: the stack is 10 and 11 of the first round and 12 to 16 of the second."""
    first = stacked()
    second = Stack({n: w + 1 for n, w in first.weights.items()}, (12, 13, 14, 15, 16), first.sizes, 0)
    method = FedCEO(FedCEOSettings(filter="damp", alpha=0.25, memory="all", interval=2))
    between, _ = method.aggregate(State({}), first, 1)
    assert distance(between.weights, first.mean()) < 1e-6 and not between.personal
    reloaded = State.unflatten(between.flatten())
    after, _ = method.aggregate(reloaded, second, 2)
    last = {name: torch.cat([w[:2], second.weights[name]]) for name, w in first.weights.items()}
    mean = {name: w.mean(0) for name, w in last.items()}
    assert sorted(after.personal) == list(range(10, 17))
    assert distance(after.weights, mean) < 1e-6
    for k, client in enumerate(range(10, 17)):
        expected = {name: mean[name] + 0.25 * (w[k] - mean[name]) for name, w in last.items()}
        assert distance(after.personal[client], expected) < 1e-6
    later, _ = method.aggregate(after, first, 3)
    assert later.personal.keys() == after.personal.keys(), "personal models outlive the rounds between smoothings"
    assert distance({n: w[0] for n, w in method.personalise(later, [16], 3).items()}, after.personal[16]) == 0
    assert method.idle(after).personal.keys() == after.personal.keys()


def test_a_memory_of_means_averages_everybodys_deviations() -> None:
    """Clients 10 to 14, then 12 to 16, then 10 to 14 again, against sums over the rounds that each was in."""
    first = stacked()
    second = Stack({n: 2 * w.flip(0) for n, w in first.weights.items()}, (12, 13, 14, 15, 16), first.sizes, 0)
    third = replace(first, weights={n: w**2 for n, w in first.weights.items()})
    method = FedCEO(FedCEOSettings(filter="damp", alpha=0.25, memory="mean", restart="mean", interval=3))
    state = State({})
    for t, uploads in enumerate((first, second, third), 1):
        state, _ = method.aggregate(State.unflatten(state.flatten()), uploads, t)
        assert distance(state.weights, uploads.mean()) < 1e-6, "the global model is as without a memory"
        assert bool(state.personal) == (t == 3)
    assert sorted(state.personal) == list(range(10, 17))
    for name, mean in state.weights.items():
        deviations: dict[int, list[torch.Tensor]] = {}
        for uploads in (first, second, third):
            for k, client in enumerate(uploads.clients):
                own = uploads.weights[name][k] - uploads.weights[name].mean(0)
                deviations.setdefault(client, []).append(own)
        averaged = {client: torch.stack(each).mean(0) for client, each in deviations.items()}
        centre = torch.stack(list(averaged.values())).mean(0)
        for client, own in averaged.items():
            assert torch.allclose(state.personal[client][name], mean + 0.25 * (own - centre), atol=1e-5)


def test_noise_of_deviations_averages_out_over_rounds() -> None:
    """Uploads that are noise alone: the deviation that is kept after T rounds is sqrt(T) times smaller."""
    torch.manual_seed(0)
    method = FedCEO(FedCEOSettings(filter="damp", alpha=1.0, memory="mean", restart="mean", interval=1))
    state, sizes = State({}), torch.ones(6, dtype=torch.float64)
    for t in range(1, 17):
        uploads = Stack({"w": torch.randn(6, 50, 40)}, tuple(range(6)), sizes, 0)
        state, _ = method.aggregate(state, uploads, t)
    kept = torch.stack([state.personal[k]["w"] for k in range(6)]) - state.weights["w"]
    assert float(kept.std()) == pytest.approx((5 / 6) ** 0.5 / 4, rel=0.03)


def test_restarts_from_the_mean_and_in_between() -> None:
    uploads, name = stacked(), "input.weight"
    for restart, share in (("mean", 0.0), ("interpolated", 0.5), ("own", 1.0)):
        method = FedCEO(FedCEOSettings(filter="damp", alpha=0.5, restart=restart, interval=1))  # type: ignore[arg-type]
        state, _ = method.aggregate(State({}), uploads, 1)
        mean, own = state.weights[name], state.personal[11][name]
        assert torch.allclose(method.starts(state, [11], 2)[name][0], mean + share * (own - mean), atol=1e-6)
        assert torch.equal(method.starts(state, [99], 2)[name][0], mean), "nobody knows that client"
        assert torch.equal(method.personalise(state, [11], 1)[name][0], own), "wherever it restarts from"


@pytest.mark.parametrize("memory", ["all", "mean"])
def test_everybody_who_was_ever_seen_is_measured(memory: str) -> None:
    settings = PERSONAL | {"filter": "damp", "memory": memory, "restart": "mean"}
    simulation = simulate(experiment(settings, cohort={"size": 1}), 4)
    seen = {client for entry in simulation.ledger.entries for client in entry.reported}
    assert len(seen) > 1
    assert simulation.method.personal_clients(simulation.state) == sorted(seen)


def test_settings_of_personal_models_are_chosen_by_personal_models() -> None:
    """Damping does not change the global model, so that its accuracy says nothing about alpha."""
    found: dict[str, list[float]] = {}
    for choose_by in ("global", "personal"):
        for alpha in (0.0, 1.0):
            settings = PERSONAL | {"filter": "damp", "alpha": alpha, "restart": "mean"}
            plain = {"mechanism": "none", "noise_multiplier": None}
            simulation = simulate(experiment(settings, privacy=plain, evaluation={"choose_by": choose_by}), 3)
            found.setdefault(choose_by, []).append(simulation.measure()["validation_accuracy"])
    assert found["global"][0] == found["global"][1]
    assert found["personal"][0] != found["personal"][1]


def rows_of(method: dict[str, Any], **privacy: Any) -> list[tuple[str, float | None]]:
    sizes = [6, 10, 9, 8]
    return [(row.observer, row.epsilon) for row in planned_rows(experiment(method, privacy=privacy), sizes)]


@pytest.mark.parametrize("memory", ["cohort", "all", "mean"])
@pytest.mark.parametrize("filter_", ["damp", "spare-mean"])
def test_under_record_privacy_no_filter_changes_a_row(filter_: str, memory: str) -> None:
    """DP-SGD has been paid for whatever the server makes of the uploads; the client's row says so of its model."""
    paper, filtered = (
        rows_of(PERSONAL | more, mechanism="record", clip=1.0)
        for more in ({}, {"filter": filter_, "memory": memory, "restart": "mean"})
    )
    assert filtered == paper
    averaged = rows_of({"name": "fedavg"}, mechanism="record", clip=1.0)
    assert dict(filtered)["server"] == dict(averaged)["server"] == dict(filtered)["client"]


@pytest.mark.parametrize("filter_", ["damp", "spare-mean"])
def test_under_distributed_privacy_personal_models_keep_their_own_row(filter_: str) -> None:
    """Whatever the restart: models made from single uploads are no averages."""
    paper = dict(rows_of({"name": "fedceo", "interval": 2}))
    for restart in ("own", "interpolated", "mean"):
        found = dict(rows_of({"name": "fedceo", "interval": 2, "filter": filter_, "restart": restart}))
        assert found == paper
        averages = dict(rows_of({"name": "fedceo", "interval": 2, "restart": "mean"}))
        assert found["outsider"] is not None and averages["outsider"] is not None
        assert found["outsider"] > averages["outsider"]
    for memory in ("all", "mean"):
        settings = {"name": "fedceo", "interval": 2, "filter": filter_, "memory": memory, "restart": "mean"}
        everybodys = dict(rows_of(settings))
        assert everybodys["client"] is None and everybodys["outsider"] is None, "the server's row holds there"
        assert everybodys["server"] == paper["server"]


@pytest.mark.parametrize(
    "method, privacy, words",
    [
        ({"filter": "damp", "restart": "mean"}, {"mechanism": "central"}, r'^method.filter "damp" .* "central"'),
        ({"memory": "all", "restart": "mean"}, {"mechanism": "central"}, r'^method.filter .* memory "all" .* upload'),
        ({"memory": "all", "restart": "stored"}, {}, r'^method.restart "stored" needs method.memory "cohort"'),
        ({"memory": "mean", "restart": "own"}, {}, r'^method.restart "own", expected "mean" with method.memory "mean"'),
        ({"filter": "damp", "alpha": 1.5}, {}, r"^method.alpha: .* got 1.5$"),
    ],
)
def test_what_does_not_fit_is_refused(method: dict[str, Any], privacy: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        experiment({"name": "fedceo"} | method, privacy=privacy)


def test_an_alpha_that_nothing_reads_makes_no_other_experiment() -> None:
    def settings(**fields: Any) -> FedCEOSettings:
        return FedCEOSettings(**fields)

    assert settings(alpha=0.3) == settings()
    assert settings(alpha=0.3, filter="damp") != settings(filter="damp")
    assert settings(alpha=0.3, restart="interpolated").alpha == 0.3
