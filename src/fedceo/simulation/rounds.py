"""One round after another, free of files and screens.

simulation = Simulation(experiment, federation, model)
while simulation.round < experiment.train.rounds:
    record = simulation.step()
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedceo.config import Experiment
from fedceo.data import Federation
from fedceo.errors import UsageError
from fedceo.methods import State, make_method
from fedceo.models import check_model, parameters_of
from fedceo.privacy.ledger import Entry, Ledger
from fedceo.privacy.mechanisms import Mechanism, Uploads
from fedceo.simulation.evaluation import Evaluator
from fedceo.tensors import select_layers
from fedceo.training.engine import choose_engine, make_trainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import Place, RecordPrivacy, Work


class Simulation:
    """A federation in training: `state` and `ledger` after `round` rounds, and how to take the next."""

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
        self.sizes = federation.sizes
        self.state = State({name: w.clone() for name, w in parameters_of(self.model).items()})
        self.round = 0
        self.ledger = Ledger(repeatable=experiment.privacy.randomness == "seeded")

    def draw(self) -> Entry:
        """Who is in the next round, who reports, and whether anything will be released."""
        experiment, t = self.experiment, self.round + 1
        cohort, privacy = experiment.cohort, experiment.privacy
        clients = self.schedule.cohort(t, self.federation.clients, cohort.size, cohort.sampling)
        reported = self.schedule.reporting(t, clients, cohort.dropout)
        cap = privacy.participation_cap or t
        silent = [client for client in reported if self.ledger.participations[client] >= cap]
        if privacy.mechanism == "record":  # an upload of noise alone would cover for nobody
            reported, silent = [client for client in reported if client not in silent], []
        least = 0 if privacy.mechanism == "central" else privacy.min_reports or 1
        return Entry(
            round=t,
            cohort=tuple(clients),
            reported=tuple(reported),
            silent=tuple(silent),
            noise=self.mechanism.noise,
            smoothed=self.method.smooths(t),
            released=len(reported) >= least,
        )

    def step(self, entry: Entry | None = None) -> dict[str, Any]:
        """Take the next round; returns its record, with accuracies where the experiment asks for them.

        entry: what `draw` said of the round, for a caller that keeps the ledger; left out, it is drawn here.
        """
        experiment, t = self.experiment, self.round + 1
        entry = entry or self.draw()
        self.ledger.add(entry)
        record: dict[str, Any] = {"round": t, "cohort": list(entry.cohort), "reports": len(entry.reported)}
        if entry.released:
            uploads, losses = self._train(entry)
            self.state, about = self.method.aggregate(self.state, uploads, t)
            record |= {"nonfinite_updates": uploads.nonfinite, "train_loss": losses} | about
        else:
            self.state = self.method.idle(self.state)
            record |= {"discarded": True, "train_loss": None}
        self.round = t
        if t % experiment.evaluation.every == 0 or t == experiment.train.rounds:
            record |= self.measure()
        return record

    def measure(self) -> dict[str, Any]:
        """Accuracies of the global model as it is."""
        return self.evaluator.measure(self.state.weights)

    def _train(self, entry: Entry) -> tuple[Uploads, float | None]:
        """The privatised uploads of those who report, and the mean loss of those who train."""
        t, own = entry.round, entry.own
        starts = self.method.starts(self.state, entry.reported, t)
        rows = torch.tensor([k for k, client in enumerate(entry.reported) if client in set(own)], dtype=torch.int64)
        rows = rows.to(self.device)
        trained = starts if not entry.silent else {name: w[rows] for name, w in starts.items()}
        loss = math.nan
        if own:
            found = self.trainer.train(trained, own, t, self._work(t))
            trained, loss = found.weights, float(found.losses.mean())
        mean_loss = loss if math.isfinite(loss) else None
        if self.experiment.privacy.mechanism == "central":
            return self.mechanism.privatise_mean(self.state.weights, trained, t), mean_loss
        if entry.silent:  # a client at its cap sends its share of the noise and nothing of its own
            trained = {name: w.clone().index_copy_(0, rows, trained[name]) for name, w in starts.items()}
        return self.mechanism.privatise(starts, trained, entry.reported, self._weights_of(entry.reported), t), mean_loss

    def _weights_of(self, clients: Sequence[int]) -> Tensor:
        by_records = self.experiment.train.weighting == "records"
        return self.sizes[list(clients)].double() if by_records else torch.ones(len(clients), dtype=torch.float64)

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
        if int(federation.sizes.min()) == 0:
            raise UsageError(f"data: client {int(federation.sizes.argmin())} has no records to train on")
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
