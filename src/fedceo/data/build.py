"""The federation that an experiment's [data] section describes."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from fedceo.data.arrays import read_npz
from fedceo.data.assignment import Assignment, Resampled
from fedceo.data.federation import Federation
from fedceo.data.files import expanded
from fedceo.data.hub import PREFIX, load_hub
from fedceo.data.partition import assign_records
from fedceo.data.registry import DATASETS, load_source
from fedceo.data.source import HELD_OUT, Integers, Source, hold_out
from fedceo.data.tables import ENDINGS, Columns, read_table
from fedceo.data.texts import LENGTH
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data

LOG = logging.getLogger(__name__)
BUILT: WeakValueDictionary[tuple[Data, int, str], Federation] = WeakValueDictionary()
"""Federations of registered data sets that somebody holds; files of a user's own may have changed since."""


def build_federation(settings: Data, seed: int) -> Federation:
    """Load the data that the settings name (a registered data set, one of the hub or a file) and federate it.

    Whoever asks for a registered data set in the same parts while another holds it is given the same object.
    """
    if settings.name not in DATASETS:
        return federate(_load(settings), settings, seed)
    key = settings, seed, str(data_root(settings.root))
    found = BUILT.get(key)
    if found is None:
        found = BUILT[key] = federate(_load(settings), settings, seed)
    return found


def _load(settings: Data) -> Source:
    if settings.path is not None:
        path = Path(settings.path).expanduser()
        columns = Columns(
            settings.label_column,
            settings.client_column,
            settings.feature_columns,
            settings.target_columns,
            settings.text_column,
        )
        if path.name.endswith(ENDINGS):
            return read_table(path, columns, settings.text_length or LENGTH)
        if columns != Columns():
            raise UsageError(
                f"data.path: {path} has no columns to name, expected a name that ends in {', '.join(ENDINGS)}"
            )
        return read_npz(path)
    name = str(settings.name)
    if name.startswith(PREFIX):
        return load_hub(name, settings.image_column, settings.label_column)
    return load_source(name, data_root(settings.root))


def federate(source: Source, settings: Data, seed: int) -> Federation:
    """Assign a data set's records to clients and keep validation and local test records out of training.

    Data without a test set gets one: natural clients, and those pooled from them, hold out records of their own, and
    the test set is their union; otherwise it is a fixed fifth of all records.
    """
    if settings.min_records is not None:
        source = _large_clients(source, settings.min_records)
    if source.client is not None and "partition" not in settings.model_fields_set:
        _warn_of_natural(len(source.client.unique()))
    natural = settings.partition in ("natural", "pooled")
    test_x, test_y = source.test_x, source.test_y
    if len(test_y) == 0 and not natural:
        kept, tested = (torch.from_numpy(indices) for indices in hold_out(len(source.y)))
        test_x, test_y = source.x[tested], source.y[tested]
        source = replace(source, x=source.x[kept], y=source.y[kept], client=None)
    if settings.partition == "resampled":
        return _resampled(replace(source, test_x=test_x, test_y=test_y), settings, seed)
    owners = None if source.client is None else source.client.numpy()
    if source.y.ndim > 1 and settings.partition in ("shards", "dirichlet"):
        raise UsageError(f'data.partition: "{settings.partition}" goes by labels, and {source.name} has none')
    assignment = assign_records(source.y.numpy(), owners, settings, seed)
    names: tuple[str, ...] = ()
    if settings.partition == "natural" and owners is not None and source.client_names:
        names = tuple(source.client_names[number] for number in np.unique(owners).tolist())

    untested = len(test_y) == 0
    if settings.local_test_from == "test":
        if untested:
            raise UsageError(f'data.local_test_from: "test", but {source.name} has no public test set')
        train, validation, _ = _split_clients(assignment, settings.validation, 0.0, seed)
        local_test = _draw_local_tests(assignment, source.y.numpy(), test_y.numpy(), settings.local_test, seed)
        source = replace(source, test_x=test_x, test_y=test_y)
        return _federation(source, Assignment(train), validation, Assignment(local_test), "test", names)
    fraction = settings.local_test or (HELD_OUT if untested else 0.0)
    train, validation, local_test = _split_clients(assignment, settings.validation, fraction, seed)
    if untested:
        union = torch.cat(local_test)
        if len(union) == 0:
            raise UsageError(f"{source.name}: no test set, and its clients have too few records to hold any out")
        test_x, test_y = source.x[union], source.y[union]
    shown = local_test if settings.local_test else [indices[:0] for indices in local_test]
    source = replace(source, test_x=test_x, test_y=test_y)
    return _federation(source, Assignment(train), validation, Assignment(shown), client_names=names)


@cache
def _warn_of_natural(count: int) -> None:
    """Say once, whatever the number of runs, that a partition nobody asked for takes no notice of who has what."""
    LOG.warning('data.partition: "iid" deals the records of %d natural clients anew; "natural" keeps them', count)


def _resampled(source: Source, settings: Data, seed: int) -> Federation:
    """A federation whose clients each draw their records from all that are not kept for validation."""
    assert settings.clients is not None and settings.records is not None
    order = torch.from_numpy(np.random.default_rng([seed, 0xDA7A]).permutation(len(source.y)))
    validation, pool = order.tensor_split([round(settings.validation * len(order))])
    if settings.records > len(pool):
        raise UsageError(f"data.records: {settings.records}, more than the {len(pool)} records there are to draw from")
    train = Resampled(pool, settings.clients, settings.records, seed)
    no_local_test = Resampled(pool, settings.clients, 0, seed)
    return replace(_federation(source, train, [validation], no_local_test), most_validated=None)


def _large_clients(source: Source, least: int) -> Source:
    """The records of those natural clients who have at least `least`."""
    if source.client is None:
        raise UsageError(f"data.min_records: {least}, but {source.name} has no client ids")
    _, numbers, sizes = np.unique(source.client.numpy(), return_inverse=True, return_counts=True)
    if sizes.max() < least:
        raise UsageError(f"data.min_records: {least}, but the largest client has {sizes.max()} records")
    kept = torch.from_numpy(sizes[numbers] >= least)
    return replace(source, x=source.x[kept], y=source.y[kept], client=source.client[kept])


def _draw_local_tests(
    assignment: list[Integers], y: Integers, test_y: Integers, fraction: float, seed: int
) -> list[Tensor]:
    """For each client, indices of test records: as many as a fraction of its records, with its proportions of labels.

    Two clients may draw the same test record; one client draws it at most once.
    """
    by_label = {label: np.flatnonzero(test_y == label) for label in np.unique(test_y).tolist()}
    sizes, spare = np.array([len(indices) for indices in assignment]), np.full(len(assignment), len(test_y))
    tests = []
    for client, (indices, count) in enumerate(zip(assignment, _whole_records(sizes, fraction, spare), strict=True)):
        rng = np.random.default_rng([seed, 0xDA7A, 3, client])
        labels, wanted = np.unique(y[rng.permutation(indices)[:count]], return_counts=True)
        found = [by_label.get(label, test_y[:0]) for label in labels.tolist()]
        drawn = [rng.choice(each, min(n, len(each)), replace=False) for each, n in zip(found, wanted, strict=True)]
        tests.append(torch.from_numpy(np.concatenate([np.empty(0, np.int64), *drawn])))
    return tests


def _federation(
    source: Source,
    train: Sequence[Tensor],
    validation: Sequence[Tensor],
    local_test: Sequence[Tensor],
    local_test_from: Literal["own", "test"] = "own",
    client_names: tuple[str, ...] = (),
) -> Federation:
    return Federation(
        name=source.name,
        x=source.x,
        y=source.y,
        train=train,
        validation=torch.cat(list(validation)),
        local_test=local_test,
        test_x=source.test_x,
        test_y=source.test_y,
        classes=source.classes,
        mean=source.mean,
        std=source.std,
        local_test_from=local_test_from,
        most_validated=max(map(len, validation)),
        label_names=source.label_names,
        client_names=client_names,
    )


def _split_clients(
    assignment: list[Integers], validation: float, local_test: float, seed: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Indices of each client's training, validation and local test records; one is always left to train on."""
    rng = np.random.default_rng([seed, 0xDA7A, 1])  # its own stream: a fraction must not change the partition
    sizes = np.array([len(indices) for indices in assignment])
    tested = _whole_records(sizes, local_test, spare=sizes - 1)
    validated = _whole_records(sizes, validation, spare=sizes - 1 - tested)
    parts = [
        [torch.from_numpy(part) for part in np.split(rng.permutation(indices), [test, test + valid])]
        for indices, test, valid in zip(assignment, tested, validated, strict=True)
    ]
    return [part[2] for part in parts], [part[1] for part in parts], [part[0] for part in parts]


def _whole_records(sizes: Integers, fraction: float, spare: Integers) -> Integers:
    """A fraction of each client's records as a whole number, rounded so that the sum over all clients is right.

    Rounded client by client, a tenth of four records would be none for every client of a federation of small ones.

    Args:
        spare: the most that each client can give; a client that can spare none is left out of the sum.
    """
    ends = np.cumsum(np.where(spare > 0, sizes, 0))
    return np.minimum(np.diff(np.rint(fraction * ends), prepend=0).astype(np.int64), spare)


def data_root(given: str | None = None) -> Path | None:
    """The folder of downloaded data sets: the one given, or the one that the environment variable FEDCEO_DATA names."""
    named = given or os.environ.get("FEDCEO_DATA")
    return expanded(named, "FEDCEO_DATA" if given is None else "--root") if named else None
