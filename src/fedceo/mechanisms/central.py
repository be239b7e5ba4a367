"""Central noise: clients send clipped updates, a trusted server adds the noise to their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedceo.accounting.plan import NoiseSite
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.clipping import votes, zero_nonfinite
from fedceo.mechanisms.uploads import Contribution, Mean, Senders
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


@MECHANISMS.register("central", "the server adds the noise to the clipped sum")
@dataclass(frozen=True)
class Central(Mechanism):
    """The mean w + step * (sum_k clip(Delta_k) + N(0, sigma^2 C^2)) / D; with no client, noise alone."""

    regime = "user-level, central noise"
    noise_site = NoiseSite.SUM
    is_user_level = True
    shows_uploads = False

    @classmethod
    def check(cls, experiment: Experiment) -> None:
        super().check(experiment)
        if experiment.record.every is not None:
            raise ValueError('record.every: records single uploads, which mechanism "central" does not release')

    @property
    def upload_noise(self) -> float | None:
        """The noise of single uploads that would add up to the noise of the sum."""
        return self.noise * self.clip * self.step / self.divisor**0.5

    @property
    def least_reports(self) -> int:
        """Zero: where nobody reports the noise alone is released, or an empty cohort would show."""
        return 0

    def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Mean:
        from fedceo.training.per_example import draw_noise

        updates, nonfinite = zero_nonfinite({name: sent.trained[name] - w for name, w in origin.items()})
        updates, within = self.clipped(updates)
        unclipped = None
        if self.clipping == "adaptive":
            unclipped = 0.5 + (votes(within, senders.capped) + self.drawn_count_noise(senders.round)) / self.divisor
        generator = self.schedule.generator("central noise", senders.round)
        noise = draw_noise(origin, self.noise * self.clip, generator)
        scale = self.step / self.divisor
        mean = {name: w + scale * (updates[name].sum(0) + noise[name]) for name, w in origin.items()}
        return Mean(mean, self.divisor, nonfinite, unclipped)
