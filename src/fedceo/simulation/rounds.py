"""A federation in training: one round after another, free of files and screens.

simulation = Simulation(experiment, federation, model)
while simulation.round < experiment.train.rounds:
    record = simulation.step()
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.data import Federation
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.mechanisms.banded import Noises
from fedceo.mechanisms.base import make_mechanism
from fedceo.mechanisms.uploads import Stack
from fedceo.methods.base import Method, Smooth, State, make_method
from fedceo.models import check_model, parameters_of
from fedceo.simulation.averaging import Average, measure_released, with_model
from fedceo.simulation.clock import Clock
from fedceo.simulation.identity import make_noise_key
from fedceo.simulation.metric_evaluation import make_evaluator
from fedceo.simulation.recording import Recording, record_round
from fedceo.simulation.round import Collected, LocalCohort, Outcome, plan_round, take_round
from fedceo.tasks import make_task
from fedceo.tensors import select_layers
from fedceo.training.context import TrainingContext
from fedceo.training.engine import choose_device, choose_engine, make_trainer
from fedceo.training.features import on_features
from fedceo.training.noise import noise_of_training
from fedceo.training.schedule import Schedule
from fedceo.training.work import Trainer, Work, local_work

MOST_MEASURED = 1000
"""Clients whose own models are measured on their own records, at most."""


class Simulation:
    """A federation in training: its `state` and `ledger` after `round` rounds, and the way to the next.

    Attributes:
        whole_model: the model of records, as it was given.
        model, federation: the part of it that is trained, and the federation of that part's inputs: they differ from
            what was given where the model is an `OnFeatures`.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        model: nn.Module,
        model_name: str,
        noise_multiplier: float,
        noise_key: str | None = None,
    ) -> None:
        """
        Args:
            noise_multiplier: sigma, as given or solved for a target epsilon; 0 without a mechanism.
            noise_key: that of a run which is resumed; left out, it is made from everything that identifies the run.
        """
        self.experiment, self.model_name, self.task = experiment, model_name, make_task(experiment.task)
        self.noise_multiplier = noise_multiplier
        self.device = choose_device(experiment.train.device)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if experiment.train.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = experiment.train.tf32
        dtype = getattr(torch, experiment.train.precision)
        self.whole_model = model.to(self.device, dtype)
        if noise_key is None:
            noise_key = make_noise_key(experiment, federation, self.whole_model, model_name, noise_multiplier)
        self.schedule = Schedule(experiment.seed, experiment.privacy.randomness, noise_key=noise_key)
        self.mechanism = make_mechanism(experiment, noise_multiplier, self.schedule)
        self.sizes = federation.sizes
        if int(self.sizes.min()) == 0:
            raise UsageError(f"data: client {federation.name_of(int(self.sizes.argmin()))} has no records to train on")
        self._smooth: Smooth | None = None
        self.method = self._method()
        self._check(federation)
        self.model, self.federation = on_features(self.whole_model, federation)
        self.context = TrainingContext(self.model, self.federation, self.schedule, self.device, dtype, task=self.task)
        if self.task.own_loss is not None:  # before the choice of an engine, which says what it thinks of such a loss
            x, y = self.context.records(self.federation.train[0][:2].to(self.device))
            self.task.own_loss.try_out(self.model(x), y)
        self.engine = choose_engine(self.context, experiment.train.engine)
        self.trainer: Trainer = make_trainer(self.context, self.engine)
        self.workers: Callable[[], dict[str, Any] | None] = lambda: None  # where clients train, for the summary
        self.evaluator = make_evaluator(self.model, self.federation, self.device, dtype, self.task)
        self.state = State({name: w.clone() for name, w in parameters_of(self.model).items()})
        self.average: Average | None = None
        self.on_recording: Callable[[Recording], None] | None = None
        self.on_outcome: Callable[[Outcome], None] | None = None  # for whoever must see what the server saw: the audit
        self.clock = Clock()
        self.noise: Noises = {}  # what the next round's noise depends on: as secret as the seed
        self.round = 0
        self.ledger = Ledger(repeatable=experiment.privacy.randomness == "seeded")

    def restore(
        self,
        state: State,
        round_: int,
        clip: float,
        ledger: Ledger | None = None,
        seconds: Mapping[str, float] | None = None,
        average: Average | None = None,
        noise: Noises | None = None,
    ) -> None:
        """Put the simulation where a run was after a round.

        Args:
            clip: C after that round; it moves where clipping is adaptive.
            ledger: the ledger on disk; entries after the round are left out where a seed repeats them.
            seconds: the seconds spent so far, by part.
            average: that of the global models up to the round.
            noise: that of earlier rounds on which the next one's depends.
        """
        self.average = None if average is None else average.placed_like(self.state.weights)
        self.state, self.round = state.placed_like(self.state.weights), round_
        self.follow_clip(clip)
        if ledger is not None:
            self.ledger = ledger.up_to(round_)
        kept = {} if self._takes_rounds_anew else noise or {}
        self.noise = {t: {name: z.to(self.device) for name, z in of_round.items()} for t, of_round in kept.items()}
        self.clock.restore(seconds or {})

    @property
    def _takes_rounds_anew(self) -> bool:
        """Whether later rounds were released that will be taken again with other noise.

        Noise that went on from the same earlier noise twice would show what that hides twice (D17).
        """
        return bool(self.ledger.entries) and self.ledger.entries[-1].round > self.round

    def work_elsewhere(self, trainer: Trainer, smooth: Smooth, about: Callable[[], dict[str, Any]]) -> None:
        """Train and smooth in other processes from now on; about: describes them for the summary."""
        self.trainer, self._smooth, self.workers = trainer, smooth, about
        self.method = self._method()

    def draw(self) -> Entry:
        """The entry of the next round: who is in it, who reports, and whether anything will be released."""
        cohort, t = self.experiment.cohort, self.round + 1
        drawn = self.schedule.cohort(t, self.federation.clients, cohort.size, cohort.sampling, cohort.groups)
        reported = self.schedule.reporting(t, drawn, cohort.dropout)
        cap = self.experiment.privacy.participation_cap
        return plan_round(t, drawn, reported, self.mechanism, self.method, self.ledger, cap)

    def step(self, entry: Entry | None = None) -> dict[str, Any]:
        """Take the next round; returns its metrics, with accuracies where the experiment asks for them.

        entry: the one that `draw` gave, for a caller that writes the ledger first; left out, it is drawn here.
        """
        experiment, t = self.experiment, self.round + 1
        entry = entry or self.draw()
        self.ledger.add(entry)
        record: dict[str, Any] = {"round": t, "cohort": list(entry.cohort), "reports": len(entry.reported)}
        outcome = take_round(self.state, entry, self.method, self.local_cohort(t), self.clock)
        record |= outcome.record
        if self.on_outcome is not None:
            self.on_outcome(outcome)
        if outcome.collected is not None:
            self.noise = outcome.collected.noise
            self._record(outcome.collected, t)
            unclipped = outcome.collected.uploads.unclipped
            if unclipped is not None:
                record["clip"] = self.clip
                self.follow_clip(self._followed(unclipped))
        self.state, self.round = outcome.state, t
        if outcome.collected is not None:
            self.average = with_model(self.average, self.method.global_model(self.state), t, experiment)
        if experiment.evaluation.asks_for(t) or t == experiment.train.rounds:
            with self.clock.during("evaluation"):
                record |= self.measure()
        return record

    def local_cohort(self, t: int) -> LocalCohort:
        """The collector of round t, which trains the cohort and privatises its uploads."""
        by_records = self.experiment.train.weighting == "records"
        sizes = self.sizes if by_records else None
        return LocalCohort(
            self.method, self.mechanism, self.trainer, self.context, self.phases(t), sizes, self.clock, self.noise
        )

    def measure(self) -> dict[str, Any]:
        """Metrics of the global model, of the average of such, and of clients' own models, where there are any."""
        weights = self.method.global_model(self.state)
        record = {**self.evaluator.about, **measure_released(self.evaluator, weights, self.average)}
        by_clients = self.experiment.evaluation.choose_by == "personal"
        own = self.method.personal_clients(self.state)
        clients = range(self.federation.clients) if own is None else own
        chosen = clients[:: -(-len(clients) // MOST_MEASURED) or 1]
        if own is None:  # everybody's own model is the global one
            return record | self.evaluator.measure_shared(weights, chosen, record, by_clients)

        def models() -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
            for k in chosen:
                yield k, {name: w[0] for name, w in self.method.personalise(self.state, [k], self.round).items()}

        return record | self.evaluator.measure_own(models, self.experiment.evaluation.personal_clients, by_clients)

    def phases(self, t: int) -> Sequence[Work]:
        """The phases of a client's local training in round t, one after another."""
        return self.method.phases(local_work(self.experiment.train, t, self.mechanism.local_privacy))

    def _record(self, collected: Collected, t: int) -> None:
        """Hand a recording of the round to whoever asked for one; the state is still that of its beginning."""
        every = self.experiment.record.every
        due = self.on_recording is not None and every is not None and t % every == 0
        if due and collected.sent is not None and isinstance(collected.uploads, Stack):
            with self.clock.during("recording"):
                self.on_recording(record_round(self, collected.sent.trained, collected.uploads, t))  # type: ignore[misc]

    @property
    def clip(self) -> float:
        """C, which moves where clipping is adaptive."""
        return self.mechanism.clip

    def follow_clip(self, clip: float) -> None:
        """Clip at another C from now on; the method's radii and thresholds follow, its memory is in the state."""
        self.mechanism = replace(self.mechanism, clip=clip)
        self.method = self._method()

    def _followed(self, unclipped: float) -> float:
        """C one step nearer to the quantile asked for (Andrew et al. 2021)."""
        privacy = self.experiment.privacy
        return self.clip * math.exp(-privacy.clip_learning_rate * (unclipped - privacy.clip_quantile))

    def _method(self) -> Method:
        record, noise = self.mechanism.local_privacy, None
        if record is not None:
            work = local_work(self.experiment.train, 1, record)
            noise = self.mechanism.step * noise_of_training(work, self.sizes.tolist())
        weights = parameters_of(self.whole_model)
        return make_method(self.experiment, weights, self.mechanism, len(self.sizes), self._smooth, noise)

    def _check(self, federation: Federation) -> None:
        takes_tokens = federation.x.dtype == torch.int32
        dtype, places = torch.int64 if takes_tokens else None, self.task.places(federation)
        check_model(self.whole_model, federation.shape, federation.classes, dtype, places)
        if self.experiment.cohort.size > federation.clients:
            raise UsageError(
                f"cohort.size is {self.experiment.cohort.size}, more than the {federation.clients} clients"
            )
        if len(federation.test_y) == 0:
            raise UsageError("data: there are no test records")
        if self.method.needs_stack and self.experiment.method.release == "average":
            raise ValueError(
                f"method {self.experiment.method.name}: sees single uploads, so its settings must name a release"
            )
        self.method.check(federation.classes, takes_tokens)
        if self.method.statistics(1) is not None and not self.task.has_classes:
            raise UsageError(
                f'method.name: "{self.experiment.method.name}" begins with means of the records of each label, and '
                f'task "{self.experiment.task.name}" has none'
            )
        try:
            select_layers(parameters_of(self.whole_model), self.experiment.record.layers)
        except ValueError as error:
            raise UsageError(f"record.layers: {error}") from None
