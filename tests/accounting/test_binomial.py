"""The binomial law against scipy.stats, which commands do not wait for."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedceo.accounting.binomial import above, at_most, exactly, quantile
from fedceo.accounting.composition import _deltas
from fedceo.accounting.trials import Trials

PROBABILITIES = st.one_of(st.floats(1e-9, 1.0), st.floats(1e-9, 1e-3), st.sampled_from([0.0, 1.0]))


@given(st.integers(1, 5000), PROBABILITIES, st.integers(-2, 5001))
def test_tails_are_those_of_scipy_however_small(trials: int, probability: float, count: int) -> None:
    for ours, theirs in (
        (at_most(count, trials, probability), stats.binom.cdf(count, trials, probability)),
        (above(count, trials, probability), stats.binom.sf(count, trials, probability)),
    ):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-280)


@given(st.integers(1, 5000), PROBABILITIES)
def test_probabilities_are_those_of_scipy(trials: int, probability: float) -> None:
    counts = np.unique(np.linspace(0, trials, 50).round())
    expected = stats.binom.pmf(counts, trials, probability)
    np.testing.assert_allclose(exactly(counts, trials, probability), expected, rtol=1e-9, atol=1e-280)


@given(st.integers(1, 2000), PROBABILITIES, st.sampled_from([0.5, 0.99, 1 - 1e-5, 1 - 1e-9]))
def test_a_quantile_is_the_least_count_that_is_not_exceeded(trials: int, probability: float, level: float) -> None:
    found = quantile(level, trials, probability)
    assert at_most(found, trials, probability) >= level
    assert found == 0 or at_most(found - 1, trials, probability) < level


@pytest.mark.parametrize("mean", [1.0, 7.5, 300.0])
def test_a_poisson_number_of_trials_is_that_of_scipy(mean: float) -> None:
    found = Trials("poisson", mean).probabilities
    np.testing.assert_allclose(found, stats.poisson.pmf(np.arange(len(found)), mean), rtol=1e-9, atol=1e-280)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40), st.floats(1e-4, 800.0))
def test_sums_above_each_point_are_those_written_out(masses: list[float], step: float) -> None:
    places = step * np.arange(len(masses))
    expected = [
        sum(mass * -np.expm1(places[i] - place) for mass, place in zip(masses[i:], places[i:], strict=True))
        for i in range(len(masses))
    ]
    np.testing.assert_allclose(_deltas(np.array(masses), step), expected, rtol=1e-9, atol=1e-300)


def test_an_epsilon_is_answered_without_the_slow_parts_of_scipy(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('[data]\nname = "digits"\nclients = 100\n[privacy]\nnoise_multiplier = 1.0\n')
    program = (
        "import sys\nfrom fedceo.cli.app import main\nsys.argv = ['fedceo', 'privacy', 'account', sys.argv[1]]\n"
        "try:\n    main()\nfinally:\n    slow = {'torch', 'scipy.stats', 'scipy.signal', 'scipy.optimize'}\n"
        "    print('slow:', sorted(slow & {*sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True)
    assert "slow: []" in done.stderr, done.stderr
