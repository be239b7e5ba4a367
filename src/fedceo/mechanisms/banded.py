"""Noise that is correlated over rounds, so that much of it cancels in the model (Choquette-Choo et al. 2023).

What the rounds' sums x have added to the model by round t is (A x)_t. The workload A is Toeplitz: a sum moves the model
by a_j within the next j rounds. Independent noise w comes into the model as A w, and z = C^-1 w, in its place, as
A C^-1 w, which can be far less. Whatever is released is then a function of C x + w: as private as independent noise on
C x, where a client's update in round s lies along the s-th column of C. C is lower triangular and Toeplitz with b
bands, C_ts = c_(t-s), and no column is longer than |c| = 1. A client is in rounds at least b apart, whose columns are
orthogonal, so that nothing of it counts twice (D17).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedceo.lazy import torch
from fedceo.tensors.weights import Weights

Floats: TypeAlias = npt.NDArray[np.float64]

Noises: TypeAlias = Mapping[int, Weights]
"""Round -> the noise z of its sum."""


def server_response(momentum: float, rounds: int) -> Floats:
    """(T,) a, the first column of the workload: all ones for prefix sums, growing to 1/(1 - momentum) with momentum."""
    return np.cumsum(momentum ** np.arange(rounds))


def factorise(response: Floats, bands: int) -> tuple[float, ...]:
    """(b,) c, the coefficients of Euclidean norm 1 that leave the least noise |A C^-1| in the models of all rounds.

    Args:
        response: (T,) a, the first column of the workload.
        bands: b; where there are fewer rounds, as many as these.
    """
    from scipy import optimize

    start = _square_root(response, min(bands, len(response)))  # which is the best c, nearly, where b = T
    coefficients = start / start[0]
    if bands > 1:
        found = optimize.minimize(_log_noise, coefficients[1:], (response,), method="L-BFGS-B", jac=True)
        coefficients[1:] = found.x
    return tuple((coefficients / np.linalg.norm(coefficients)).tolist())


def released_spread(response: Floats, coefficients: tuple[float, ...]) -> Floats:
    """(T,) standard deviation of the noise in an entry of the model after each round, for noise w of variance 1."""
    noise = _convolved(response, _inverse(np.array(coefficients), len(response)))
    spread: Floats = np.sqrt(np.cumsum(np.square(noise)))
    return spread


def correlated(
    fresh: Weights, earlier: Noises, coefficients: tuple[float, ...], round_: int
) -> dict[str, torch.Tensor]:
    """z_t = (w_t - sum of c_j z_(t-j)) / c_0, tensor by tensor; a round that had no noise for one has no part in it.

    Args:
        fresh: w_t, independent noise of the round.
        earlier: the noises z of the b - 1 rounds before it.
    """
    first, *rest = coefficients
    total = dict(fresh)
    for lag, coefficient in enumerate(rest, 1):
        before = earlier.get(round_ - lag, {})
        total = {name: w - coefficient * before[name] if name in before else w for name, w in total.items()}
    return {name: w / first for name, w in total.items()}


def _log_noise(rest: Floats, response: Floats) -> tuple[float, Floats]:
    """ln(|c| |A C^-1|)^2 and its gradient for c = (1, rest): the length of c does not matter."""
    coefficients, rounds = np.append(1.0, rest), len(response)
    times = np.arange(rounds, 0, -1.0)  # how often each entry of the first column is in the Toeplitz matrix A C^-1
    with np.errstate(over="ignore", invalid="ignore"):  # far from the best c its inverse may grow beyond all numbers
        inverse = _inverse(coefficients, rounds)
        noise = _convolved(response, inverse)
        total, square = float(times @ np.square(noise)), float(coefficients @ coefficients)
    if not np.isfinite(total):
        return np.inf, np.zeros_like(rest)
    along_inverse = _convolved(response, (2 * times * noise)[::-1])[::-1]
    # 1/c changes by -(1/c)^2 times the change of c, as power series
    along = -_convolved(_convolved(inverse, inverse), along_inverse[::-1])[::-1][: len(coefficients)]
    return float(np.log(total * square)), (along / total + 2 * coefficients / square)[1:]


def _convolved(one: Floats, other: Floats) -> Floats:
    """(T,) the product of two power series."""
    from scipy import signal

    found: Floats = signal.convolve(one, other)[: len(other)]
    return found


def _inverse(coefficients: Floats, rounds: int) -> Floats:
    """(T,) the power series 1/c, the first column of C^-1."""
    from scipy import signal

    found: Floats = signal.lfilter([1.0], coefficients, np.eye(1, rounds)[0])
    return found


def _square_root(series: Floats, terms: int) -> Floats:
    """The first terms of the square root of a power series."""
    root = np.zeros(terms)
    root[0] = np.sqrt(series[0])
    for k in range(1, terms):
        root[k] = (series[k] - root[1:k] @ root[1:k][::-1]) / (2 * root[0])
    return root
