"""The ledger says what was spent, and a budget ends the run before the round that would exceed it."""

from dataclasses import replace
from typing import Any

import pytest

from fedceo.accounting.budget import Budget
from fedceo.accounting.ledger import Entry, Ledger
from fedceo.accounting.plan import Plan, Realised
from fedceo.accounting.rows import account, answer
from fedceo.errors import UsageError
from fedceo.training.schedule import Schedule
from tests.support.privacy_questions import epsilon_of_plan as epsilon

PLAN = Plan(clients=100, cohort=10, rounds=40, noise_multiplier=2.0, delta=1e-5, mechanism="distributed")
LOSSY = replace(PLAN, dropout=0.1)
"""The same where reports may go missing by chance."""


def entry(round_: int, reports: int = 10, **fields: Any) -> Entry:
    cohort = tuple(Schedule(3).cohort(round_, 100, 10, "fixed"))
    usual = Entry(round_, cohort, cohort[:reports], (), 2.0 / 10**0.5, smoothed=False, released=True)
    return replace(usual, **fields)


def ledger(*entries: Entry, repeatable: bool = True) -> Ledger:
    return Ledger(entries, repeatable=repeatable)


def spent(kept: Ledger, plan: Plan = PLAN, observer: str = "outsider") -> float:
    """The epsilon that the rounds of the ledger have cost."""
    return epsilon(plan, observer, kept.realised(plan))


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_as_planned_costs_as_planned(sampling: str, mechanism: str) -> None:
    plan = replace(PLAN, sampling=sampling, mechanism=mechanism)
    kept = ledger(*(entry(t) for t in range(1, 41)))
    for observer in ("outsider", "participant"):
        assert spent(kept, plan, observer) == epsilon(plan, observer)


def test_the_server_row_has_the_largest_realised_count_and_says_so() -> None:
    kept = ledger(*(entry(t) for t in range(1, 41)))
    most = max(kept.participations.values())
    assert most > 4  # the mean
    row = next(row for row in account(PLAN, kept.realised(PLAN)) if row.observer == "server")
    assert f"{most} uploads, the most of any client" in row.assumption
    assert row.epsilon == epsilon(PLAN, "server", Realised(participations=most))


def test_who_was_in_does_not_enter_amplified_rows() -> None:
    same_ten = ledger(*(entry(t, cohort=tuple(range(10)), reported=tuple(range(10))) for t in range(1, 41)))
    assert spent(same_ten) == epsilon(PLAN)
    assert spent(same_ten, observer="server") == epsilon(PLAN, "server", Realised(participations=40))


def test_missing_reports_cost() -> None:
    kept = ledger(*(entry(t, 7 if t <= 5 else 10) for t in range(1, 41)))
    assert kept.realised(LOSSY).reports == ((7, 5), (10, 35))
    assert spent(kept, LOSSY) > epsilon(LOSSY)


def test_discarded_rounds_release_nothing_but_the_server_saw_them() -> None:
    plan = replace(LOSSY, min_reports=8)
    kept = ledger(*(entry(t, 10 if t % 2 else 5, released=bool(t % 2)) for t in range(1, 41)))
    realised = kept.realised(plan)
    assert realised.rounds == 20 and realised.reports == ((10, 20),)
    in_both = max(kept.participations.values())
    assert epsilon(plan, "server", realised) == epsilon(plan, "server", Realised(participations=in_both))


def test_silent_clients_do_not_take_part() -> None:
    kept = ledger(entry(1), entry(2, capped=entry(2).cohort))
    assert max(kept.participations.values()) == 1


def test_smoothings_are_counted() -> None:
    plan = replace(PLAN, release="personalised", interval=10)
    smoothing = ledger(*(entry(t, smoothed=t % 10 == 0) for t in range(1, 41)))
    assert smoothing.realised(plan).smoothings == 4 and spent(smoothing, plan, "client") == epsilon(plan, "client")
    never = ledger(*(entry(t) for t in range(1, 41)))
    assert spent(never, plan, "client") < epsilon(plan, "client")


def test_a_round_after_a_smoothing_that_is_taken_anew_is_not_amplified_either() -> None:
    plan = replace(PLAN, release="personalised", interval=10)
    rounds = [entry(t, smoothed=t % 10 == 0) for t in range(1, 41)]
    lost = [*rounds[:11], rounds[10], rounds[10], *rounds[11:]]
    assert ledger(*lost, repeatable=False).realised(plan).smoothings == 5  # three after the first, one after two
    other = [*rounds[:14], rounds[13], rounds[13], *rounds[14:]]
    assert ledger(*other, repeatable=False).realised(plan).smoothings == 4


def test_a_round_taken_anew_costs_again_unless_a_seed_repeats_it() -> None:
    twice = [entry(1), entry(2), entry(2)]
    assert len(ledger(*twice, repeatable=True).entries) == 2
    fresh = ledger(*twice, repeatable=False)
    assert fresh.realised(PLAN).rounds == 3 and fresh.up_to(1).realised(PLAN).rounds == 3
    assert ledger(*twice, repeatable=True).up_to(1).realised(PLAN).rounds == 1


def test_entries_survive_json() -> None:
    import json

    kept = entry(3, 7, capped=(4,), smoothed=True)
    assert Entry.from_dict(json.loads(json.dumps(kept.as_dict()))) == kept


# Budgets


def rounds_allowed(limit: float, observer: str, plan: Plan, reports: int = 10) -> int:
    budget, kept = Budget(limit, observer, plan), Ledger(repeatable=True)
    for t in range(1, plan.rounds + 1):
        upcoming = entry(t, reports, smoothed=bool(plan.interval) and t % (plan.interval or 1) == 0)
        if budget.refuses(kept, upcoming):
            break
        kept.add(upcoming)
    return len(kept.entries)


@pytest.mark.parametrize(
    "observer, limit, fields",
    [
        ("outsider", 2.0, {}),
        ("participant", 3.0, {}),
        ("outsider", 0.8, {"mechanism": "central", "sampling": "poisson"}),
        ("server", 15.0, {}),
        ("client", 8.0, {"release": "personalised", "interval": 5}),
    ],
)
def test_a_budget_stops_right_before_it_is_exceeded(observer: str, limit: float, fields: dict[str, Any]) -> None:
    plan = replace(PLAN, **fields)
    allowed = rounds_allowed(limit, observer, plan)
    assert 0 < allowed < plan.rounds
    entries = [entry(t, smoothed=bool(plan.interval) and t % (plan.interval or 1) == 0) for t in range(1, allowed + 2)]
    assert spent(ledger(*entries[:-1]), plan, observer) <= limit
    assert spent(ledger(*entries), plan, observer) > limit


def test_missing_reports_shorten_a_run() -> None:
    assert 0 < rounds_allowed(3.0, "outsider", LOSSY, reports=6) < rounds_allowed(3.0, "outsider", LOSSY)


def test_a_generous_budget_allows_all() -> None:
    assert rounds_allowed(100.0, "outsider", PLAN) == PLAN.rounds


def test_an_observer_without_epsilon_has_no_budget() -> None:
    with pytest.raises(UsageError, match=r"privacy.max_epsilon: the server has no epsilon: .* must be trusted"):
        Budget(8.0, "server", replace(PLAN, mechanism="central"))


# Caps


def test_a_cap_bounds_the_server_and_costs_the_outsider_its_amplification() -> None:
    plan = Plan(clients=100, cohort=10, rounds=300, noise_multiplier=2.0, delta=1e-5, mechanism="distributed")
    capped = replace(plan, participation_cap=20)
    assert epsilon(capped, "server") == epsilon(plan, "server", Realised(participations=20))
    rows = {row.observer: row for row in account(capped)}
    assert "known memberships" in rows["outsider"].accountant and "ties the rounds" in rows["outsider"].assumption
    told = answer(replace(plan, cohort=100, rounds=20), "outsider").epsilon  # at most 20 averages with the client in
    assert told is not None and epsilon(plan) < epsilon(capped) <= told


def test_a_cap_leaves_hidden_independent_cohorts_amplified() -> None:
    plan = replace(PLAN, mechanism="central", sampling="poisson")
    assert epsilon(replace(plan, participation_cap=3)) == epsilon(plan)
    told = epsilon(replace(plan, participation_cap=3, adjacency="replace-one"))
    assert told > epsilon(plan)


def test_capped_likelihood_ratios_are_below_uncapped_ones() -> None:
    """D5, the order that the row above rests on, for two averages, by quadrature: both divergences, many epsilons."""
    import numpy as np

    x = np.linspace(-9, 10, 1500)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    weight = np.outer(density, density)
    q, mu = 0.3, 1.4
    grown = np.exp(mu * x - mu**2 / 2)
    one, two = grown[:, None], grown[None, :]
    free = (1 - q + q * one) * (1 - q + q * two)
    capped = q * one + (1 - q) * (1 - q + q * two)
    for e in np.exp(np.linspace(0, 3, 13)):
        assert (weight * np.maximum(capped - e, 0)).sum() <= (weight * np.maximum(free - e, 0)).sum() + 1e-12
        assert (weight * np.maximum(1 - e * capped, 0)).sum() <= (weight * np.maximum(1 - e * free, 0)).sum() + 1e-12
