"""A node: local training by the same trainer as in a simulation, inside a mod that lets nothing un-noised out."""

import logging
from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedceo.data import Federation
from fedceo.deploy.messages import ARRAYS, CONFIG, Ticket, answer, unpack
from fedceo.deploy.supported import check_supported
from fedceo.experiment.file import Experiment
from fedceo.mechanisms.base import Mechanism, make_mechanism
from fedceo.mechanisms.uploads import Contribution, Senders
from fedceo.methods import State, make_method
from fedceo.models import build_model, parameters_of
from fedceo.simulation.evaluation import Evaluator
from fedceo.simulation.spending import solve_noise
from fedceo.tensors.weights import Weights, repeat
from fedceo.training.context import TrainingContext
from fedceo.training.engine import choose_device, choose_engine, make_trainer
from fedceo.training.features import on_features
from fedceo.training.schedule import Schedule
from fedceo.training.work import local_work

LOG = logging.getLogger("flwr")  # what a SuperNode shows

SYSTEM = Schedule(0, "system")
"""Randomness of the operating system; the seed of this schedule is never used."""


class NodeError(Exception):
    """A failure as a node reports it to the server: in words that do not depend on its records."""


class PrivacyMod:
    """A Flower mod around whatever trains on a node: clips the update, adds the node's noise, strips everything else.

    What the function inside returns is read for its weights alone; metrics, losses and further records stay. What an
    exception says stays in the node's own log.
    """

    def __init__(self, experiment: Experiment, noise: Schedule = SYSTEM) -> None:
        """noise: the source of the noise; any other than the operating system is for tests."""
        check_supported(experiment)
        clients = experiment.data.clients
        assert clients is not None
        self.mechanism: Mechanism = make_mechanism(experiment, solve_noise(experiment, [1] * clients), noise)

    def __call__(self, message: Message, context: Context, inside: ClientAppCallable) -> Message:
        client = client_number(context)
        asked = Ticket.of(message.content)
        ticket = Ticket(asked.round, client, asked.nonce)
        kind = message.metadata.message_type.partition(".")[0]
        if kind == MessageType.QUERY:
            return answer(message, ticket)
        if asked.client != client:
            raise NodeError(f"asked as client {asked.client}, but this node is client {client}")
        start = _start(message)
        if kind == MessageType.EVALUATE:
            _quietly(inside, message, context)
            return answer(message, ticket)
        capped = bool(message.content.config_records[CONFIG].get("capped", False))
        trained = start if capped else _trained(_quietly(inside, message, context), start)
        before, after = ({name: w[None] for name, w in weights.items()} for weights in (start, trained))
        senders = Senders(asked.round, (client,), torch.ones(1))
        uploads = self.mechanism.privatise(Contribution(before, after), senders, start)
        return answer(message, ticket, {name: w[0] for name, w in uploads.weights.items()})


class Node:
    """Local training and evaluation with the records of one client."""

    def __init__(self, experiment: Experiment, records: Callable[[int], Federation]) -> None:
        """records: the Federation in which a client of that number holds this node's records."""
        self.experiment, self.records = experiment, records

    def train(self, message: Message, context: Context) -> Message:
        """Trains from the weights of the message; the weights of the reply are not private yet."""
        training, client, round_ = (
            self._training_context(context),
            client_number(context),
            Ticket.of(message.content).round,
        )
        like = parameters_of(training.model)
        start = repeat(_start(message, like), 1)
        clients = self.experiment.data.clients
        assert clients is not None
        method = make_method(self.experiment, like, make_mechanism(self.experiment, 0.0, SYSTEM), clients)
        trainer = make_trainer(training, choose_engine(training, self.experiment.train.engine))
        passes: list[Weights] = [start]
        for work in method.phases(local_work(self.experiment.train, round_)):
            passes.append(trainer.train(passes[-1], [client], round_, work).weights)
        sent = method.contribution(State({name: w[0] for name, w in start.items()}), [client], passes)
        return answer(message, Ticket.of(message.content), {name: w[0] for name, w in sent.trained.items()})

    def evaluate(self, message: Message, context: Context) -> Message:
        """Measures the weights of the message on test records of the node's own, for the node's own log."""
        training = self._training_context(context)
        data = training.federation
        if len(data.test_y):
            evaluator = Evaluator(training.model, data, training.device, training.dtype)
            found = evaluator.measure(_start(message, parameters_of(training.model)))
            LOG.info("accuracy of this node's model on %d own records: %.4f", len(data.test_y), found["test_accuracy"])
        return answer(message, Ticket.of(message.content))

    def _training_context(self, context: Context) -> TrainingContext:
        train, seed = self.experiment.train, Schedule(self.experiment.seed)
        data = self.records(client_number(context))
        about = self.experiment.model
        model = build_model(about.name, data.shape, data.classes, seed.number("model"), about.settings)
        device, dtype = choose_device(train.device), getattr(torch, train.precision)
        trained, data = on_features(model.to(device, dtype), data)
        # batches may follow the seed: a user's privacy rests on the noise of the update alone
        return TrainingContext(trained, data, seed, device, dtype)


def client_app(
    experiment: Experiment, records: Callable[[int], Federation], mod: PrivacyMod | None = None
) -> ClientApp:
    """A node's app: every kind of message goes through the mod.

    Args:
        records: the Federation in which a client of that number holds this node's records.
        mod: left out, the experiment's mechanism with noise from the operating system.
    """
    node = Node(experiment, records)
    mods: list[Mod] = [mod or PrivacyMod(experiment)]
    app = ClientApp()
    app.train(mods=mods)(node.train)
    app.evaluate(mods=mods)(node.evaluate)
    app.query(mods=mods)(_never)
    return app


def client_number(context: Context) -> int:
    """The client number that the node was started with."""
    number = context.node_config.get("partition-id")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise NodeError(f'partition-id: {number!r}, expected a number: --node-config "partition-id=0"')
    return number


def _start(message: Message, like: Weights | None = None) -> dict[str, torch.Tensor]:
    record = message.content.array_records[ARRAYS]
    if like is None:
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    return unpack(record, like)


def _quietly(inside: ClientAppCallable, message: Message, context: Context) -> Message:
    """The reply of the function inside; Flower would send the text of an exception to the server."""
    try:
        return inside(message, context)
    except Exception as error:
        LOG.error("the app on this node failed", exc_info=error)
        raise NodeError("the app on this node failed; its own log says how") from None


def _trained(reply: Message, start: Weights) -> dict[str, torch.Tensor]:
    """The trained weights; a reply without them is a mistake in the app, not in the data."""
    records = list(reply.content.array_records.values()) if reply.has_content() else []
    if len(records) != 1:
        raise NodeError(f"the app on this node returned {len(records)} array records, expected 1")
    fits: ArrayRecord = records[0]
    return unpack(fits, start)


def _never(message: Message, context: Context) -> Message:
    raise NodeError("questions are answered by the mod")
