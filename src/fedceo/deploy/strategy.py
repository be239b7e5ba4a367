"""A Flower strategy that hosts any of our methods that needs nothing but uploads: FedCEO, UDP-FedAvg and others."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedceo.accounting.budget import Budget
from fedceo.accounting.ledger import Entry, Ledger
from fedceo.data import Federation
from fedceo.deploy.client import SYSTEM
from fedceo.deploy.grid import CarefulGrid
from fedceo.deploy.messages import RefusedError, Ticket, ask, check_reply, has_come, pack, read_upload
from fedceo.deploy.node_registry import NodeRegistry
from fedceo.deploy.server_log import ServerLog
from fedceo.deploy.supported import check_supported
from fedceo.deploy.upload_tests import UploadTests
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.mechanisms.base import make_mechanism
from fedceo.mechanisms.uploads import Stack
from fedceo.methods import State, make_method
from fedceo.models import build_model, check_model, fixed_parts, parameters_of
from fedceo.simulation.averaging import Average, measure_released, with_model
from fedceo.simulation.evaluation import Evaluator
from fedceo.simulation.round import Collected, plan_round, take_round
from fedceo.simulation.spending import privacy_plan, solve_noise
from fedceo.simulation.summary import result_of
from fedceo.tensors.weights import stack
from fedceo.training.engine import choose_device
from fedceo.training.features import on_features
from fedceo.training.schedule import Schedule

LOG = logging.getLogger("flwr")

POLL_SECONDS = 1.0
"""Seconds between two looks at who is connected, while too few are."""


class BudgetSpentError(Exception):
    """The end of a run: privacy.max_epsilon forbids the next round."""


@dataclass(frozen=True)
class Question:
    """A message under way; Flower gives it its id when it is sent."""

    node: int
    ticket: Ticket
    start: dict[str, Tensor]
    message: Message


class MethodStrategy(Strategy):
    """Hosts the method of an experiment; the run folder is that of a simulation, and a run that was killed goes on.

    Rounds count on from the checkpoint, whatever number Flower gives them.
    """

    def __init__(
        self, experiment: Experiment, public: Federation, out: Path, timeout: float, cohorts: Schedule = SYSTEM
    ) -> None:
        """
        Args:
            public: the records that the model is measured on, `public_records`.
            out: the run folder; an unfinished run of the same experiment in it goes on.
            timeout: seconds that a round waits for nodes, and for their uploads.
            cohorts: the source of random cohorts; any other than the operating system is for tests.
        """
        check_supported(experiment)
        if public.clients != experiment.data.clients:
            raise UsageError(
                f"data.clients: {experiment.data.clients}, but public records for {public.clients} clients"
            )
        self.experiment, self.timeout, self.cohorts = experiment, timeout, cohorts
        self.model_name, self.engine = experiment.model.name, "flower"
        self.device, dtype = choose_device(experiment.train.device), getattr(torch, experiment.train.precision)
        seed = Schedule(experiment.seed).number("model")
        model = build_model(self.model_name, public.shape, public.classes, seed, experiment.model.settings)
        check_model(model, public.shape, public.classes, torch.int64 if public.x.dtype == torch.int32 else None)
        self.whole_model = model.to(self.device, dtype)
        self.model, self.federation = on_features(self.whole_model, public)
        weights = {name: w.clone() for name, w in parameters_of(self.model).items()}
        sizes = [1] * public.clients
        self.noise_multiplier = solve_noise(experiment, sizes)
        self.mechanism = make_mechanism(experiment, self.noise_multiplier, cohorts)
        self.method = make_method(experiment, weights, self.mechanism, public.clients)
        self.tests = UploadTests(self.mechanism, self.model, self.federation, weights)
        plan, limit = privacy_plan(experiment, sizes, self.noise_multiplier), experiment.privacy.max_epsilon
        self.budget = None if limit is None else Budget(limit, experiment.privacy.observer, plan)
        self.evaluator = Evaluator(self.model, self.federation, self.device, dtype)
        self.log = ServerLog(out, experiment, State(weights))
        self.nodes = NodeRegistry(public.clients, self.log.keys, timeout)
        self.entry: Entry | None = None
        self.ended: str | None = self.log.history[-1].get("ended_early") if self.log.history else None
        self._questions: dict[int, Question] = {}

    @property
    def round(self) -> int:
        """The last round that is over."""
        return self.log.round

    @property
    def ledger(self) -> Ledger:
        return self.log.ledger

    @property
    def state(self) -> State:
        return self.log.state

    def run(self, grid: Grid) -> dict[str, Any]:
        """All rounds that are left, to the summary in result.json."""
        left = self.experiment.train.rounds - self.round
        try:
            if left:
                self.start(CarefulGrid(grid), pack(self.state.weights), left, self.timeout)
        except BudgetSpentError as why:
            self.ended = str(why)
            if self.round and "test_accuracy" not in self.log.history[-1]:
                self.log.amend(self._measured(self.state, self.log.average))
        result = result_of(self, self.log.history, self.log.seconds, self.ended)
        self.log.finish(result, fixed_parts(self.whole_model))
        return result

    def summary(self) -> None:
        experiment = self.experiment
        LOG.info(
            "\t%s, %d of %d clients a round", experiment.method.name, experiment.cohort.size, self.federation.clients
        )
        LOG.info("\trounds %d to %d, run folder %s", self.round + 1, experiment.train.rounds, self.log.folder.path)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message with weights of its own for every client of the cohort that is there."""
        t, cohort = self.round + 1, self.experiment.cohort
        if self.ended is not None:
            raise BudgetSpentError(self.ended)
        drawn = self.cohorts.cohort(t, self.federation.clients, cohort.size, cohort.sampling)
        nodes = self._wait(grid, drawn)
        clients = [client for client in drawn if client in nodes]
        cap = self.experiment.privacy.participation_cap
        entry = plan_round(t, drawn, clients, self.mechanism, self.method, self.ledger, cap)
        refused = self.budget.refuses(self.ledger, entry) if self.budget is not None else None
        if refused is not None:
            raise BudgetSpentError(refused)
        self.entry = replace(entry, reported=(), capped=(), released=False, unused=entry.own)
        self.log.ask(self.entry)
        starts = self.method.starts(self.state, clients, t) if clients else {}
        own = [{name: w[k] for name, w in starts.items()} for k in range(len(clients))]
        self._questions = {
            client: self._question(
                MessageType.TRAIN, nodes[client], Ticket.issue(t, client), start, client in entry.capped
            )
            for client, start in zip(clients, own, strict=True)
        }
        return [question.message for question in self._questions.values()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The method's step on the uploads that were accepted; a round with too few reports changes nothing."""
        assert self.entry is not None
        uploads, refused = self._read(replies)
        reported = tuple(sorted(uploads))
        capped = tuple(client for client in reported if client not in self.entry.unused)
        entry = replace(
            self.entry,
            reported=reported,
            capped=capped,
            unused=tuple(client for client in self.entry.unused if client not in uploads),
            released=len(reported) >= self.mechanism.least_reports,
        )
        if self.budget is not None and entry.released:
            self.ended = self.budget.refuses(self.ledger, entry)  # fewer reports carry less noise than was planned
            entry = replace(entry, released=self.ended is None)
        self.log.spend(entry)
        record: dict[str, Any] = {"round": entry.round, "cohort": list(entry.cohort), "reports": len(reported)}
        record |= {
            "absent": [k for k in entry.cohort if k not in uploads and str(k) not in refused],
            "refused": refused,
        }
        outcome = take_round(self.state, entry, self.method, lambda _, entry: _received(uploads, entry))
        state, average = outcome.state, self.log.average
        if outcome.collected is not None:
            average = with_model(average, self.method.global_model(state), entry.round, self.experiment)
        record |= outcome.record
        if self._is_measured(entry.round):
            record |= self._measured(state, average)
        if self.ended is not None:
            record["ended_early"] = self.ended  # so that a server that is killed now does not go on
        self.entry = entry
        self.log.close(record, state, average)
        LOG.info(
            "round %d: %d of %d asked reported, %d refused",
            entry.round,
            len(reported),
            len(self._questions),
            len(refused),
        )
        return pack(state.weights), MetricRecord({"reports": len(reported), "refused": len(refused)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Those who reported are handed the model that is theirs after the round, to measure it by themselves."""
        assert self.entry is not None
        clients, nodes = self.entry.reported, self.nodes.present()
        self._questions = {}
        if self._is_measured(self.round) and self.entry.released:
            models = self.method.personalise(self.state, clients, self.round)
            self._questions = {
                client: self._question(
                    MessageType.EVALUATE,
                    nodes[client],
                    Ticket.issue(self.round, client),
                    {name: w[k] for name, w in models.items()},
                )
                for k, client in enumerate(clients)
                if client in nodes
            }
        return [question.message for question in self._questions.values()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nodes keep what they measured; all that comes back is that they did."""
        done = 0
        for reply in replies:
            client = self._client(reply)
            try:
                if client is not None:
                    question = self._questions[client]
                    check_reply(reply, question.ticket, question.node, arrays=False)
                    done += 1
            except RefusedError as why:
                LOG.warning("client %s could not evaluate: %s", client, why)
        return MetricRecord({"nodes": done}) if self._questions else None

    def _measured(self, state: State, average: Average | None) -> dict[str, Any]:
        """Accuracies on the public records, where there are any."""
        if not len(self.federation.test_y):
            return {}
        return measure_released(self.evaluator, self.method.global_model(state), average)

    def _is_measured(self, t: int) -> bool:
        ended = self.ended is not None or t == self.experiment.train.rounds
        return ended or self.experiment.evaluation.asks_for(t)

    def _question(
        self, kind: str, node: int, ticket: Ticket, weights: dict[str, Tensor], capped: bool = False
    ) -> Question:
        return Question(node, ticket, weights, ask(kind, node, ticket, self.timeout, weights, capped))

    def _wait(self, grid: Grid, drawn: list[int]) -> dict[int, int]:
        """Client -> its node, of all that are connected: in the first round once all are, later once enough are."""
        begun, first, least = time.monotonic(), self.entry is None, self.mechanism.least_reports
        self.nodes.retry()
        while True:
            self.nodes.update(grid)
            present = self.nodes.present()
            here = sum(client in present for client in drawn)
            enough = len(present) == self.federation.clients if first else here >= min(least, len(drawn))
            if enough or time.monotonic() - begun > self.timeout:
                self.log.remember_keys(self.nodes.keys)
                return present
            time.sleep(POLL_SECONDS)

    def _read(self, replies: Iterable[Message]) -> tuple[dict[int, dict[str, Tensor]], dict[str, str]]:
        """Client -> upload, and who was refused why: clients by number, nodes that are no client as "node ..."."""
        uploads: dict[int, dict[str, Tensor]] = {}
        answered: set[int] = set()
        refused = {f"node {node}": why for node, why in (self.nodes.refused | self.nodes.failed).items()}
        for reply in replies:
            client = self._client(reply)
            if client is None:
                refused[f"node {reply.metadata.src_node_id}"] = "answers no message of this round"
                continue
            if not has_come(reply):
                continue
            try:
                if client in answered:
                    raise RefusedError("a second answer to one message")
                answered.add(client)
                question = self._questions[client]
                uploads[client] = read_upload(reply, question.ticket, question.node, question.start)
            except RefusedError as why:
                refused[str(client)] = str(why)
        starts = {client: self._questions[client].start for client in uploads}
        for client, lie in self.tests.lies(uploads, starts, self.state.weights).items():
            refused[str(client)] = lie
            del uploads[client]
        return uploads, refused

    def _client(self, reply: Message) -> int | None:
        """The client whose message a reply answers."""
        answered = reply.metadata.reply_to_message_id
        asked = (k for k, question in self._questions.items() if question.message.metadata.message_id == answered)
        return next(asked, None)


def _received(uploads: dict[int, dict[str, Tensor]], entry: Entry) -> Collected:
    """The uploads that nodes have sent, in client order."""
    models = stack([uploads[client] for client in entry.reported])
    sizes = torch.ones(len(entry.reported), dtype=torch.float64)
    return Collected(Stack(models, entry.reported, sizes, nonfinite=0))
