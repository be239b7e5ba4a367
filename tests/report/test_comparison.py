"""Comparisons: by which names, in which settings, how far apart; the intervals against scipy's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedceo.errors import UsageError
from fedceo.experiment.method_table import known_methods, settings_of
from fedceo.report.comparison import answer, contests, names_of, paired
from tests.support.made_runs import FREE, made_group

SEEDS = {0: 70.0, 1: 72.0, 2: 71.0}


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=6))
def test_the_interval_is_that_of_a_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (dict(enumerate(side)) for side in zip(*pairs, strict=True))
    found = paired(ours, theirs)
    differences = [a - b for a, b in pairs]
    if len(set(differences)) > 1 and max(differences) - min(differences) > 1e-6:
        interval = stats.ttest_rel(list(ours.values()), list(theirs.values())).confidence_interval(0.95)
        assert found is not None and found.low == pytest.approx(interval.low, rel=1e-6, abs=1e-6)
        assert found.high == pytest.approx(interval.high, rel=1e-6, abs=1e-6) and found.seeds == len(pairs)


def test_only_seeds_that_both_have_are_compared() -> None:
    found = paired({0: 70.0, 1: 72.0, 2: 99.0}, {1: 71.0, 0: 69.0, 7: 3.0})
    assert found is not None and found.mean == 1.0 and found.seeds == 2 and found.low == found.high == 1.0
    assert paired({0: 70.0}, {1: 70.0}) is None


def test_one_seed_has_no_interval() -> None:
    found = paired({3: 70.5}, {3: 70.0})
    assert found is not None and (found.mean, found.low, found.high) == (0.5, None, None) and not found.is_clear


def test_methods_have_names() -> None:
    udp = made_group(SEEDS)
    plain = made_group(SEEDS, privacy=FREE)
    central = made_group(SEEDS, privacy={"mechanism": "central"})
    assert names_of([udp]) == ["UDP-FedAvg"] and names_of([plain]) == names_of([central]) == ["FedAvg"]
    assert names_of([made_group(SEEDS, method="dp-fedavg")]) == ["DP-FedAvg"]


def test_experiments_of_one_method_are_told_apart_by_their_settings() -> None:
    low, high = (made_group(SEEDS, method="fedceo", train={"learning_rate": rate}) for rate in (0.1, 0.01))
    assert names_of([low, high]) == ["FedCEO (learning rate 0.1)", "FedCEO (learning rate 0.01)"]
    head = made_group(SEEDS, method="centaur")
    assert names_of([head, low]) == ["CENTAUR", "FedCEO"]


def test_settings_are_contests_of_their_own() -> None:
    groups = [
        made_group(SEEDS, method=method, privacy={"noise_multiplier": sigma}, train={"learning_rate": rate})
        for sigma in (0.5, 1.0)
        for method, rate in (("fedavg", 0.1), ("fedceo", 0.03))
    ]
    found = contests([*groups, made_group(SEEDS, privacy=FREE)])
    assert [len(contest.contenders) for contest in found] == [2, 2, 1]
    assert [contest.where["privacy.noise_multiplier"] for contest in found] == ["0.5", "1", "-"]
    assert [c.name for c in found[1].contenders] == ["UDP-FedAvg", "FedCEO"]


def test_rounds_divide_settings_only_where_they_change_the_epsilon() -> None:
    longer = {"rounds": 20}
    assert len(contests([made_group(SEEDS), made_group(SEEDS, method="fedprox", train=longer)])) == 2
    target = {"noise_multiplier": None, "target_epsilon": 2.0}
    both = [made_group(SEEDS, privacy=target), made_group(SEEDS, method="fedprox", privacy=target, train=longer)]
    assert len(contests(both)) == 1


def test_a_name_can_be_given() -> None:
    found = contests([made_group(SEEDS, method="fedceo")], ["FedCEO=Ours"])
    assert found[0].contenders[0].name == "Ours"
    with pytest.raises(UsageError, match="--name FedCeo=Ours: expected NAME=other name, with one of: FedCEO"):
        contests([made_group(SEEDS, method="fedceo")], ["FedCeo=Ours"])


def said(*groups: dict[int, float]) -> str | None:
    methods = ("fedavg", "fedceo", "fedprox")
    (contest,) = contests([made_group(each, method=m) for each, m in zip(groups, methods, strict=False)])
    return answer(contest)


def test_the_answer_names_the_first_and_the_next() -> None:
    ahead = said(SEEDS, {0: 73.0, 1: 75.1, 2: 73.9}, {0: 50.0, 1: 50.0, 2: 50.0})
    assert ahead is not None and ahead.startswith("FedCEO is ahead of UDP-FedAvg, the next, by 3.00 points")
    assert "3 seeds in pairs" in ahead


def test_the_answer_says_when_nobody_is_ahead() -> None:
    close = said(SEEDS, {0: 71.0, 1: 70.0, 2: 72.5})
    assert close is not None and close.startswith("Nobody is ahead: FedCEO and UDP-FedAvg") and "holds 0" in close
    one = said({0: 70.0}, {0: 75.0})
    assert one is not None and "one seed has no interval" in one
    apart = said({0: 70.0}, {1: 75.0})
    assert apart is not None and "no seed in common" in apart
    assert said(SEEDS) is None


def test_the_answer_says_what_was_paid_for_it() -> None:
    first = made_group({0: 73.0, 1: 75.1, 2: 73.9}, method="fedceo", epsilon=4.001)
    (contest,) = contests([made_group(SEEDS, epsilon=2.0), first])
    assert str(answer(contest)).endswith("Their privacy is not the same: an outsider's epsilons are 4.01 and 2.")
    (contest,) = contests([made_group(SEEDS, epsilon=4.0), first])
    assert "privacy" not in str(answer(contest))


def test_no_two_methods_have_the_same_title() -> None:
    titles = [settings_of(name).title or name for name in known_methods()]
    assert len(set(titles)) == len(titles)
