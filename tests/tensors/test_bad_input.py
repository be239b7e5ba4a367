"""Every wrong input is refused by an error that names what was wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedceo.tensors import nuclear_norm, spectrum, t_product, t_transpose, truncated_tsvd, tsvd

GOOD = torch.ones(3, 4, 5)
FUNCTIONS = (t_transpose, tsvd, spectrum, nuclear_norm, lambda w: truncated_tsvd(w, 1.0), lambda w: t_product(w, w))


def with_entry(value: float) -> Tensor:
    w = GOOD.clone()
    w[1, 2, 3] = value
    return w


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "w, error, words",
    [
        (with_entry(float("nan")), ValueError, "finite, got NaN or Inf"),
        (with_entry(float("inf")), ValueError, "finite, got NaN or Inf"),
        (with_entry(-float("inf")), ValueError, "finite, got NaN or Inf"),
        (torch.ones(3, 4), ValueError, r"three axes \(d, h, clients\), got shape \(3, 4\)"),
        (torch.ones(2, 3, 4, 5), ValueError, "three axes"),
        (torch.ones(3, 4, 0), ValueError, "the client axis is empty"),
        (torch.ones(0, 4, 5), ValueError, "the first axis is empty"),
        (torch.ones(3, 4, 5, dtype=torch.complex64), TypeError, "float32 or float64, got complex64"),
        (torch.ones(3, 4, 5, dtype=torch.int64), TypeError, "float32 or float64, got int64"),
        (torch.ones(3, 4, 5, dtype=torch.bfloat16), TypeError, "float32 or float64, got bfloat16"),
        ([[[1.0]]], TypeError, "torch.Tensor, got list"),
    ],
)
def test_bad_tensors(function: Callable[[Any], object], w: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        function(w)


@pytest.mark.parametrize(
    "threshold, error, words",
    [
        (-1.0, ValueError, "negative or NaN, got -1"),
        (float("nan"), ValueError, "negative or NaN"),
        (1j, TypeError, "real"),
        (torch.tensor(1j), TypeError, "real"),
        (torch.ones(4), ValueError, r"one per frequency, 5 in all, got shape \(4,\)"),
        (torch.ones(5, 1), ValueError, "one per frequency"),
        (torch.tensor([1.0, 2.0, 3.0, 3.0, 4.0]), ValueError, "same for frequencies i and K - i"),
        ([1.0, -2.0, 3.0, 3.0, -2.0], ValueError, "negative"),
    ],
)
def test_bad_thresholds(threshold: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        truncated_tsvd(GOOD, threshold)


@pytest.mark.parametrize(
    "a, b, error, words",
    [
        (torch.ones(3, 4, 5), torch.ones(3, 4, 5), ValueError, r"\(3, 4, 5\) and \(3, 4, 5\) do not fit"),
        (torch.ones(3, 4, 5), torch.ones(4, 3, 6), ValueError, "do not fit"),
        (torch.ones(3, 4, 5), torch.ones(4, 3, 5, dtype=torch.float64), TypeError, "same dtype"),
    ],
)
def test_pairs_that_do_not_fit(a: Tensor, b: Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        t_product(a, b)
