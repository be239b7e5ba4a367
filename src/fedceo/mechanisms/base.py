"""What leaves a client passes through here before any server code can touch it.

A mechanism turns a cohort's updates into one of two things: a `Stack`, one privatised upload per client, where each
upload carries its own noise (distributed), was trained privately (record) or is not private at all (none); or a
`Mean`, the privatised mean, which is all that `central` ever shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.tensors.weights import Weights, flat
from fedceo.training.per_example import draw_noise
from fedceo.training.schedule import Schedule


@dataclass(frozen=True)
class Stack:
    """One privatised upload per client that reported.

    Attributes:
        weights: name -> (m, ...), in ascending client number.
        clients: the m client numbers.
        sizes: (m,) weight of each upload in a mean.
        nonfinite: how many updates were NaN or Inf and became zero.
        unclipped: the noised share of updates that were within the clip, where clipping is adaptive.
    """

    weights: dict[str, Tensor]
    clients: tuple[int, ...]
    sizes: Tensor
    nonfinite: int
    unclipped: float | None = None

    def mean(self) -> dict[str, Tensor]:
        """The weighted mean, summed in client order."""
        share = self.sizes / self.sizes.sum()
        return {name: torch.tensordot(share.to(w), w, dims=1) for name, w in self.weights.items()}

    def mean_only(self) -> "Mean":
        """The mean and nothing of single uploads: all that a method which does not need them is given."""
        return Mean(self.mean(), float(len(self.clients)), self.nonfinite, self.unclipped)


@dataclass(frozen=True)
class Mean:
    """The privatised mean alone.

    Attributes:
        weights: name -> (...).
        divisor: D, what the sum was divided by; the threshold of a mean is that of the stack over D.
        nonfinite, unclipped: as in Stack.
    """

    weights: dict[str, Tensor]
    divisor: float
    nonfinite: int
    unclipped: float | None = None

    def mean(self) -> dict[str, Tensor]:
        return self.weights

    def mean_only(self) -> "Mean":
        return self


Uploads = Stack | Mean


@dataclass(frozen=True)
class Mechanism:
    """Clipping and noise of a cohort's updates.

    Attributes:
        kind: none | distributed | central | record.
        clip: C.
        noise_multiplier: sigma.
        min_reports: what distributed noise shares are sized for: each client adds N(0, sigma^2 C^2 / min_reports).
        divisor: D of the central mean: K for fixed cohorts, qN under Poisson sampling, whatever the cohort's size.
        step: what multiplies clipped update and noise alike; it has no effect on privacy.
        schedule: where noise comes from, the seed or the operating system.
        clipping: flat | per_layer | adaptive.
        count_noise: sigma_b, of the sum of the clients' indicators (within the clip or not, each 1/2 or -1/2), where
            clipping is adaptive.
    """

    kind: str
    clip: float
    noise_multiplier: float
    min_reports: int
    divisor: float
    step: float
    schedule: Schedule
    clipping: str = "flat"
    count_noise: float = 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in units of C: of one upload, or of the sum under central."""
        if self.kind == "distributed":
            return self.noise_multiplier / self.min_reports**0.5
        return self.noise_multiplier

    @property
    def upload_noise(self) -> float:
        """Standard deviation of the noise in an entry of an upload; under central, of shares that would come to it."""
        noise = self.noise * self.clip * self.step
        return noise / self.divisor**0.5 if self.kind == "central" else noise

    def privatise(
        self,
        starts: Weights,
        trained: Weights,
        clients: Sequence[int],
        sizes: Tensor,
        round_: int,
        capped: Sequence[int] = (),
    ) -> Stack:
        """u_k = start_k + step * (clip(Delta_k) + noise_k) for every client of the cohort (Algorithm 1, line 11).

        capped: places in the cohort of those who send noise alone; they have no say in the clip either.
        """
        if self.kind in ("none", "record") and self.step == 1.0:
            uploads, nonfinite = replace_nonfinite(trained, starts)
            return Stack(uploads, tuple(clients), sizes, nonfinite)
        updates = {name: trained[name] - start for name, start in starts.items()}
        updates, nonfinite = zero_nonfinite(updates)
        unclipped = None
        if self.kind == "distributed":
            updates, within = self._clip(updates)
            if self.clipping == "adaptive":
                shares = [self._count_noise(round_, client) / self.min_reports**0.5 for client in clients]
                unclipped = 0.5 + (_votes(within, capped) + sum(shares)) / len(clients)
            std = self.noise * self.clip
            for k, client in enumerate(clients):
                noise = draw_noise(
                    {n: u[k] for n, u in updates.items()}, std, self.schedule.generator("upload noise", round_, client)
                )
                for name, extra in noise.items():
                    updates[name][k] += extra
        uploads = {name: start + self.step * updates[name] for name, start in starts.items()}
        return Stack(uploads, tuple(clients), sizes, nonfinite, unclipped)

    def privatise_mean(self, start: Weights, trained: Weights, round_: int, capped: Sequence[int] = ()) -> Mean:
        """w + step * (sum_k clip(Delta_k) + N(0, sigma^2 C^2)) / D, by the server; with no client, noise alone."""
        updates, nonfinite = zero_nonfinite({name: trained[name] - w for name, w in start.items()})
        updates, within = self._clip(updates)
        unclipped = None
        if self.clipping == "adaptive":
            total = _votes(within, capped) + self._count_noise(round_)
            unclipped = 0.5 + total / self.divisor
        noise = draw_noise(start, self.noise * self.clip, self.schedule.generator("central noise", round_))
        scale = self.step / self.divisor
        return Mean(
            {name: w + scale * (updates[name].sum(0) + noise[name]) for name, w in start.items()},
            self.divisor,
            nonfinite,
            unclipped,
        )

    def _clip(self, updates: Weights) -> tuple[dict[str, Tensor], Tensor]:
        """The clipped updates, and (K,) which were within the clip already."""
        if self.clipping == "per_layer":
            bound = self.clip / len(updates) ** 0.5
            clipped = {name: clip_updates({name: u}, bound)[name] for name, u in updates.items()}
        else:
            clipped = clip_updates(updates, self.clip)
        return clipped, norms_of(updates) <= self.clip

    def _count_noise(self, round_: int, client: int = 0) -> float:
        return self.count_noise * float(self.schedule.generator("count noise", round_, client).standard_normal())


def _votes(within: Tensor, capped: Sequence[int]) -> float:
    """The sum of the clients' indicators, 1/2 for an update within the clip and -1/2 for any other."""
    votes = within.double() - 0.5
    if capped:
        votes[list(capped)] = 0.0
    return float(votes.sum())


def zero_nonfinite(updates: Weights) -> tuple[dict[str, Tensor], int]:
    """Updates with a NaN or Inf anywhere become zero as a whole, and how many there were."""
    return replace_nonfinite(updates, {})


def replace_nonfinite(stack: Weights, others: Weights) -> tuple[dict[str, Tensor], int]:
    """Models with a NaN or Inf anywhere give way to others, or to zero, as a whole, and how many there were."""
    sums = torch.stack([flat(u).sum(1) for u in stack.values()])
    if bool(torch.isfinite(sums).all()):  # a sum is finite only if everything in it is
        return dict(stack), 0
    finite = finite_rows(stack)
    keep = {name: finite.view(-1, *(1,) * (u.ndim - 1)) for name, u in stack.items()}
    kept = {name: torch.where(keep[name], u, others.get(name, 0.0)) for name, u in stack.items()}
    return kept, int((~finite).sum())


def finite_rows(stack: Weights) -> Tensor:
    """(K,) which models have neither NaN nor Inf anywhere."""
    return torch.stack([torch.isfinite(flat(u)).all(1) for u in stack.values()]).all(0)


def clip_updates(updates: Weights, clip: float) -> dict[str, Tensor]:
    """Each update scaled to L2 norm at most C over all tensors together; the norm is taken in float64."""
    factors = (clip / norms_of(updates).clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
    return {name: u * factors.to(u.dtype).view(-1, *(1,) * (u.ndim - 1)) for name, u in updates.items()}


def norms_of(updates: Weights) -> Tensor:
    """(K,) L2 norms over all tensors together, in float64."""
    return torch.stack([flat(u).double().square().sum(1) for u in updates.values()]).sum(0).sqrt()


def make_mechanism(experiment: Experiment, noise_multiplier: float, schedule: Schedule) -> Mechanism:
    """The mechanism of an experiment.

    Args:
        noise_multiplier: sigma of the plan, as given or solved for a target epsilon.
        schedule: where noise comes from.
    """
    privacy, cohort = experiment.privacy, experiment.cohort
    of_updates, of_counts = noises(experiment, noise_multiplier)
    return Mechanism(
        kind=privacy.mechanism,
        clip=privacy.clip,
        noise_multiplier=of_updates,
        clipping=privacy.clipping,
        count_noise=of_counts,
        min_reports=privacy.min_reports or cohort.size,
        divisor=float(cohort.size),
        step=experiment.method.server_step(experiment.train.server_learning_rate),
        schedule=schedule,
    )


def noises(experiment: Experiment, noise_multiplier: float) -> tuple[float, float]:
    """z of the updates and sigma_b of the counts that together make the noise multiplier of the plan."""
    if experiment.privacy.clipping != "adaptive":
        return noise_multiplier, 0.0
    count_noise = experiment.privacy.count_noise or max(experiment.cohort.size / 20, 2 * noise_multiplier)
    return noise_beside_count(noise_multiplier, count_noise), count_noise


def noise_beside_count(noise_multiplier: float, count_noise: float) -> float:
    """z of updates such that updates and noised indicators together have the multiplier z of the plan (D10).

    1/z_plan^2 = 1/z^2 + 1/(2 sigma_b)^2 with sigma_b, the noise of the sum of indicators.
    """
    if noise_multiplier == 0:
        return 0.0
    left = noise_multiplier**-2 - (2 * count_noise) ** -2
    if left <= 0:
        raise UsageError(
            f"privacy.count_noise: {count_noise:g}, expected more than half the noise multiplier, "
            f"{noise_multiplier:g}, or the counts alone spend everything"
        )
    return left**-0.5
