"""The seam of a mechanism: what it does to a cohort's contribution, and what everybody else must know of it.

Whatever leaves a client passes through a mechanism before any server code can touch it. A mechanism is one class in one
file, registered under the name that privacy.mechanism gives it:

    @MECHANISMS.register("halved", "every update at half its length: no privacy, a toy")
    @dataclass(frozen=True)
    class Halved(Mechanism):
        regime = "no privacy, halved updates"
        noise_site = NoiseSite.NOWHERE

        def privatise(self, sent, senders, origin):
            halved = {name: (w + sent.start[name]) / 2 for name, w in sent.trained.items()}
            return Stack(halved, senders.clients, senders.sizes, nonfinite=0)

docs/extending.md adds one in full.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedceo.accounting.plan import NoiseSite
from fedceo.experiment.registry import MECHANISMS
from fedceo.lazy import torch
from fedceo.mechanisms.banded import Floats, Noises, factorise, server_response
from fedceo.mechanisms.clipping import clip_each_tensor, clip_updates, noise_beside_count, norms_of
from fedceo.mechanisms.uploads import Contribution, Senders, Uploads
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.experiment.sections import Privacy
    from fedceo.training.schedule import Schedule
    from fedceo.training.work import RecordPrivacy

COUNT_STEP = 2.0**-20
"""The step of the lattice for counts."""

__all__ = ["MECHANISMS", "Mechanism", "NoiseSite", "make_mechanism"]


@dataclass(frozen=True)
class Mechanism(ABC):
    """Clipping and noise of a cohort's updates.

    Attributes:
        regime: what the mechanism protects, in the words of a table.
        noise_site: where noise enters; it decides what each observer sees and which accountant answers.
        is_user_level: whether a whole client is protected, not single records.
        shows_uploads: whether there are single privatised uploads, a Stack, or only their mean.
        trains_privately: whether local training itself is private (DP-SGD).
        adds_noise: whether there is a noise multiplier at all.
        noise_in_shares: whether each client adds a share of the noise, which goes missing with its report.
        drops_capped: whether clients at their cap are left out; elsewhere they send noise, on which the others count.
        clip: C.
        noise_multiplier: sigma of updates (z where adaptive clipping takes its part of the plan's sigma for counts).
        schedule: the source of the noise, the seed or the operating system.
        min_reports: R, the number of reports that shares of noise are sized for.
        fewest_reports: privacy.min_reports, or 1 where it is left out.
        divisor: D of a central mean: K for fixed cohorts, qN under Poisson sampling, whatever the cohort's size.
        step: the factor of clipped update and noise alike; it has no effect on privacy.
        clipping: flat | per_layer | adaptive.
        count_noise: sigma_b, of the sum of the clients' indicators (within the clip or not, each 1/2 or -1/2), where
            clipping is adaptive.
        noise_kind: gaussian, lattice for noise in whole steps of a lattice, or banded for noise correlated over rounds.
        coefficients: (b,) those of banded noise.
        drawn: the noise of the round to come and of those before it that it depends on, where it depends on any.
    """

    regime: ClassVar[str]
    noise_site: ClassVar[NoiseSite]
    is_user_level: ClassVar[bool] = False
    shows_uploads: ClassVar[bool] = True
    trains_privately: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = True
    drops_capped: ClassVar[bool] = False
    noise_in_shares: ClassVar[bool] = False

    clip: float
    noise_multiplier: float
    schedule: Schedule
    min_reports: int = 1
    fewest_reports: int = 1
    divisor: float = 1.0
    step: float = 1.0
    clipping: str = "flat"
    count_noise: float = 0.0
    noise_kind: str = "gaussian"
    coefficients: tuple[float, ...] = (1.0,)
    drawn: Noises = field(default_factory=dict)

    def before(self, round_: int, like: Weights, earlier: Noises) -> Mechanism:
        """The mechanism of one round, with the noise that depends on earlier rounds already drawn.

        Args:
            like: name -> (...), in the shapes of what is noised.
            earlier: what `drawn` was in the round before; nobody else may ever see it.
        """
        return self

    @abstractmethod
    def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Uploads:
        """The uploads that a contribution becomes.

        Args:
            sent: the clients' contribution, of which only the shared part is read.
            senders: the clients, in the order of the contribution's rows.
            origin: name -> (...), the shared part of the global model, or zeros where clients send statistics.
        """

    @classmethod
    def check_settings(cls, privacy: Privacy) -> None:
        """Raises ValueError, in one line, where the [privacy] table does not fit the mechanism."""
        if (privacy.noise_multiplier is None) == (privacy.target_epsilon is None):
            raise ValueError("exactly one of noise_multiplier and target_epsilon is needed")

    @classmethod
    def check(cls, experiment: Experiment) -> None:
        """Raises ValueError, in one line, where the rest of the experiment does not fit the mechanism."""
        if experiment.privacy.clipping != "flat" and not cls.is_user_level:
            raise ValueError(
                f'privacy.clipping "{experiment.privacy.clipping}" is of updates, which only user-level privacy clips'
            )
        if experiment.privacy.noise != "gaussian" and not cls.is_user_level:
            raise ValueError(
                f'privacy.noise "{experiment.privacy.noise}" is of updates, which only user-level privacy noises'
            )
        if experiment.privacy.noise == "banded" and cls.noise_site is not NoiseSite.SUM:
            raise ValueError(
                'privacy.noise "banded" belongs to mechanism "central", whose server adds noise to the sum, '
                f'got privacy.mechanism "{experiment.privacy.mechanism}"'
            )
        if experiment.cohort.sampling == "cyclic" and cls.noise_site in (NoiseSite.UPLOADS, NoiseSite.STEPS):
            raise ValueError('cohort.sampling "cyclic" is accounted for under mechanism "central" alone')
        if cls.is_user_level and experiment.train.weighting == "records":
            raise ValueError('train.weighting "records" is refused under user-level privacy: weights would leak sizes')
        if experiment.privacy.min_reports is not None and not cls.noise_in_shares:
            raise ValueError('privacy.min_reports belongs to mechanism "distributed", whose noise comes in shares')

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in units of C: of one upload, or of the sum where that is noised."""
        return self.noise_multiplier

    @property
    def upload_noise(self) -> float | None:
        """Standard deviation of the user-level noise in an entry of an upload, or None where there is no such noise."""
        return None

    @property
    def count_share(self) -> float:
        """Standard deviation of the noise that is added to the count at a time: all of it, or a client's share."""
        return self.count_noise

    @property
    def local_privacy(self) -> RecordPrivacy | None:
        """DP-SGD inside local training, where the mechanism asks for it."""
        return None

    @property
    def least_reports(self) -> int:
        """Reports without which a round is discarded."""
        return self.fewest_reports

    def clipped(self, updates: Weights) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The clipped updates, and (K,) which were within the clip already."""
        clip = clip_each_tensor if self.clipping == "per_layer" else clip_updates
        return clip(updates, self.clip), norms_of(updates) <= self.clip

    def drawn_count_noise(self, round_: int, client: int = 0) -> float:
        """Noise of the count of updates within the clip; the count is a multiple of 1/2, and so of COUNT_STEP."""
        generator = self.schedule.generator("count noise", round_, client)
        if self.noise_kind == "lattice":
            from fedceo.mechanisms.lattice import rounded_normals

            return float(rounded_normals(1, self.count_share / COUNT_STEP, generator)[0]) * COUNT_STEP
        return self.count_share * float(generator.standard_normal())

    def noised_counts(self, counts: torch.Tensor, client: int, noise: float) -> torch.Tensor:
        """A client's label counts, (classes,), as they leave it; noise: its standard deviation."""
        if not self.adds_noise:
            return counts
        drawn = self.schedule.generator("label noise", client=client).standard_normal(len(counts))
        return counts + noise * torch.from_numpy(drawn)


def make_mechanism(experiment: Experiment, noise_multiplier: float, schedule: Schedule) -> Mechanism:
    """The mechanism of an experiment.

    Args:
        noise_multiplier: sigma of the plan, as given or solved for a target epsilon.
        schedule: the source of the noise.
    """
    privacy, cohort = experiment.privacy, experiment.cohort
    of_updates, of_counts = noises(experiment, noise_multiplier)
    made: Mechanism = MECHANISMS[privacy.mechanism](
        clip=privacy.clip,
        noise_multiplier=of_updates,
        schedule=schedule,
        min_reports=privacy.min_reports or cohort.size,
        fewest_reports=privacy.min_reports or 1,
        divisor=float(cohort.size),
        step=experiment.method.server_step(experiment.train.server_learning_rate),
        clipping=privacy.clipping,
        count_noise=of_counts,
        noise_kind=privacy.noise,
        coefficients=noise_coefficients(experiment),
    )
    return made


def noise_coefficients(experiment: Experiment) -> tuple[float, ...]:
    """(b,) the coefficients of an experiment's noise, whose number of bands is settled; one for independent noise."""
    privacy = experiment.privacy
    if privacy.noise != "banded":
        return (1.0,)
    assert isinstance(privacy.bands, int)
    return factorise(workload(experiment), privacy.bands)


def workload(experiment: Experiment) -> Floats:
    """(T,) by how much a round's sum has moved what is released after 0, 1, ... more rounds.

    What is released is the average of the models, where there is one, and the model otherwise.
    """
    train, release = experiment.train, experiment.release
    response = server_response(train.server_memory, train.rounds)
    if release.average == "none":
        return response
    rounds = np.arange(train.rounds)
    shares = (1 - release.decay) * release.decay**rounds
    if release.average == "tail":
        shares = (rounds < release.length) / release.length
    return np.convolve(response, shares)[: train.rounds]


def noises(experiment: Experiment, noise_multiplier: float) -> tuple[float, float]:
    """The noises z of the updates and sigma_b of the counts that together make the plan's noise multiplier."""
    if experiment.privacy.clipping != "adaptive":
        return noise_multiplier, 0.0
    count_noise = experiment.privacy.count_noise or max(experiment.cohort.size / 20, 2 * noise_multiplier)
    return noise_beside_count(noise_multiplier, count_noise), count_noise
