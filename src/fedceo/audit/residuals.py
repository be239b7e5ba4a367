"""Residuals: what is left of uploads without their starts and the clipped updates, which must be standard normal noise.

Independent in every entry, of the update it was added to, of others' updates and of earlier ones, and between all pairs
of uploads. With D entries an upload is a sharp test of its own: its variance is known to a fraction sqrt(2/D).
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedceo.audit.findings import LEVEL, Finding, Floats, normal_finding, normality_finding, product_limit
from fedceo.audit.findings import variance_finding as variance_of

MOST_COLUMNS = 2048
"""Entries that rows are compared in; small tensors are in whole, of large ones a random part is."""
MOST_ROWS = 4000
"""Rows of which all pairs are compared."""
MOST_VALUES = 300_000
"""Values whose distribution is looked at."""
MOST_SHIFTED = 4e6
"""Values that are compared with others of their own row."""
BLOCK = 512
PARTS = "single tensors"


class Residuals:
    """Rows of standardised noise, added round by round."""

    def __init__(self, sizes: Sequence[int], rng: np.random.Generator, prefix: str = "") -> None:
        """sizes: entries of each tensor, D together; prefix: put before the names of checks."""
        self.sizes, self.entries, self.prefix, self._rng = list(sizes), sum(sizes), prefix, rng
        self._ends = np.cumsum([0, *sizes])
        self.columns = _columns(sizes, rng)
        self._sums: list[Floats] = []
        self._along: dict[tuple[str, str], list[Floats]] = defaultdict(list)
        self._of_clients: dict[int, Floats] = defaultdict(lambda: np.zeros(2))
        self._kept: list[npt.NDArray[np.float32]] = []
        self._numbers: list[npt.NDArray[np.int64]] = []
        self._values: list[Floats] = []
        self._squares, self._total = np.zeros(self.entries), np.zeros(self.entries)
        self._together: list[Floats] = []
        self._aligned = dict.fromkeys(itertools.combinations(range(len(self.sizes)), 2), 0.0)
        self._shifted: Floats | None = None
        self._shifted_rows = 0
        self._before: dict[int, Floats] = {}
        self._mean_before: Floats | None = None
        self.rows = 0
        self._is_bare = False

    def add(
        self, rows: Floats, signals: Sequence[Floats], clipped: Sequence[npt.NDArray[np.bool_]], run: int, round_: int,
        senders: Sequence[int], clients: Sequence[int],
    ) -> None:  # fmt: skip
        """Rows of one round.

        Args:
            rows: (n, D).
            signals: for each row, (m, D) clipped updates that were added to this noise.
            clipped: for each row, (m,) which of them were longer than the clip.
            run, round_: where the rows come from.
            senders: of each row, whose noise it is; -1 for the server's.
            clients: of all signals together, in their order.
        """
        if not len(rows):
            return
        parts = np.stack([part.sum(1) for part in self._split(np.square(rows))], 1)
        self._sums.append(parts)
        self._is_bare |= bool((parts.sum(1) < 1e-9 * self.entries).any())
        owners = np.array(clients).reshape(len(rows), -1)
        for row, signal, cut, of in zip(rows, signals, clipped, owners, strict=True):
            lean = self._lean(row, signal)
            for client, score in zip(of[cut].tolist(), lean[cut, -1].tolist(), strict=True):
                self._of_clients[client] += np.array([score, 1.0])
            for check, some in (("clipping", lean[cut]), ("bias", lean[~cut])):
                self._along[check, "whole"].append(some[:, -1])
                self._along[check, PARTS].append(some[:, :-1].ravel())
        self._remember(rows, signals, clients)
        self._squares += np.square(rows).sum(0)
        self._total += rows.sum(0)
        if len(rows) > 1:
            both = rows.sum(0, keepdims=True) / math.sqrt(len(rows))
            self._together.append(np.stack([part.sum(1) for part in self._split(np.square(both))], 1)[0])
        self._kept.append(rows[:, self.columns].astype(np.float32))
        self._numbers.append(np.array([(run, round_, sender) for sender in senders], dtype=np.int64))
        self._values.append(rows.ravel()[:: max(1, rows.size // 3000)])
        self._compare_tensors(rows)
        self.rows += len(rows)

    def findings(self, names: Collection[str] | None = None) -> list[Finding]:
        """The checks, or those of such names; a row that is bare fails those of correlation too."""
        checks = [
            self._variance(),
            variance_of(
                "entries", self._squares, np.full(self.entries, float(max(self.rows, 1))), "that, in one entry"
            ),
            normality_finding(np.concatenate(self._values)[:MOST_VALUES]),
            normal_finding("bias", self._scores("bias"), "along an update within the clip"),
            normal_finding("clipping", self._scores("clipping"), "along an update beyond it"),
            normal_finding("clients", self._by_client(), "along one client's updates beyond the clip"),
            normal_finding("memory", self._scores("memory"), "along updates of others and of earlier rounds"),
            *self._pairs(),
            self._sums_finding(),
            self._within(),
        ]
        return [replace(f, check=self.prefix + f.check) for f in checks if names is None or f.check in names]

    @property
    def pooled(self) -> int:
        """Entries in all rows together, by which the variance is known."""
        return self.rows * self.entries

    def lags(self) -> dict[bool, set[int]]:
        """Distances of rounds that were compared: within one client's noise (True), and between any two."""
        numbers = np.concatenate(self._numbers) if self._numbers else np.empty((0, 3), dtype=np.int64)
        of_one: set[int] = set()
        of_any: set[int] = set()
        for run in np.unique(numbers[:, 0]):
            here = numbers[numbers[:, 0] == run]
            rounds = np.unique(here[:, 1])
            of_any |= set(np.abs(rounds[:, None] - rounds[None]).ravel().tolist())
            for sender in np.unique(here[:, 2]):
                rounds = here[here[:, 2] == sender, 1]
                of_one |= set(np.abs(rounds[:, None] - rounds[None]).ravel().tolist())
        return {True: of_one - {0}, False: of_any - {0}}

    def _scores(self, check: str) -> Floats:
        """The scores of a check one by one, and for every kind but parts of another their sum over sqrt(n)."""
        kinds = {kind: np.concatenate(found) for (name, kind), found in self._along.items() if name == check}
        sums = [scores.sum() / math.sqrt(max(scores.size, 1)) for kind, scores in kinds.items() if kind != PARTS]
        return np.concatenate([*kinds.values(), sums])

    def _by_client(self) -> Floats:
        """The scores of single clients, over all rounds that they were in."""
        return np.array([total / math.sqrt(count) for total, count in self._of_clients.values()])

    def _split(self, rows: Floats) -> list[Floats]:
        return np.split(rows, self._ends[1:-1], axis=1)

    def _variance(self) -> Finding:
        parts = np.concatenate(self._sums)
        each = np.array(self.sizes, dtype=np.float64)
        sums = np.concatenate([parts.ravel(), parts.sum(1), parts.sum(0), [parts.sum()]])
        degrees = np.concatenate(
            [np.tile(each, len(parts)), np.full(len(parts), float(self.entries)), each * len(parts), [self.pooled]]
        )
        return variance_of("variance", sums, degrees)

    def _lean(self, row: Floats, signals: Floats) -> Floats:
        """(m, tensors + 1) scores of noise along each signal, in single tensors and in all together."""
        products = np.stack([part.sum(1) for part in self._split(signals * row)], 1)
        lengths = np.stack([part.sum(1) for part in self._split(np.square(signals))], 1)
        products = np.column_stack([products, products.sum(1)])
        lengths = np.sqrt(np.column_stack([lengths, lengths.sum(1)]))
        return np.where(lengths > 0, products / np.maximum(lengths, np.finfo(float).tiny), 0.0)

    def _remember(self, rows: Floats, signals: Sequence[Floats], clients: Sequence[int]) -> None:
        """Noise along what the same clients sent before, what others send now, and the sum of the round before."""
        seen, sent = rows[:, self.columns], np.concatenate([signal[:, self.columns] for signal in signals])
        has_rows = len(rows) == len(clients)
        along: dict[str, list[tuple[int, Floats]]] = defaultdict(list)
        for k in range(len(rows)):
            mine = [clients[k]] if has_rows else clients
            along["own before"] += [(k, self._before[client]) for client in mine if client in self._before]
            if has_rows and len(rows) > 1:
                along["neighbour"].append((k, sent[(k + 1) % len(rows)]))
            if self._mean_before is not None:
                along["mean before"].append((k, self._mean_before))
        for kind, pairs in along.items():
            found = [seen[k] @ other / length for k, other in pairs if (length := np.linalg.norm(other)) > 0]
            self._along["memory", kind].append(np.array(found, dtype=np.float64))
        self._mean_before = sent.sum(0)
        self._before.update(zip(clients, sent, strict=True))
        while len(self._before) > MOST_ROWS:
            del self._before[next(iter(self._before))]

    def _compare_tensors(self, rows: Floats) -> None:
        parts = self._split(rows)
        for a, b in self._aligned:
            length = min(self.sizes[a], self.sizes[b])
            self._aligned[a, b] += float(np.einsum("nd,nd->", parts[a][:, :length], parts[b][:, :length]))
        room = int((MOST_SHIFTED - self._shifted_rows * self.entries) // self.entries)
        if room > 0 or self._shifted is None:
            some = rows[: max(room, 1), : int(MOST_SHIFTED)]
            power = np.square(np.abs(np.fft.rfft(some, 2 * some.shape[1], axis=1))).sum(0)
            shifted = np.fft.irfft(power, 2 * some.shape[1])[: some.shape[1]]
            self._shifted = shifted if self._shifted is None else self._shifted + shifted
            self._shifted_rows += len(some)

    def _within(self) -> Finding:
        """Two tensors of an upload, or two stretches of it, that carry the same noise."""
        assert self._shifted is not None
        shifts = np.arange(1, len(self._shifted))
        counts = self._shifted_rows * (len(self._shifted) - shifts)
        lengths = np.array([self.rows * min(self.sizes[a], self.sizes[b]) for a, b in self._aligned], dtype=np.float64)
        products = np.concatenate([counts, lengths])
        sums = np.abs(np.concatenate([self._shifted[1:], list(self._aligned.values())]))
        if not sums.size:
            return Finding("within", True, 0.0, "there is one entry alone")
        worst = float((sums / product_limit(products, 2, products.size)).max())
        return Finding("within", worst <= 1, worst, "at most 1 times what chance explains between parts of an upload")

    def _sums_finding(self) -> Finding:
        """Sums over a round's uploads and over all: a part that all noise shares shows here first."""
        total = [part.sum() / self.rows for part in np.split(np.square(self._total), self._ends[1:-1])]
        rounds = np.array(self._together).reshape(-1, len(self.sizes))
        sums = np.concatenate([rounds.ravel(), rounds.sum(0), total, [sum(total)]])
        each = np.array(self.sizes, dtype=np.float64)
        degrees = np.concatenate([np.tile(each, len(rounds)), each * max(len(rounds), 1), each, [self.entries]])
        present = degrees > 0 if len(rounds) else np.arange(degrees.size) >= each.size
        return variance_of("sums", sums[present], degrees[present], "that of independent noise, in sums of uploads")

    def _pairs(self) -> list[Finding]:
        """All pairs of rows, one by one, and all pairs at one distance of rounds together."""
        rows, numbers = np.concatenate(self._kept), np.concatenate(self._numbers)
        if len(rows) > MOST_ROWS:
            chosen = _of_some_senders(numbers, self._rng)
            rows, numbers = rows[chosen], numbers[chosen]
        count, width = rows.shape
        pairs = count * (count - 1) // 2
        if self._is_bare:
            return [Finding("correlation", False, 1.0, "noise that varies"), Finding("lags", False, 1.0, "noise")]
        if not pairs:
            return []
        run, when, sender = numbers.T
        lags = int(np.ptp(when)) + 1
        groups = np.zeros((2, 2 * lags))  # sums and counts, of different senders and then of the same, by distance
        _, crowds = np.unique(numbers[:, :2], axis=0, return_counts=True)
        degrees = np.repeat([2.0 * crowds.max(), 2.0], lags)  # pairs of one group that a row is in, at most
        worst = 0.0
        for first in range(0, count, BLOCK):
            block = slice(first, min(first + BLOCK, count))
            products = rows[block] @ rows.T
            later = np.arange(count)[None] > np.arange(block.start, block.stop)[:, None]
            worst = max(worst, float(np.abs(products[later]).max(initial=0.0)))
            distance = np.abs(when[block, None] - when[None])
            kind = np.where(sender[block, None] == sender[None], lags, 0) + distance
            asked = later & (run[block, None] == run[None])
            groups[0] += np.bincount(kind[asked], products[asked], 2 * lags)
            groups[1] += np.bincount(kind[asked], minlength=2 * lags)
        most = float(product_limit(width, 1, pairs)) / width
        met = groups[1] > 0
        limits = product_limit(groups[1][met] * width, degrees[met], int(met.sum()))
        by_lag = float((np.abs(groups[0][met]) / limits).max(initial=0.0))
        return [
            Finding("correlation", worst / width <= most, worst / width, f"at most {most:.3g} between any two uploads"),
            Finding("lags", by_lag <= 1, by_lag, "at most 1 times what chance explains at any distance of rounds"),
        ]


def _columns(sizes: Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Entries that rows are compared in: of every tensor as many as of any other, or all."""
    if sum(sizes) <= MOST_COLUMNS:
        return np.arange(sum(sizes))
    share, left = MOST_COLUMNS, len(sizes)
    taken: dict[int, int] = {}
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        taken[index] = min(sizes[index], max(1, share // left))
        share, left = share - taken[index], left - 1
    starts = np.cumsum([0, *sizes])
    return np.sort(np.concatenate([starts[i] + rng.choice(sizes[i], n, replace=False) for i, n in taken.items()]))


def _of_some_senders(numbers: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """At most MOST_ROWS rows: those of some senders in all rounds, so that every distance of rounds is there."""
    order = rng.permutation(np.unique(numbers[:, 2]))
    rank = {int(sender): place for place, sender in enumerate(order)}
    places = np.array([rank[int(sender)] for sender in numbers[:, 2]])
    return np.sort(np.argsort(places, kind="stable")[:MOST_ROWS])


def deficit_found(entries: int) -> float:
    """The share of the standard deviation that, if missing in all noise, is found all but surely."""
    if entries <= 0:
        return 1.0
    spread = math.sqrt(2 / entries)
    needed = (math.sqrt(2 * math.log(2 * max(entries, 2) / LEVEL)) + 5) * spread
    return 1 - math.sqrt(max(0.0, 1 - min(1.0, needed)))
