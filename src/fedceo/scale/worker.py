"""What runs in a worker's process: the trainer that one machine would use, on records that the machine holds once.

Tensors travel as NumPy arrays, which Ray's object store holds once on each machine and readers map instead of copying.
Nothing that arrives is written to: a trainer copies its starts.
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
class Kit:
    """All that a worker needs to make its own Place.

    Attributes:
        x, y, ready: records and labels as in Federation, and the records as the model takes them where the
            TrainingContext keeps them so.
        hands: who holds which: `Resampled`, or places one client after another and how many are whose.
        rest: the other fields of the Federation that training reads.
        precision: torch's float32 matmul precision and cuDNN's leave to use TF32.
        versions: of fedceo and torch.
    """

    model: nn.Module
    x: Array
    y: Array
    ready: Array | None
    hands: Resampled | tuple[Array, Array]
    rest: dict[str, Any]
    schedule: Schedule
    device: str
    dtype: torch.dtype
    engine: str
    precision: tuple[str, bool]
    versions: tuple[str, str] = VERSIONS

    @staticmethod
    def of(context: TrainingContext, engine: str, model: nn.Module) -> "Kit":
        """model: the context's, on the CPU."""
        data = context.federation
        dealt = data.train if isinstance(data.train, Assignment | Resampled) else Assignment(data.train)
        ready = context.inputs if context.device.type == "cpu" else None  # a GPU makes its own
        return Kit(
            model=model,
            x=data.x.numpy(),
            y=data.y.numpy(),
            ready=None if ready is None else ready.numpy(),
            hands=dealt if isinstance(dealt, Resampled) else (dealt.indices.numpy(), dealt.sizes.numpy()),
            rest={"name": data.name, "classes": data.classes, "mean": data.mean, "std": data.std},
            schedule=context.schedule,
            device=context.device.type,
            dtype=context.dtype,
            engine=engine,
            precision=(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32),
        )

    def context(self) -> TrainingContext:
        """A TrainingContext like the one it was made of, without test records."""
        x, y = as_tensor(self.x), as_tensor(self.y)
        if isinstance(self.hands, Resampled):
            train: Sequence[Tensor] = self.hands
        else:
            places, sizes = self.hands
            train = Assignment(torch.split(as_tensor(places), sizes.tolist()))
        none = torch.empty(0, dtype=torch.int64)
        data = Federation(
            x=x, y=y, train=train, validation=none, local_test=(), test_x=x[:0], test_y=y[:0], **self.rest
        )
        device = torch.device(self.device)
        ready = None if self.ready is None else as_tensor(self.ready)
        return TrainingContext(self.model.to(device), data, self.schedule, device, self.dtype, ready)


class Worker:
    """One process of a pool; its methods are what a pool can be asked to do."""

    def prepare(self, kit: Kit) -> str:
        """Make once what all tasks need; returns the machine's name."""
        if kit.versions != VERSIONS:
            theirs, ours = ("fedceo {} and torch {}".format(*each) for each in (VERSIONS, kit.versions))
            raise UsageError(f"--ray-address: a worker has {theirs}, but this machine {ours}; results would differ")
        torch.set_num_threads(1)  # its core; cores work on clients, not on parts of a product
        if kit.device == "cuda":
            torch.set_float32_matmul_precision(kit.precision[0])
            torch.backends.cudnn.allow_tf32 = kit.precision[1]
        self.context = kit.context()
        self.trainer = make_trainer(self.context, kit.engine)
        return platform.node()

    def train(
        self, common: Arrays, own: Arrays, clients: Sequence[int], round_: int, work: Work
    ) -> tuple[dict[str, Array], Array]:
        """common: parameters that all clients start from; own: (share, ...), those of each client; see Trainer."""
        names = [name for name, _ in self.context.model.named_parameters()]
        starts = {name: as_tensor(w).expand(len(clients), *w.shape) for name, w in common.items()}
        starts |= {name: as_tensor(w) for name, w in own.items()}
        starts = {name: starts[name] for name in names if name in starts}  # noise follows their order
        starts = {name: w.to(self.context.device) for name, w in starts.items()}
        trained = self.trainer.train(starts, clients, round_, work)
        return {name: as_array(w) for name, w in trained.weights.items()}, as_array(trained.losses)

    def shrink(self, matrices: Array, tau: Floats, total: float) -> Array:
        """See fedceo.tensors.shrinkage."""
        return as_array(shrink(as_tensor(matrices), tau, total))


def as_array(tensor: Tensor) -> Array:
    """A view where the tensor is on the CPU."""
    return tensor.detach().resolve_conj().cpu().numpy()


def as_tensor(array: Array) -> Tensor:
    """A view, to be read only: what comes out of the object store is shared by all on the machine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))
