"""The seam: what a method is asked in a round. It draws no noise and trains nothing itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from fedceo.experiment.file import Experiment
from fedceo.mechanisms.base import Uploads
from fedceo.methods.settings import (
    PPSGD,
    BlurLus,
    Centaur,
    DPFedAvg,
    DPFedLS,
    DPFedSAM,
    DPFedSGD,
    FedCEO,
    FedProx,
    JainAnil,
    Own,
)
from fedceo.tensors.weights import Weights, last_layer
from fedceo.training.work import Work


@dataclass(frozen=True)
class State:
    """All that a method remembers from round to round; it travels with the checkpoint.

    Attributes:
        weights: the global model, which is what is evaluated.
        personal: models or parts of models kept for single clients, by client number (or by place in the cohort).
        server: further tensors of the server's own, such as an optimiser's moments, by kind.
    """

    weights: dict[str, Tensor]
    personal: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    server: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def placed_like(self, weights: Weights) -> "State":
        """The same on that model's device and with its order of names, which sums and noise follow."""

        device = next(iter(weights.values())).device

        def place(model: Weights) -> dict[str, Tensor]:
            names = [*(name for name in weights if name in model), *(name for name in model if name not in weights)]
            return {name: model[name].to(device) for name in names}

        personal = {client: place(model) for client, model in self.personal.items()}
        return State(place(self.weights), personal, {kind: place(tensors) for kind, tensors in self.server.items()})

    def flatten(self) -> dict[str, Tensor]:
        """Every tensor under one name, for a file."""
        flat = {f"global/{name}": w for name, w in self.weights.items()}
        for client, model in self.personal.items():
            flat |= {f"personal/{client}/{name}": w for name, w in model.items()}
        for kind, tensors in self.server.items():
            flat |= {f"server/{kind}/{name}": w for name, w in tensors.items()}
        return flat

    @staticmethod
    def unflatten(flat: Weights) -> "State":
        """Undo `flatten`."""
        state = State({})
        for key, tensor in flat.items():
            kind, _, rest = key.partition("/")
            if kind == "global":
                state.weights[rest] = tensor
                continue
            place, _, name = rest.partition("/")
            if kind == "personal":
                state.personal.setdefault(int(place), {})[name] = tensor
            else:
                state.server.setdefault(place, {})[name] = tensor
        return state


@dataclass(frozen=True)
class Contribution:
    """What comes of a cohort's training.

    Attributes:
        start, trained: name -> (K, ...), the shared part before and after; what leaves a client is their difference,
            clipped and noised.
        personal: name -> (K, ...), what each client keeps for itself.
    """

    start: Weights
    trained: Weights
    personal: Weights = field(default_factory=dict)


Statistics = Callable[[State, Tensor, Tensor], dict[str, Tensor]]
"""Of one client's records x (n, *shape) and labels y (n,): name -> as large as the parameter; zeros if n is 0."""


class Method(Protocol):
    """One method; `needs_stack` says whether it must see each client's upload or only the mean."""

    needs_stack: bool

    def smooths(self, round_: int) -> bool:
        """Whether the round ends with a smoothing, which shows more than an average where models are personal."""

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        """The model that each client of the cohort trains from, personal parts included: name -> (K, ...)."""

    def statistics(self, round_: int) -> Statistics | None:
        """What clients send in the round instead of training, clipped and noised like an update; None: they train."""

    def phases(self, work: Work) -> Sequence[Work]:
        """What a client does in a round, one after another."""

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        """passes: the models at the start and after each phase, name -> (K, ...)."""

    def global_model(self, state: State) -> Weights:
        """What is measured as the global model."""

    def personal_clients(self, state: State) -> Sequence[int] | None:
        """Clients that have something of their own, or None where everybody uses the global model."""

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        """What each client would use after the round: name -> (K, ...)."""

    def idle(self, state: State) -> State:
        """The state after a round in which nothing is released: the global model as it was."""

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        """The state after the round, and what the round's record should say of it."""


def visible_uploads(method: Method, uploads: Uploads) -> Uploads:
    """What of the uploads a method may see: the mean alone, unless it needs each of them."""
    return uploads if method.needs_stack else uploads.mean_only()


def make_method(experiment: Experiment, weights: Weights, clip: float, noise: float) -> Method:
    """The method that an experiment's [method] table names.

    Args:
        weights: the model that all begin with.
        clip: C, which moves where clipping is adaptive.
        noise: standard deviation of the noise in an entry of an upload.
    """
    from fedceo.methods import fedavg, fedceo, hosted, local, personal

    settings, train = experiment.method, experiment.train
    server = fedavg.Server(train.server_optimizer, settings.server_step(train.server_learning_rate))
    match settings:
        case Own():
            of_users = experiment.privacy.mechanism in ("distributed", "central")
            return hosted.make_own(settings, server, clip, noise if of_users else None, weights)
        case FedCEO():
            return fedceo.FedCEO(settings, noise)
        case PPSGD():
            return personal.PPSGD(server, settings, last_layer(weights), train.server_learning_rate)
        case Centaur():
            head = last_layer(weights) if settings.personal == "head" else ()
            return personal.Centaur(server, settings, weights, head)
        case JainAnil():
            return personal.JainAnil(server, settings, last_layer(weights), weights)
        case DPFedAvg():
            return local.Projected(server, clip)
        case DPFedSGD():
            return local.OneGradient(server, full=settings.batch == "full")
        case FedProx():
            return local.Proximal(server, settings.mu)
        case BlurLus():
            return local.BlurLus(server, settings, clip)
        case DPFedSAM():
            return local.SharpnessAware(server, settings.radius)
        case DPFedLS():
            return local.Laplacian(server, settings.coefficient)
    return fedavg.FedAvg(server)
