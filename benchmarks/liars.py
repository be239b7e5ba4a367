"""What clients that lie can do to a federation, by attack and by defence.

    python benchmarks/liars.py [--quick] [--out liars.json]

Digits, 10 clients of which 1 or 2 lie, all in every round, distributed noise, 12 rounds; accuracy of the last model on
the test set, the mean of three seeds. The liars know the model, the mechanism, the tests and the public records (here
the test set), and not what the others upload in the round. docs/federation.md shows the table.

    gradient       along the gradient of the loss on the public records, as far as the bound on the length lets it
    sign flip      minus the update of honest training, as far as the bound on the length lets it
    adaptive       the largest loss that passes the tests in force, by projected ascent, the rest filled with noise
    flipped labels honest training on labels 9 - y, clipped and noised: nothing can tell it from other records

Then it counts honest uploads that the tests refuse: two models, several noises, clippings, both kinds of noise, updates
of length zero and C in the directions that the tests look at.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from report import RESULTS, write
from torch import Tensor
from torch.func import functional_call

from fedceo.accounting.ledger import Entry
from fedceo.data import Federation
from fedceo.deploy.honest import ROUNDING, Honest
from fedceo.deploy.upload_tests import UploadTests, orthonormal, public_slopes
from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.mechanisms.base import MECHANISMS
from fedceo.mechanisms.uploads import Contribution, Senders, Stack
from fedceo.methods.base import State
from fedceo.models import build_model, parameters_of
from fedceo.simulation.preparing import prepare
from fedceo.simulation.round import Collected, take_round
from fedceo.simulation.rounds import Simulation
from fedceo.simulation.spending import planned_rows
from fedceo.tensors.weights import Weights, as_row, from_row, stack
from fedceo.training.schedule import Schedule

CLIENTS, ROUNDS, SEEDS, SIGMA = 10, 12, (0, 1, 2), 0.5
ASCENTS = 40
"""Steps of the projected ascent."""
GUESSES = 4
"""Guesses of where the others' noise will take the model, inside whose gradients an adaptive liar stays."""


def experiment(seed: int, sigma: float = SIGMA, aggregation: str = "mean") -> Experiment:
    return parse_experiment(
        {
            "seed": seed,
            "data": {"name": "digits", "clients": CLIENTS},
            "cohort": {"size": CLIENTS},
            "train": {
                "rounds": ROUNDS,
                "local_epochs": 5,
                "batch_size": 16,
                "learning_rate": 0.1,
                "device": "cpu",
                "aggregation": aggregation,
            },
            "privacy": {"mechanism": "distributed", "noise_multiplier": sigma, "delta": 1e-5},
            "method": {"name": "fedavg"},
            "evaluation": {"every": ROUNDS},
        }
    )


class LengthAlone:
    """The bound of before: the length, from above."""

    def __init__(self, simulation: Simulation) -> None:
        mechanism, entries = simulation.mechanism, as_row(simulation.state.weights).numel()
        self.most = mechanism.step * mechanism.clip * (1 + mechanism.noise * (math.sqrt(entries) + 6))

    def lies(self, uploads: Mapping[int, Weights], starts: Mapping[int, Weights], now: Weights) -> dict[int, str]:
        lengths = {k: float((as_row(u) - as_row(starts[k])).norm()) for k, u in uploads.items()}
        return {k: "too long" for k, length in lengths.items() if length > self.most * (1 + ROUNDING)}


@dataclass
class Liar:
    """One or more clients that lie together; they remember what they uploaded in the last round."""

    simulation: Simulation
    clients: tuple[int, ...]
    public: Federation
    is_tested: bool
    rng: torch.Generator
    last: dict[int, Tensor] = field(default_factory=dict)
    planned: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, mechanism = self.simulation.state.weights, self.simulation.mechanism
        self.first = {name: w.clone() for name, w in first.items()}
        self.honest = Honest.under(mechanism, first, directions=4 + 2 * self.public.clients)
        self.old = LengthAlone(self.simulation).most
        entries = as_row(first).numel()
        self.longest = self.honest.lengths(self.honest.clip, entries)[1] if self.is_tested else self.old

    def gradient(self, now: Weights, client: int, update: Tensor) -> Tensor:
        slope = self._slope(as_row(now))
        return self.longest * slope / slope.norm()

    def sign_flip(self, now: Weights, client: int, update: Tensor) -> Tensor:
        return -self.longest * update / update.norm()

    def adaptive(self, now: Weights, client: int, update: Tensor) -> Tensor:
        """Without tests the ascent fills the bound on the length; with tests the liars stay inside them together."""
        if not self.is_tested:
            return self._ascended(as_row(now).double(), {})
        if client == self.clients[0]:
            self._plan(now)
        return self.planned[client]

    def _plan(self, now: Weights) -> None:
        """What each of the liars uploads: the largest part of its wish with which all of them pass."""
        known, guesses = self._known(now), self._guesses(now)
        wishes: dict[int, Tensor] = {}
        for client in self.clients:
            out_of_the_way = {f"wish {k}": orthonormal(wish[None]) for k, wish in wishes.items()}
            wishes[client] = self._ascended(as_row(now).double(), known | self._slopes(guesses, now) | out_of_the_way)
        noises = {k: self.honest.share * torch.randn(len(w), generator=self.rng).double() for k, w in wishes.items()}
        self.planned = noises
        low, high = 0.0, 1.0
        for _ in range(10):
            middle = (low + high) / 2
            tried = {k: self._filled(middle * wish, noises[k]) for k, wish in wishes.items()}
            if all(self._passes(k, tried, now, known, guesses) for k in tried):
                low, self.planned = middle, tried
            else:
                high = middle

    def _known(self, now: Weights) -> dict[str, Tensor]:
        """The directions that the server knows before the round."""
        found = {"model": as_row(now)[None], "way": (as_row(now) - as_row(self.first))[None]}
        found |= {f"last {k}": row[None] for k, row in self.last.items()}
        before = self._slopes([as_row(now)], now)
        return {what: orthonormal(rows.double()) for what, rows in found.items()} | before

    def _guesses(self, now: Weights) -> list[Tensor]:
        """Models that the others' noise may make."""
        spread, row = self.honest.share / math.sqrt(CLIENTS), as_row(now)
        return [row + spread * torch.randn(len(row), generator=self.rng) for _ in range(GUESSES)]

    def _slopes(self, rows: list[Tensor], now: Weights) -> dict[str, Tensor]:
        """The directions that the public records give at these models."""
        found = [public_slopes(self.simulation.model, self.public, from_row(row.float(), now)) for row in rows]
        return {f"public {k}": orthonormal(torch.stack(each).double()) for k, each in enumerate(found) if each}

    def _passes(
        self,
        client: int,
        tried: Mapping[int, Tensor],
        now: Weights,
        known: Mapping[str, Tensor],
        guesses: list[Tensor],
    ) -> bool:
        """Whether one of the uploads would pass, wherever the others take the model."""
        moved, start = tried[client], float(as_row(now).norm())
        others = {f"now {k}": row[None] for k, row in tried.items() if k != client}
        if self.honest.lie(from_row(moved, self.first), now) or self.honest.lie_along(
            moved, start, {**known, **others}
        ):
            return False
        shift = sum(row for k, row in tried.items() if k != client) / CLIENTS
        return self.honest.lie_along(moved, start, self._slopes([guess + shift for guess in guesses], now)) is None

    def _ascended(self, now: Tensor, known: Mapping[str, Tensor]) -> Tensor:
        """(D,) an update that raises the loss of the model that it moves by its share, within what tests look at."""
        share = len(self.clients) / CLIENTS
        moved = torch.zeros_like(now)
        for _ in range(ASCENTS):
            slope = self._slope(now + share * moved).double()
            moved = self._within(moved + self.longest / 8 * slope / slope.norm().clamp_min(1e-300), known)
        return moved

    def _within(self, moved: Tensor, known: Mapping[str, Tensor]) -> Tensor:
        for basis in known.values():
            part = basis @ moved
            most = 0.95 * self.honest.along(len(basis))
            moved = moved - basis.T @ part * max(0.0, 1 - most / max(float(part.norm()), 1e-300))
        if self.is_tested:
            moved = as_row({name: self._flattened(w) for name, w in from_row(moved, self.first).items()})
        return moved * min(1.0, self.longest / max(float(moved.norm()), 1e-300))

    def _flattened(self, tensor: Tensor) -> Tensor:
        """A matrix with its singular values cut where the test would see them."""
        most, (_, longest) = (
            0.98 * self.honest.singular_value(*tensor.shape),
            self.honest.lengths(self.honest.tensor_clip, tensor.numel()),
        )
        u, s, v = torch.linalg.svd(tensor, full_matrices=False)
        cut = (u * s.clamp_max(most)) @ v
        return cut * min(1.0, longest / max(float(cut.norm()), 1e-300))

    def _filled(self, moved: Tensor, noise: Tensor) -> Tensor:
        """The update with so much noise in each tensor that its length is that of noise alone."""
        parts = []
        for part, filler in zip(
            from_row(moved, self.first).values(), from_row(noise, self.first).values(), strict=True
        ):
            left = max(0.0, 1 - float(part.square().sum()) / (self.honest.share**2 * part.numel()))
            parts.append((part + math.sqrt(left) * filler).flatten())
        return torch.cat(parts)

    def _slope(self, row: Tensor) -> Tensor:
        """(D,) gradient of the loss on the test records, which liars have even where the server has none."""
        data, model = self.simulation.federation, self.simulation.model
        leaf = row.float().clone().requires_grad_()
        logits = functional_call(model, from_row(leaf, self.first), (data.inputs(data.test_x),))
        loss = torch.nn.functional.cross_entropy(logits, data.test_y)
        return torch.autograd.grad(loss, leaf)[0]


Attack = Callable[[Liar, Weights, int, Tensor], Tensor]
ATTACKS: dict[str, Attack | None] = {
    "gradient": Liar.gradient,
    "sign flip": Liar.sign_flip,
    "adaptive": Liar.adaptive,
    "flipped labels": None,
}
DEFENCES: dict[str, tuple[str, str]] = {
    "length alone": ("length", "mean"),
    "length alone, median": ("length", "median"),
    "tests, no public records": ("private", "mean"),
    "tests, no public records, trimmed mean": ("private", "trimmed_mean"),
    "tests": ("public", "mean"),
    "tests, median": ("public", "median"),
    "tests, trimmed mean": ("public", "trimmed_mean"),
}


def flipped(data: Federation, clients: tuple[int, ...]) -> Federation:
    y = data.y.clone()
    for client in clients:
        y[data.train[client]] = data.classes - 1 - y[data.train[client]]
    return replace(data, y=y)


def run(given: Experiment, tests: str, attack: str | None, liars: int) -> dict[str, float]:
    """Accuracy of the last model, the lowest of any round, and the share of the lies that were refused."""
    plain = prepare(given)
    clients = tuple(range(liars))
    simulation = plain
    if attack == "flipped labels":
        simulation = prepare(given, flipped(plain.federation, clients))
    data = simulation.federation
    public = replace(data, test_x=data.test_x[:0], test_y=data.test_y[:0]) if tests == "private" else data
    first = {name: w.clone() for name, w in simulation.state.weights.items()}
    judge = (
        LengthAlone(simulation)
        if tests == "length"
        else UploadTests(simulation.mechanism, simulation.model, public, first)
    )
    liar = Liar(simulation, clients, public, tests != "length", torch.Generator().manual_seed(given.seed + 1))
    lie = ATTACKS[attack] if attack is not None else None
    told, refused, wrongly, lowest = 0, 0, 0, 1.0
    for t in range(1, given.train.rounds + 1):
        entry, state = simulation.draw(), simulation.state
        collected = simulation.local_cohort(t)(state, entry)
        assert isinstance(collected.uploads, Stack)
        uploads = {
            client: {name: w[k] for name, w in collected.uploads.weights.items()}
            for k, client in enumerate(entry.reported)
        }
        if lie is not None:
            assert collected.sent is not None
            for client in clients:
                honest = as_row({n: w[client] - state.weights[n] for n, w in collected.sent.trained.items()})
                moved = lie(liar, state.weights, client, honest).float()
                liar.last[client] = moved.double()
                uploads[client] = {n: state.weights[n] + u for n, u in from_row(moved, first).items()}
        found = judge.lies(uploads, dict.fromkeys(uploads, state.weights), state.weights)
        told, refused = told + liars, refused + sum(client in found for client in clients)
        wrongly += sum(client not in clients for client in found)
        accepted = {client: upload for client, upload in uploads.items() if client not in found}
        entry = replace(entry, reported=tuple(accepted))
        outcome = take_round(state, entry, simulation.method, partial(_received, accepted))
        simulation.state, simulation.round = outcome.state, t
        lowest = min(lowest, float(simulation.evaluator.measure(outcome.state.weights)["test_accuracy"]))
    last = float(simulation.evaluator.measure(simulation.state.weights)["test_accuracy"])
    return {"accuracy": last, "lowest": lowest, "refused": refused / max(told, 1), "refused_honest": wrongly}


def _received(uploads: Mapping[int, Weights], _: State, entry: Entry) -> Collected:
    models = stack([uploads[client] for client in entry.reported])
    return Collected(Stack(models, entry.reported, torch.ones(len(uploads), dtype=torch.float64), 0))


def table(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    plans: list[tuple[str | None, int]] = [(None, 0), *itertools.product(ATTACKS, (1, 2))]
    outsiders = SIGMA * math.sqrt(CLIENTS)  # with which a robust aggregate gives outsiders the epsilon of the mean
    at_equal_noise = [(each, SIGMA, plans) for each in DEFENCES.items()]
    robust = [each for each in DEFENCES.items() if each[1][0] == "public" and each[1][1] != "mean"]
    for (name, (tests, aggregation)), sigma, wanted in at_equal_noise + [
        (each, outsiders, plans[:1]) for each in robust
    ]:
        for attack, liars in wanted:
            found = [run(experiment(seed, sigma, aggregation), tests, attack, liars) for seed in seeds]
            accuracies = [each["accuracy"] for each in found]
            rows.append(
                {
                    "defence": name,
                    "sigma": sigma,
                    "attack": attack or "nobody",
                    "liars": liars,
                    "accuracy": mean(accuracies),
                    "spread": stdev(accuracies) if len(accuracies) > 1 else 0.0,
                    "refused": mean(each["refused"] for each in found),
                    "refused_honest": sum(each["refused_honest"] for each in found),
                }
            )
            print(
                f"{name:38} {sigma:4.2f} {attack or 'nobody':14} {liars}  {rows[-1]['accuracy']:.3f} "
                f"+- {rows[-1]['spread']:.3f}  refused {rows[-1]['refused']:.2f}",
                flush=True,
            )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of docs/federation.md: a line for each defence, a column for each attack by 1 and by 2 liars."""
    lines = [f"| defence | nobody | {' | '.join(f'{attack}, 1 / 2' for attack in ATTACKS)} |", "|---" * 6 + "|"]
    for defence in DEFENCES:
        found = {
            (r["attack"], r["liars"]): f"{r['accuracy']:.2f}" + (" (refused)" if r["refused"] > 0.99 else "")
            for r in rows
            if r["defence"] == defence and r["sigma"] == SIGMA
        }
        pairs = [f"{found[attack, 1]} / {found[attack, 2]}" for attack in ATTACKS]
        lines.append(f"| {defence} | {found['nobody', 0]} | {' | '.join(pairs).replace(' (refused) / ', ' / ')} |")
    return "\n".join(lines)


def epsilons() -> dict[str, dict[str, float | None]]:
    """Observer -> epsilon, of a mean and of a robust aggregate."""
    out: dict[str, dict[str, float | None]] = {}
    for aggregation, sigma in (("mean", SIGMA), ("median", SIGMA), ("median", SIGMA * math.sqrt(CLIENTS))):
        rows = planned_rows(experiment(0, sigma, aggregation), [1] * CLIENTS)
        out[f"{aggregation}, sigma {sigma:.2f}"] = {
            row.observer: row.epsilon for row in rows if row.observer in ("outsider", "server")
        }
    return out


def honest_uploads(uploads: int) -> list[dict[str, Any]]:
    """How many of so many honest uploads are refused, for each of several settings."""
    rows = []
    models = {"mlp on digits": ("mlp", (1, 8, 8)), "lenet5 on 28x28": ("lenet5", (1, 28, 28))}
    settings = [*itertools.product((0.5, 2.0, 10.0), ("flat", "per_layer"), ("gaussian", "lattice"))]
    for (name, (kind, shape)), of_model in zip(models.items(), (0.9, 0.1), strict=True):
        model = {n: w.clone() for n, w in parameters_of(build_model(kind, shape, 10, 0)).items()}
        each = math.ceil(uploads * of_model / len(settings) / CLIENTS)
        for sigma, clipping, noise in settings:
            refused = sum(_refused(model, sigma, clipping, noise, turn) for turn in range(each))
            rows.append(
                {
                    "model": name,
                    "entries": as_row(model).numel(),
                    "sigma": sigma,
                    "clipping": clipping,
                    "noise": noise,
                    "uploads": each * CLIENTS,
                    "refused": refused,
                }
            )
            print(f"{name:18} {sigma:5.1f} {clipping:10} {noise:9} refused {refused} of {each * CLIENTS}", flush=True)
    return rows


def _refused(model: Weights, sigma: float, clipping: str, noise: str, turn: int) -> int:
    """Refused uploads of one round of ten, whose updates are zero, or of length C where tests look hardest."""
    made = MECHANISMS["distributed"](
        1.0, sigma, Schedule(turn), min_reports=CLIENTS, clipping=clipping, noise_kind=noise
    )
    rng = torch.Generator().manual_seed(turn)
    direction = {n: torch.randn(w.shape, generator=rng) for n, w in model.items()}
    first = next(iter(model))
    thin = {n: torch.zeros_like(w) for n, w in model.items()}
    thin[first].view(len(thin[first]), -1)[0] = 1.0  # of rank one
    entry = {n: torch.zeros_like(w) for n, w in model.items()}
    entry[first].view(-1)[0] = 1.0
    wanted = [model, model, direction, direction, thin, thin, entry, entry]
    nothing = {n: torch.zeros_like(w) for n, w in model.items()}
    updates = stack([*({n: 100 * u for n, u in each.items()} for each in wanted), nothing, nothing])
    start = {n: w.expand(CLIENTS, *w.shape) for n, w in model.items()}
    trained = {n: start[n] + updates[n] for n in model}
    uploads = made.privatise(
        Contribution(start, trained), Senders(1, tuple(range(CLIENTS)), torch.ones(CLIENTS)), model
    )
    honest = Honest.under(made, model, directions=4 + 2 * CLIENTS)
    rows = [as_row({n: w[k] - model[n] for n, w in uploads.weights.items()}) for k in range(CLIENTS)]
    known = {n: orthonormal(as_row(each)[None]) for n, each in zip("abcd", wanted[::2], strict=True)}
    length = float(as_row(model).norm())
    return sum(
        honest.lie(from_row(row, model), model) is not None
        or honest.lie_along(row, length, known | {str(j): rows[j][None] for j in range(CLIENTS) if j != k}) is not None
        for k, row in enumerate(rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, few honest uploads")
    parser.add_argument("--out", type=Path, default=RESULTS / "liars.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "epsilons": epsilons(),
        "honest": honest_uploads(240 if args.quick else 12_000),
        "liars": table(SEEDS[:1] if args.quick else SEEDS),
    }
    write(found, args.out)
    print(markdown(found["liars"]))


if __name__ == "__main__":
    main()
