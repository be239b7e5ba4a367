"""The choice of trainer and device: a fixed rule on model, device and regime, never a timing inside the run."""

import logging

import torch
from torch import nn
from torch.func import functional_call, vmap

from fedceo.errors import UsageError
from fedceo.training.batched.losses import loss_of
from fedceo.training.batched.tracing import NotAChainError, read_chain
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.memory import keep_freed_buffers
from fedceo.training.work import Trainer

LOG = logging.getLogger(__name__)


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


def choose_engine(context: TrainingContext, engine: str) -> str:
    """The engine, "loop" or "batched", that train.engine means.

    "auto" is batched wherever the model can be batched, but for one case: on a CPU the loop beats torch.func's batched
    convolutions, which a model needs that has convolutions and is no chain of known layers. A chain is never slower
    than the loop there, with convolutions or without: benchmarks/engines.py.
    """
    if engine == "loop":
        return engine
    of_task = why_not_task(context)
    cannot = of_task or why_not_batched(context)
    if engine == "batched":
        if cannot:
            raise UsageError(f"train.engine: the model cannot be batched ({cannot}); use loop or auto")
        return engine
    if of_task:
        LOG.warning("train.engine: loop, one client after another: %s", of_task)
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in context.model.modules())
    by_autograd = why_no_chain(context) is not None or loss_of(context.task) is None
    slow = context.device.type == "cpu" and convolves and by_autograd
    return "loop" if cannot or slow else "batched"


def why_not_task(context: TrainingContext) -> str | None:
    """Why the batched engine cannot learn what is asked for, whatever the model, or None if it can."""
    if context.task.own_loss is not None:
        return "the batched engine cannot compute a loss of your own"
    if context.device.type == "cuda" and not context.task.is_cross_entropy:
        return "on a GPU the batched engine learns one label a record and nothing else"
    return None


def why_not_batched(context: TrainingContext) -> str | None:
    """The message of torch when it cannot run two copies of the model at once, or None if it can."""
    if why_no_chain(context) is None and loss_of(context.task) is not None:
        return None
    weights = {name: p.detach().expand(2, *p.shape) for name, p in context.model.named_parameters()}
    x = next(context.model.parameters()).new_zeros(2, 2, *context.federation.shape)
    context.model.train()
    try:
        vmap(lambda w, x: functional_call(context.model, w, (x,)))(weights, x)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error).split(".")[0].splitlines()[0]
    return None


def why_no_chain(context: TrainingContext) -> str | None:
    """The reason why the model is no chain of known layers, or None if it is one."""
    try:
        read_chain(context.model, context.federation.shape)
    except NotAChainError as reason:
        return str(reason)
    return None


def make_trainer(context: TrainingContext, engine: str) -> Trainer:
    """The trainer of an engine, "loop" or "batched"."""
    keep_freed_buffers()
    return BatchedTrainer(context) if engine == "batched" else LoopTrainer(context)
