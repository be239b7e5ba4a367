"""The code in a worker's process: the trainer that one machine would use, on records that a machine holds once.

Tensors travel as NumPy arrays, which Ray's object store holds once on each machine and readers map instead of copying.
Arrays that arrive are never written to: a trainer copies its starts.
"""

import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedceo import __version__
from fedceo.data import Federation
from fedceo.data.assignment import Assignment, Resampled
from fedceo.errors import UsageError
from fedceo.tasks import Task
from fedceo.tensors.checks import Floats
from fedceo.tensors.shrinkage import shrink
from fedceo.training.context import TrainingContext
from fedceo.training.engine import make_trainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import Work

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
VERSIONS = (__version__, torch.__version__)


@dataclass(frozen=True)
class WorkerSetup:
    """Everything from which a worker makes its TrainingContext.

    Attributes:
        x, y, inputs: records and labels as in Federation, and the model's inputs where the TrainingContext keeps them.
        assignment: `Resampled`, or the indices of all clients' records, one client after another, and their numbers.
        rest: the other fields of the Federation that training reads.
        precision: torch's float32 matmul precision, and whether cuDNN may use TF32.
        task: what is learnt.
        versions: the versions of fedceo and torch.
    """

    model: nn.Module
    x: Array
    y: Array
    inputs: Array | None
    assignment: Resampled | tuple[Array, Array]
    rest: dict[str, Any]
    schedule: Schedule
    device: str
    dtype: torch.dtype
    engine: str
    precision: tuple[str, bool]
    task: Task
    versions: tuple[str, str] = VERSIONS

    @staticmethod
    def of(context: TrainingContext, engine: str, model: nn.Module) -> "WorkerSetup":
        """The setup for a context; model: the context's model, on the CPU."""
        data = context.federation
        train = data.train if isinstance(data.train, Assignment | Resampled) else Assignment(data.train)
        inputs = context.inputs if context.device.type == "cpu" else None  # on a GPU the worker computes them
        return WorkerSetup(
            model=model,
            x=data.x.numpy(),
            y=data.y.numpy(),
            inputs=None if inputs is None else inputs.numpy(),
            assignment=train if isinstance(train, Resampled) else (train.indices.numpy(), train.sizes.numpy()),
            rest={"name": data.name, "classes": data.classes, "mean": data.mean, "std": data.std},
            schedule=context.schedule,
            device=context.device.type,
            dtype=context.dtype,
            engine=engine,
            precision=(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32),
            task=context.task,
        )

    def context(self) -> TrainingContext:
        """A TrainingContext like the one that the setup was made from, without test records."""
        x, y = as_tensor(self.x), as_tensor(self.y)
        if isinstance(self.assignment, Resampled):
            train: Sequence[Tensor] = self.assignment
        else:
            indices, sizes = self.assignment
            train = Assignment(torch.split(as_tensor(indices), sizes.tolist()))
        none = torch.empty(0, dtype=torch.int64)
        data = Federation(
            x=x, y=y, train=train, validation=none, local_test=(), test_x=x[:0], test_y=y[:0], **self.rest
        )
        device = torch.device(self.device)
        inputs = None if self.inputs is None else as_tensor(self.inputs)
        return TrainingContext(self.model.to(device), data, self.schedule, device, self.dtype, inputs, self.task)


class Worker:
    """One process of a pool; the pool's tasks are calls of its methods."""

    def prepare(self, setup: WorkerSetup) -> str:
        """Make the TrainingContext and the trainer of all tasks; returns the machine's name."""
        if setup.versions != VERSIONS:
            theirs, ours = ("fedceo {} and torch {}".format(*each) for each in (VERSIONS, setup.versions))
            raise UsageError(f"--ray-address: a worker has {theirs}, but this machine {ours}; results would differ")
        torch.set_num_threads(1)  # one core a worker: cores work on different clients, not on parts of one product
        if setup.device == "cuda":
            torch.set_float32_matmul_precision(setup.precision[0])
            torch.backends.cudnn.allow_tf32 = setup.precision[1]
        self.context = setup.context()
        self.trainer = make_trainer(self.context, setup.engine)
        return platform.node()

    def train(
        self, common: Arrays, personal: Arrays, clients: Sequence[int], round_: int, work: Work
    ) -> tuple[dict[str, Array], Array]:
        """The trained weights and losses of some clients, as `Trainer` gives them.

        Args:
            common: the parameters from which all clients start.
            personal: (clients, ...) the parameters that differ by client.
        """
        names = [name for name, _ in self.context.model.named_parameters()]
        starts = {name: as_tensor(w).expand(len(clients), *w.shape) for name, w in common.items()}
        starts |= {name: as_tensor(w) for name, w in personal.items()}
        starts = {name: starts[name] for name in names if name in starts}  # noise is drawn in this order
        starts = {name: w.to(self.context.device) for name, w in starts.items()}
        trained = self.trainer.train(starts, clients, round_, work)
        return {name: as_array(w) for name, w in trained.weights.items()}, as_array(trained.losses)

    def shrink(self, matrices: Array, tau: Floats, total: float) -> Array:
        """The singular-value soft-thresholding of fedceo.tensors.shrinkage."""
        return as_array(shrink(as_tensor(matrices), tau, total))


def as_array(tensor: Tensor) -> Array:
    """The tensor as an array, a view where the tensor is on the CPU."""
    return tensor.detach().resolve_conj().cpu().numpy()


def as_tensor(array: Array) -> Tensor:
    """The array as a tensor, a view that must only be read: all processes on the machine map the same memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))
