"""From the experiment's [data] section to a federation."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedceo.data.arrays import read_npz
from fedceo.data.assignment import Assignment, Resampled
from fedceo.data.federation import Federation
from fedceo.data.hub import PREFIX, load_hub
from fedceo.data.partition import deal
from fedceo.data.registry import load_source
from fedceo.data.source import HELD_OUT, Places, Source, hold_out
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data


def build_federation(settings: Data, seed: int) -> Federation:
    """Load what the settings name, a registered data set, one of the hub or a .npz file, and deal it to clients."""
    return federate(_load(settings), settings, seed)


def _load(settings: Data) -> Source:
    if settings.path is not None:
        return read_npz(Path(settings.path).expanduser())
    name = str(settings.name)
    if name.startswith(PREFIX):
        return load_hub(name, settings.image_column, settings.label_column)
    return load_source(name, data_root(settings.root))


def federate(source: Source, settings: Data, seed: int) -> Federation:
    """Deal a data set to clients and keep each client's validation and local test records out of its training.

    Data without a test set gets one: natural clients, and those pooled from them, hold out records of their own, and
    the test set is their union; otherwise it is a fixed fifth of all records.
    """
    if settings.min_records is not None:
        source = _large_clients(source, settings.min_records)
    natural = settings.partition in ("natural", "pooled")
    test_x, test_y = source.test_x, source.test_y
    if len(test_y) == 0 and not natural:
        kept, tested = (torch.from_numpy(places) for places in hold_out(len(source.y)))
        test_x, test_y = source.x[tested], source.y[tested]
        source = replace(source, x=source.x[kept], y=source.y[kept], client=None)
    if settings.partition == "resampled":
        return _resampled(replace(source, test_x=test_x, test_y=test_y), settings, seed)
    owners = None if source.client is None else source.client.numpy()
    hands = deal(source.y.numpy(), owners, settings, seed)

    untested = len(test_y) == 0
    if settings.local_test_from == "test":
        if untested:
            raise UsageError(f'data.local_test_from: "test", but {source.name} has no public test set')
        train, validation, _ = _carve(hands, settings.validation, 0.0, seed)
        local_test = _drawn(hands, source.y.numpy(), test_y.numpy(), settings.local_test, seed)
        source = replace(source, test_x=test_x, test_y=test_y)
        return _federation(
            source, Assignment(train), torch.cat(validation), Assignment(local_test), local_test_from="test"
        )
    share = settings.local_test or (HELD_OUT if untested else 0.0)
    train, validation, local_test = _carve(hands, settings.validation, share, seed)
    if untested:
        union = torch.cat(local_test)
        if len(union) == 0:
            raise UsageError(f"{source.name}: no test set, and its clients have too few records to hold any out")
        test_x, test_y = source.x[union], source.y[union]
    shown = local_test if settings.local_test else [places[:0] for places in local_test]
    source = replace(source, test_x=test_x, test_y=test_y)
    return _federation(source, Assignment(train), torch.cat(validation), Assignment(shown))


def _resampled(source: Source, settings: Data, seed: int) -> Federation:
    """Clients that each draw their records from all that are not kept for validation."""
    assert settings.clients is not None and settings.records is not None
    order = torch.from_numpy(np.random.default_rng([seed, 0xDA7A]).permutation(len(source.y)))
    validation, pool = order.tensor_split([round(settings.validation * len(order))])
    if settings.records > len(pool):
        raise UsageError(f"data.records: {settings.records}, more than the {len(pool)} records there are to draw from")
    nothing = Resampled(pool, settings.clients, 0, seed)
    return _federation(source, Resampled(pool, settings.clients, settings.records, seed), validation, nothing)


def _large_clients(source: Source, least: int) -> Source:
    """The records of those natural clients who have at least so many."""
    if source.client is None:
        raise UsageError(f"data.min_records: {least}, but {source.name} has no client ids")
    _, numbers, sizes = np.unique(source.client.numpy(), return_inverse=True, return_counts=True)
    if sizes.max() < least:
        raise UsageError(f"data.min_records: {least}, but the largest client has {sizes.max()} records")
    kept = torch.from_numpy(sizes[numbers] >= least)
    return replace(source, x=source.x[kept], y=source.y[kept], client=source.client[kept])


def _drawn(hands: list[Places], y: Places, test_y: Places, share: float, seed: int) -> list[Tensor]:
    """For each client places in the test set, as many as a share of its records, in proportion to its labels.

    Clients may draw the same ones, and each draws one only once.
    """
    by_label = {label: np.flatnonzero(test_y == label) for label in np.unique(test_y).tolist()}
    counts = _shares(np.array([len(hand) for hand in hands]), share, spare=np.full(len(hands), len(test_y)))
    places = []
    for client, (hand, count) in enumerate(zip(hands, counts, strict=True)):
        rng = np.random.default_rng([seed, 0xDA7A, 3, client])
        labels, wanted = np.unique(y[rng.permutation(hand)[:count]], return_counts=True)
        found = [by_label.get(label, test_y[:0]) for label in labels.tolist()]
        drawn = [rng.choice(each, min(n, len(each)), replace=False) for each, n in zip(found, wanted, strict=True)]
        places.append(torch.from_numpy(np.concatenate([np.empty(0, np.int64), *drawn])))
    return places


def _federation(
    source: Source,
    train: Sequence[Tensor],
    validation: Tensor,
    local_test: Sequence[Tensor],
    local_test_from: Literal["own", "test"] = "own",
) -> Federation:
    return Federation(
        name=source.name,
        x=source.x,
        y=source.y,
        train=train,
        validation=validation,
        local_test=local_test,
        test_x=source.test_x,
        test_y=source.test_y,
        classes=source.classes,
        mean=source.mean,
        std=source.std,
        local_test_from=local_test_from,
    )


def _carve(
    hands: list[Places], validation: float, local_test: float, seed: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Each client's records, shuffled, as training, validation and local test; one is always left to train on."""
    rng = np.random.default_rng([seed, 0xDA7A, 1])  # apart from the deal, which no share may change
    sizes = np.array([len(hand) for hand in hands])
    tested = _shares(sizes, local_test, spare=sizes - 1)
    validated = _shares(sizes, validation, spare=sizes - 1 - tested)
    parts = [
        [torch.from_numpy(part) for part in np.split(rng.permutation(hand), [test, test + valid])]
        for hand, test, valid in zip(hands, tested, validated, strict=True)
    ]
    return [part[2] for part in parts], [part[1] for part in parts], [part[0] for part in parts]


def _shares(sizes: Places, share: float, spare: Places) -> Places:
    """A share of each client's records in whole records, rounded so that the sum over the clients who can spare some
    is right: a tenth of four records, rounded by itself, is none for every client of a federation of small ones."""
    ends = np.cumsum(np.where(spare > 0, sizes, 0))
    return np.minimum(np.diff(np.rint(share * ends), prepend=0).astype(np.int64), spare)


def data_root(given: str | None = None) -> Path | None:
    """The folder of downloaded data sets: the one given, or what the environment variable FEDCEO_DATA names."""
    named = given or os.environ.get("FEDCEO_DATA")
    return Path(named).expanduser() if named else None
