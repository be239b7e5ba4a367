"""No mechanism: nothing is clipped or noised, so nothing is promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedceo.accounting.plan import NoiseSite
from fedceo.mechanisms.bare import bare_uploads
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.uploads import Contribution, Senders, Stack
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.experiment.sections import Privacy


@MECHANISMS.register("none", "nothing is clipped or noised")
@dataclass(frozen=True)
class NoMechanism(Mechanism):
    """Updates as they are."""

    regime = "no privacy"
    noise_site = NoiseSite.NOWHERE
    adds_noise = False

    @classmethod
    def check_settings(cls, privacy: Privacy) -> None:
        if privacy.noise_multiplier is not None or privacy.target_epsilon is not None:
            raise ValueError('mechanism "none" takes neither noise_multiplier nor target_epsilon')
        for name in ("max_epsilon", "participation_cap"):
            if getattr(privacy, name) is not None:
                raise ValueError(f'mechanism "none" takes no {name}')

    def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Stack:
        return bare_uploads(sent, senders, self.step)
