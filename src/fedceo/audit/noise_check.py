"""A mechanism taken as a function: is what it adds to an update the noise that it claims, and is the update clipped?

    findings = check_mechanism(mechanism, weights, clients=10, clip=1.0, std=1.0 / 10**0.5)

What is left of an upload u without its start w and the clipped update, r = (u - w) / step - clip(Delta), must be
N(0, s^2) in every entry, independent of the update, of other clients and of other rounds. With D entries that is a
sharp test: the variance of one upload is known to a fraction sqrt(2/D), so a 5 % smaller standard deviation of a model
with 50,000 parameters is a deviation of 16 standard deviations. All checks together raise a false alarm with
probability ALPHA at most.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from fedceo.mechanisms.base import Mechanism
from fedceo.mechanisms.uploads import Contribution, Senders, Stack
from fedceo.tensors.weights import Weights, as_rows, repeat

Floats: TypeAlias = npt.NDArray[np.float64]

ALPHA = 1e-6
CHECKS = 6
"""Checks with a chance of false alarm, which share ALPHA."""
NORMS = (1e-3, 0.1, 1.0, 1e2, 1e4)
"""L2 norms of the updates sent, in units of the clip."""
COUNTS = 400
"""Rounds whose noised counts of clients within the clip are checked."""
MOST_CLIENTS = 10
MOST_ENTRIES = 1_000_000
"""Entries that are sorted; of more, evenly spaced ones are taken."""
ENOUGH_FOR_VALUES = 50_000
"""Entries after which half-precision noise, of which there are some ten thousand likely values, shows repetitions."""


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        check: variance | correlation | normality | bias | clipping | freshness | values | count.
        passed: whether what was measured is as expected.
        measured: the worst value met.
        expected: in words and numbers, what would have passed.
    """

    check: str
    passed: bool
    measured: float
    expected: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_mechanism(
    mechanism: Mechanism,
    weights: Weights,
    clients: int,
    *,
    clip: float,
    std: float,
    rounds: Iterator[int] | None = None,
    rng: np.random.Generator | None = None,
) -> list[Finding]:
    """Send updates of many norms and directions through a distributed or central mechanism.

    Args:
        weights: name -> (...), a model of the shapes that the mechanism is to work on.
        clients: K; the first few of them are used.
        clip: C, as claimed.
        std: standard deviation that is claimed of every entry of an upload, or of the sum under central.
        rounds: round numbers that were not used yet; each is used once, as in a run.
        rng: where the updates come from.
    """
    rounds, rng = rounds or itertools.count(1), rng or np.random.default_rng()
    sent = _Sender(mechanism, weights, min(clients, MOST_CLIENTS), clip, rng)
    per_round = sent.clients if mechanism.shows_uploads else 1
    norms, noise, signals = [], [], []
    for turn in range(max(2, math.ceil(len(NORMS) / per_round))):
        # every client, or under central every round, sends another norm
        picked = np.array([NORMS[(turn + k) % len(NORMS)] for k in range(per_round)])
        signal, residual = sent.residuals(picked * clip, next(rounds))
        norms.append(picked)
        noise.append(residual)
        signals.append(signal)
    clipped = np.concatenate(norms) > 1
    all_noise, all_signals = np.concatenate(noise), np.concatenate(signals)
    sizes = [w.numel() for w in weights.values()]
    return [
        *check_noise(all_noise, std, sizes),
        check_along("bias", all_noise[~clipped], all_signals[~clipped], std),
        check_along("clipping", all_noise[clipped], all_signals[clipped], std),
        *_check_values(sent, std, rounds, rng),
        *([_check_count(mechanism, clients, rounds)] if mechanism.clipping == "adaptive" else []),
    ]


def _check_count(mechanism: Mechanism, clients: int, rounds: Iterator[int]) -> Finding:
    """Adaptive clipping also releases how many were within the clip, with noise of its own; here all of them are."""
    rows, told = {"entry": torch.zeros(clients, 1)}, []
    for round_ in itertools.islice(rounds, COUNTS):
        senders = Senders(round_, tuple(range(clients)), torch.ones(clients))
        told.append(mechanism.privatise(Contribution(rows, rows), senders, {"entry": torch.zeros(1)}).unclipped)
    shares = clients / mechanism.min_reports if mechanism.shows_uploads else 1.0
    divisor = clients if mechanism.shows_uploads else mechanism.divisor
    noise = (np.array(told, dtype=np.float64) - 0.5) * divisor - 0.5 * clients
    ratio = float(np.square(noise).mean() / (shares * mechanism.count_noise**2))
    tail = ALPHA / CHECKS / 2
    least, most = (float(stats.chi2.ppf(p, COUNTS) / COUNTS) for p in (tail, 1 - tail))
    return Finding("count", least <= ratio <= most, ratio, f"{least:.4g} to {most:.4g} times the variance claimed")


def check_noise(noise: Floats, std: float, sizes: Sequence[int]) -> list[Finding]:
    """Is every row N(0, std^2) and independent of the others?

    Args:
        noise: (n, D), a row for each upload.
        sizes: entries of each tensor of the model, D together; each has its variance checked on its own too.
    """
    return [_variance(noise, std, sizes), _correlation(noise), _normality(noise / std)]


def check_along(check: str, noise: Floats, signals: Floats, std: float) -> Finding:
    """Does noise lean towards its own update? <r, v> / std is N(0, 1) for a unit vector v; rows together count too.

    Args:
        noise, signals: (n, D), noise and what it was added to.
    """
    lengths = np.linalg.norm(signals, axis=1)
    lean = np.einsum("nd,nd->n", noise, signals) / np.maximum(lengths, np.finfo(float).tiny) / std
    lean = np.append(lean, lean.sum() / math.sqrt(len(lean)))
    worst = float(np.abs(lean).max())
    most = float(stats.norm.isf(ALPHA / CHECKS / 2 / len(lean)))
    return Finding(check, worst <= most, worst, f"at most {most:.3g} standard deviations along the update")


def _variance(noise: Floats, std: float, sizes: Sequence[int]) -> Finding:
    parts = np.split(np.square(noise), np.cumsum(sizes)[:-1], axis=1)
    sums = np.stack([part.sum(1) for part in parts], 1) / std**2
    sums = np.column_stack([sums, sums.sum(1)])
    entries = np.broadcast_to(np.array([*sizes, sum(sizes)], dtype=np.float64), sums.shape)
    tails = np.minimum(stats.chi2.cdf(sums, entries), stats.chi2.sf(sums, entries))
    worst = np.unravel_index(int(tails.argmin()), tails.shape)
    tail, count = ALPHA / CHECKS / 2 / sums.size, float(entries[worst])
    least, most = (float(stats.chi2.ppf(p, count) / count) for p in (tail, 1 - tail))
    ratio = float(sums[worst] / count)
    return Finding("variance", least <= ratio <= most, ratio, f"{least:.4g} to {most:.4g} times what is claimed")


def _correlation(noise: Floats) -> Finding:
    rows, entries = noise.shape
    spread = noise.std(1)
    if not spread.all():
        return Finding("correlation", False, 1.0, "noise that varies")
    centred = (noise - noise.mean(1, keepdims=True)) / spread[:, None]
    found = np.abs(centred @ centred.T / entries)[np.triu_indices(rows, 1)]
    worst = float(found.max())
    limit = float(stats.t.isf(ALPHA / CHECKS / 2 / len(found), entries - 2))
    most = limit / math.sqrt(entries - 2 + limit**2)
    return Finding("correlation", worst <= most, worst, f"at most {most:.3g} between any two uploads")


def _normality(standard: Floats) -> Finding:
    values = _thinned(standard)
    distance, probability = stats.kstest(values, "norm")
    most = float(stats.kstwobign.isf(ALPHA / CHECKS)) / math.sqrt(values.size)
    expected = f"at most {most:.3g} from the normal distribution function"
    return Finding("normality", bool(probability >= ALPHA / CHECKS), float(distance), expected)


def _thinned(rows: Floats) -> Floats:
    return rows.ravel()[:: math.ceil(rows.size / MOST_ENTRIES)]


def _check_values(sent: "_Sender", std: float, rounds: Iterator[int], rng: np.random.Generator) -> list[Finding]:
    """Zero updates from weights of 1.0: no two uploads are alike, and single values do not come in steps.

    Noise made in bfloat16 or float16 has the right variance but so few values that they give the update away.
    """
    repeatable = sent.mechanism.schedule.randomness == "seeded"
    number = next(rounds)
    found: list[Floats] = []
    while len(found) < 2 or sum(rows.size for rows in found) < ENOUGH_FOR_VALUES:
        found.append(sent.from_ones(number))
        number = next(rounds) if repeatable else number  # the operating system does not repeat even the same round
    uploads = np.concatenate(found)
    alike = len(uploads) - len(np.unique(uploads, axis=0))
    step = sent.mechanism.step / (1.0 if sent.mechanism.shows_uploads else sent.mechanism.divisor)
    found_values = _thinned(uploads)
    ideal = torch.from_numpy(1.0 + step * std * rng.standard_normal(found_values.size))
    values = len(np.unique(found_values)) / len(torch.unique(ideal.to(sent.dtype)))
    return [
        Finding("freshness", alike == 0, float(alike), f"0 of {len(uploads)} uploads that came before"),
        Finding("values", values >= 0.5, values, "at least 0.5 of the different values of exact noise"),
    ]


class _Sender:
    """Sends updates through a mechanism and takes them out of the uploads again."""

    def __init__(
        self, mechanism: Mechanism, weights: Weights, clients: int, clip: float, rng: np.random.Generator
    ) -> None:
        self.mechanism, self.weights, self.clients, self.clip, self.rng = mechanism, weights, clients, clip, rng
        self.dtype = next(iter(weights.values())).dtype

    def residuals(self, norms: Floats, round_: int) -> tuple[Floats, Floats]:
        """Signals and noise, (rows, D) each, of updates of such norms in random directions."""
        starts = repeat(self.weights, self.clients)
        total = sum(w.numel() for w in self.weights.values())
        updates = self.rng.standard_normal((self.clients, total))
        updates *= norms[:, None] / np.linalg.norm(updates, axis=1, keepdims=True)
        trained, first = {}, 0
        for name, start in starts.items():
            part = updates[:, first : first + self.weights[name].numel()]
            trained[name] = start + torch.from_numpy(part).to(start).view(start.shape)
            first += part.shape[1]
        really_sent = exact_rows(trained) - exact_rows(starts)  # rounded to the model's precision
        signals = self._clipped(really_sent)
        if not self.mechanism.shows_uploads:
            signals = signals.sum(0, keepdims=True)
        return signals, self._upload(starts, trained, round_) - signals

    def _clipped(self, updates: Floats) -> Floats:
        """Updates clipped by a second implementation: as a whole, or each of m tensors to the clip over sqrt(m)."""
        ends, bound = [0, updates.shape[1]], self.clip
        if self.mechanism.clipping == "per_layer":
            ends = [0, *np.cumsum([w.numel() for w in self.weights.values()]).tolist()]
            bound = self.clip / math.sqrt(len(self.weights))
        parts = [updates[:, a:b] for a, b in itertools.pairwise(ends)]
        factors = [np.minimum(1.0, bound / np.linalg.norm(part, axis=1))[:, None] for part in parts]
        return np.concatenate([part * factor for part, factor in zip(parts, factors, strict=True)], 1)

    def from_ones(self, round_: int) -> Floats:
        """Uploads, (rows, D), of zero updates from weights of 1.0."""
        ones = {name: torch.ones_like(w) for name, w in self.weights.items()}
        rows = repeat(ones, self.clients)
        return exact_rows(self._privatised(rows, rows, ones, round_))

    def _upload(self, starts: Weights, trained: Weights, round_: int) -> Floats:
        """The change from start to upload, (K, D), or to the mean alone, (1, D), before the server's step scales it."""
        uploads = exact_rows(self._privatised(starts, trained, self.weights, round_))
        divisor = 1.0 if self.mechanism.shows_uploads else self.mechanism.divisor
        return (uploads - exact_rows(starts)[: len(uploads)]) * (divisor / self.mechanism.step)

    def _privatised(self, starts: Weights, trained: Weights, origin: Weights, round_: int) -> Weights:
        """The uploads, name -> (K, ...), or their mean alone as a stack of one."""
        senders = Senders(round_, tuple(range(self.clients)), torch.ones(self.clients))
        uploads = self.mechanism.privatise(Contribution(starts, trained), senders, origin)
        return uploads.weights if isinstance(uploads, Stack) else {n: w[None] for n, w in uploads.weights.items()}


def exact_rows(weights: Weights) -> Floats:
    """name -> (K, ...) as (K, D), in float64."""
    return as_rows(weights).double().cpu().numpy()
