"""A federation keeps training, validation and test records apart, whoever the clients are."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedceo.data import Federation, Source, federate, from_arrays
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data


def numbered(records: int, clients: int | None = None) -> Source:
    """Records that carry their own number, so that they can be told apart wherever they end up."""
    number = np.arange(records)
    return from_arrays(number[:, None], number % 3, client=None if clients is None else number % clients)


def places(federation: Federation) -> list[int]:
    return torch.cat([*federation.train, federation.validation, *federation.local_test]).tolist()


def settings(**given: Any) -> Data:
    return Data.model_validate({"name": "digits", "clients": 5} | given)


@given(
    st.integers(20, 200),
    st.sampled_from(["iid", "shards", "dirichlet"]),
    st.floats(0, 0.49),
    st.floats(0, 0.49),
    st.integers(0, 99),
)
def test_parts_are_disjoint_and_complete(
    records: int, partition: str, validation: float, local_test: float, seed: int
) -> None:
    source = numbered(records)
    federation = federate(source, settings(partition=partition, validation=validation, local_test=local_test), seed)
    assert sorted(places(federation)) == list(range(len(source.y)))
    assert len(federation.train) == len(federation.local_test) == 5
    assert min(map(len, federation.train)) >= 1
    tested = set(federation.test_x.flatten().tolist())
    assert not tested & set(federation.x.flatten().tolist()) and len(tested) + len(source.y) == records


@given(
    st.integers(20, 200), st.integers(1, 6), st.floats(0, 0.3), st.just(0.0) | st.floats(0.1, 0.3), st.integers(0, 99)
)
def test_natural_clients_hold_out_their_own_records(
    records: int, clients: int, validation: float, local_test: float, seed: int
) -> None:
    source = numbered(records, clients)
    given_settings = Data(name="digits", partition="natural", validation=validation, local_test=local_test)
    federation = federate(source, given_settings, seed)
    tested = federation.test_x.flatten().int().tolist()
    kept = torch.cat([*federation.train, federation.validation]).tolist()
    assert sorted(kept + tested) == list(range(records))
    if local_test:
        assert torch.cat(list(federation.local_test)).tolist() == tested
    else:
        assert not torch.cat(list(federation.local_test)).tolist()
    for client, train in enumerate(federation.train):
        assert len(train) >= 1 and set((train % clients).tolist()) == {client}


def test_natural_clients_with_a_public_test_set_keep_it() -> None:
    source = from_arrays(
        np.ones((20, 2)), np.zeros(20, int), client=np.arange(20) // 5, test_x=np.zeros((3, 2)), test_y=[0] * 3
    )
    federation = federate(source, Data(name="digits", partition="natural", validation=0.2, local_test=0.2), 0)
    assert len(federation.test_y) == 3
    assert [len(each) for each in federation.train] == [3] * 4 and [len(each) for each in federation.local_test] == [
        1
    ] * 4


def test_records_with_ids_can_be_dealt_anew() -> None:
    federation = federate(numbered(100, clients=7), settings(), 0)
    assert federation.clients == 5 and len(federation.test_y) == 20


def test_equal_clients_get_equal_fractions() -> None:
    federation = federate(numbered(625), settings(validation=0.1, local_test=0.1), 0)
    assert [len(each) for each in federation.train] == [80] * 5
    assert [len(each) for each in federation.local_test] == [10] * 5 and len(federation.validation) == 50


def test_small_clients_together_hold_out_the_fraction_asked_for() -> None:
    federation = federate(numbered(250), settings(clients=50, validation=0.1), 0)  # 4 records each
    assert len(federation.validation) == 20


def test_fractions_do_not_change_the_partition() -> None:
    source = numbered(100)
    plain = federate(source, settings(validation=0.0), 3)
    carved = federate(source, settings(validation=0.2, local_test=0.3), 3)
    for client in range(5):
        kept = set(carved.train[client].tolist()) | set(carved.local_test[client].tolist())
        assert kept <= set(plain.train[client].tolist())


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet", "natural"])
def test_same_seed_same_federation(partition: str) -> None:
    source = numbered(200, clients=5)
    first, again, other = (federate(source, settings(partition=partition, local_test=0.2), s) for s in (1, 1, 2))
    assert places(first) == places(again) != places(other)
    assert torch.equal(first.test_x, again.test_x)


def test_held_out_records_are_a_fair_sample_of_a_clients_labels() -> None:
    """Shards are concatenated in label order: cutting off their ends would hold out one label only."""
    y = np.arange(1000) // 100
    source = from_arrays(np.ones((1000, 1)), y, test_x=np.ones((1, 1)), test_y=[0])
    federation = federate(source, settings(partition="shards", local_test=0.2), 0)
    for train, tested in zip(federation.train, federation.local_test, strict=True):
        assert set(federation.y[tested].tolist()) == set(federation.y[train].tolist())


def test_the_authors_split() -> None:
    source = from_arrays(np.zeros((500, 1)), np.arange(500) % 10, test_x=np.zeros((1, 1)), test_y=[0])
    federation = federate(source, settings(clients=1, validation=0.1, local_test=0.1), 0)
    assert (len(federation.train[0]), len(federation.validation), len(federation.local_test[0])) == (400, 50, 50)


def test_small_natural_clients_are_left_out() -> None:
    client = np.repeat([3, 5, 9], [4, 10, 11])
    source = from_arrays(np.arange(25)[:, None], np.arange(25) % 3, client=client)
    federation = federate(source, Data(name="digits", partition="natural", min_records=10), 0)
    assert federation.clients == 2 and federation.x.min() == 4, "records of the first client are gone"
    with pytest.raises(UsageError, match=r"data.min_records: 12, but the largest client has 11 records"):
        federate(source, Data(name="digits", partition="natural", min_records=12), 0)
    with pytest.raises(UsageError, match=r"data.min_records: 5, but arrays has no client ids"):
        federate(numbered(30), settings(min_records=5), 0)


@given(st.integers(60, 200), st.integers(0, 99))
def test_pooled_clients_hold_whole_natural_clients(records: int, seed: int) -> None:
    source = numbered(records, clients=40)
    federation = federate(source, settings(partition="pooled", clients=2, validation=0.2, local_test=0.2), seed)
    assert sorted(places(federation)) == list(range(records))
    assert torch.equal(federation.test_y, federation.y[torch.cat(list(federation.local_test))])
    users = [
        set((torch.cat([train, held]) % 40).tolist())
        for train, held in zip(federation.train, federation.local_test, strict=True)
    ]
    assert not users[0] & users[1]


def test_what_cannot_be_pooled() -> None:
    with pytest.raises(UsageError, match='"pooled" needs data with client ids'):
        federate(numbered(30), settings(partition="pooled"), 0)
    with pytest.raises(UsageError, match=r"data.clients: 4 natural clients leave \d+ of 50 without records"):
        federate(numbered(100, clients=4), settings(partition="pooled", clients=50), 0)


def test_local_tests_from_the_public_test_set_follow_the_clients_labels() -> None:
    y, test_y = np.arange(1000) // 100, np.arange(500) % 10
    source = from_arrays(np.ones((1000, 1)), y, test_x=np.arange(500)[:, None], test_y=test_y)
    given_settings = settings(partition="shards", validation=0.1, local_test=0.2, local_test_from="test")
    federation = federate(source, given_settings, 0)
    plain = federate(source, settings(partition="shards", validation=0.1), 0)
    for client in range(5):
        x, labels = federation.local_test_records(client)
        mine = federation.y[federation.train[client]].bincount(minlength=10) / len(federation.train[client])
        assert len(labels) == 40 and len(x.unique()) == 40, "a fifth of 200 records, each once"
        assert (labels.bincount(minlength=10) / 40 - mine).abs().max() < 0.2
        assert set(labels.tolist()) <= set(federation.y[federation.train[client]].tolist())
        assert torch.equal(labels, torch.from_numpy(test_y)[x.flatten().long()])
        assert torch.equal(federation.train[client], plain.train[client]), "nothing is taken from training"
    again = federate(source, given_settings, 0)
    assert torch.equal(torch.cat(list(again.local_test)), torch.cat(list(federation.local_test)))


def test_local_tests_of_a_clients_own_records() -> None:
    federation = federate(numbered(100), settings(local_test=0.2), 0)
    x, labels = federation.local_test_records(3)
    assert torch.equal(x, federation.x[federation.local_test[3]])
    assert torch.equal(labels, federation.y[federation.local_test[3]])


def test_local_tests_from_a_test_set_that_is_not_there() -> None:
    given_settings = Data(name="digits", partition="natural", local_test=0.1, local_test_from="test")
    with pytest.raises(UsageError, match=r'data.local_test_from: "test", but arrays has no public test set'):
        federate(numbered(100, clients=4), given_settings, 0)
