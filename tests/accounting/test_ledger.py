"""The ledger says what was spent, and a budget ends the run before the round that would exceed it."""

from dataclasses import replace
from typing import Any

import pytest

from fedceo.accounting.budget import Budget
from fedceo.accounting.ledger import Entry, Ledger
from fedceo.accounting.plan import Spec
from fedceo.accounting.rows import account, answer
from fedceo.errors import UsageError
from fedceo.training.schedule import Schedule

PLAN = Spec(clients=100, cohort=10, rounds=40, noise_multiplier=2.0, delta=1e-5, mechanism="distributed")


def entry(round_: int, reports: int = 10, **fields: Any) -> Entry:
    cohort = tuple(Schedule(3).cohort(round_, 100, 10, "fixed"))
    return Entry(
        **(
            {
                "round": round_, "cohort": cohort, "reported": cohort[:reports], "capped": (), "noise": 2.0 / 10**0.5,
                "smoothed": False, "released": True,
            } | fields
        )
    )  # fmt: skip


def ledger(*entries: Entry, repeatable: bool = True) -> Ledger:
    return Ledger(entries, repeatable=repeatable)


def epsilon(spec: Spec, observer: str = "outsider") -> float:
    found = answer(spec, observer).epsilon
    assert found is not None
    return found


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_as_planned_costs_as_planned(sampling: str, mechanism: str) -> None:
    plan = replace(PLAN, sampling=sampling, mechanism=mechanism)
    spent = ledger(*(entry(t) for t in range(1, 41))).spent(plan)
    for observer in ("outsider", "participant"):
        assert epsilon(spent, observer) == epsilon(plan, observer)


def test_the_server_row_has_the_largest_realised_count_and_says_so() -> None:
    kept = ledger(*(entry(t) for t in range(1, 41)))
    most = max(kept.participations.values())
    assert most > 4  # the mean
    row = next(row for row in account(kept.spent(PLAN)) if row.observer == "server")
    assert f"{most} uploads, the most of any client" in row.assumption
    assert row.epsilon == epsilon(replace(PLAN, participations=most), "server")


def test_who_was_in_does_not_enter_amplified_rows() -> None:
    same_ten = ledger(*(entry(t, cohort=tuple(range(10)), reported=tuple(range(10))) for t in range(1, 41)))
    assert epsilon(same_ten.spent(PLAN)) == epsilon(PLAN)
    assert epsilon(same_ten.spent(PLAN), "server") == epsilon(replace(PLAN, participations=40), "server")


def test_missing_reports_cost() -> None:
    spent = ledger(*(entry(t, 7 if t <= 5 else 10) for t in range(1, 41))).spent(PLAN)
    assert spent.reports == ((7, 5), (10, 35))
    assert epsilon(spent) > epsilon(PLAN)


def test_discarded_rounds_release_nothing_but_the_server_saw_them() -> None:
    plan = replace(PLAN, min_reports=8)
    kept = ledger(*(entry(t, 10 if t % 2 else 5, released=bool(t % 2)) for t in range(1, 41)))
    spent = kept.spent(plan)
    assert spent.rounds == 20 and spent.reports == ((10, 20),)
    in_both = max(kept.participations.values())
    assert epsilon(spent, "server") == epsilon(replace(plan, participations=in_both), "server")


def test_silent_clients_do_not_take_part() -> None:
    kept = ledger(entry(1), entry(2, capped=entry(2).cohort))
    assert max(kept.participations.values()) == 1


def test_smoothings_are_counted() -> None:
    plan = replace(PLAN, release="personalised", interval=10)
    smoothing = ledger(*(entry(t, smoothed=t % 10 == 0) for t in range(1, 41))).spent(plan)
    assert smoothing.smoothed_rounds == 4 and epsilon(smoothing, "client") == epsilon(plan, "client")
    never = ledger(*(entry(t) for t in range(1, 41))).spent(plan)
    assert epsilon(never, "client") < epsilon(plan, "client")


def test_a_round_after_a_smoothing_that_is_taken_anew_is_not_amplified_either() -> None:
    plan = replace(PLAN, release="personalised", interval=10)
    rounds = [entry(t, smoothed=t % 10 == 0) for t in range(1, 41)]
    lost = [*rounds[:11], rounds[10], rounds[10], *rounds[11:]]
    assert ledger(*lost, repeatable=False).spent(plan).smoothed_rounds == 5  # three after the first, one after two
    other = [*rounds[:14], rounds[13], rounds[13], *rounds[14:]]
    assert ledger(*other, repeatable=False).spent(plan).smoothed_rounds == 4


def test_a_round_taken_anew_costs_again_unless_a_seed_repeats_it() -> None:
    twice = [entry(1), entry(2), entry(2)]
    assert len(ledger(*twice, repeatable=True).entries) == 2
    fresh = ledger(*twice, repeatable=False)
    assert fresh.spent(PLAN).rounds == 3 and fresh.up_to(1).spent(PLAN).rounds == 3
    assert ledger(*twice, repeatable=True).up_to(1).spent(PLAN).rounds == 1


def test_entries_survive_json() -> None:
    import json

    kept = entry(3, 7, capped=(4,), smoothed=True)
    assert Entry.from_dict(json.loads(json.dumps(kept.as_dict()))) == kept


# Budgets


def rounds_allowed(limit: float, observer: str, plan: Spec, reports: int = 10) -> int:
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
    assert epsilon(ledger(*entries[:-1]).spent(plan), observer) <= limit
    assert epsilon(ledger(*entries).spent(plan), observer) > limit


def test_missing_reports_shorten_a_run() -> None:
    assert 0 < rounds_allowed(3.0, "outsider", PLAN, reports=6) < rounds_allowed(3.0, "outsider", PLAN)


def test_a_generous_budget_allows_all() -> None:
    assert rounds_allowed(100.0, "outsider", PLAN) == PLAN.rounds


def test_an_observer_without_epsilon_has_no_budget() -> None:
    with pytest.raises(UsageError, match=r"privacy.max_epsilon: the server has no epsilon: .* must be trusted"):
        Budget(8.0, "server", replace(PLAN, mechanism="central"))


# Caps


def test_a_cap_bounds_the_server_and_costs_the_outsider_its_amplification() -> None:
    plan = Spec(clients=100, cohort=10, rounds=300, noise_multiplier=2.0, delta=1e-5, mechanism="distributed")
    capped = replace(plan, participation_cap=20)
    assert epsilon(capped, "server") == epsilon(replace(plan, participations=20), "server")
    rows = {row.observer: row for row in account(capped)}
    assert "all memberships told" in rows["outsider"].accountant and "ties the rounds" in rows["outsider"].assumption
    told = answer(replace(plan, cohort=100, rounds=20), "outsider").epsilon  # at most 20 averages with the client in
    assert told is not None and epsilon(plan) < epsilon(capped) <= told


def test_a_cap_leaves_hidden_independent_cohorts_amplified() -> None:
    plan = replace(PLAN, mechanism="central", sampling="poisson")
    assert epsilon(replace(plan, participation_cap=3)) == epsilon(plan)
    told = epsilon(replace(plan, participation_cap=3, adjacency="replace-one"))
    assert told > epsilon(plan)


def test_capped_likelihood_ratios_are_below_uncapped_ones() -> None:
    """The order that the row above rests on, for two averages, by quadrature: both divergences, many epsilons."""
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
