"""Central noise: clients send clipped updates, a trusted server adds the noise to their sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedceo.accounting.plan import NoiseSite
from fedceo.lazy import torch
from fedceo.mechanisms.banded import Noises, correlated
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.clipping import votes, zero_nonfinite
from fedceo.mechanisms.uploads import Contribution, Mean, Senders
from fedceo.tensors.weights import Weights, repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


@MECHANISMS.register("central", "the server adds the noise to the clipped sum")
@dataclass(frozen=True)
class Central(Mechanism):
    """The mean w + step * (sum_k clip(Delta_k) + N(0, sigma^2 C^2)) / D; with no client, noise alone.

    Banded noise takes back part of that of earlier rounds.
    """

    regime = "user-level, central noise"
    noise_site = NoiseSite.SUM
    is_user_level = True
    shows_uploads = False

    @classmethod
    def check(cls, experiment: Experiment) -> None:
        super().check(experiment)
        if experiment.record.every is not None:
            raise ValueError('record.every: records single uploads, which mechanism "central" does not release')
        if experiment.privacy.noise == "banded":
            cls._check_bands(experiment)

    @classmethod
    def _check_bands(cls, experiment: Experiment) -> None:
        privacy, cohort = experiment.privacy, experiment.cohort
        if cohort.sampling != "cyclic":
            raise ValueError(
                f'privacy.noise "banded" needs cohort.sampling "cyclic", which keeps a client\'s rounds apart, '
                f'got "{cohort.sampling}"'
            )
        if privacy.clipping != "flat":
            raise ValueError(f'privacy.noise "banded" needs privacy.clipping "flat", got "{privacy.clipping}"')
        if isinstance(privacy.bands, int) and cohort.groups is not None and privacy.bands > cohort.groups:
            raise ValueError(
                f"privacy.bands is {privacy.bands}, more than cohort.groups, {cohort.groups}: a client would come back "
                "before its noise has passed"
            )

    @property
    def upload_noise(self) -> float | None:
        """The noise of single uploads that would add up to the noise of the sum."""
        return self.noise * self.clip * self.step / self.divisor**0.5

    @property
    def least_reports(self) -> int:
        """Zero: where nobody reports the noise alone is released, or an empty cohort would show."""
        return 0

    def before(self, round_: int, like: Weights, earlier: Noises) -> Central:
        if self.noise_kind != "banded":
            return self
        noise = correlated(self._fresh(round_, like), earlier, self.coefficients, round_)
        needed = range(round_ - len(self.coefficients) + 2, round_)
        return replace(self, drawn={t: earlier[t] for t in needed if t in earlier} | {round_: noise})

    def _fresh(self, round_: int, like: Weights) -> dict[str, torch.Tensor]:
        from fedceo.training.per_example import draw_noise

        return draw_noise(like, self.noise * self.clip, self.schedule.generator("central noise", round_))

    def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Mean:
        updates, nonfinite = zero_nonfinite({name: sent.trained[name] - w for name, w in origin.items()})
        updates, within = self.clipped(updates)
        unclipped = None
        if self.clipping == "adaptive":
            unclipped = 0.5 + (votes(within, senders.capped) + self.drawn_count_noise(senders.round)) / self.divisor
        std = self.noise * self.clip
        if self.noise_kind == "lattice" and std > 0:
            from fedceo.mechanisms.lattice import FINENESS, from_lattice, on_lattice, rounded_normals

            whole = on_lattice(updates, self.clip, std / FINENESS).sum(0)
            whole += rounded_normals(whole.size, FINENESS, self.schedule.generator("central noise", senders.round))
            total = {name: w[0] for name, w in from_lattice(whole[None], std / FINENESS, repeat(origin, 1)).items()}
        else:
            noise = self._noise_of(senders.round, origin)
            total = {name: updates[name].sum(0) + extra for name, extra in noise.items()}
        scale = self.step / self.divisor
        return Mean({name: w + scale * total[name] for name, w in origin.items()}, self.divisor, nonfinite, unclipped)

    def _noise_of(self, round_: int, like: Weights) -> Weights:
        if self.noise_kind != "banded":
            return self._fresh(round_, like)
        return self.drawn[round_] if round_ in self.drawn else self.before(round_, like, {}).drawn[round_]
