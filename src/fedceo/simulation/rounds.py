"""One round after another, free of files and screens.

simulation = Simulation(experiment, federation, model)
while simulation.round < experiment.train.rounds:
    record = simulation.step()
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fedceo.config import Experiment
from fedceo.data import Federation
from fedceo.errors import UsageError
from fedceo.methods import State, make_method
from fedceo.models import check_model, parameters_of
from fedceo.privacy.mechanisms import Mechanism, Uploads
from fedceo.simulation.evaluation import Evaluator
from fedceo.tensors import select_layers
from fedceo.training.engine import choose_engine, make_trainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import Place, RecordPrivacy, Work


class Simulation:
    """A federation in training: `state` after `round` rounds, and how to take the next."""

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        model: nn.Module,
        model_name: str,
        noise_multiplier: float,
    ) -> None:
        """noise_multiplier: sigma, as given or solved for a target epsilon; 0 without a mechanism."""
        self.experiment, self.federation, self.model_name = experiment, federation, model_name
        self.noise_multiplier = noise_multiplier
        self.schedule = Schedule(experiment.seed, experiment.privacy.randomness)
        self.device = choose_device(experiment.train.device)
        dtype = getattr(torch, experiment.train.precision)
        self.model = model.to(self.device, dtype)
        self._check(federation)
        place = Place(self.model, federation, self.schedule, self.device, dtype)
        record_level = experiment.privacy.mechanism == "record"
        train = experiment.train
        self.engine = choose_engine(place, train.engine, experiment.cohort.size, train.batch_size, record_level)
        self.trainer = make_trainer(place, self.engine)
        self.method = make_method(experiment.method, train)
        if self.method.needs_stack and experiment.privacy.mechanism == "central":
            raise UsageError('method.name: needs each client\'s upload, which mechanism "central" does not release')
        self.mechanism = self._mechanism()
        self.evaluator = Evaluator(self.model, federation, self.device, dtype)
        self.sizes = torch.tensor([len(places) for places in federation.train], dtype=torch.float64)
        self.state = State({name: w.clone() for name, w in parameters_of(self.model).items()})
        self.round = 0

    def step(self) -> dict[str, Any]:
        """Take the next round; returns its record, with accuracies where the experiment asks for them."""
        experiment, t = self.experiment, self.round + 1
        cohort = experiment.cohort
        clients = self.schedule.cohort(t, self.federation.clients, cohort.size, cohort.sampling)
        record: dict[str, Any] = {"round": t, "cohort": clients, "reports": len(clients)}
        uploads, losses = self._train(clients, t)
        if uploads is None:
            self.state = self.method.idle(self.state)
        else:
            self.state, about = self.method.aggregate(self.state, uploads, t)
            record |= {"nonfinite_updates": uploads.nonfinite} | about
        record["train_loss"] = losses
        self.round = t
        if t % experiment.evaluation.every == 0 or t == experiment.train.rounds:
            record |= self.evaluator.measure(self.state.weights)
        return record

    def _train(self, clients: list[int], t: int) -> tuple[Uploads | None, float | None]:
        """The cohort's privatised uploads and mean loss; none when nobody is in and nothing is released."""
        central = self.experiment.privacy.mechanism == "central"
        if not clients:
            empty = {name: w.new_zeros(0, *w.shape) for name, w in self.state.weights.items()}
            return (self.mechanism.privatise_mean(self.state.weights, empty, t) if central else None), None
        starts = self.method.starts(self.state, clients, t)
        trained = self.trainer.train(starts, clients, t, self._work(t))
        loss = float(trained.losses.mean())
        mean_loss = loss if math.isfinite(loss) else None
        if central:
            return self.mechanism.privatise_mean(self.state.weights, trained.weights, t), mean_loss
        return self.mechanism.privatise(starts, trained.weights, clients, self._weights_of(clients), t), mean_loss

    def _weights_of(self, clients: list[int]) -> Tensor:
        by_records = self.experiment.train.weighting == "records"
        return self.sizes[clients] if by_records else torch.ones(len(clients), dtype=torch.float64)

    def _work(self, t: int) -> Work:
        train, privacy = self.experiment.train, self.experiment.privacy
        record = RecordPrivacy(privacy.clip, self.noise_multiplier) if privacy.mechanism == "record" else None
        rate = train.learning_rate * schedule_factor(train.schedule, t, train.rounds)
        return Work(train.local_epochs, train.batch_size, rate, train.momentum, record)

    def _mechanism(self) -> Mechanism:
        privacy, cohort = self.experiment.privacy, self.experiment.cohort
        return Mechanism(
            kind=privacy.mechanism,
            clip=privacy.clip,
            noise_multiplier=self.noise_multiplier,
            min_reports=privacy.min_reports or cohort.size,
            divisor=float(cohort.size),
            step=self.experiment.train.server_learning_rate,
            schedule=self.schedule,
        )

    def _check(self, federation: Federation) -> None:
        check_model(self.model, federation.shape, federation.classes)
        if self.experiment.cohort.size > federation.clients:
            raise UsageError(
                f"cohort.size is {self.experiment.cohort.size}, more than the {federation.clients} clients"
            )
        empty = next((client for client, places in enumerate(federation.train) if len(places) == 0), None)
        if empty is not None:
            raise UsageError(f"data: client {empty} has no records to train on")
        if len(federation.test_y) == 0:
            raise UsageError("data: there are no test records")
        layers = getattr(self.experiment.method, "layers", "all")
        try:
            select_layers(parameters_of(self.model), layers)
        except ValueError as error:
            raise UsageError(f"method.layers: {error}") from None


def choose_device(name: str) -> torch.device:
    """The device that train.device means."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f'train.device: {name!r}, expected "auto", "cpu" or "cuda"') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("train.device: cuda, but there is no GPU that torch can use")
    return device


def schedule_factor(schedule: str, t: int, rounds: int) -> float:
    """What the client's learning rate is multiplied by in round t of T: 1 in the first, 0.01 in the last."""
    if schedule == "constant" or rounds == 1:
        return 1.0
    done = (t - 1) / (rounds - 1)
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return 0.01 + 0.99 * left
