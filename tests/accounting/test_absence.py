"""Reports that are missing: drawn by chance and in secret, or absent for reasons of their own."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedceo
from fedceo.accounting.budget import Budget
from fedceo.accounting.ledger import Entry, Ledger
from fedceo.accounting.rows import answer
from fedceo.data import from_arrays
from fedceo.experiment.file import parse_experiment
from fedceo.simulation.spending import privacy_plan
from fedceo.training.schedule import SECRET, Schedule
from tests.support import independent_epsilons
from tests.support.privacy_questions import DELTA, changed, epsilon, epsilon_of_plan, question


def night_and_day(rounds: int, online: int, least: int) -> Ledger:
    """Cohorts of 10 of 100 clients, of which only the first few are ever there."""
    rng = np.random.default_rng(0)
    ledger = Ledger(repeatable=False)
    for t in range(1, rounds + 1):
        drawn = tuple(sorted(rng.permutation(100)[:10].tolist()))
        there = tuple(k for k in drawn if k < online)
        ledger.add(Entry(t, drawn, there, (), 0.0, False, len(there) >= least))
    return ledger


def true_epsilon(kinds: dict[tuple[float, float], int]) -> float:
    """About that of {(rate, z): rounds} where all others are at -C and the client at +C or 0: the losses as normal."""
    mean = variance = 0.0
    for (rate, z), rounds in kinds.items():
        x = np.linspace(-12 * z, 2 + 12 * z, 200_001)
        p, q = ((1 - rate) * stats.norm.pdf(x, 0, z) + rate * stats.norm.pdf(x, at, z) for at in (2.0, 1.0))
        loss, weight = np.log(p / q), p * (x[1] - x[0])
        mean += rounds * (weight @ loss)
        variance += rounds * (weight @ loss**2 - (weight @ loss) ** 2)
    mu = math.sqrt(variance)
    return independent_epsilons.gaussian_epsilon(mu, DELTA) * 0.95 if mean > 0 else 0.0


def test_those_who_are_often_there_are_not_hidden_among_those_who_never_are() -> None:
    """D7: what amplification would promise is below what such a federation shows."""
    ledger, plan = night_and_day(600, online=11, least=2), question(4.0, rounds=600, min_reports=2).plan
    spent = ledger.realised(plan)
    assert spent.reports is not None and not spent.random_absence
    true = true_epsilon({(count / 11, 4.0 * math.sqrt(count / 2)): rounds for count, rounds in spent.reports})
    assert epsilon_of_plan(plan, realised=replace(spent, random_absence=True)) < true, "what it used to say"
    for observer in ("outsider", "participant"):
        found = answer(plan, observer, spent)
        assert found.epsilon is not None and found.epsilon > true and "reasons of their own" in found.assumption
    server = epsilon_of_plan(plan, "server", spent)
    assert server > true
    personalised = epsilon_of_plan(replace(plan, release="personalised", interval=10), "client", spent)
    assert personalised == pytest.approx(server)
    gone = answer(replace(plan, adjacency="add-remove"), "outsider", spent)
    assert gone.epsilon is None


def test_without_absences_nothing_changes() -> None:
    full = Ledger(
        [Entry(t, tuple(range(10)), tuple(range(10)), (), 0.0, False, True) for t in range(1, 31)], repeatable=True
    )
    plan = question(2.0, rounds=30).plan
    lossy = replace(plan, dropout=0.1)
    found = answer(plan, "outsider", full.realised(plan))
    assert found == answer(lossy, "outsider", full.realised(lossy)) == answer(plan, "outsider")


def test_only_simulated_absence_is_random() -> None:
    table: dict[str, dict[str, object]] = {
        "data": {"name": "digits", "clients": 20},
        "cohort": {"size": 5},
        "privacy": {"noise_multiplier": 1.0},
        "method": {"name": "fedavg"},
    }
    one_is_missing = Ledger([Entry(1, (0, 1, 2, 3, 4), (0, 1, 2, 3), (), 0.0, False, True)], repeatable=True)
    plan = privacy_plan(parse_experiment(table), [10] * 20, 1.0)
    assert not one_is_missing.realised(plan).random_absence
    table["cohort"]["dropout"] = 0.2
    plan = privacy_plan(parse_experiment(table), [10] * 20, 1.0)
    assert one_is_missing.realised(plan).random_absence


def test_who_is_absent_is_a_secret() -> None:
    assert set(SECRET) == {
        "cohort",
        "batches",
        "record noise",
        "upload noise",
        "central noise",
        "absence",
        "count noise",
        "label noise",
        "turned noise",
    }
    one, other = Schedule(7, "system"), Schedule(7, "system")
    drawn = list(range(100))
    assert one.reporting(1, drawn, 0.5) != other.reporting(1, drawn, 0.5)
    assert Schedule(7).reporting(1, drawn, 0.5) == Schedule(7).reporting(1, drawn, 0.5)


@pytest.mark.parametrize("reports", [((10, 1), (30, 99)), ((10, 50), (15, 50))])
def test_a_personal_release_costs_no_less_than_its_averages(reports: tuple[tuple[int, int], ...]) -> None:
    averages = question(4.0, rounds=100, sampling="poisson", min_reports=10, reports=reports)
    personal = changed(averages, release="personalised", interval=1000, smoothings=0)
    assert epsilon(personal, "client") >= epsilon(averages, "participant")


def test_a_budget_counts_rounds_in_which_many_report() -> None:
    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(300, 5)).astype(np.float32), np.arange(300) % 3)
    table = {
        "data": {"name": "own", "clients": 100, "validation": 0.0},
        "model": {"name": "logistic"},
        "cohort": {"size": 10, "sampling": "poisson", "dropout": 0.02},
        "train": {"rounds": 200, "local_epochs": 1, "batch_size": 8},
        "privacy": {"noise_multiplier": 4.0, "max_epsilon": 1.2, "min_reports": 10},
        "method": {"name": "fedavg"},
        "evaluation": {"every": 1000},
    }
    result = fedceo.run(table, data=data).result
    outsider = next(row for row in result["privacy"] if row["observer"] == "outsider")
    assert result["ended_early"] and 1.15 < outsider["epsilon"] <= 1.2


def test_a_budget_ends_in_time_where_absence_tells() -> None:
    plan, limit = question(4.0, rounds=600, min_reports=2).plan, 3.0
    budget, ledger = Budget(limit, "outsider", plan), Ledger(repeatable=False)
    for entry in night_and_day(600, online=11, least=2).entries:
        if budget.refuses(ledger, entry):
            break
        ledger.add(entry)
    spent, more = ledger.realised(plan), ledger.realised(plan, ahead=entry)
    assert epsilon_of_plan(plan, realised=spent) <= limit < epsilon_of_plan(plan, realised=more)


def test_a_budget_asks_seldom_where_nobody_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = question(4.0, "central", clients=10, rounds=200).plan
    budget, ledger = Budget(1e3, "outsider", plan), Ledger(repeatable=True)
    asked: list[tuple[Any, ...]] = []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments)
        return answer(*arguments)

    monkeypatch.setattr("fedceo.accounting.budget.answer", counted)
    everyone = tuple(range(10))
    for t in range(1, 201):
        entry = Entry(t, everyone, everyone, (), 0.0, False, True)
        assert budget.refuses(ledger, entry) is None
        ledger.add(entry)
    assert 0 < len(asked) < 20
