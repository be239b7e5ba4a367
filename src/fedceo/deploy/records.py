"""A node's own records, or the server's public ones, as a Federation in which all other clients have no records."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.data import Federation, Source, build_federation
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment

Records = npt.ArrayLike | Tensor


def own_records(
    x: Records,
    y: Records,
    *,
    client: int,
    clients: int,
    classes: int,
    test_x: Records | None = None,
    test_y: Records | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    name: str = "own records",
) -> Federation:
    """The records of one node. It keeps its client number, so that its batches are those of a simulation.

    Args:
        x: (records, ...), uint8 pixels, float32 values or int32 tokens.
        y: (records,) labels from 0 to classes - 1.
        client: the number of the node, from 0 to clients - 1.
        test_x: test records of the node; the accuracy on them never leaves the node.
        test_y: their labels.
        mean: per channel, the same on every node.
        std: likewise.
    """
    if not 0 <= client < clients:
        raise UsageError(f"partition-id: {client}, expected 0 to {clients - 1}, one for each of data.clients")
    x, y = _tensor(x), _tensor(y).long()
    tested_x = x[:0] if test_x is None else _tensor(test_x)
    tested_y = y[:0] if test_y is None else _tensor(test_y).long()
    Source(name, x, y, tested_x, tested_y, classes)  # its constructor checks the records
    none = torch.empty(0, dtype=torch.int64)
    train = [torch.arange(len(y)) if number == client else none for number in range(clients)]
    return Federation(name, x, y, train, none, [none] * clients, tested_x, tested_y, classes, tuple(mean), tuple(std))


def public_records(
    x: Records,
    y: Records,
    *,
    clients: int,
    classes: int,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    name: str = "public records",
) -> Federation:
    """The server's records: public ones, possibly none, of the shape that all nodes' records have.

    The model's accuracy on them is printed without noise, so no record here may need protection.
    """
    x, y = _tensor(x), _tensor(y).long()
    if len(y):
        Source(name, x, y, x[:0], y[:0], classes)
    none = torch.empty(0, dtype=torch.int64)
    nothing = [none] * clients
    return Federation(name, x[:0], y[:0], nothing, none, nothing, x, y, classes, tuple(mean), tuple(std))


def dealt_records(experiment: Experiment, client: int) -> Federation:
    """The records that the partition of [data] gives to one client: a federation simulated on one data set."""
    whole = build_federation(experiment.data, experiment.seed)
    if not 0 <= client < whole.clients:
        raise UsageError(f"partition-id: {client}, expected 0 to {whole.clients - 1}, one for each of data.clients")
    mine = whole.train[client]
    test_x, test_y = whole.local_test_records(client)
    return own_records(
        whole.x[mine],
        whole.y[mine],
        client=client,
        clients=whole.clients,
        classes=whole.classes,
        test_x=test_x,
        test_y=test_y,
        mean=whole.mean,
        std=whole.std,
        name=whole.name,
    )


def dealt_public_records(experiment: Experiment) -> Federation:
    """The public test set of [data], without the clients' training and validation records."""
    whole = build_federation(experiment.data, experiment.seed)
    return public_records(
        whole.test_x,
        whole.test_y,
        clients=whole.clients,
        classes=whole.classes,
        mean=whole.mean,
        std=whole.std,
        name=whole.name,
    )


def _tensor(given: Records) -> Tensor:
    return given if isinstance(given, Tensor) else torch.from_numpy(np.asarray(given))
