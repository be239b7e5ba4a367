"""Methods that are FedAvg with one thing changed: how clients train, what they send, or what becomes of the mean."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedceo.mechanisms.base import Uploads
from fedceo.methods import settings as method_settings
from fedceo.methods.fedavg import FedAvg, Server
from fedceo.methods.method import Contribution, State
from fedceo.tensors.weights import Weights, flat
from fedceo.training.work import ALL_RECORDS, Work


class Proximal(FedAvg):
    """FedProx (Li et al. 2020): mu (w - w_start) is added to every gradient."""

    def __init__(self, server: Server, mu: float) -> None:
        super().__init__(server)
        self.mu = mu

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, proximal=work.proximal + self.mu),)


class Projected(FedAvg):
    """DP-FedAvg (McMahan et al. 2018): every local step ends within the clip of the start."""

    def __init__(self, server: Server, clip: float) -> None:
        super().__init__(server)
        self.clip = clip

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, radius=self.clip),)


class OneGradient(FedAvg):
    """DP-FedSGD (McMahan et al. 2018): the update is minus the gradient of one batch, or of all records."""

    def __init__(self, server: Server, full: bool) -> None:
        super().__init__(server)
        self.full = full

    def phases(self, work: Work) -> Sequence[Work]:
        size = ALL_RECORDS if self.full else work.batch_size
        return (replace(work, epochs=1, steps=1, batch_size=size, learning_rate=1.0, momentum=0.0),)


class SharpnessAware(FedAvg):
    """DP-FedSAM (Shi et al. 2023): gradients are taken at the worst point within a radius."""

    def __init__(self, server: Server, ascent: float) -> None:
        super().__init__(server)
        self.ascent = ascent

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, ascent=self.ascent),)


class Laplacian(FedAvg):
    """DP-Fed-LS (Liang et al. 2020): the mean update, all entries in a row, is smoothed by (I + c L)^-1.

    L is the Laplacian of a ring, so that the inverse is a division in the Fourier domain. It is computed from the mean
    alone and costs no privacy.
    """

    def __init__(self, server: Server, coefficient: float) -> None:
        super().__init__(server)
        self.coefficient = coefficient

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        mean = uploads.mean()
        if self.coefficient == 0:
            return self.server.apply(state, mean), {}
        update = torch.cat([(w - state.weights[name]).flatten() for name, w in mean.items()])
        smoothed = iter(torch.split(laplacian_smooth(update, self.coefficient), [w.numel() for w in mean.values()]))
        moved = {name: state.weights[name] + next(smoothed).view_as(w) for name, w in mean.items()}
        return self.server.apply(state, moved), {}


def laplacian_smooth(vector: Tensor, coefficient: float) -> Tensor:
    """(I + c L)^-1 v with L = 2 I - shift - shift back on a ring; the sum of the entries stays."""
    size = len(vector)
    angles = 2 * torch.pi * torch.arange(size // 2 + 1, device=vector.device, dtype=torch.float64) / size
    divisors = 1 + 2 * coefficient * (1 - angles.cos())
    return torch.fft.irfft(torch.fft.rfft(vector.double()) / divisors, n=size).to(vector.dtype)


class BlurLus(FedAvg):
    """Cheng et al. 2022. BLUR: lambda (w - w_start) is added to gradients outside the clip's ball. LUS: an update's
    least entries are dropped before it is clipped and noised; the noise is on all of them, so that it does not show."""

    def __init__(self, server: Server, settings: method_settings.BlurLus, clip: float) -> None:
        super().__init__(server)
        self.settings, self.clip = settings, clip

    def phases(self, work: Work) -> Sequence[Work]:
        trained = replace(work, outside=self.settings.strength, outside_radius=self.clip)
        if self.settings.score == "magnitude" or self.settings.sparsity == 0:
            return (trained,)
        # one step of rate 1 over all records shows the gradient at the trained model
        return trained, replace(work, epochs=1, steps=1, batch_size=ALL_RECORDS, learning_rate=1.0, momentum=0.0)

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        start, trained = passes[0], passes[1]
        if self.settings.sparsity == 0:
            return Contribution(start, trained)
        update = {name: w - start[name] for name, w in trained.items()}
        scores = {name: u.abs() for name, u in update.items()}
        if len(passes) > 2:
            scores = {name: (u * (passes[2][name] - trained[name])).abs() for name, u in update.items()}
        kept = largest(scores, 1 - self.settings.sparsity)
        return Contribution(start, {name: start[name] + u * kept[name] for name, u in update.items()})


def largest(scores: Weights, share: float) -> dict[str, Tensor]:
    """Which share of each client's entries, over all tensors together, has the largest scores: name -> (K, ...)."""
    rows = torch.cat([flat(score) for score in scores.values()], 1)
    count = round(share * rows.shape[1])
    kept = torch.zeros_like(rows, dtype=torch.bool)
    kept.scatter_(1, rows.topk(count, 1).indices, True)
    parts = torch.split(kept, [flat(score).shape[1] for score in scores.values()], 1)
    return {name: part.view_as(score) for (name, score), part in zip(scores.items(), parts, strict=True)}
