"""One round by hand equals ours; FedCEO's limits are FedAvg; restarts are as written."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedceo.errors import UsageError
from fedceo.mechanisms.uploads import Mean, Stack
from fedceo.methods.base import Setup, State
from fedceo.methods.fedavg import FedAvg
from fedceo.methods.fedceo import FedCEO, FedCEOSettings
from fedceo.methods.server import Server
from fedceo.models import build_model, parameters_of
from fedceo.training.schedule import Schedule
from tests.support import naive_tsvd
from tests.support.small_experiments import experiment, simulate, stacked
from tests.support.small_federation import federation
from tests.support.weights import distance


def test_one_round_of_udp_fedavg_by_hand() -> None:
    settings = experiment({"name": "fedavg"})
    ours = simulate(settings, 1)

    data, schedule, start = federation(), Schedule(0), parameters_of(build_model("mlp", (1, 4, 4), 3, seed=1))
    uploads = []
    for client in schedule.cohort(1, 4, 3, "fixed"):
        model = build_model("mlp", (1, 4, 4), 3, seed=1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = schedule.batches(1, client, len(data.train[client]), 2, 4)
        masks = schedule.dropout_masks(1, client, (batches.shape[0], batches.shape[1]), (64,), 0.5)
        for row, mask in zip(batches, masks, strict=True):
            at = data.train[client][row[row >= 0]]
            optimiser.zero_grad()
            F.cross_entropy(model(data.x[at], mask[: len(at)]), data.y[at]).backward()
            optimiser.step()
        delta = torch.cat([(p - start[n]).flatten() for n, p in parameters_of(model).items()])
        drawn = schedule.generator("upload noise", 1, client).standard_normal(delta.numel(), dtype=np.float32)
        noise = torch.from_numpy(drawn) * 0.7 / 3**0.5
        uploads.append(delta / max(1.0, float(delta.norm()) / 0.7) + noise)
    expected = torch.cat([w.flatten() for w in start.values()]) + 0.5 * torch.stack(uploads).mean(0)
    got = torch.cat([w.flatten() for w in ours.state.weights.values()])
    assert float((got - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("mechanism", ["distributed", "central", "none"])
def test_fedceo_without_threshold_is_fedavg(mechanism: str) -> None:
    privacy = {"mechanism": mechanism} | ({"noise_multiplier": None} if mechanism == "none" else {})
    weak = {"name": "fedceo", "strength": 1e12, "ratio": 1.0, "interval": 2, "restart": "mean"}
    ceo = simulate(experiment(weak, privacy=privacy), 4)
    avg = simulate(experiment({"name": "fedavg"}, privacy=privacy), 4)
    assert distance(ceo.state.weights, avg.state.weights) < 1e-5


def above_every_other_frequency(uploads: Stack) -> float:
    return 1.01 * max(float(naive_tsvd.spectrum(w.permute(2, 1, 0))[1:].max()) for w in uploads.weights.values())


def test_above_every_other_frequency_all_clients_get_the_same() -> None:
    uploads = stacked()
    threshold = above_every_other_frequency(uploads)
    method = FedCEO(FedCEOSettings(strength=1 / (2 * threshold), ratio=1.0, interval=1))
    state, about = method.aggregate(State({}), uploads, 1)
    assert about["threshold"] == pytest.approx(threshold)
    starts = method.starts(state, [10, 12, 14, 99], 2)
    for k in range(4):
        assert distance({n: w[k] for n, w in starts.items()}, state.weights) < 1e-6


@pytest.mark.parametrize("strength", [0.5, 5.0, 50.0])
def test_the_global_model_does_not_depend_on_the_restart(strength: float) -> None:
    """mean_k w_hat_k = SVT(mean, threshold / m): what makes restart = "mean" post-processing of the mean."""
    uploads = stacked()
    settings: dict[str, Any] = {"strength": strength, "interval": 1}
    own, _ = FedCEO(FedCEOSettings(restart="own", **settings)).aggregate(State({}), uploads, 1)
    mean, _ = FedCEO(FedCEOSettings(restart="mean", **settings)).aggregate(State({}), uploads, 1)
    alone, _ = FedCEO(FedCEOSettings(restart="mean", **settings)).aggregate(State({}), Mean(uploads.mean(), 5.0, 0), 1)
    assert distance(own.weights, mean.weights) < 1e-5
    assert distance(alone.weights, mean.weights) < 1e-6
    assert not mean.personal


def test_the_threshold_grows_as_the_paper_says() -> None:
    method = FedCEO(FedCEOSettings(strength=0.6, ratio=1.04, interval=10))
    for t in (10, 20, 300):
        _, about = method.aggregate(State({}), stacked(), t)
        assert about["threshold"] == pytest.approx(1.04 ** (t / 10) / 1.2)
    _, about = method.aggregate(State({}), stacked(), 11)
    assert about == {"smoothed": False}


def test_the_noise_threshold_is_what_noise_alone_reaches_in_the_mean() -> None:
    """The noise in a mean is the same under both mechanisms, and so is its largest singular value: about
    sigma C step / K (sqrt(d) + sqrt(h))."""
    method = {"name": "fedceo", "threshold": "noise", "restart": "mean", "interval": 1}
    for mechanism in ("distributed", "central"):
        simulation = simulate(experiment(method, privacy={"mechanism": mechanism}), 0)
        assert isinstance(simulation.method, FedCEO)
        found = simulation.method.filter.threshold((16, 64, 3), 3, 1) / 3
        assert found == pytest.approx(1.0 * 0.7 * 0.5 / 3 * (4 + 8))


@pytest.mark.parametrize(
    "method, rounds",
    [
        ({"ratio": 2.0, "interval": 1}, 1100),
        ({"ratio": 2.0, "interval": 1, "strength": 1e300}, 1100),
        ({"ratio": 1.5, "interval": 1, "strength": 1e-300}, 100),
        ({"ratio": 1.04, "interval": 1}, 20000),
    ],
)
def test_a_threshold_beyond_all_numbers_is_refused(method: dict[str, Any], rounds: int) -> None:
    with pytest.raises(UsageError, match=r"^method.ratio: .* expected a smaller ratio or a larger strength$"):
        experiment({"name": "fedceo"} | method, train={"rounds": rounds})
    experiment({"name": "fedceo", "threshold": "noise"} | method, train={"rounds": rounds})


@given(
    ratio=st.floats(1.0, 2.0), interval=st.integers(1, 30), rounds=st.integers(1, 50_000),
    strength=st.floats(1e-300, 1e300),
)  # fmt: skip
def test_every_threshold_of_an_experiment_is_a_number(
    ratio: float, interval: int, rounds: int, strength: float
) -> None:
    settings = {"name": "fedceo", "ratio": ratio, "interval": interval, "strength": strength}
    try:
        found = experiment(settings, train={"rounds": rounds})
    except UsageError:
        return
    assert isinstance(found.method, FedCEOSettings)
    assert 0 <= FedCEO(found.method).filter.threshold((4, 4, 3), 3, rounds) < float("inf")


def test_each_restart_gives_clients_their_start() -> None:
    """Who starts from what in the round after a smoothing of clients 10 to 14, and in the one after that."""
    uploads = stacked()
    for restart in ("own", "slot", "stored", "mean"):
        method = FedCEO(FedCEOSettings(restart=restart, interval=2, strength=5.0))
        state, _ = method.aggregate(State({}), uploads, 2)
        starts = method.starts(state, [3, 11, 14], 3)["input.weight"]
        mean = state.weights["input.weight"]
        smoothed = dict(state.personal)
        if restart == "mean":
            assert all(torch.equal(start, mean) for start in starts)
            continue
        if restart == "slot":
            assert all(torch.equal(starts[i], smoothed[i]["input.weight"]) for i in range(3))
        else:
            assert torch.equal(starts[0], mean)
            assert torch.equal(starts[1], smoothed[11]["input.weight"])
            assert torch.equal(starts[2], smoothed[14]["input.weight"])
        later, _ = method.aggregate(state, uploads, 3)
        assert torch.equal(method.starts(later, [11], 4)["input.weight"][0], later.weights["input.weight"])
        assert bool(later.personal) == (restart == "stored"), "only stored models outlive the round"


def test_a_position_belongs_to_nobody_before_the_next_cohort_is_drawn() -> None:
    simulation = simulate(experiment({"name": "fedceo", "restart": "slot", "interval": 2}), 2)
    assert simulation.state.personal
    after = simulation.measure()
    assert after["personal_accuracy"] is None and after["local_accuracy"] is None


def test_stored_keeps_the_last_model_smoothed_or_not() -> None:
    method = FedCEO(FedCEOSettings(restart="stored", interval=5, strength=5.0))
    uploads = stacked()
    state, _ = method.aggregate(State({}), uploads, 1)
    assert torch.equal(state.personal[12]["input.weight"], uploads.weights["input.weight"][2])
    assert torch.equal(method.starts(state, [12], 6)["input.weight"][0], uploads.weights["input.weight"][2])


def test_as_published_a_client_never_seen_sends_what_the_one_before_it_sent() -> None:
    """Clients 10 to 14; at the restart of round 6 only 11 and 12 have been seen. Round 5's last stands in first."""
    method = FedCEO(FedCEOSettings(restart="stored", unseen="resubmit", interval=5, strength=1e12, ratio=1.0))
    uploads, name = stacked(), "input.weight"
    w = uploads.weights[name]
    last = {key: 7.0 * value[0] for key, value in uploads.weights.items()}
    seen = {client: {key: value[0] for key, value in uploads.weights.items()} for client in (11, 12)}
    state, _ = method.aggregate(State(last, seen, {"before": last}), uploads, 6)
    expected = torch.stack([last[name], w[1], w[2], w[2], w[2]])
    assert torch.equal(torch.stack([state.personal[client][name] for client in range(10, 15)]), expected)
    assert torch.allclose(state.weights[name], expected.mean(0))
    assert torch.equal(state.server["before"][name], w[2])
    between, _ = method.aggregate(State(last, seen, {"before": last}), uploads, 7)
    assert torch.equal(between.personal[10][name], w[0]), "only at a restart"
    first, _ = method.aggregate(State(last), uploads, 1)
    assert torch.equal(first.personal[10][name], w[0]), "nobody was seen before the first round, and all train"


def test_only_the_chosen_layers_are_smoothed() -> None:
    uploads = stacked()
    state, _ = FedCEO(FedCEOSettings(layers="last 1", interval=1, strength=0.5)).aggregate(State({}), uploads, 1)
    assert torch.allclose(state.weights["input.weight"], uploads.weights["input.weight"].mean(0), atol=1e-6)
    assert not torch.allclose(state.weights["hidden.weight"], uploads.weights["hidden.weight"].mean(0), atol=1e-3)


def test_server_optimisers() -> None:
    uploads = stacked()
    start = State({name: torch.zeros_like(w[0]) for name, w in uploads.weights.items()})
    update = {name: w.mean(0) / 0.5 for name, w in uploads.weights.items()}
    momentum, _ = FedAvg(setup=Setup(server=Server("momentum", 0.5))).aggregate(start, uploads, 1)
    assert distance(momentum.weights, {n: 0.5 * u for n, u in update.items()}) < 1e-6
    again, _ = FedAvg(setup=Setup(server=Server("momentum", 0.5))).aggregate(momentum, uploads, 2)
    moved = {n: (uploads.mean()[n] - momentum.weights[n]) / 0.5 for n in update}
    expected = {n: momentum.weights[n] + 0.5 * (0.9 * update[n] + moved[n]) for n in update}
    assert distance(again.weights, expected) < 1e-5
    adam, _ = FedAvg(setup=Setup(server=Server("adam", 0.1))).aggregate(
        start, uploads, 5
    )  # the first update, though not the first round
    step = {n: w.mean(0) / 0.1 for n, w in uploads.weights.items()}
    assert distance(adam.weights, {n: 0.1 * s / (s.abs() + 1e-3) for n, s in step.items()}) < 1e-5


def test_records_weigh_the_mean_where_asked() -> None:
    uploads = stacked(2)
    weighted = Stack(uploads.weights, uploads.clients, torch.tensor([1.0, 3.0], dtype=torch.float64), 0)
    expected = {n: 0.25 * w[0] + 0.75 * w[1] for n, w in uploads.weights.items()}
    assert distance(weighted.mean(), expected) < 1e-6


def test_state_travels_through_a_file_and_back() -> None:
    state, _ = FedCEO(FedCEOSettings(interval=1)).aggregate(State({}), stacked(), 1)
    state = State(state.weights, state.personal, {"first": state.weights})
    back = State.unflatten(state.flatten())
    assert distance(back.weights, state.weights) == 0
    assert back.personal.keys() == state.personal.keys()
    assert distance(back.server["first"], state.server["first"]) == 0


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_an_empty_cohort(mechanism: str) -> None:
    """Nobody in: distributed keeps the model as it was, central releases its noise all the same."""
    settings = experiment(
        {"name": "fedavg"},
        cohort={"size": 1, "sampling": "poisson"},
        privacy={"mechanism": mechanism},
        train={"rounds": 20},
    )
    simulation = simulate(settings, 0)
    seen = 0
    for _ in range(20):
        before = simulation.state.weights
        record = simulation.step()
        if record["reports"] == 0:
            seen += 1
            moved = distance(simulation.state.weights, before)
            assert (moved > 0.1) if mechanism == "central" else (moved == 0)
    assert seen > 0


def test_smoothed_models_do_not_outlive_an_empty_round() -> None:
    method = FedCEO(FedCEOSettings(interval=2, restart="own"))
    state, _ = method.aggregate(State({}), stacked(), 2)
    assert state.personal and not method.idle(state).personal
    kept = FedCEO(FedCEOSettings(interval=2, restart="stored"))
    assert kept.idle(state).personal


@pytest.mark.parametrize(
    ("name", "field"),
    [("ppsgd", "personal_learning_rate"), ("centaur", "head_learning_rate"), ("jain-anil", "head_learning_rate")],
)
def test_a_personal_rate_that_is_left_out_is_the_one_that_is_tuned(name: str, field: str) -> None:
    def end(method: dict[str, Any]) -> dict[str, Tensor]:
        return dict(simulate(experiment({"name": name} | method, train={"learning_rate": 0.3}), 2).state.weights)

    left_out, given, other = end({}), end({field: 0.3}), end({field: 0.01})
    assert all(torch.equal(left_out[key], w) for key, w in given.items())
    assert any(not torch.equal(left_out[key], w) for key, w in other.items())
