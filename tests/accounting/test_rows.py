"""Every number of the specification (N=100, K=10, T=300, delta=1e-5), and what rows must always promise."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedceo.accounting.gaussian import drawn_gaussian_epsilon
from fedceo.accounting.plan import RecordSteps
from fedceo.accounting.pld import Round, personalised_epsilon
from fedceo.accounting.rows import account
from tests.support import independent_epsilons
from tests.support.privacy_questions import (
    DELTA,
    SIGMAS,
    by_sigma,
    changed,
    epsilon,
    one_percent,
    poisson,
    question,
    rows,
)


@pytest.mark.parametrize("sigma, wanted", by_sigma(5.88, 3.92, 2.94))
def test_paper_row_is_its_closed_form(sigma: float, wanted: float) -> None:
    row = rows(question(sigma))["paper"]
    assert row.epsilon == one_percent(wanted)
    assert "paper" in row.accountant and "no guarantee" in row.assumption


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
@pytest.mark.parametrize("sigma, wanted", by_sigma(12.40, 6.29, 4.18))
def test_poisson_cohorts_with_central_noise(sigma: float, wanted: float, adjacency: str) -> None:
    found = rows(question(sigma, "central", sampling="poisson", adjacency=adjacency))
    assert found["outsider"].epsilon == one_percent(wanted)
    assert found["outsider"].sampling == "poisson"
    assert found["participant"].epsilon == found["outsider"].epsilon  # central noise has no shares to know


@pytest.mark.parametrize("sigma, wanted", by_sigma(20.5, 11.9, 8.3))
def test_poisson_cohorts_replace_one(sigma: float, wanted: float) -> None:
    assert epsilon(question(sigma, "central", sampling="poisson", adjacency="replace-one")) == one_percent(wanted)


@pytest.mark.parametrize("sigma, wanted", by_sigma(13.70, 6.82, 4.49))
def test_own_share_known_under_poisson(sigma: float, wanted: float) -> None:
    assert poisson(sigma * math.sqrt(0.9)) == one_percent(wanted)


@pytest.mark.parametrize("reports, wanted", [(9, 13.7), (7, 17.6), (5, 25.2), (3, 45.9), (1, 184)])
def test_missing_reports_under_poisson(reports: int, wanted: float) -> None:
    assert poisson(math.sqrt(reports / 10)) == one_percent(wanted)


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
@pytest.mark.parametrize("sigma, wanted", by_sigma(52.2, 18.8, 9.8))
def test_fixed_size_zero_out(sigma: float, wanted: float, mechanism: str) -> None:
    """The row is the smaller of two upper bounds, D3 and D2; the specification has D3, with secret memberships."""
    secret = independent_epsilons.fixed_size_zero_out_epsilon(sigma, 0.1, 300, DELTA)
    known = independent_epsilons.drawn_gaussian_epsilon(1 / sigma, 0.1, 300, DELTA)
    assert secret == one_percent(wanted) and (known < secret) == (sigma == 1.0)
    row = rows(question(sigma, mechanism))["outsider"]
    assert row.epsilon == pytest.approx(min(secret, known), rel=1e-4)
    said = re.search(r"costs less than counting on secret memberships \(([\d.]+)\)", row.assumption)
    assert (said is not None) == ("known memberships" in row.accountant) == (sigma == 1.0)
    if said is not None:
        assert float(said[1]) == one_percent(secret) and float(said[1]) <= secret


def test_known_memberships_are_mixed_over_how_often_a_client_is_in() -> None:
    """D2 against the sum itself: participations are binomial, and each adds 1 / sigma^2 to mu^2."""
    found = epsilon(question(1.0))
    counts = np.arange(1, 301)
    deltas = independent_epsilons.gaussian_delta(np.sqrt(counts), found)
    assert stats.binom.pmf(counts, 300, 0.1) @ deltas == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize("sigma, wanted", by_sigma(65.9, 25.9, 14.5))
def test_fixed_size_replace_one(sigma: float, wanted: float) -> None:
    assert epsilon(question(sigma, adjacency="replace-one")) == one_percent(wanted)


@pytest.mark.parametrize("sigma, wanted", by_sigma(57.4, 22.2, 12.4))
def test_fixed_size_add_remove_is_poisson_at_half_the_noise(sigma: float, wanted: float) -> None:
    found = epsilon(question(sigma, adjacency="add-remove"))
    assert found == one_percent(wanted)
    lower, upper = independent_epsilons.sampled_gaussian_bounds(sigma / 2, 0.1, 300, DELTA)
    assert lower <= found <= upper * (1 + 1e-4)


def test_fixed_size_one_round_replace_one_is_exact() -> None:
    unsampled = independent_epsilons.gaussian_epsilon(2.0, DELTA / 0.1)
    assert epsilon(question(rounds=1, adjacency="replace-one")) == pytest.approx(
        math.log1p(0.1 * math.expm1(unsampled)), rel=1e-4
    )
    assert epsilon(question(rounds=1, adjacency="replace-one")) == one_percent(6.576)


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({"participations": 1}, (17.9, 10.7, 7.5)),
        ({"participations": 1, "adjacency": "replace-one"}, (46.2, 26.2, 17.9)),
        ({"participations": 30}, (223, 115, 73.6)),
        ({"participations": 30, "adjacency": "replace-one"}, (747, 364, 223)),
        ({}, (301, 146, 89.9)),
        ({"participation_cap": 54}, (368, 185, 116)),
        ({"participations": 300}, (1733, 822, 491)),
    ],
)
def test_server_composes_uploads(fields: dict[str, Any], wanted: tuple[float, ...]) -> None:
    assert [epsilon(question(sigma, **fields), "server") for sigma in SIGMAS] == [one_percent(w) for w in wanted]


def test_server_row_says_what_its_count_is() -> None:
    drawn, known, capped = (
        rows(s)["server"].assumption for s in (question(), question(participations=41), question(participation_cap=54))
    )
    assert "over the draw of the cohorts; for a client with the mean of 30 uploads it is 223" in drawn
    assert "41 uploads, the most" in known
    assert "54 uploads, the cap" in capped


@pytest.mark.parametrize("sigma, wanted", by_sigma(301, 146, 89.9))
def test_server_over_the_draw_of_cohorts(sigma: float, wanted: float) -> None:
    """D2 against the whole sum."""
    found = drawn_gaussian_epsilon(math.sqrt(10) / sigma, 0.1, 300, DELTA)
    assert found == one_percent(wanted)
    assert found == pytest.approx(
        independent_epsilons.drawn_gaussian_epsilon(math.sqrt(10) / sigma, 0.1, 300, DELTA), rel=1e-6
    )


@pytest.mark.parametrize(
    "sigma, interval, wanted",
    [(1.0, 15, 63.4), (1.5, 10, 39.1), (2.0, 10, 25.2), (1.0, 30, 47.6), (1.5, 20, 29.0), (2.0, 20, 18.9)],
)
def test_personalised_with_poisson_averages(sigma: float, interval: int, wanted: float) -> None:
    multiplier = sigma * math.sqrt(0.9)
    average = Round.of(0.1, multiplier, "zero-out", hidden_size=True)
    after = Round.of(1.0, multiplier, "zero-out")
    found = personalised_epsilon(average, after, 0.1, math.sqrt(10) / sigma, 300, 300 // interval, DELTA)
    assert found == one_percent(wanted)


def test_personalised_product_is_the_sum_of_the_specification() -> None:
    """D8, literally: delta(eps) = sum over m, j of Bin(m; T/I, q) Bin(j; m, q) delta[A^(T-T/I-m) o Gaussian(m, j)]."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    sigma, rounds, interval, q, step = 2.0, 12, 4, 0.25, 1e-3
    smoothings, multiplier = rounds // interval, sigma * math.sqrt(0.75)
    average = pld.from_gaussian_mechanism(multiplier, sampling_prob=q, value_discretization_interval=step)
    found = personalised_epsilon(
        Round.of(q, multiplier, "zero-out", hidden_size=True),
        Round.of(1.0, multiplier, "zero-out"),
        q,
        math.sqrt(4) / sigma,
        rounds,
        smoothings,
        DELTA,
    )
    delta = 0.0
    for m in range(smoothings + 1):
        averages = average.self_compose(rounds - smoothings - m)
        for j in range(m + 1):
            weight = stats.binom.pmf(m, smoothings, q) * stats.binom.pmf(j, m, q)
            whole = averages
            if m:
                mu = math.sqrt(m * 4 / sigma**2 + j / multiplier**2)
                whole = averages.compose(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=step))
            delta += weight * whole.get_delta_for_epsilon(found)
    assert delta == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize(
    "rate, steps, participations, wanted",
    [
        (1 / 7, 210, 1, (15.16, 7.76, 5.15)),
        (1 / 7, 210, 30, (151, 69.1, 42.8)),
        (1 / 7, 210, 56, (251, 111, 67.4)),
        (1 / 7, 210, 300, (1087, 447, 256)),
        (1 / 16, 480, 1, (9.45, 4.76, 3.18)),
        (1 / 16, 480, 30, (84.5, 38.6, 24.4)),
        (1 / 16, 480, 56, (137, 60.5, 37.3)),
        (1 / 16, 480, 300, (560, 227, 132)),
    ],
)
def test_records(rate: float, steps: int, participations: int, wanted: tuple[float, ...]) -> None:
    for sigma, value in zip(SIGMAS, wanted, strict=True):
        asked = question(sigma, "record", record_steps=(RecordSteps(rate, steps),), participations=participations)
        assert epsilon(asked, "server") == one_percent(value)


def test_record_rows_for_each_count_and_none_for_users() -> None:
    found = account(question(1.0, "record", record_steps=(RecordSteps(1 / 7, 210),), participation_cap=60).plan)
    server = [row for row in found if row.observer == "server"]
    assert [row.unit for row in server] == ["record"] * 3
    for row, words in zip(
        server, ("60 participations, the cap", "54 part", "30 participations, the mean"), strict=True
    ):
        assert words in row.assumption
    assert [row.epsilon for row in found if row.unit == "user"] == [None]
    assert {row.epsilon for row in found if row.observer in ("outsider", "participant") and row.unit == "record"} == {
        server[0].epsilon
    }


def test_personalised_release_gives_everybody_the_clients_row() -> None:
    personal = question(release="personalised", interval=15)
    client = epsilon(personal, "client")
    assert epsilon(personal) == epsilon(personal, "participant") == client > epsilon(question())
    assert client < independent_epsilons.drawn_gaussian_epsilon(math.sqrt(10), 0.1, 300, DELTA)


def test_stored_release_leaves_only_the_server() -> None:
    found = rows(question(release="stored"))
    assert {o for o, row in found.items() if row.epsilon is not None} == {"server", "paper"}
    assert "server's row" in found["client"].assumption


def test_no_mechanism_no_noise_no_epsilon() -> None:
    for asked in (
        question(mechanism="none"),
        question(0.0),
        question(0.0, "record", record_steps=(RecordSteps(0.1, 10),)),
    ):
        assert all(row.epsilon is None and row.assumption for row in account(asked.plan))


def test_central_noise_does_not_cover_the_server_nor_personal_models() -> None:
    assert rows(question(mechanism="central"))["server"].epsilon is None
    found = rows(question(mechanism="central", release="personalised", interval=10))
    assert found["client"].epsilon is None and "bare uploads" in found["client"].assumption


def test_presence_that_shows_has_no_add_remove_row() -> None:
    assert rows(question(adjacency="add-remove"))["server"].epsilon is None
    assert rows(question(adjacency="add-remove", sampling="poisson"))["outsider"].epsilon is None
    assert rows(question(adjacency="add-remove", cohort=100))["outsider"].epsilon is None
    assert rows(question(adjacency="add-remove", release="personalised", interval=5))["client"].epsilon is None


def test_distributed_noise_never_gets_the_poisson_row() -> None:
    for sigma in SIGMAS:
        found = rows(question(sigma, sampling="poisson"))["outsider"]
        assert found.epsilon is not None and found.epsilon > epsilon(question(sigma)) > poisson(sigma)
        assert "number of reports shows" in found.assumption


def test_missing_reports_cost_under_distributed_noise_only() -> None:
    seven: dict[str, Any] = {"reports": ((7, 300),)}
    assert epsilon(question(2.0, **seven)) == pytest.approx(epsilon(question(2.0 * math.sqrt(0.7))), rel=1e-9)
    of_seven = epsilon(question(2.0 * math.sqrt(0.7), cohort=7, adjacency="replace-one"))
    assert epsilon(question(2.0, sampling="poisson", adjacency="replace-one", **seven)) == pytest.approx(
        of_seven, rel=1e-9
    )
    assert epsilon(question(2.0, "central", **seven)) == epsilon(question(2.0, "central"))
    assert epsilon(question(2.0, **seven), "server") == epsilon(question(2.0), "server")


def test_rounds_with_different_reports_compose() -> None:
    some = epsilon(question(2.0, reports=((7, 100), (10, 200))))
    assert epsilon(question(2.0)) < some < epsilon(question(2.0, reports=((7, 300),)))
    assert epsilon(question(2.0, reports=((10, 120), (10, 180)))) == pytest.approx(epsilon(question(2.0)), rel=1e-4)
    assert "as few as 7 reports" in rows(question(2.0, reports=((7, 1), (10, 299))))["outsider"].assumption


def test_a_lone_member_hides_nothing_from_itself() -> None:
    """With K = 1 a participant is in alone or not at all, so that it is an outsider to the N - 1 others."""
    found = epsilon(question(cohort=1, clients=101, rounds=30), "participant")
    assert found == pytest.approx(epsilon(question(cohort=1, clients=100, rounds=30)), rel=1e-6)


def test_large_epsilons_say_that_they_mean_little() -> None:
    found = rows(question())
    assert found["outsider"].assumption.endswith("means that the guarantee means little")
    assert "little" not in rows(question(2.0))["outsider"].assumption


def test_rows_are_plain_data() -> None:
    row = rows(question(participations=30))["server"]
    assert list(row.as_dict()) == [
        "observer", "mechanism", "unit", "adjacency", "sampling", "epsilon", "delta", "accountant", "assumption"
    ]  # fmt: skip
    assert row.as_dict()["epsilon"] == row.epsilon


def test_hardly_any_noise_is_bounded_in_closed_form_and_says_so() -> None:
    kinds: list[dict[str, Any]] = [{}, {"sampling": "poisson"}, {"release": "personalised", "interval": 10}]
    for fields in kinds:
        row = rows(question(0.05, **fields))["outsider"]
        assert row.epsilon is not None and row.epsilon > 1000
        assert "known memberships" in row.accountant


@example(7.7549524608198315, 15, 100, {"adjacency": "add-remove"})  # once a warning of an overflow
@settings(max_examples=15)
@given(
    sigma=st.floats(1.0, 8.0),
    cohort=st.integers(1, 60),
    rounds=st.integers(1, 200),
    fields=st.sampled_from(
        [
            {"mechanism": "distributed"},
            {"mechanism": "distributed", "adjacency": "replace-one"},
            {"mechanism": "distributed", "adjacency": "add-remove"},
            {"mechanism": "central", "sampling": "poisson"},
            {"mechanism": "distributed", "release": "personalised", "interval": 5},
        ]
    ),
)
def test_monotone(sigma: float, cohort: int, rounds: int, fields: dict[str, Any]) -> None:
    """More noise costs less, more rounds and a smaller delta cost more, a participant sees no less than an outsider."""
    asked = question(sigma, cohort=cohort, rounds=rounds, **fields)
    here = epsilon(asked)
    assert epsilon(changed(asked, noise_multiplier=1.2 * sigma)) <= here + 1e-6
    assert epsilon(changed(asked, rounds=rounds + 20)) >= here - 1e-6
    assert epsilon(changed(asked, delta=DELTA / 10)) >= here
    assert epsilon(asked, "participant") >= here * (1 - 1e-3)
