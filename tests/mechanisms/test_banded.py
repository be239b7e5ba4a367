"""The banded factorisation against dense matrices, and the noise that follows from it."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, optimize

from fedceo.accounting import Plan, calibrate
from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms.banded import Noises, factorise, released_spread, server_response
from fedceo.mechanisms.base import Mechanism, workload
from fedceo.mechanisms.uploads import Contribution, Mean, Senders
from fedceo.training.per_example import draw_noise
from fedceo.training.schedule import Schedule
from tests.support.privatising import mechanism

Floats = npt.NDArray[np.float64]


def toeplitz(column: Floats | tuple[float, ...], rounds: int) -> Floats:
    """(T, T) lower triangular, with this first column or the beginning of one."""
    first = np.zeros(rounds)
    first[: len(column)] = column[:rounds]
    found: Floats = linalg.toeplitz(first, np.zeros(rounds))
    return found


def rms(response: Floats, coefficients: tuple[float, ...]) -> float:
    return float(np.sqrt(np.mean(np.square(released_spread(response, coefficients)))))


@settings(deadline=None, max_examples=30)
@given(rounds=st.integers(1, 40), bands=st.integers(1, 50), momentum=st.sampled_from([0.0, 0.5, 0.9]))
def test_predicted_noise_is_that_of_dense_matrices(rounds: int, bands: int, momentum: float) -> None:
    response = server_response(momentum, rounds)
    ages = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    workload = np.where(ages >= 0, (1 - momentum ** (np.maximum(ages, 0) + 1)) / (1 - momentum), 0.0)
    assert np.allclose(toeplitz(response, rounds), workload)
    coefficients = factorise(response, bands)
    factor = toeplitz(coefficients, rounds)
    assert len(coefficients) == min(bands, rounds)
    assert np.linalg.norm(factor, axis=0).max() == pytest.approx(1.0)
    expected = np.linalg.norm(workload @ np.linalg.inv(factor), axis=1)
    assert np.allclose(released_spread(response, coefficients), expected)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("bands", [2, 4])
def test_no_other_coefficients_leave_less_noise(bands: int, momentum: float) -> None:
    """Nelder and Mead's search from several starts, by dense matrices."""
    rounds, rng = 12, np.random.default_rng(0)
    response = server_response(momentum, rounds)

    def noise(rest: Floats) -> float:
        factor = toeplitz(np.append(1.0, rest), rounds) / np.linalg.norm([1.0, *rest])
        return float(np.linalg.norm(toeplitz(response, rounds) @ np.linalg.inv(factor)) / math.sqrt(rounds))

    found = [
        optimize.minimize(noise, rng.uniform(0, 1, bands - 1), method="Nelder-Mead", options={"maxiter": 3000}).fun
        for _ in range(4)
    ]
    assert rms(response, factorise(response, bands)) == pytest.approx(min(found), rel=1e-4)


def test_more_bands_never_leave_more_noise() -> None:
    response = server_response(0.0, 200)
    noises = [rms(response, factorise(response, bands)) for bands in (1, 2, 3, 5, 10, 30, 100, 200)]
    assert noises == sorted(noises, reverse=True)


def test_all_bands_are_near_the_bound_and_below_a_tree() -> None:
    """No factor leaves less than |A|_* / T (Cauchy and Schwarz), and a binary tree over the rounds is one factor."""
    rounds = 64
    workload = np.tril(np.ones((rounds, rounds)))
    found = rms(server_response(0.0, rounds), factorise(server_response(0.0, rounds), rounds))
    assert np.linalg.norm(workload, "nuc") / rounds <= found <= 1.08 * np.linalg.norm(workload, "nuc") / rounds
    nodes = [
        (first, first + width)
        for width in (2**k for k in range(7))
        for first in range(0, rounds, width)
    ]  # fmt: skip
    tree = np.array([[first <= t < last for t in range(rounds)] for first, last in nodes], dtype=np.float64)
    decoded = workload @ np.linalg.pinv(tree)  # the best use of a tree (Honaker 2015)
    of_tree = np.linalg.norm(decoded) / math.sqrt(rounds) * np.linalg.norm(tree, axis=0).max()
    assert found < of_tree


def test_one_band_is_independent_noise() -> None:
    assert factorise(server_response(0.0, 50), 1) == (1.0,)
    assert np.allclose(released_spread(server_response(0.0, 9), (1.0,)), np.sqrt(np.arange(1, 10)))
    plain, banded = (released(mechanism("central", noise_kind=kind), 5) for kind in ("gaussian", "banded"))
    assert torch.equal(plain, banded)


@pytest.mark.parametrize("epsilon, of_all, of_average, of_last", [(2.0, 1.16, 0.95, 0.92), (8.0, 0.84, 0.69, 0.67)])
def test_noise_at_equal_epsilon(epsilon: float, of_all: float, of_average: float, of_last: float) -> None:
    """Ten bands over whole groups against independent noise with Poisson cohorts, N = 1,000, K = 100, T = 100."""
    given = {"clients": 1000, "cohort": 100, "rounds": 100, "noise_multiplier": 1.0, "delta": 1e-5}
    poisson = calibrate(epsilon, "outsider", Plan(**given, mechanism="central", sampling="poisson"))  # type: ignore[arg-type]
    cyclic = calibrate(epsilon, "outsider", Plan(**given, mechanism="central", sampling="cyclic", groups=10))  # type: ignore[arg-type]
    sums = server_response(0.0, 100)
    averages = np.convolve(sums, 0.1 * 0.9 ** np.arange(100))[:100]  # an exponential average of the models
    independent = released_spread(averages, (1.0,))
    banded = released_spread(averages, factorise(averages, 10))
    ratio = cyclic / poisson
    assert ratio * rms(sums, factorise(sums, 10)) / rms(sums, (1.0,)) == pytest.approx(of_all, abs=0.006)
    assert ratio * np.linalg.norm(banded) / np.linalg.norm(independent) == pytest.approx(of_average, abs=0.006)
    assert ratio * banded[-1] / independent[-1] == pytest.approx(of_last, abs=0.006)


def released(made: Mechanism, rounds: int, size: int = 500) -> torch.Tensor:
    """(T, D) the noise of every round's sum, in units of the clip, where nobody sends anything."""
    origin = {"w": torch.zeros(size, dtype=torch.float64)}
    nobody = {"w": torch.zeros(0, size, dtype=torch.float64)}
    noise: Noises = {}
    rows = []
    for t in range(1, rounds + 1):
        of_round = made.before(t, origin, noise)
        noise = of_round.drawn
        assert len(noise) < max(len(made.coefficients), 2)
        mean = of_round.privatise(Contribution(nobody, nobody), Senders(t, (), torch.zeros(0)), origin)
        assert isinstance(mean, Mean)
        rows.append(mean.weights["w"] * made.divisor / made.step / made.clip)
    return torch.stack(rows)


@pytest.mark.parametrize("bands", [2, 5, 12])
def test_noise_times_the_factor_is_what_was_drawn(bands: int) -> None:
    rounds, schedule = 12, Schedule(3)
    coefficients = factorise(server_response(0.0, rounds), bands)
    made = mechanism("central", noise_kind="banded", coefficients=coefficients, schedule=schedule)
    like = {"w": torch.zeros(500, dtype=torch.float64)}
    drawn = [draw_noise(like, 1.5, schedule.generator("central noise", t))["w"] for t in range(1, rounds + 1)]
    whitened = torch.from_numpy(toeplitz(coefficients, rounds)) @ released(made, rounds)
    assert torch.allclose(whitened, torch.stack(drawn), atol=1e-12)


def test_a_round_without_memory_begins_anew() -> None:
    """As after a kill that lost rounds which cannot be repeated: no earlier noise comes a second time."""
    coefficients = factorise(server_response(0.0, 12), 4)
    made = mechanism("central", noise_kind="banded", coefficients=coefficients)
    like = {"w": torch.zeros(500, dtype=torch.float64)}
    fresh = draw_noise(like, 1.5 * 2.0, made.schedule.generator("central noise", 7))["w"]
    assert torch.allclose(made.before(7, like, {}).drawn[7]["w"], fresh / coefficients[0])


def test_a_contribution_of_its_own_is_noised_like_that_of_a_first_round() -> None:
    """An attack privatises one contribution without a run around it."""
    made = mechanism("central", noise_kind="banded", coefficients=factorise(server_response(0.0, 12), 4))
    origin, nobody = {"w": torch.zeros(500)}, {"w": torch.zeros(0, 500)}
    alone, begun = (
        each.privatise(Contribution(nobody, nobody), Senders(7, (), torch.zeros(0)), origin).weights["w"]
        for each in (made, made.before(7, origin, {}))
    )
    assert torch.equal(alone, begun) and float(alone.std()) > 0


@pytest.mark.parametrize("release", [{}, {"average": "ema", "decay": 0.8}, {"average": "tail", "length": 5}])
def test_the_workload_is_that_of_what_is_released(release: dict[str, object]) -> None:
    """One entry of ones in each round in turn, led through the server's momentum and the average round by round."""
    rounds, momentum = 12, 0.9
    table = {
        "data": {"name": "digits", "clients": 20},
        "train": {"rounds": rounds, "server_optimizer": "momentum"},
        "privacy": {"mechanism": "central", "noise_multiplier": 1.0},
        "method": {"name": "fedavg"},
        "release": release,
    }
    found = workload(parse_experiment(table))
    velocity = model = 0.0
    models: list[float] = []
    for t in range(rounds):
        velocity = momentum * velocity + (1.0 if t == 0 else 0.0)
        model += velocity
        models.append(model)
        released = {
            None: model,
            "ema": sum(0.2 * 0.8**lag * earlier for lag, earlier in enumerate(reversed(models))),
            "tail": sum(models[-5:]) / 5,
        }[release.get("average")]  # type: ignore[index]
        assert found[t] == pytest.approx(released)
