"""Distributed noise, Algorithm 1 of the paper: each client clips its update and adds its share of the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedceo.accounting.plan import NoiseSite
from fedceo.lazy import torch
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.clipping import votes, zero_nonfinite
from fedceo.mechanisms.uploads import Contribution, Senders, Stack
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


@MECHANISMS.register("distributed", "each client clips and noises its update (UDP)")
@dataclass(frozen=True)
class Distributed(Mechanism):
    """Uploads u_k = start_k + step * (clip(Delta_k) + N(0, sigma^2 C^2 / R)) of all clients (Algorithm 1, line 11)."""

    regime = "user-level, distributed noise"
    noise_site = NoiseSite.UPLOADS
    is_user_level = True
    noise_in_shares = True

    @classmethod
    def check(cls, experiment: Experiment) -> None:
        super().check(experiment)
        privacy = experiment.privacy
        if privacy.target_epsilon is not None and privacy.observer != "server" and experiment.may_lose_noise:
            raise ValueError(
                "privacy.target_epsilon: with cohort.dropout noise goes missing that was counted on, expected "
                "privacy.min_reports, for which shares are then sized"
            )
        if privacy.min_reports is not None and privacy.min_reports > experiment.cohort.size:
            raise ValueError(
                f"privacy.min_reports is {privacy.min_reports}, more than cohort.size, {experiment.cohort.size}"
            )

    @property
    def noise(self) -> float:
        return self.noise_multiplier / self.min_reports**0.5

    @property
    def upload_noise(self) -> float | None:
        return self.noise * self.clip * self.step

    @property
    def count_share(self) -> float:
        return self.count_noise / self.min_reports**0.5

    def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Stack:
        updates, nonfinite = zero_nonfinite({name: sent.trained[name] - start for name, start in sent.start.items()})
        updates, within = self.clipped(updates)
        unclipped = None
        if self.clipping == "adaptive":
            shares = [self.drawn_count_noise(senders.round, client) for client in senders.clients]
            unclipped = 0.5 + (votes(within, senders.capped) + sum(shares)) / len(senders.clients)
        updates = self.noised(updates, senders)
        uploads = {name: start + self.step * updates[name] for name, start in sent.start.items()}
        return Stack(uploads, senders.clients, senders.sizes, nonfinite, unclipped)

    def noised(self, updates: dict[str, torch.Tensor], senders: Senders) -> dict[str, torch.Tensor]:
        """Every client's clipped update with its share of the noise."""
        from fedceo.training.per_example import draw_noise

        std = self.noise * self.clip
        generators = [self.schedule.generator("upload noise", senders.round, client) for client in senders.clients]
        if self.noise_kind == "lattice" and std > 0:
            from fedceo.mechanisms.lattice import FINENESS, from_lattice, on_lattice, rounded_normals

            whole = on_lattice(updates, self.clip, std / FINENESS)
            for row, generator in zip(whole, generators, strict=True):
                row += rounded_normals(row.size, FINENESS, generator)
            return from_lattice(whole, std / FINENESS, updates)
        for k, generator in enumerate(generators):
            for name, extra in draw_noise({name: u[k] for name, u in updates.items()}, std, generator).items():
                updates[name][k] += extra
        return updates
