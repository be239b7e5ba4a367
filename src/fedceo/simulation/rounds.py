"""One round after another, free of files and screens.

simulation = Simulation(experiment, federation, model)
while simulation.round < experiment.train.rounds:
    record = simulation.step()
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.data import Federation
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.mechanisms.base import Uploads, finite_rows, make_mechanism
from fedceo.methods import Method, State, make_method
from fedceo.methods.fedceo import FedCEO
from fedceo.methods.method import Contribution, Statistics, visible_uploads
from fedceo.methods.settings import PPSGD, Centaur, JainAnil, Own
from fedceo.models import check_model, parameters_of
from fedceo.simulation.clock import Clock
from fedceo.simulation.evaluation import Evaluator
from fedceo.simulation.recording import Recording, record_round
from fedceo.tensors import select_layers
from fedceo.tensors.weights import Weights, last_layer
from fedceo.training.context import TrainingContext
from fedceo.training.engine import choose_device, choose_engine, make_trainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import Trainer, Work, local_work

MOST_MEASURED = 1000
"""Clients whose own models are measured on their own records, at most."""


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
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if experiment.train.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = experiment.train.tf32
        dtype = getattr(torch, experiment.train.precision)
        self.model = model.to(self.device, dtype)
        self._check(federation)
        self.context = context = TrainingContext(self.model, federation, self.schedule, self.device, dtype)
        train = experiment.train
        self.engine = choose_engine(context, train.engine)
        self.trainer: Trainer = make_trainer(context, self.engine)
        self.workers: Callable[[], dict[str, Any] | None] = lambda: None  # what trains elsewhere, for the summary
        self.mechanism = make_mechanism(experiment, noise_multiplier, self.schedule)
        self.method = self._method()
        if self.method.needs_stack and experiment.method.release == "average":
            raise ValueError(
                f"method {experiment.method.name}: sees single uploads, so its settings must name a release"
            )
        if self.method.needs_stack and experiment.privacy.mechanism == "central":
            raise UsageError('method.name: needs each client\'s upload, which mechanism "central" does not release')
        self.evaluator = Evaluator(self.model, federation, self.device, dtype)
        self.sizes = federation.sizes
        self.state = State({name: w.clone() for name, w in parameters_of(self.model).items()})
        self.on_recording: Callable[[Recording], None] | None = None
        self.clock = Clock()
        self.round = 0
        self.ledger = Ledger(repeatable=experiment.privacy.randomness == "seeded")

    def draw(self) -> Entry:
        """Who is in the next round, who reports, and whether anything will be released."""
        experiment, t = self.experiment, self.round + 1
        cohort, privacy = experiment.cohort, experiment.privacy
        clients = self.schedule.cohort(t, self.federation.clients, cohort.size, cohort.sampling)
        reported = self.schedule.reporting(t, clients, cohort.dropout)
        cap = privacy.participation_cap or math.inf
        capped = [client for client in reported if self.ledger.participations[client] >= cap]
        if privacy.mechanism == "record":  # an upload of noise alone would cover for nobody
            reported, capped = [client for client in reported if client not in capped], []
        least = 0 if privacy.mechanism == "central" else privacy.min_reports or 1
        return Entry(
            round=t,
            cohort=tuple(clients),
            reported=tuple(reported),
            capped=tuple(capped),
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
            with self.clock.during("server step"):
                self.state, about = self.method.aggregate(self.state, visible_uploads(self.method, uploads), t)
            record |= {"nonfinite_updates": uploads.nonfinite, "train_loss": losses} | about
            if uploads.unclipped is not None:
                record["clip"] = self.clip
                self.clip = self._followed(uploads.unclipped)
        else:
            self.state = self.method.idle(self.state)
            record |= {"discarded": True, "train_loss": None}
        self.round = t
        if t % experiment.evaluation.every == 0 or t == experiment.train.rounds:
            with self.clock.during("evaluation"):
                record |= self.measure()
        return record

    def measure(self) -> dict[str, Any]:
        """Accuracies of the global model as it is, and of the clients' own models where they have any."""
        weights = self.method.global_model(self.state)
        record = self.evaluator.measure(weights)
        own = self.method.personal_clients(self.state)
        if own is None and not self.federation.has_local_test:
            return record
        clients = range(self.federation.clients) if own is None else own
        chosen = clients[:: -(-len(clients) // MOST_MEASURED) or 1]
        if own is None:  # everybody's own model is the global one
            local = self.evaluator.measure_local(weights, chosen)
            return record | {"local_accuracy": local, "personal_accuracy": record["test_accuracy"]}
        models = (
            (k, {name: w[0] for name, w in self.method.personalise(self.state, [k], self.round).items()})
            for k in chosen
        )
        return record | self.evaluator.measure_personal(models, self.experiment.evaluation.personal_clients)

    def phases(self, t: int) -> Sequence[Work]:
        """What a client does in round t, one after another."""
        return self.method.phases(local_work(self.experiment, t, self.noise_multiplier))

    def _train(self, entry: Entry) -> tuple[Uploads, float | None]:
        """The privatised uploads of those who report, and the mean loss of those who train."""
        t, clients = entry.round, entry.reported
        statistics = self.method.statistics(t)
        with self.clock.during("training"):
            sent, mean_loss = self._contributions(entry, statistics)
        self._keep(sent.personal, entry)
        capped = [k for k, client in enumerate(clients) if client in entry.capped]
        if self.experiment.privacy.mechanism == "central":
            shared = {name: self.state.weights[name] for name in sent.start}
            if statistics is not None:  # they are sums of their own, not changes of the model
                shared = {name: torch.zeros_like(w) for name, w in shared.items()}
            with self.clock.during("privatising"):
                return self.mechanism.privatise_mean(shared, sent.trained, t, capped), mean_loss
        with self.clock.during("privatising"):
            weights = self._weights_of(clients)
            uploads = self.mechanism.privatise(sent.start, sent.trained, clients, weights, t, capped)
        every = self.experiment.record.every
        if self.on_recording is not None and every is not None and t % every == 0 and statistics is None:
            with self.clock.during("recording"):
                self.on_recording(record_round(self, sent.trained, uploads, t))
        return uploads, mean_loss

    def _keep(self, personal: Weights, entry: Entry) -> None:
        """What clients keep at home; who was capped or overflowed keeps what it had."""
        if not personal:
            return
        finite = finite_rows(personal).tolist()
        for k, client in enumerate(entry.reported):
            if finite[k] and client not in entry.capped:
                self.state.personal[client] = {name: w[k].clone() for name, w in personal.items()}

    def _contributions(self, entry: Entry, statistics: Statistics | None) -> tuple[Contribution, float | None]:
        """What those who report would send if nobody clipped or noised it, and the mean loss of those who train."""
        if statistics is not None:
            return self._measured(entry, statistics), None
        mean_loss = None
        passes: list[Weights] = [self.method.starts(self.state, entry.reported, entry.round)]
        for work in self.phases(entry.round):
            trained, mean_loss = self._phase(passes[-1], entry, work)
            passes.append(trained)
        return self.method.contribution(self.state, entry.reported, passes), mean_loss

    def _measured(self, entry: Entry, statistics: Statistics) -> Contribution:
        """Statistics in the place of updates; those at their cap send those of no records."""

        def of(places: Tensor) -> dict[str, Tensor]:
            return statistics(self.state, *self.context.records(places.to(self.device)))

        none = of(torch.empty(0, dtype=torch.int64))  # says what there is to send, though nobody may be in
        found = [of(self.federation.train[client]) if client in entry.own else none for client in entry.reported]
        sent = {name: torch.stack([zeros, *(each[name] for each in found)])[1:] for name, zeros in none.items()}
        return Contribution({name: torch.zeros_like(s) for name, s in sent.items()}, sent)

    def _phase(self, starts: Weights, entry: Entry, work: Work) -> tuple[Weights, float | None]:
        """One phase of those who send something of their own; the others stay where they are."""
        if not entry.own:
            return starts, None
        if not entry.capped:
            found = self.trainer.train(starts, entry.own, entry.round, work)
            weights: Weights = found.weights
        else:
            own = set(entry.own)
            rows = torch.tensor([k for k, client in enumerate(entry.reported) if client in own], device=self.device)
            found = self.trainer.train({n: w[rows] for n, w in starts.items()}, entry.own, entry.round, work)
            weights = {name: w.clone().index_copy_(0, rows, found.weights[name]) for name, w in starts.items()}
        loss = float(found.losses.mean())
        return weights, loss if math.isfinite(loss) else None

    def _weights_of(self, clients: Sequence[int]) -> Tensor:
        by_records = self.experiment.train.weighting == "records"
        return self.sizes[list(clients)].double() if by_records else torch.ones(len(clients), dtype=torch.float64)

    @property
    def clip(self) -> float:
        """C, which moves where clipping is adaptive."""
        return self.mechanism.clip

    @clip.setter
    def clip(self, value: float) -> None:
        self.mechanism = replace(self.mechanism, clip=value)
        before, self.method = self.method, self._method()  # radii and thresholds follow; its memory is in the state
        if isinstance(before, FedCEO) and isinstance(self.method, FedCEO):
            self.method.truncate = before.truncate

    def _followed(self, unclipped: float) -> float:
        """C one step nearer to the wanted quantile (Andrew et al. 2021)."""
        privacy = self.experiment.privacy
        return self.clip * math.exp(-privacy.clip_learning_rate * (unclipped - privacy.clip_quantile))

    def _method(self) -> Method:
        mechanism = self.mechanism
        return make_method(self.experiment, parameters_of(self.model), mechanism.clip, mechanism.upload_noise)

    def _check(self, federation: Federation) -> None:
        tokens = torch.int64 if federation.x.dtype == torch.int32 else None
        check_model(self.model, federation.shape, federation.classes, tokens)
        if self.experiment.cohort.size > federation.clients:
            raise UsageError(
                f"cohort.size is {self.experiment.cohort.size}, more than the {federation.clients} clients"
            )
        if int(federation.sizes.min()) == 0:
            raise UsageError(f"data: client {int(federation.sizes.argmin())} has no records to train on")
        if len(federation.test_y) == 0:
            raise UsageError("data: there are no test records")
        method = self.experiment.method
        weights = parameters_of(self.model)
        if method.keeps_heads and len(last_layer(weights)) == len(weights):
            raise UsageError(
                f"method.name: {method.name} shares the layers before the last, and the model has only one"
            )
        if isinstance(method, PPSGD | Centaur | JainAnil):
            head = last_layer(weights)[0]
            if len(weights[head]) != federation.classes:
                raise UsageError(
                    f"method.name: {method.name} keeps the last layer at home, and the last that the model registers, "
                    f"{head}, does not give the {federation.classes} logits; define that layer last"
                )
        if isinstance(method, Centaur) and method.initialisation == "power":
            if self.experiment.privacy.mechanism == "record":
                raise UsageError('method.initialisation: "power" sends statistics that record privacy does not cover')
            first = next(iter(weights.values()))
            if first.ndim != 2 or federation.x.dtype == torch.int32:
                raise UsageError('method.initialisation: "power" needs a model whose first layer is linear')
        for name, section in (("method", method), ("record", self.experiment.record)):
            try:
                select_layers(weights, "all" if isinstance(section, Own) else getattr(section, "layers", "all"))
            except ValueError as error:
                raise UsageError(f"{name}.layers: {error}") from None
