"""Every method against a hand-written round in plain torch, against its parent, and against chance."""

from typing import Any

import pytest
import torch

import fedceo
from fedceo.methods.blur_lus import largest
from fedceo.methods.dp_fed_ls import laplacian_smooth
from fedceo.methods.jain import User, alternate, fit_user, noised_sum
from tests.support.plain_rounds import (
    CLIP,
    EPOCHS,
    HEAD,
    RATE,
    Model,
    clipped,
    close,
    descend,
    difference,
    gradient,
    norm,
    run,
    server,
    start,
)
from tests.support.small_federation import SIZES

ENGINES = pytest.mark.parametrize("engine", ["loop", "batched"])


@ENGINES
def test_fedavg(engine: str) -> None:
    updates = [clipped(difference(descend(start(), k), start())) for k in range(len(SIZES))]
    assert close(run({"name": "fedavg"}, engine).weights, server(updates))


@ENGINES
def test_fedprox(engine: str) -> None:
    w0 = start()
    updates = [
        clipped(difference(descend(w0, k, extra=lambda w: {n: 0.3 * (v - w0[n]) for n, v in w.items()}), w0))
        for k in range(len(SIZES))
    ]
    assert close(run({"name": "fedprox", "mu": 0.3}, engine).weights, server(updates))
    assert close(run({"name": "fedavg"}, engine, train={"proximal": 0.3}).weights, server(updates))


@ENGINES
def test_dp_fedavg_projects_after_every_step(engine: str) -> None:
    w0, updates = start(), []
    for k in range(len(SIZES)):
        w = w0
        for _ in range(EPOCHS):
            moved = clipped(difference(descend(w, k, steps=1), w0))
            w = {name: w0[name] + u for name, u in moved.items()}
        updates.append(difference(w, w0))
    assert close(run({"name": "dp-fedavg"}, engine).weights, server(updates))


@ENGINES
def test_dp_fedsgd_sends_one_gradient(engine: str) -> None:
    updates = [clipped({n: -g for n, g in gradient(start(), k).items()}) for k in range(len(SIZES))]
    for batch in ("full", "minibatch"):
        assert close(run({"name": "dp-fedsgd", "batch": batch}, engine).weights, server(updates))


@ENGINES
def test_blur_pulls_only_outside_the_ball_and_lus_drops_small_entries(engine: str) -> None:
    w0 = start()

    def pull(w: Model) -> Model:
        outside = float(norm(difference(w, w0))) > CLIP
        return {name: 0.8 * outside * (v - w0[name]) for name, v in w.items()}

    updates = []
    for k in range(len(SIZES)):
        update = difference(descend(w0, k, extra=pull), w0)
        flat = torch.cat([u.flatten() for u in update.values()])
        least = flat.abs().sort(descending=True).values[round(0.6 * len(flat)) - 1]
        updates.append(clipped({name: u * (u.abs() >= least) for name, u in update.items()}))
    found = run({"name": "blur-lus", "strength": 0.8, "sparsity": 0.4}, engine)
    assert close(found.weights, server(updates))


@ENGINES
def test_lus_can_score_by_first_order_effect(engine: str) -> None:
    w0, updates = start(), []
    for k in range(len(SIZES)):
        trained = descend(w0, k)
        update, g = difference(trained, w0), gradient(trained, k)
        scores = torch.cat([(u * g[name]).abs().flatten() for name, u in update.items()])
        least = scores.sort(descending=True).values[round(0.5 * len(scores)) - 1]
        updates.append(clipped({name: u * ((u * g[name]).abs() >= least) for name, u in update.items()}))
    found = run({"name": "blur-lus", "strength": 0.0, "sparsity": 0.5, "score": "first-order"}, engine)
    assert close(found.weights, server(updates))


@ENGINES
def test_centaur_keeps_heads_and_sends_the_rest(engine: str) -> None:
    method = {"name": "centaur", "head_epochs": 2, "head_learning_rate": 0.1}
    body = tuple(name for name in start() if name not in HEAD)
    updates, heads = [], []
    for k in range(len(SIZES)):
        tuned = descend(start(), k, steps=2, rate=0.1, names=HEAD)
        trained = descend(tuned, k, names=body)
        updates.append(clipped({name: trained[name] - tuned[name] for name in body}))
        heads.append({name: tuned[name] for name in HEAD})
    found = run(method, engine)
    assert close(found.weights, server(updates))
    assert all(torch.equal(found.weights[name], start()[name]) for name in HEAD)  # heads never leave


@ENGINES
def test_centaur_goes_on_with_a_clients_head_unless_told_otherwise(engine: str) -> None:
    method = {"name": "centaur", "head_epochs": 2, "head_learning_rate": 0.1}
    body = tuple(name for name in start() if name not in HEAD)
    for persist in (True, False):
        w, heads = start(), [{name: start()[name] for name in HEAD} for _ in SIZES]
        for _ in range(2):
            updates = []
            for k in range(len(SIZES)):
                tuned = descend(w | (heads[k] if persist else {}), k, steps=2, rate=0.1, names=HEAD)
                trained = descend(tuned, k, names=body)
                updates.append(clipped({name: trained[name] - tuned[name] for name in body}))
                heads[k] = {name: tuned[name] for name in HEAD}
            mean = {name: torch.stack([u[name] for u in updates]).mean(0) for name in body}
            w = w | {name: w[name] + 0.7 * m for name, m in mean.items()}
        found = run(method | {"persist_heads": persist}, engine, train={"rounds": 2})
        assert close(found.weights, w)


@ENGINES
def test_ppsgd_averaging(engine: str) -> None:
    method = {"name": "ppsgd", "personal_epochs": 2, "personal_learning_rate": 0.1}
    w, offsets = start(), [{name: torch.zeros_like(start()[name]) for name in HEAD} for _ in SIZES]
    for _ in range(2):
        updates = []
        for k in range(len(SIZES)):
            used = w | {name: w[name] + offsets[k][name] for name in HEAD}
            tuned = descend(used, k, steps=2, rate=0.1, names=HEAD)
            offsets[k] = {name: tuned[name] - w[name] for name in HEAD}
            updates.append(clipped(difference(descend(tuned, k), tuned)))
        w = {name: v + 0.7 * torch.stack([u[name] for u in updates]).mean(0) for name, v in w.items()}
    assert close(run(method, engine, train={"rounds": 2}).weights, w)


@ENGINES
@pytest.mark.parametrize("alpha", [0.5, 4.0])
def test_ppsgd_gradient(engine: str, alpha: float) -> None:
    shared, own = (0.7 * alpha, 0.7) if alpha <= 1 else (0.7, 0.7 / alpha)
    w, offsets = start(), [{name: torch.zeros_like(start()[name]) for name in HEAD} for _ in SIZES]
    for _ in range(2):
        updates = []
        for k in range(len(SIZES)):
            g = gradient(w | {name: w[name] + offsets[k][name] for name in HEAD}, k)
            offsets[k] = {name: offsets[k][name] - own * g[name] for name in HEAD}
            updates.append(clipped({name: -v for name, v in g.items()}))
        w = {name: v + shared * torch.stack([u[name] for u in updates]).mean(0) for name, v in w.items()}
    found = run({"name": "ppsgd", "form": "gradient", "alpha": alpha}, engine, train={"rounds": 2})
    assert close(found.weights, w)


@ENGINES
def test_jain_anil(engine: str) -> None:
    body = tuple(name for name in start() if name not in HEAD)
    updates = []
    for k in range(len(SIZES)):
        tuned = descend(start(), k, steps=2, rate=0.1, names=HEAD)
        updates.append(clipped({name: -gradient(tuned, k)[name] for name in body}))
    method = {"name": "jain-anil", "head_epochs": 2, "head_learning_rate": 0.1}
    assert close(run(method, engine).weights, server(updates))  # SmallConv has no shared matrix to cut


@ENGINES
def test_dp_fedsam_follows_the_gradient_at_the_worst_point_nearby(engine: str) -> None:
    w0, updates = start(), []
    for k in range(len(SIZES)):
        w = w0
        for _ in range(EPOCHS):
            g = gradient(w, k)
            worst = {name: v + 0.2 * g[name] / norm(g) for name, v in w.items()}
            there = gradient(worst, k)
            w = {name: v - RATE * there[name] for name, v in w.items()}
        updates.append(clipped(difference(w, w0)))
    assert close(run({"name": "dp-fedsam", "radius": 0.2}, engine).weights, server(updates))


def test_dp_fed_ls_smooths_the_mean() -> None:
    plain, smoothed = run({"name": "fedavg"}).weights, run({"name": "dp-fed-ls", "coefficient": 1.5}).weights
    update = torch.cat([(plain[name] - w).flatten() for name, w in start().items()])
    size = len(update)
    ring = 2 * torch.eye(size) - torch.eye(size).roll(1, 0) - torch.eye(size).roll(-1, 0)
    wanted = torch.linalg.solve(torch.eye(size).double() + 1.5 * ring.double(), update)
    found = torch.cat([(smoothed[name] - w).flatten() for name, w in start().items()])
    assert torch.allclose(found, wanted, atol=1e-10)
    assert torch.allclose(laplacian_smooth(update, 0.0), update)


# Settings that make a method its parent


@ENGINES
@pytest.mark.parametrize("mechanism", ["distributed", "central", "record"])
@pytest.mark.parametrize(
    "method, parent",
    [
        ({"name": "fedprox", "mu": 0.0}, {"name": "fedavg"}),
        ({"name": "blur-lus", "strength": 0.0, "sparsity": 0.0}, {"name": "fedavg"}),
        ({"name": "ppsgd", "form": "gradient", "alpha": float("inf")}, {"name": "dp-fedsgd"}),
        ({"name": "ppsgd", "personal_epochs": 0}, {"name": "fedavg"}),
        ({"name": "centaur", "personal": "none", "head_epochs": 0}, {"name": "fedavg"}),
        ({"name": "dp-fed-ls", "coefficient": 0.0}, {"name": "fedavg"}),
        ({"name": "dp-fedsam", "radius": 0.0}, {"name": "fedavg"}),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
def test_equals_its_parent(engine: str, mechanism: str, method: dict[str, Any], parent: dict[str, Any]) -> None:
    sections: dict[str, dict[str, Any]] = {
        "privacy": {"mechanism": mechanism, "noise_multiplier": 0.4, "clip": 0.5},
        "train": {"rounds": 3, "batch_size": 4, "momentum": 0.5},
        "cohort": {"size": 3},
    }
    one, other = run(method, engine, **sections), run(parent, engine, **sections)
    assert all(torch.equal(one.weights[name], w) for name, w in other.weights.items())


# Learning


LEARNERS: dict[str, dict[str, Any]] = {
    "dp-fedavg": {}, "dp-fedsgd": {}, "fedprox": {}, "blur-lus": {}, "ppsgd": {},
    "centaur": {"head_learning_rate": 0.1}, "jain-anil": {"head_learning_rate": 0.1, "rank": 32}, "dp-fedsam": {},
    "dp-fed-ls": {},
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNERS)
def test_learns_digits(name: str) -> None:
    rounds = 40 if name in ("dp-fedsgd", "jain-anil") else 10
    found = fedceo.run(
        {
            "data": {"name": "digits", "clients": 20, "local_test": 0.1},
            "cohort": {"size": 10},
            "train": {"rounds": rounds, "local_epochs": 2, "batch_size": 16, "learning_rate": 0.1},
            "privacy": {"mechanism": "distributed", "noise_multiplier": 0.1, "clip": 2.0},
            "method": {"name": name} | LEARNERS[name],
            "evaluation": {"every": rounds},
        }
    )
    accuracy = found.result["accuracy"]
    personal = accuracy["personal_accuracy_last"] if name in ("centaur", "ppsgd", "jain-anil") else accuracy["last"]
    assert personal is not None and personal > 0.4, accuracy


# Pieces


def test_largest_counts_over_all_tensors() -> None:
    scores = {"a": torch.tensor([[5.0, 1.0], [1.0, 2.0]]), "b": torch.tensor([[3.0, 4.0], [9.0, 0.5]])}
    kept = largest(scores, 0.5)
    assert kept["a"].tolist() == [[True, False], [False, True]] and kept["b"].tolist() == [[False, True], [True, False]]


def test_jain_clips_what_is_not_finite_to_nothing() -> None:
    users = [torch.ones(3), torch.tensor([torch.nan, 0.0, 0.0]), torch.tensor([0.0, torch.inf, 0.0])]
    sums = [noised_sum(some, 1.0, 1.0, torch.Generator().manual_seed(0)) for some in (users, users[:1])]
    assert torch.equal(*sums)


@pytest.mark.parametrize("sigma, most", [(0.0, 0.05), (0.02, 0.6)])
def test_jain_finds_the_shared_subspace(sigma: float, most: float) -> None:
    rng = torch.Generator().manual_seed(0)
    d, k = 12, 2
    basis = torch.linalg.qr(torch.randn(d, k, generator=rng, dtype=torch.float64)).Q
    users = []
    for _ in range(200):
        x = torch.randn(60, d, generator=rng, dtype=torch.float64)
        users.append(User(x, x @ basis @ torch.randn(k, generator=rng, dtype=torch.float64)))
    found = alternate(users, rank=k, rounds=6, clip=50.0, noise_multiplier=sigma, generator=rng)
    assert torch.allclose(found.T @ found, torch.eye(k, dtype=torch.float64), atol=1e-9)
    distance = float(torch.linalg.matrix_norm(basis - found @ (found.T @ basis), 2))
    assert distance < most
    residual = users[0].y - users[0].x @ found @ fit_user(users[0], found)
    assert float(residual.norm() / users[0].y.norm()) < most + 0.1
