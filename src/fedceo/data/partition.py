"""Partitions of records over clients: even, by label shards, by Dirichlet proportions, natural, pooled."""

import numpy as np
import numpy.typing as npt

from fedceo.data.source import Integers
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data

SHARDS_PER_CLIENT = 2
FITTINGS = 100
"""Times that label shares are fitted to the records there are; what is left of the misfit is a few records."""
LEAST_SHARE = 1e-9
"""A share of zero could not be fitted; this one is of no record."""


def assign_records(y: Integers, client: Integers | None, settings: Data, seed: int) -> list[Integers]:
    """For each client the indices of its records; every record has one client, and every client at least one record.

    Args:
        y: (records,) labels.
        client: (records,) natural client of each record, for partition = "natural" and "pooled"; natural clients are
            put in ascending order.
    """
    if settings.partition == "natural":
        return _natural(client, _given_clients(settings))
    if settings.clients is None:
        raise UsageError(f'data.clients: needed for partition "{settings.partition}"')
    if settings.clients > len(y):
        raise UsageError(
            f"data.clients: {settings.clients} clients cannot share {len(y)} records, a client would have none"
        )
    rng = np.random.default_rng([seed, 0xDA7A])
    if settings.partition == "shards":
        return _shards(y, settings.clients, rng)
    if settings.partition == "dirichlet":
        return _dirichlet(y, settings.clients, settings.alpha, rng)
    if settings.partition == "dirichlet-equal":
        return _dirichlet_equal(y, settings.clients, settings.alpha, rng)
    if settings.partition == "pooled":
        return _pooled(client, settings.clients, rng)
    return np.array_split(rng.permutation(len(y)), settings.clients)


def _shards(y: Integers, clients: int, rng: np.random.Generator) -> list[Integers]:
    """McMahan et al. 2017: the records sorted by label, cut into shards, two of them given to each client."""
    count = SHARDS_PER_CLIENT * clients
    if count > len(y):
        raise UsageError(
            f'data.clients: partition "shards" needs {SHARDS_PER_CLIENT} shards for each of {clients} clients, '
            f"but {len(y)} records make only {len(y)} shards"
        )
    shards = np.array_split(np.argsort(y, kind="stable"), count)
    chosen = rng.permutation(count).reshape(clients, SHARDS_PER_CLIENT)
    return [np.concatenate([shards[shard] for shard in mine]) for mine in chosen]


def _dirichlet(y: Integers, clients: int, alpha: float, rng: np.random.Generator) -> list[Integers]:
    """Hsu et al. 2019: each label's records are divided by one draw from a symmetric Dirichlet over the clients."""
    owner = np.empty(len(y), np.int64)
    for label in np.unique(y):
        records = rng.permutation(np.flatnonzero(y == label))
        ends = np.cumsum(rng.dirichlet(np.full(clients, alpha)))
        _check_drawn(ends[-1:], alpha)
        ranks = (np.arange(len(records)) + 0.5) / len(records)
        owner[records] = np.searchsorted(ends[:-1], ranks)
    empty = np.setdiff1d(np.arange(clients), owner)
    spare = np.setdiff1d(np.arange(len(y)), np.unique(owner, return_index=True)[1])  # each giver keeps one
    owner[rng.choice(spare, len(empty), replace=False)] = empty
    return _group(owner)


def _dirichlet_equal(y: Integers, clients: int, alpha: float, rng: np.random.Generator) -> list[Integers]:
    """Each client's label shares are a draw from a symmetric Dirichlet over the labels; all clients have one size.

    The shares are fitted to both, the records of each label and those of each client, by scaling rows and columns in
    turn (iterative proportional fitting), which treats all clients alike.
    """
    labels, number = np.unique(y, return_inverse=True)
    shares = rng.dirichlet(np.full(len(labels), alpha), clients)
    _check_drawn(shares.sum(1), alpha)
    shares = np.maximum(shares, LEAST_SHARE)
    sizes = np.diff(np.linspace(0, len(y), clients + 1).astype(int))
    for _ in range(FITTINGS):
        shares *= np.bincount(number) / shares.sum(0)
        shares *= (sizes / shares.sum(1))[:, None]
    owner = np.empty(len(y), np.int64)
    for label, parts in enumerate(shares.T):
        records = rng.permutation(np.flatnonzero(number == label))
        ends = np.cumsum(parts) / parts.sum()
        owner[records] = np.searchsorted(ends[:-1], (np.arange(len(records)) + 0.5) / len(records))
    held = np.bincount(owner, minlength=clients)
    surplus = [rng.permutation(np.flatnonzero(owner == k))[: held[k] - sizes[k]] for k in np.flatnonzero(held > sizes)]
    wanting = np.repeat(np.arange(clients), np.maximum(sizes - held, 0))
    if len(wanting):
        owner[np.concatenate(surplus)] = rng.permutation(wanting)
    return _group(owner)


def _check_drawn(sums: npt.NDArray[np.float64], alpha: float) -> None:
    if not np.allclose(sums, 1.0):  # they over- or underflowed
        raise UsageError(f"data.alpha: {alpha:g} is too extreme to draw from a Dirichlet distribution")


def _pooled(client: Integers | None, clients: int, rng: np.random.Generator) -> list[Integers]:
    """Every natural client, with all its records, goes to one of N at random."""
    if client is None:
        raise UsageError('data.partition: "pooled" needs data with client ids, and this data has none')
    names, numbers = np.unique(client, return_inverse=True)
    owner = rng.integers(clients, size=len(names))[numbers]
    empty = np.setdiff1d(np.arange(clients), owner)
    if len(empty):
        raise UsageError(f"data.clients: {len(names)} natural clients leave {len(empty)} of {clients} without records")
    return _group(owner)


def _natural(client: Integers | None, expected: int | None) -> list[Integers]:
    if client is None:
        raise UsageError('data.partition: "natural" needs data with client ids, and this data has none')
    groups = _group(client)
    if expected not in (None, len(groups)):
        raise UsageError(
            f"data.clients: {expected} given, but the data has {len(groups)} natural clients; leave it out"
        )
    return groups


def _given_clients(settings: Data) -> int | None:
    """The number of clients that the user wrote, if any: the field's default says nothing about natural data."""
    return settings.clients if "clients" in settings.model_fields_set else None


def _group(owner: Integers) -> list[Integers]:
    """The indices of each owner's records, owners in ascending order."""
    sizes = np.unique(owner, return_counts=True)[1]
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
