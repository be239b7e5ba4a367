"""The algebra against its definitions, and its laws."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fedceo.tensors import nuclear_norm, spectrum, t_identity, t_product, t_transpose, tsvd
from tests.support import naive_tsvd
from tests.support.drawn_tensors import clients, make, seeds, sizes, tensors

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}


def assert_close(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    scale = 1 + float(torch.linalg.vector_norm(expected))
    assert float(torch.linalg.vector_norm(got - expected)) <= CLOSE[got.dtype] * scale


@given(sizes, sizes, sizes, clients, seeds)
def test_product_is_the_block_circulant_one(rows: int, inner: int, columns: int, k: int, seed: int) -> None:
    a = make("noise", (rows, inner, k), torch.float64, seed)
    b = make("noise", (inner, columns, k), torch.float64, seed + 1)
    assert_close(t_product(a, b), naive_tsvd.product(a, b))


@given(tensors(dtype=torch.float64))
def test_transpose_is_that_of_the_block_circulant_matrix(a: Tensor) -> None:
    assert torch.equal(naive_tsvd.block_circulant(t_transpose(a)), naive_tsvd.block_circulant(a).T)


@given(tensors())
def test_identity_leaves_a_tensor_as_it_is(a: Tensor) -> None:
    d, h, k = a.shape
    assert_close(t_product(t_identity(d, k, dtype=a.dtype), a), a)
    assert_close(t_product(a, t_identity(h, k, dtype=a.dtype)), a)


@given(tensors())
def test_tsvd_reconstructs_with_orthogonal_factors(a: Tensor) -> None:
    d, h, k = a.shape
    u, s, v = tsvd(a)
    assert u.shape == (d, d, k) and s.shape == (d, h, k) and v.shape == (h, h, k)
    assert_close(t_product(t_product(u, s), t_transpose(v)), a)
    for factor, n in ((u, d), (v, h)):
        identity = t_identity(n, k, dtype=a.dtype)
        assert_close(t_product(factor, t_transpose(factor)), identity)
        assert_close(t_product(t_transpose(factor), factor), identity)
    off_diagonal = s.clone()
    off_diagonal.diagonal().zero_()
    assert not off_diagonal.any()


@given(tensors())
def test_spectrum_is_that_of_every_fourier_slice(a: Tensor) -> None:
    assert_close(spectrum(a), naive_tsvd.spectrum(a).to(a.dtype))


@given(tensors(dtype=torch.float64))
def test_nuclear_norm_is_that_of_the_block_circulant_matrix_over_k(a: Tensor) -> None:
    expected = torch.linalg.matrix_norm(naive_tsvd.block_circulant(a), ord="nuc") / a.shape[2]
    assert_close(nuclear_norm(a), expected)


@given(sizes, sizes, clients, seeds)
def test_singular_values_agree_with_mprod(d: int, h: int, k: int, seed: int) -> None:
    from mprod.decompositions import svdm

    a = make("noise", (d, h, k), torch.float64, seed)
    _, theirs, _ = svdm(a.numpy(), lambda t: np.fft.fft(t, axis=-1), lambda t: np.fft.ifft(t, axis=-1), hats=True)
    assert_close(spectrum(a).sort(dim=1, descending=True).values, torch.from_numpy(np.abs(theirs).T.copy()))


@pytest.mark.parametrize("function", [lambda a: t_product(a, a), tsvd, spectrum], ids=["t_product", "tsvd", "spectrum"])
def test_inputs_are_left_alone(function: Callable[[Tensor], object]) -> None:
    a = make("noise", (3, 3, 4), torch.float32, 0)
    before = a.clone()
    function(a)
    assert torch.equal(a, before)


@pytest.mark.parametrize("n, k", [(0, 3), (3, 0), (-1, 2)])
def test_identity_refuses_empty_sizes(n: int, k: int) -> None:
    with pytest.raises(ValueError, match="n >= 1 and clients >= 1"):
        t_identity(n, k)
