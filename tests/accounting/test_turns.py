"""Groups that take turns, and noise that is correlated over rounds (D17)."""

import math
from collections.abc import Iterable
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import linalg, optimize, stats

from fedceo.accounting import Plan, Realised, account, calibrate
from fedceo.accounting.budget import Budget
from fedceo.accounting.ledger import Entry, Ledger
from fedceo.accounting.plan import Question
from fedceo.accounting.rows import answer
from fedceo.errors import UsageError
from fedceo.mechanisms.banded import factorise, server_response

DELTA = 1e-5


def plan(**changes: object) -> Plan:
    given = {
        "clients": 100, "cohort": 10, "rounds": 30, "noise_multiplier": 2.0, "delta": DELTA, "mechanism": "central",
        "sampling": "cyclic", "groups": 10,
    }  # fmt: skip
    return Plan(**(given | changes))  # type: ignore[arg-type]


def outsider(asked: Plan, realised: Realised | None = None) -> float:
    epsilon = answer(asked, "outsider", realised or Realised()).epsilon
    assert epsilon is not None
    return epsilon


def normal_epsilon(mu: float) -> float:
    def excess(epsilon: float) -> float:
        both = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        return float(both - DELTA)

    return float(optimize.brentq(excess, 0.0, 100.0))


@pytest.mark.parametrize("rounds", [1, 9, 10, 11, 95])
@pytest.mark.parametrize("adjacency, shift", [("zero-out", 1), ("add-remove", 1), ("replace-one", 2)])
def test_whole_groups_are_gaussian_releases_of_their_turns(rounds: int, adjacency: str, shift: int) -> None:
    expected = normal_epsilon(shift * math.sqrt(-(-rounds // 10)) / 2.0)
    assert outsider(plan(rounds=rounds, adjacency=adjacency)) == pytest.approx(expected, rel=1e-6)


def test_groups_with_poisson_draws_are_sampled_turns_by_another_accountant() -> None:
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(0.4, dp_accounting.GaussianDpEvent(2.0))
    accountant.compose(event, 8)  # 30 rounds in 4 groups, at rate 10 * 4 / 100
    assert outsider(plan(groups=4)) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)


def test_one_group_is_poisson_sampling() -> None:
    assert outsider(plan(groups=1)) == outsider(plan(groups=None, sampling="poisson"))


def test_nothing_is_gained_from_a_secret_split() -> None:
    """Who is in which group counts as known: with all of it in, more clients in more groups change nothing."""
    many = plan(clients=1000, cohort=100, groups=10)
    assert outsider(many) == outsider(plan())


def test_every_observer_has_its_row() -> None:
    rows = {row.observer: row for row in account(plan(groups=4))}
    assert rows["participant"].epsilon == rows["outsider"].epsilon and rows["server"].epsilon is None
    assert rows["outsider"].sampling == "cyclic" and "8 turns" in rows["outsider"].assumption
    assert {row.observer: row.sampling for row in account(plan())}["outsider"] == "none"


@pytest.mark.parametrize("target, sigma", [(2.0, 6.305), (8.0, 1.898)])
def test_noise_for_whole_groups(target: float, sigma: float) -> None:
    asked = plan(clients=1000, cohort=100, rounds=100)
    assert calibrate(target, "outsider", asked) == pytest.approx(sigma, rel=1e-3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_whole_transcript_has_the_profile_of_its_turns(rate: float, reverse: bool) -> None:
    """Six rounds of noise with three bands, a client in rounds 1 and 4: the exact likelihood ratio, by Monte Carlo."""
    c, bands, rounds, sigma = factorise(server_response(0.0, 6), 3), 3, 6, 2.0
    matrix = linalg.toeplitz(np.append(c, np.zeros(rounds - len(c))), np.zeros(rounds))
    delta = transcript_delta(matrix, [0, 3], rate, sigma, 1.0, reverse)
    asked = plan(clients=12, cohort=round(4 * rate), rounds=rounds, groups=bands, noise_multiplier=sigma, delta=1e-3)
    claimed = delta_at(asked, 1.0)
    assert delta <= claimed * 1.02
    if not reverse or rate == 1:  # the claim is the worse of the two directions
        assert delta >= claimed * 0.97


def test_one_band_too_many_is_not_covered() -> None:
    """The same transcript where the client comes back while its noise is still remembered."""
    c, rounds = factorise(server_response(0.0, 6), 4), 6
    matrix = linalg.toeplitz(np.append(c, np.zeros(rounds - len(c))), np.zeros(rounds))
    asked = plan(clients=12, cohort=4, rounds=rounds, groups=3, noise_multiplier=2.0, delta=1e-3)
    assert transcript_delta(matrix, [0, 3], 1.0, 2.0, 1.0, False) > 1.05 * delta_at(asked, 1.0)


def transcript_delta(
    matrix: np.ndarray, turns: list[int], rate: float, sigma: float, epsilon: float, reverse: bool
) -> float:
    """H_eps of C x + w with the client's x = 1 on those of its turns that a coin chooses, against w alone."""
    rng = np.random.default_rng(0)
    coins = np.array([[(k >> j) & 1 for j in range(len(turns))] for k in range(2 ** len(turns))])
    weights = np.prod(np.where(coins, rate, 1 - rate), axis=1)
    means = coins @ matrix[:, turns].T
    seen = sigma * rng.standard_normal((1_000_000, len(matrix)))
    if not reverse:
        seen += means[rng.choice(len(coins), len(seen), p=weights)]
    ratio = np.exp((seen @ means.T - np.square(means).sum(1) / 2) / sigma**2) @ weights
    return float(np.maximum(1 - math.exp(epsilon) * (ratio if reverse else 1 / ratio), 0.0).mean())


def delta_at(asked: Plan, epsilon: float) -> float:
    """The delta at which the outsider's epsilon is the given one."""

    def excess(log_delta: float) -> float:
        return outsider(replace(asked, delta=math.exp(log_delta))) - epsilon

    return math.exp(optimize.brentq(excess, math.log(1e-6), math.log(0.08), xtol=1e-4))


def entries(rounds: Iterable[int]) -> list[Entry]:
    return [Entry(t, (0,), (0,), (), 1.0, False, True) for t in rounds]


def test_the_ledger_counts_turns_and_those_taken_again() -> None:
    asked = plan(groups=4)
    assert Ledger(entries(range(1, 14)), repeatable=True).realised(asked).turns == 4
    again = Ledger(entries([*range(1, 14), *range(10, 14)]), repeatable=False)
    assert again.realised(asked).turns == 5
    assert outsider(asked, again.realised(asked)) > outsider(asked, Realised(rounds=13))


def test_a_budget_ends_before_the_turn_that_is_too_many() -> None:
    asked, limit = plan(), outsider(plan(rounds=20)) + 1e-9
    ledger, budget = Ledger(repeatable=True), Budget(limit, "outsider", asked)
    for entry in entries(range(1, 31)):
        if budget.refuses(ledger, entry):
            break
        ledger.add(entry)
    assert len(ledger.entries) == 20


@pytest.mark.parametrize("groups", [10, 4])
def test_a_cap_below_the_turns_lowers_epsilon(groups: int) -> None:
    free, capped = plan(groups=groups, rounds=100), plan(groups=groups, rounds=100, participation_cap=2)
    assert outsider(capped) < outsider(free)
    assert outsider(plan(groups=groups, participation_cap=9)) == outsider(plan(groups=groups))
    known = normal_epsilon(math.sqrt(2) / 2.0)
    assert outsider(capped) <= known * (1 + 1e-6)
    assert Question(capped).cap_binds


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"groups": None}, "groups: None"),
        ({"sampling": "fixed"}, 'groups: 10, expected with sampling "cyclic"'),
        ({"mechanism": "distributed"}, 'sampling: "cyclic"'),
        ({"groups": 12}, "cohort: 10, more than the 9 clients of a group"),
        ({"groups": 0}, "groups: 0"),
    ],
)
def test_what_has_no_proof_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(**changes)
    assert words in str(error.value) and "\n" not in str(error.value)
