"""The seam of a method: the questions that a round asks it. A method draws no noise and trains nothing itself.

A method answers what each client of a cohort starts from, in which phases it trains, what of the result is sent and
what stays with the client, and what the server makes of the privatised uploads. Every question has FedAvg's answer
until a method gives another one, so that a method is one file with its settings and the answers that differ:

    class SignedSettings(MethodSettings):
        name: Literal["signed"] = "signed"
        \"\"\"The global model moves by a fixed step along the signs of the mean update.\"\"\"
        step: Positive = 0.01
        \"\"\"How far every entry moves.\"\"\"

    @register
    class Signed(Method):
        Settings = SignedSettings

        def aggregate(self, state, uploads, round_):
            mean = uploads.mean()
            moved = {n: w + self.settings.step * (mean[n] - w).sign() for n, w in state.weights.items()}
            return replace(state, weights=moved), {}

docs/extending.md adds one in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedceo.errors import UsageError
from fedceo.experiment.method_table import OWN, MethodSettings, settings_of
from fedceo.experiment.plugins import is_own
from fedceo.experiment.registry import METHODS
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Contribution, Mean, Stack, Uploads
from fedceo.methods.robust import AGGREGATES
from fedceo.methods.server import Server
from fedceo.tensors.weights import Weights, repeat, stack

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.mechanisms.base import Mechanism
    from fedceo.training.work import Work

__all__ = ["Method", "MethodSettings", "Setup", "State", "Statistics", "make_method", "register", "settings_of"]

Statistics = Callable[["State", "torch.Tensor", "torch.Tensor"], dict[str, "torch.Tensor"]]
"""A function of a client's records x (n, *shape) and labels y (n,): name -> (size of the parameter); zeros if n = 0."""
Predict = Callable[[Weights], "torch.Tensor"]
"""The class that a model gives each of a client's records: weights -> (n,)."""
COUNTED = "counted"
"""The name of State.counted in a file."""
Smooth = Callable[[Sequence["torch.Tensor"], Sequence[float]], list["torch.Tensor"]]
"""The truncated t-SVD of several (d, h, K) tensors, each at its threshold."""


@dataclass(frozen=True)
class State:
    """All that a method remembers from round to round; it travels with the checkpoint.

    Attributes:
        weights: the global model, which is what is evaluated.
        personal: models or parts of models kept for single clients, by client number (or by position in the cohort).
        server: further tensors of the server's own, such as an optimiser's moments, by kind.
        counted: the clients that have released counts of their records, which none does twice; a round writes it.
    """

    weights: Mapping[str, torch.Tensor]
    personal: Mapping[int, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    server: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    counted: frozenset[int] = frozenset()

    def placed_like(self, weights: Weights) -> State:
        """The same state on that model's device and with its order of names, which sums and noise follow."""
        device = next(iter(weights.values())).device

        def place(model: Weights) -> dict[str, torch.Tensor]:
            names = [*(name for name in weights if name in model), *(name for name in model if name not in weights)]
            return {name: model[name].to(device) for name in names}

        personal = {client: place(model) for client, model in self.personal.items()}
        server = {kind: place(tensors) for kind, tensors in self.server.items()}
        return State(place(self.weights), personal, server, self.counted)

    def models_of(self, clients: Sequence[int]) -> dict[str, torch.Tensor]:
        """The whole model that is kept for each client, the global one where there is none: name -> (K, ...)."""
        if not clients:
            return repeat(self.weights, 0)
        return stack([self.personal.get(client, self.weights) for client in clients])

    def flatten(self) -> dict[str, torch.Tensor]:
        """Every tensor under one name, for a file."""
        flat = {f"global/{name}": w for name, w in self.weights.items()}
        for client, model in self.personal.items():
            flat |= {f"personal/{client}/{name}": w for name, w in model.items()}
        for kind, tensors in self.server.items():
            flat |= {f"server/{kind}/{name}": w for name, w in tensors.items()}
        if self.counted:
            flat[COUNTED] = torch.tensor(sorted(self.counted))
        return flat

    @staticmethod
    def unflatten(flat: Weights) -> State:
        """Undo `flatten`."""
        weights: dict[str, torch.Tensor] = {}
        personal: dict[int, dict[str, torch.Tensor]] = {}
        server: dict[str, dict[str, torch.Tensor]] = {}
        counted = frozenset(flat[COUNTED].tolist()) if COUNTED in flat else frozenset()
        for key, tensor in flat.items():
            if key == COUNTED:
                continue
            kind, _, rest = key.partition("/")
            if kind == "global":
                weights[rest] = tensor
                continue
            owner, _, name = rest.partition("/")
            if kind == "personal":
                personal.setdefault(int(owner), {})[name] = tensor
            else:
                server.setdefault(owner, {})[name] = tensor
        return State(weights, personal, server, counted)


@dataclass(frozen=True)
class Setup:
    """The surroundings that a method is made for; clip and noise move from round to round where clipping is adaptive.

    Attributes:
        weights: the model that all clients begin with.
        clip: C.
        noise: standard deviation of the noise in an entry of an upload; None where there is no user-level noise.
        training_noise: that which a round of plain local training leaves in an entry of an upload under record privacy;
            None elsewhere.
        clients: N.
        server: the optimiser between the mean update and the model.
        server_learning_rate: train.server_learning_rate.
        rounds: T.
        aggregation: train.aggregation, what a method that does not need the stack is given of it.
        smooth: the function that does the truncated t-SVD on workers; None: it is done in this process.
    """

    weights: Weights = field(default_factory=dict)
    clip: float = 1.0
    noise: float | None = None
    training_noise: float | None = None
    clients: int = 1
    server: Server = field(default_factory=Server)
    server_learning_rate: float = 1.0
    rounds: int = 1
    aggregation: str = "mean"
    smooth: Smooth | None = None


class Method:
    """One federated method: FedAvg until it answers otherwise.

    Attributes:
        Settings: the class of its [method] table, whose `name` has the method's name as default.
        needs_stack: whether `aggregate` must see each client's upload, or only their mean (or what train.aggregation
            puts in its place).
    """

    Settings: ClassVar[type[MethodSettings]]
    needs_stack: bool = False

    def __init__(self, settings: Any = None, setup: Setup | None = None) -> None:
        """settings: an object of the class Settings; left out, its defaults."""
        self.settings: Any = self.Settings.model_validate({}) if settings is None else settings
        self.setup = setup or Setup()

    def check(self, classes: int, takes_tokens: bool) -> None:
        """Raises UsageError where the method does not fit the model; takes_tokens: records are texts, not numbers."""

    def try_out(self, work: Work, clients: int) -> None:
        """Tries the code of a user's own before anything is written; the library's needs no trial."""

    def smooths(self, round_: int) -> bool:
        """Whether the round ends with a smoothing, which shows more than an average where models are personal."""
        return False

    def smoothed(self, uploads: Weights, round_: int) -> tuple[Weights, dict[str, float]] | None:
        """The uploads, name -> (m, ...), after the round's smoothing, and each layer's threshold; for recordings."""
        return None

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        """The model that each client of the cohort trains from, personal parts included: name -> (K, ...)."""
        return repeat(state.weights, len(clients))

    def statistics(self, round_: int) -> Statistics | None:
        """A function for clients to send instead of training, clipped and noised like an update; None: they train."""
        return None

    def phases(self, work: Work) -> Sequence[Work]:
        """The parts of a client's local training in a round, one after another."""
        return (work,)

    def phase_start(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Weights:
        """The models that the next phase starts from; passes: the models at the start and after each phase so far."""
        return passes[-1]

    def for_cohort(self, work: Work, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Work:
        """The next phase with whatever of it differs by client or round: `anchor`, `shift`; passes: as phase_start."""
        return work

    def counted(
        self, state: State, client: int, round_: int, labels: torch.Tensor, predict: Predict
    ) -> torch.Tensor | None:
        """What each record adds to the counts that `settings.counts` speaks of, (n, counts), in the round in which the
        client releases them; None in those before. A client that has released some is not asked again."""
        return None

    def told(self, state: State, counts: Mapping[int, torch.Tensor]) -> State:
        """The state once clients have released these counts, (counts,) each, in which there is noise."""
        return state

    def stays_home(self, round_: int) -> bool:
        """Whether clients send nothing in the round and keep the models that they train."""
        return False

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        """The parts that are sent and kept; passes: the models at the start and after each phase, name -> (K, ...)."""
        return Contribution(passes[0], passes[-1])

    def global_model(self, state: State) -> Weights:
        """The model that is measured as the global one."""
        return state.weights

    def personal_clients(self, state: State) -> Sequence[int] | None:
        """Clients that have something of their own, or None where everybody uses the global model."""
        return None

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        """The model that each client would use after the round: name -> (K, ...)."""
        return self.starts(state, clients, round_ + 1)

    def idle(self, state: State) -> State:
        """The state after a round in which nothing is released: the global model as it was."""
        return state

    def visible(self, uploads: Uploads) -> Uploads:
        """The part of a round's uploads that `aggregate` is given: one model, unless the method needs each of them."""
        if self.needs_stack:
            return uploads
        if self.setup.aggregation == "mean":
            return uploads.mean_only()
        assert isinstance(uploads, Stack)
        middle = AGGREGATES[self.setup.aggregation](uploads.weights)
        return Mean(middle, float(len(uploads.clients)), uploads.nonfinite, uploads.unclipped)

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        """The state after the round, and what the round's metrics should say of it."""
        return self.moved(state, uploads.mean()), {}

    def moved(self, state: State, mean: Weights) -> State:
        """The state with its model moved to the mean by the server's optimiser."""
        weights, moments = self.setup.server.apply(state.weights, mean, state.server)
        return replace(state, weights=weights, server=moments)


Kind = TypeVar("Kind", bound=type[Method])


def register(kind: Kind) -> Kind:
    """Registers a method under its settings' `name`, described by the docstring of that field."""
    field = kind.Settings.model_fields["name"]
    return METHODS.register(str(field.default), " ".join(str(field.description).split()))(kind)


def make_method(
    experiment: Experiment,
    weights: Weights,
    mechanism: Mechanism,
    clients: int,
    smooth: Smooth | None = None,
    training_noise: float | None = None,
) -> Method:
    """The method that an experiment's [method] table names.

    Args:
        weights: the model that all begin with.
        mechanism: gives the clip and the noise in an entry of an upload.
        clients: N.
        smooth: does the truncated t-SVD in other processes.
        training_noise: that of `Setup`.
    """
    settings, train = experiment.method, experiment.train
    setup = Setup(
        weights=weights,
        clip=mechanism.clip,
        noise=mechanism.upload_noise,
        training_noise=training_noise,
        clients=clients,
        server=Server(train.server_optimizer, mechanism.step),
        server_learning_rate=train.server_learning_rate,
        rounds=train.rounds,
        aggregation=train.aggregation,
        smooth=smooth,
    )
    made: Method = METHODS[OWN if is_own(settings.name) else settings.name](settings, setup)
    if made.needs_stack and train.is_robust:
        raise UsageError(
            f'train.aggregation: "{train.aggregation}", expected "mean": method "{settings.name}" works on single '
            "uploads here, not on what is made of them"
        )
    return made
