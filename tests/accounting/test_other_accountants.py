"""Our rows against other accountants, bounds by other ways, and closed forms."""

import math
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedceo.accounting.gaussian import gaussian_delta, gaussian_epsilon
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


def test_opacus_agrees_on_its_own_case() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        for sigma, wanted in zip(SIGMAS, (15.17, 7.77, 5.16), strict=True):
            accountant = PRVAccountant()
            accountant.history = [(sigma, 1 / 7, 210)]
            theirs = accountant.get_epsilon(delta=DELTA)
            assert theirs == one_percent(wanted)
            assert poisson(sigma, 1 / 7, 210) == one_percent(theirs)


def test_dp_accounting_forgets_the_factor_two_in_rdp_but_not_in_pld() -> None:
    """google/differential-privacy issue 378. When this fails the trap is mended: RDP must then not be halved by us."""
    import dp_accounting as dp

    relation = dp.NeighboringRelation.REPLACE_ONE
    rdp = dp.rdp.RdpAccountant(neighboring_relation=relation).compose(dp.GaussianDpEvent(1.0)).get_epsilon(DELTA)
    pld = dp.pld.PLDAccountant(relation).compose(dp.GaussianDpEvent(1.0)).get_epsilon(DELTA)
    assert rdp == one_percent(4.73)
    assert pld == one_percent(10.00)
    assert gaussian_epsilon(2.0, DELTA) == pytest.approx(pld, rel=1e-3)


def rdp(event: Any, relation: str = "ADD_OR_REMOVE_ONE", orders: Any = None) -> float:
    import dp_accounting as dp

    return float(dp.rdp.RdpAccountant(orders, dp.NeighboringRelation[relation]).compose(event).get_epsilon(DELTA))


@pytest.mark.parametrize("sigma, wanted", by_sigma(13.71, 6.87, 4.56))
def test_rdp_bounds_the_poisson_row_from_above(sigma: float, wanted: float) -> None:
    import dp_accounting as dp

    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(sigma)), 300)
    assert rdp(event) == one_percent(wanted)
    assert poisson(sigma) < rdp(event)


@pytest.mark.parametrize("sigma, wanted", by_sigma(231.6, 43.7, 26.0))
def test_rdp_and_the_library_bound_the_fixed_size_row_from_above(sigma: float, wanted: float) -> None:
    import dp_accounting as dp

    half = dp.GaussianDpEvent(sigma / 2)  # see the trap above
    event = dp.SelfComposedDpEvent(dp.SampledWithoutReplacementDpEvent(100, 10, half), 300)
    assert rdp(event, "REPLACE_ONE") == one_percent(wanted)
    truncated = dp.TruncatedSubsampledGaussianDpEvent(100, 1.0, 10, sigma)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, 1e-3)
    library = accountant.compose(dp.SelfComposedDpEvent(truncated, 300)).get_epsilon(DELTA)
    assert library == one_percent({1.0: 72.1, 1.5: 32.4, 2.0: 20.5}[sigma])
    assert epsilon(question(sigma, adjacency="replace-one")) < min(library, rdp(event, "REPLACE_ONE"))


@pytest.mark.parametrize("sigma, wanted", by_sigma(231, 120, 77.4))
def test_rdp_bounds_the_server_row_from_above(sigma: float, wanted: float) -> None:
    import dp_accounting as dp

    event = dp.GaussianDpEvent(sigma / math.sqrt(300))
    assert rdp(event) == one_percent(wanted)
    assert epsilon(question(sigma, participations=30), "server") < rdp(event)


def attained(strata: list[tuple[float, float, float]], rounds: int) -> float:
    """The epsilon of a concrete federation: all others upload -C, the client +C or 0.

    Sums are then mixtures with centres 0, C and 2C. Strata are (probability, rate, noise), and the observer sees which.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    step, found = 1e-4, defaultdict[int, float](float)
    for probability, rate, noise in strata:
        grid = np.linspace(-12 * noise, 12 * noise + 2, 1_000_001 if len(strata) == 1 else 100_001)
        out, zeroed, full = (stats.norm.pdf(grid, centre, noise) for centre in (0, 1, 2))
        upper, lower = (1 - rate) * out + rate * full, (1 - rate) * out + rate * zeroed
        losses = np.ceil(np.log(upper / lower) / step).astype(int)
        lowest = int(losses.min())
        masses = np.bincount(losses - lowest, upper * (grid[1] - grid[0]))
        for place in np.flatnonzero(masses).tolist():
            found[place + lowest] += probability * float(masses[place])
    found[0] += max(1 - sum(found.values()), 0.0)  # rounds that release nothing
    composed = PrivacyLossDistribution.create_from_rounded_probability(dict(found), 0.0, step).self_compose(rounds)
    return float(composed.get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize("sigma, wanted", by_sigma(30.7, 12.6, 6.9))
def test_fixed_size_zero_out_bound_is_above_a_concrete_federation(sigma: float, wanted: float) -> None:
    """D3 from below."""
    found = attained([(1.0, 0.1, sigma)], 300)
    assert found == one_percent(wanted)
    assert found < epsilon(question(sigma))


@pytest.mark.parametrize("sigma, wanted", [(1.0, 32.3), (2.0, 7.30)])
def test_rows_of_sizes_that_show_are_above_a_concrete_federation(sigma: float, wanted: float) -> None:
    """D4 from below: a Poisson cohort of m clients has m shares of noise, and m is seen."""
    sizes = [(float(stats.binom.pmf(m, 100, 0.1)), m / 100, sigma * math.sqrt(m / 10)) for m in range(1, 40)]
    found = attained(sizes, 300)
    assert found == one_percent(wanted)
    assert found < epsilon(question(sigma, sampling="poisson"))


def test_gaussian_closed_form_is_scipys_and_inverts() -> None:
    for mu in (0.01, 1.0, 30.0, 300.0):
        for delta in (1e-3, 1e-5, 1e-9):
            found = gaussian_epsilon(mu, delta)
            assert gaussian_delta(mu, found) == pytest.approx(delta, rel=1e-4) or mu == 0.01
            if found > 0:
                assert found == pytest.approx(independent_epsilons.gaussian_epsilon(mu, delta), rel=1e-6)


def test_whole_cohort_is_closed_form() -> None:
    """D1: T averages compose to mu = sqrt(T) times the sensitivity over the noise."""

    def exact(mu: float) -> Any:
        return pytest.approx(independent_epsilons.gaussian_epsilon(mu, DELTA))

    asked = question(2.0, "central", cohort=100)
    found = rows(asked)["outsider"]
    assert found.epsilon == exact(math.sqrt(300) / 2)
    assert (found.accountant, found.sampling) == ("Gaussian, closed form", "none")
    assert epsilon(changed(asked, adjacency="replace-one")) == exact(math.sqrt(300))
    assert epsilon(changed(asked, adjacency="add-remove")) == found.epsilon
    shares = changed(asked, mechanism="distributed")
    assert epsilon(shares, "participant") == exact(math.sqrt(300 / 0.99) / 2)
    assert epsilon(shares, "server") == exact(math.sqrt(300 * 100) / 2)


def test_nearly_the_whole_cohort_is_near_the_closed_form() -> None:
    asked = question(3.0, cohort=999, clients=1000, rounds=20)
    assert epsilon(asked) == pytest.approx(epsilon(changed(asked, cohort=1000)), rel=0.05)


def test_personalised_whole_cohort_and_every_round() -> None:
    whole = question(20.0, cohort=100, release="personalised", interval=15)
    mu = math.sqrt(20 * 100 + 280 / 0.99) / 20
    assert epsilon(whole, "client") == pytest.approx(independent_epsilons.gaussian_epsilon(mu, DELTA))
    every = question(2.0, release="personalised", interval=1)
    assert epsilon(every, "client") == pytest.approx(
        independent_epsilons.drawn_gaussian_epsilon(math.sqrt(10) / 2, 0.1, 300, DELTA), rel=1e-3
    )
