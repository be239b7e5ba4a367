"""The random choices: each record once an epoch, Poisson rates, cohorts, and streams that have nothing in common."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedceo.training.draws import DeviceDraws
from fedceo.training.schedule import Schedule

seeds = st.integers(0, 2**40)


def draws(seed: int, on_device: bool) -> Schedule | DeviceDraws:
    """The host's answers, or those that a device draws; any device will do here."""
    return DeviceDraws(Schedule(seed), torch.device("cpu")) if on_device else Schedule(seed)


@given(seeds, st.integers(1, 40), st.integers(1, 4), st.integers(1, 50), st.booleans())
def test_every_record_once_an_epoch(seed: int, records: int, epochs: int, size: int, on_device: bool) -> None:
    batches = draws(seed, on_device).batches(1, 0, records, epochs, size)
    steps = -(-records // size)
    assert batches.shape == (epochs * steps, size)
    for epoch in batches.view(epochs, -1):
        assert sorted(epoch[epoch >= 0].tolist()) == list(range(records))
    assert torch.equal(batches, draws(seed, on_device).batches(1, 0, records, epochs, size))


@pytest.mark.parametrize("on_device", [False, True])
def test_poisson_batches_have_the_rate_asked(on_device: bool) -> None:
    batches = draws(3, on_device).poisson_batches(1, 0, 400, 300, 64)
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


def test_draws_on_a_device_follow_from_seed_round_and_client() -> None:
    answers = {
        tuple(draws(seed, True).batches(t, client, 20, 1, 20).flatten().tolist())
        for seed in (0, 1)
        for t in (1, 2)
        for client in (0, 1)
    }
    assert len(answers) == 8
    masks = draws(0, True).dropout_masks(1, 0, (200, 8), (64,), 0.5)
    assert set(masks.flatten().tolist()) == {0.0, 2.0}
    assert abs(float(masks.mean()) - 1.0) < 0.02
    secret = DeviceDraws(Schedule(0, "system"), torch.device("cpu"))
    assert not torch.equal(secret.batches(1, 0, 50, 1, 50), secret.batches(1, 0, 50, 1, 50))


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
