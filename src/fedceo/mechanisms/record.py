"""Record-level privacy, the regime of the authors' program: DP-SGD inside local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedceo.accounting.plan import NoiseSite
from fedceo.mechanisms.bare import bare_uploads
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.uploads import Contribution, Senders, Stack
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import RecordPrivacy


@MECHANISMS.register("record", "DP-SGD inside local training, which protects records, not users")
@dataclass(frozen=True)
class RecordLevel(Mechanism):
    """Clipping and noise happen inside training, so that uploads leave as they are."""

    regime = "record-level DP-SGD"
    noise_site = NoiseSite.STEPS
    trains_privately = True
    drops_capped = True

    @classmethod
    def check(cls, experiment: Experiment) -> None:
        super().check(experiment)
        if experiment.data.partition == "resampled":
            raise ValueError(
                'data.partition "resampled" gives one record to several clients, and record privacy counts the rounds '
                "of one of them"
            )

    @property
    def local_privacy(self) -> RecordPrivacy | None:
        from fedceo.training.work import RecordPrivacy

        return RecordPrivacy(self.clip, self.noise_multiplier)

    def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Stack:
        return bare_uploads(sent, senders, self.step)
