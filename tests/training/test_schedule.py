"""The random choices: each record once an epoch, Poisson rates, cohorts, and streams that have nothing in common."""

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedceo.training.draws import DeviceDraws
from fedceo.training.schedule import PURPOSES, Schedule, splitmix64

seeds = st.integers(0, 2**40)


def on_a_device(seed: int, randomness: str = "seeded") -> DeviceDraws:
    """Any device will do here."""
    return DeviceDraws(Schedule(seed, randomness), torch.device("cpu"))


def batches_of(seed: int, on_device: bool, kind: str, *question: int) -> Tensor:
    """What the host answers, or a device; question: round, client, records, epochs and size."""
    if not on_device:
        return cast(Tensor, getattr(Schedule(seed), kind)(*question))
    round_, client, records, epochs, size = question
    return cast(list[Tensor], getattr(on_a_device(seed), kind)(round_, [client], [records], epochs, [size]))[0]


@given(seeds, st.integers(1, 40), st.integers(1, 4), st.integers(1, 50), st.booleans())
def test_every_record_once_an_epoch(seed: int, records: int, epochs: int, size: int, on_device: bool) -> None:
    batches = batches_of(seed, on_device, "batches", 1, 0, records, epochs, size)
    steps = -(-records // size)
    assert batches.shape == (epochs * steps, size)
    for epoch in batches.view(epochs, -1):
        assert sorted(epoch[epoch >= 0].tolist()) == list(range(records))
    assert torch.equal(batches, batches_of(seed, on_device, "batches", 1, 0, records, epochs, size))


@pytest.mark.parametrize("on_device", [False, True])
def test_poisson_batches_have_the_rate_asked(on_device: bool) -> None:
    batches = batches_of(3, on_device, "poisson_batches", 1, 0, 400, 300, 64)
    assert len(batches) == 300 * 7
    present = batches >= 0
    assert abs(float(present.sum()) / (400 * 2100) - 1 / 7) < 0.002
    assert all(len(set(row[row >= 0].tolist())) == int((row >= 0).sum()) for row in batches[:50])
    sizes = present.sum(1).double()
    assert abs(float(sizes.var()) / (400 * (1 / 7) * (6 / 7)) - 1) < 0.1, "binomial, not fixed"


@given(seeds, st.integers(1, 30), st.integers(1, 50))
def test_fixed_cohorts(seed: int, size: int, extra: int) -> None:
    clients = size + extra
    cohort = Schedule(seed).cohort(1, clients, size, "fixed")
    assert len(cohort) == len(set(cohort)) == size
    assert cohort == sorted(cohort) and cohort[0] >= 0 and cohort[-1] < clients


def test_poisson_cohorts_vary_in_size_and_may_be_empty() -> None:
    sizes = [len(Schedule(0).cohort(t, 100, 2, "poisson")) for t in range(1, 2001)]
    assert abs(sum(sizes) / len(sizes) - 2) < 0.15
    assert 0 in sizes and max(sizes) > 5


def test_purposes_rounds_and_clients_have_streams_of_their_own() -> None:
    numbers = {
        Schedule(seed).number(purpose, t, client)
        for seed in (0, 1)
        for purpose in ("batches", "upload noise")
        for t in range(5)
        for client in range(5)
    }
    assert len(numbers) == 100


@given(st.lists(st.integers(0, 2**70) | st.sampled_from([0, 2**32 - 1, 2**32, 2**64]), min_size=4, max_size=5))
def test_streams_are_those_of_numpy_for_the_same_numbers(numbers: list[int]) -> None:
    seed, round_, client, _, *key = numbers
    schedule = Schedule(seed, noise_key=f"{key[0]:x}" if key else "")
    expected = np.random.default_rng([seed, PURPOSES.index("record noise"), round_, client, *key])
    found = schedule.generator("record noise", round_, client)
    assert found.bit_generator.state == expected.bit_generator.state


@given(seeds, st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5), st.integers(0, 2**40), st.booleans())
def test_keys_of_many_clients_are_those_of_each(seed: int, clients: list[int], round_: int, keyed: bool) -> None:
    schedule = Schedule(seed, noise_key="ab" * 32 if keyed else "")
    found = schedule.keys("record noise", round_, clients).tolist()
    assert found == [int(schedule.keys("record noise", round_, [client])[0]) for client in clients]
    assert len({*found}) == len({*clients}) and min(found) >= 0
    assert found != schedule.keys("record noise", round_ + 1, clients).tolist()
    assert (found == Schedule(seed).keys("record noise", round_, clients).tolist()) is not keyed


def test_keys_are_those_of_splitmix64() -> None:
    """The first numbers of the published generator for the seed 1234567."""
    found = splitmix64(np.array([1234567], np.uint64), np.arange(3, dtype=np.uint64))
    assert found.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_on_a_device_follow_from_seed_round_and_client() -> None:
    answers = {
        tuple(batches_of(seed, True, "batches", t, client, 20, 1, 20).flatten().tolist())
        for seed in (0, 1)
        for t in (1, 2)
        for client in (0, 1)
    }
    assert len(answers) == 8
    masks = on_a_device(0).dropout_masks(1, 0, (200, 8), (64,), 0.5)
    assert set(masks.flatten().tolist()) == {0.0, 2.0}
    assert abs(float(masks.mean()) - 1.0) < 0.02
    secret = on_a_device(0, "system")
    assert not torch.equal(*(secret.batches(1, [0], [50], 1, [50])[0] for _ in range(2)))


@given(seeds, st.lists(st.tuples(st.integers(1, 40), st.integers(1, 50)), min_size=1, max_size=5), st.integers(1, 3))
def test_clients_drawn_together_get_what_each_gets_alone(
    seed: int, clients: list[tuple[int, int]], epochs: int
) -> None:
    """To the last number, with filling up to the largest batch of all: the loop asks client by client."""
    numbers, records, sizes = range(3, 3 + len(clients)), *map(list, zip(*clients, strict=True))
    for kind in ("batches", "poisson_batches"):
        together = getattr(on_a_device(seed), kind)(2, numbers, records, epochs, sizes)
        for number, (n, size), found in zip(numbers, clients, together, strict=True):
            alone = batches_of(seed, True, kind, 2, number, n, epochs, size)
            assert torch.equal(found[:, : alone.shape[1]], alone) and (found[:, alone.shape[1] :] == -1).all()
            assert len(found) == epochs * -(-n // size)
            filled = found >= 0
            assert int(found.max()) < n and torch.equal(filled.long().cummin(1).values, filled.long())
            if kind == "poisson_batches":
                assert alone.shape[1] == max(1, int(filled.sum(1).max()))
                assert all(row[row >= 0].tolist() == sorted(set(row[row >= 0].tolist())) for row in found)


@given(clients=st.integers(1, 60), groups=st.integers(1, 12), seed=st.integers(0, 1000))
def test_groups_are_even_and_nobodys_group_depends_on_the_others(clients: int, groups: int, seed: int) -> None:
    split = Schedule(seed, "system").groups(clients, groups)
    sizes = np.bincount(split, minlength=groups)
    assert sizes.size == groups and sizes.max() - sizes.min() <= 1
    assert np.array_equal(Schedule(seed).groups(clients + 7, groups)[:clients], split)


@given(groups=st.integers(1, 6), size=st.integers(1, 10), randomness=st.sampled_from(["seeded", "system"]))
def test_a_client_comes_back_no_sooner_than_its_group(groups: int, size: int, randomness: str) -> None:
    schedule, last = Schedule(3, randomness), dict[int, int]()
    for t in range(1, 3 * groups + 1):
        members = schedule.cohort(t, 10, size, "cyclic", groups)
        assert all(t - last.get(client, -groups) >= groups for client in members)
        last |= dict.fromkeys(members, t)
        if size * groups >= 10:  # all of the group is in
            assert len(members) in (10 // groups, -(-10 // groups))


def test_clients_are_drawn_from_their_group_at_the_stated_rate() -> None:
    drawn = [len(Schedule(seed).cohort(2, 100, 10, "cyclic", 5)) for seed in range(400)]
    assert sum(drawn) / 400 == pytest.approx(10, abs=5 * (20 * 0.5 * 0.5 / 400) ** 0.5)
    assert len(set(drawn)) > 3
