"""Every record has exactly one client, clients have the sizes that each partition promises, and the seed decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedceo.data.partition import assign_records
from fedceo.experiment.sections import Data

PARTITIONS = ("iid", "shards", "dirichlet", "dirichlet-equal")


def settings(partition: str, clients: int, alpha: float = 0.5) -> Data:
    return Data.model_validate({"name": "digits", "partition": partition, "clients": clients, "alpha": alpha})


@st.composite
def labels_and_clients(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    clients = draw(st.integers(1, 30))
    records = draw(st.integers(2 * clients, 400))
    classes = draw(st.integers(1, 12))
    return np.random.default_rng(draw(st.integers(0, 99))).integers(0, classes, records), clients


@given(labels_and_clients(), st.sampled_from(PARTITIONS), st.floats(1e-4, 1e4), st.integers(0, 2**63 - 1))
def test_every_record_is_dealt_exactly_once(
    labels: tuple[np.ndarray, int], partition: str, alpha: float, seed: int
) -> None:
    y, clients = labels
    assignment = assign_records(y, None, settings(partition, clients, alpha), seed)
    assert len(assignment) == clients and min(map(len, assignment)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(assignment)), np.arange(len(y)))
    again = assign_records(y, None, settings(partition, clients, alpha), seed)
    assert all(np.array_equal(one, other) for one, other in zip(assignment, again, strict=True))


@given(labels_and_clients(), st.sampled_from(["iid", "dirichlet-equal"]), st.floats(1e-4, 1e4), st.integers(0, 9))
def test_even_sizes_differ_by_at_most_one(
    labels: tuple[np.ndarray, int], partition: str, alpha: float, seed: int
) -> None:
    y, clients = labels
    sizes = [len(mine) for mine in assign_records(y, None, settings(partition, clients, alpha), seed)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("partition", PARTITIONS)
def test_seeds_differ(partition: str) -> None:
    y = np.arange(300) % 10
    first, second = (assign_records(y, None, settings(partition, 10), seed) for seed in (0, 1))
    assert any(not np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_shards_hold_two_runs_of_labels() -> None:
    y = np.random.default_rng(0).permutation(np.arange(1000) % 10)
    assignment = assign_records(y, None, settings("shards", 50), 0)  # 100 shards of 10 records, 10 shards a label
    assert {len(indices) for indices in assignment} == {20}
    assert max(len(np.unique(y[indices])) for indices in assignment) == 2


def test_alpha_orders_the_inequality() -> None:
    y = np.arange(5000) % 10

    def largest_proportion(alpha: float) -> float:
        assignment = assign_records(y, None, settings("dirichlet", 20, alpha), 0)
        return float(np.mean([np.bincount(y[indices]).max() / len(indices) for indices in assignment]))

    assert largest_proportion(0.05) > 0.6 > largest_proportion(1.0) > 0.15 > largest_proportion(1000.0)


def test_dirichlet_proportions_have_the_distributions_moments() -> None:
    """A proportion of a symmetric Dirichlet over N has mean 1/N and variance (N-1) / (N^2 (N alpha + 1))."""
    y = np.zeros(10_000, np.int64)
    proportions = np.array(
        [[len(mine) / len(y) for mine in assign_records(y, None, settings("dirichlet", 5, 2.0), s)] for s in range(400)]
    )
    np.testing.assert_allclose(proportions.mean(axis=0), 0.2, atol=0.03)
    np.testing.assert_allclose(proportions.var(), 4 / (25 * 11), rtol=0.1)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_label_shares_of_clients_of_one_size_have_the_distributions_moments(alpha: float) -> None:
    """The squared shares of a symmetric Dirichlet over ten labels add up to (alpha + 1) / (10 alpha + 1) on average."""
    y = np.arange(20_000) % 10
    assignment = assign_records(y, None, settings("dirichlet-equal", 200, alpha), 0)
    shares = np.stack([np.bincount(y[mine], minlength=10) / len(mine) for mine in assignment])
    assert (shares**2).sum(1).mean() == pytest.approx((alpha + 1) / (10 * alpha + 1), rel=0.07)


@given(st.integers(1, 40), st.integers(1, 400), st.integers(0, 9))
def test_as_many_clients_as_records(classes: int, records: int, seed: int) -> None:
    y = np.arange(records) % classes
    for partition in ("iid", "dirichlet", "dirichlet-equal"):
        assert [len(mine) for mine in assign_records(y, None, settings(partition, records), seed)] == [1] * records


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=50))
def test_natural_clients_in_ascending_order(client: list[int]) -> None:
    ids = np.array(client)
    assignment = assign_records(np.zeros(len(ids), np.int64), ids, Data(name="digits", partition="natural"), 0)
    assert [set(ids[indices]) for indices in assignment] == [{each} for each in sorted(set(client))]
    assert sum(map(len, assignment)) == len(ids)
