"""pfl-research's simulator.

    python -m peers.with_pfl WORK OUT                                       one process
    python -m torch.distributed.run --nproc-per-node P -m peers.with_pfl WORK OUT

pfl takes a client's records in the order they are stored, so a client's records are laid out in the order of its
batches; and it measures every client before and after the first round's training, which is switched off.
"""

import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pfl
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from peers.work import Clock, Work


class WithoutEvaluation(FederatedAveraging):
    def simulate_one_user(self, model: Any, user_dataset: Any, central_context: Any) -> Any:
        return super().simulate_one_user(model, user_dataset, replace(central_context, do_evaluation=False))


class Ticks(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
        self.clock.tick()
        return False, Metrics()


def loss(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    self.train()
    return F.cross_entropy(self(x), y)


class Shuffled(PyTorchTensorDataset):
    """A client's records in the order of its batches, another one in each epoch."""

    def __init__(self, x: Tensor, y: Tensor, orders: Sequence[Tensor]) -> None:
        super().__init__((x, y))
        self.orders = iter(orders)

    def iter(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = next(self.orders)
        x, y = self.raw_data
        return zip(x[order].split(batch_size), y[order].split(batch_size), strict=True)


def clients_of(work: Work) -> FederatedDataset:
    """Users are (turn, place in the cohort), so that a client's batches can be those of its round."""

    def users() -> Iterator[tuple[int, int]]:
        for turn, clients in work.rounds():
            yield from ((turn, k) for k in range(len(clients)))

    def records(user: tuple[int, int]) -> Shuffled:
        client = work.cohorts[user]
        orders = torch.cat(work.batches(*user)).view(work.setting.epochs, -1)
        return Shuffled(work.x[client], work.y[client], tuple(orders))

    return FederatedDataset(records, users().__next__)


def main(folder: str, out: str) -> None:
    work, clock = Work(folder), Clock(out)
    setting = work.setting
    module = work.model()
    module.loss = types.MethodType(loss, module)
    module.metrics = None  # asked for by name, never called: nothing is evaluated
    server = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=server)
    data = clients_of(work)
    WithoutEvaluation().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=setting.rounds,
            evaluation_frequency=setting.rounds,
            train_cohort_size=setting.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=setting.rate, local_num_epochs=setting.epochs, local_batch_size=setting.batch
        ),
        callbacks=[Ticks(clock)],
    )
    if get_default_framework_module().distributed.global_rank == 0:
        clock.finish(module.state_dict(), {"pfl": pfl.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main(*sys.argv[1:])
