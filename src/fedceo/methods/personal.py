"""Methods whose clients keep something for themselves: PPSGD, CENTAUR, and the deep relative of Jain et al.

What is personal never leaves its client, so that only the shared part is clipped, noised and accounted for. It is kept
in State.personal, for clients that have been seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedceo.mechanisms.base import Uploads
from fedceo.methods import settings as method_settings
from fedceo.methods.fedavg import FedAvg, Server
from fedceo.methods.method import Contribution, State, Statistics
from fedceo.tensors.weights import Weights, repeat
from fedceo.training.work import Work


class Centaur(FedAvg):
    """Shen et al. 2023: the client's own last layer is fitted to frozen features, then the features to that layer."""

    def __init__(
        self, server: Server, settings: method_settings.Centaur, names: Iterable[str], head: Sequence[str]
    ) -> None:
        """names: of all parameters; head: those that are personal."""
        super().__init__(server)
        self.settings, self.head = settings, frozenset(head)
        self.body = frozenset(names) - self.head

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        kept = state.personal if self.settings.persist_heads else {}
        return repeat(state.weights, len(clients)) | _own(state, clients, self.head, kept)

    def statistics(self, round_: int) -> Statistics | None:
        powers = self.settings.initialisation == "power" and round_ <= self.settings.power_rounds
        return power_step if powers else None

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) if self.head else None

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        return repeat(state.weights, len(clients)) | _own(state, clients, self.head, state.personal)

    def global_model(self, state: State) -> Weights:
        """The shared layers under the mean of the clients' last layers: for comparison, since nobody has it."""
        if not state.personal:
            return state.weights
        heads = [state.personal[client] for client in sorted(state.personal)]  # so that a resumed run adds up the same
        return state.weights | {name: torch.stack([h[name] for h in heads]).mean(0) for name in heads[0]}

    def phases(self, work: Work) -> Sequence[Work]:
        body = replace(work, only=self.body) if self.head else work
        if not self.settings.head_epochs or not self.head:
            return (body,)
        epochs, rate = self.settings.head_epochs, self.settings.head_learning_rate or work.learning_rate
        return replace(work, epochs=epochs, learning_rate=rate, only=self.head, proximal=0.0), replace(body, phase=1)

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        if self.statistics(round_) is None:
            return super().aggregate(state, uploads, round_)
        ((name, mean),) = uploads.mean().items()
        basis = torch.linalg.qr(mean.T).Q.T  # rows: directions, as many as the layer has units or inputs
        size = state.weights[name].norm(dim=1).mean()
        rows = state.weights[name].clone()
        rows[: len(basis)] = size * basis
        return State(state.weights | {name: rows}, state.personal, state.server), {"initialisation": True}

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        return Contribution(
            start={name: w for name, w in passes[0].items() if name not in self.head},
            trained={name: w for name, w in passes[-1].items() if name not in self.head},
            personal={name: w for name, w in passes[-1].items() if name in self.head},
        )


def power_step(state: State, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """A step of the power method: B V for the spread B of a client's class means, never formed, and V = W'.

    B = sum over classes c of n_c/n (m_c - m)(m_c - m)', with means m_c of the client's records of class c.
    """
    name, first = next(iter(state.weights.items()))
    records = x.flatten(1)
    centred = records - records.mean(0)
    members = (y[:, None] == torch.unique(y)).to(records.dtype)
    counts = members.sum(0)[:, None]
    means = members.T @ centred / counts
    return {name: (first @ means.T) @ (counts / len(y) * means)}


class JainAnil(Centaur):
    """Jain et al. 2021 carried over to deep models: heads fitted anew, one gradient of the rest, a low-rank matrix."""

    def __init__(
        self, server: Server, settings: method_settings.JainAnil, head: Sequence[str], weights: Weights
    ) -> None:
        fitted = method_settings.Centaur(
            head_epochs=settings.head_epochs, head_learning_rate=settings.head_learning_rate, persist_heads=False
        )
        super().__init__(server, fitted, weights, head)
        self.rank = settings.rank
        matrices = [name for name, w in weights.items() if w.ndim == 2 and name not in head]
        self.matrix = matrices[-1] if matrices else None

    def phases(self, work: Work) -> Sequence[Work]:
        head, body = super().phases(work)
        return head, replace(body, epochs=1, steps=1, learning_rate=1.0, momentum=0.0)

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        state, about = super().aggregate(state, uploads, round_)
        if self.matrix is None:
            return state, about
        u, s, v = torch.linalg.svd(state.weights[self.matrix], full_matrices=False)
        cut = (u[:, : self.rank] * s[: self.rank]) @ v[: self.rank]
        return State(state.weights | {self.matrix: cut}, state.personal, state.server), about


class PPSGD(FedAvg):
    """Bietti et al. 2022: logits = features (w + theta_k), with an offset theta_k of the last layer for every client.

    The gradients of w and theta_k are the same, those of the last layer as it is used, so that the models trained here
    have w + theta_k for a last layer and the two are told apart afterwards.
    """

    def __init__(self, server: Server, settings: method_settings.PPSGD, head: Sequence[str], rate: float) -> None:
        super().__init__(server)
        self.settings, self.head, self.rate = settings, frozenset(head), rate

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        offsets = self._offsets(state, clients)
        return repeat(state.weights, len(clients)) | {
            name: state.weights[name] + offset for name, offset in offsets.items()
        }

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal)

    def phases(self, work: Work) -> Sequence[Work]:
        if self.settings.form == "gradient":
            return (replace(work, epochs=1, steps=1, learning_rate=1.0, momentum=0.0),)
        epochs, rate = self.settings.personal_epochs, self.settings.personal_learning_rate or work.learning_rate
        if not epochs:
            return (work,)
        own = replace(work, epochs=epochs, learning_rate=rate, only=self.head, proximal=0.0)
        return own, replace(work, phase=1)

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        shared = repeat(state.weights, len(clients))
        update = {name: w - passes[-2][name] for name, w in passes[-1].items()}
        offsets = self._offsets(state, clients)
        if self.settings.form == "gradient":
            moved = {name: offset + self._personal_rate * update[name] for name, offset in offsets.items()}
        else:
            moved = {name: passes[-2][name] - shared[name] for name in offsets}
        if not any(bool(offset.any()) for offset in moved.values()):
            # without offsets this is FedAvg, to the last bit
            return Contribution(passes[-2], passes[-1], moved)
        return Contribution(shared, {name: shared[name] + u for name, u in update.items()}, moved)

    @property
    def _personal_rate(self) -> float:
        alpha = self.settings.alpha
        if alpha <= 1:
            return self.rate
        return 0.0 if alpha == float("inf") else self.rate / alpha

    def _offsets(self, state: State, clients: Sequence[int]) -> dict[str, Tensor]:
        zeros = {name: torch.zeros_like(state.weights[name]) for name in state.weights if name in self.head}
        offsets = [state.personal.get(client, zeros) for client in clients]
        return {
            name: torch.stack([offset[name] for offset in offsets]) if offsets else zero[None][:0]
            for name, zero in zeros.items()
        }


def _own(
    state: State, clients: Sequence[int], names: frozenset[str], kept: dict[int, dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Each client's own tensors, or the global model's for those who have none yet."""
    return {
        name: torch.stack([kept.get(client, state.weights)[name] for client in clients])
        for name in state.weights
        if name in names and clients
    }
