"""The proximal operator: accuracy against the naive one, optimality, and the paper's propositions."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedceo.tensors import nuclear_norm, shrinkage, spectrum, truncated_tsvd, truncated_tsvds, truncation
from tests.support import naive_tsvd
from tests.support.drawn_tensors import KINDS, dtypes, make, seeds, tensors

PROMISED = {torch.float32: 1e-5, torch.float64: 1e-12}

NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Thresholds as a fraction of the largest singular value.
fractions = st.sampled_from([0.0, 1e-12, 1e-8, 1e-4, 1e-3, 0.03, 0.3, 0.6, 0.999, 1.0, 1.001, 1.2, 2.0])


def threshold_at(w: Tensor, fraction: float) -> float:
    return fraction * float(naive_tsvd.spectrum(w).max())


def assert_accurate(w: Tensor, threshold: float | Tensor) -> None:
    out = truncated_tsvd(w, threshold)
    assert out.shape == w.shape and out.dtype == w.dtype
    if not w.any():
        assert not out.any()
        return
    assert naive_tsvd.error(out, naive_tsvd.truncated_tsvd(w, threshold), w) <= PROMISED[w.dtype]


@pytest.fixture(params=["by eigh", "by products"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test through both ways to the filter, whatever the device would choose."""
    single_only = request.param == "by products"
    monkeypatch.setattr(shrinkage, "prefers_products", lambda m: single_only and m.real.dtype == torch.float32)
    return request.param


@given(tensors(), fractions)
def test_accuracy(w: Tensor, fraction: float) -> None:
    assert_accurate(w, threshold_at(w, fraction))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fraction", [1e-7, 1e-4, 0.02, 0.4, 0.999])
@pytest.mark.parametrize("shape", [(40, 12, 10), (12, 40, 7), (20, 20, 4)])
def test_accuracy_by_both_paths(kind: str, fraction: float, shape: tuple[int, int, int], path: str) -> None:
    for dtype in PROMISED:
        w = make(kind, shape, dtype, seed=7)
        assert_accurate(w, threshold_at(w, fraction))


@pytest.mark.parametrize("shape", [(300, 64, 10), (64, 300, 10), (6, 4, 1000), (4, 6, 999), (1, 512, 10), (500, 1, 9)])
def test_accuracy_on_larger_shapes(shape: tuple[int, int, int], path: str) -> None:
    for dtype in PROMISED:
        w = make("signal and noise", shape, dtype, seed=3)
        for fraction in (1e-4, 0.02, 0.5):
            assert_accurate(w, threshold_at(w, fraction))


PORTIONS = [0.0, 1e-12, 1e-4, 0.1, 0.7, 0.9999, 1.2]


@pytest.mark.parametrize("fraction", PORTIONS)
def test_layers_together_are_the_layers_one_by_one(path: str, fraction: float) -> None:
    assert_accurate_together("cpu", fraction)


@NEEDS_A_GPU
@pytest.mark.parametrize("fraction", PORTIONS)
def test_a_gpu_takes_layers_together(fraction: float) -> None:
    assert_accurate_together("cuda", fraction)


def assert_accurate_together(device: str, fraction: float) -> None:
    """Tall, wide, of one row, all zero, of other sizes and numbers of clients."""
    shapes = [(40, 12, 10), (5, 30, 9), (1, 8, 10), (8, 1, 10), (3, 3, 2), (20, 10, 200), (130, 140, 4), (150, 130, 5)]
    for dtype in PROMISED:
        kinds = ["signal and noise", "noise", "repeated", "graded"] * 2
        layers = [make(kind, shape, dtype, seed=i) for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))]
        layers.append(torch.zeros(6, 5, 10, dtype=dtype))
        thresholds = [threshold_at(w, fraction) for w in layers]
        found = truncated_tsvds([w.to(device) for w in layers], thresholds)
        for w, threshold, out in zip(layers, thresholds, found, strict=True):
            assert out.dtype == dtype and out.device.type == device
            if w.any():
                assert naive_tsvd.error(out.cpu(), naive_tsvd.truncated_tsvd(w, threshold), w) <= PROMISED[dtype]
            else:
                assert not out.any()


@pytest.mark.parametrize("fraction", [1e-7, 1e-8, 3e-9, 1e-9, 1e-10])
@pytest.mark.parametrize("shape", [(40, 12, 10), (90, 64, 3), (12, 40, 4)])
def test_thresholds_next_to_nothing_of_low_rank(shape: tuple[int, int, int], fraction: float, path: str) -> None:
    """Singular values of zero below a threshold so small that rounding is larger than its square."""
    d, h, k = shape
    rng = torch.Generator().manual_seed(0)
    one = torch.randn(d, 1, generator=rng) @ torch.randn(1, h, generator=rng)
    for w in (one[:, :, None].expand(shape).clone(), one[:, :, None] * torch.randn(k, generator=rng)):
        assert_accurate(w, threshold_at(w, fraction))


def test_the_largest_numbers_and_what_is_wrong_among_several(path: str) -> None:
    for dtype, size in ((torch.float32, 2.5e38), (torch.float64, 1.5e308)):
        w = make("noise", (6, 5, 4), dtype, 0)
        w = w / w.abs().max()
        big = truncated_tsvds([w * size, w], [0.3 * size, 0.3])
        assert torch.allclose(big[0] / size, big[1], atol=1e-6)
    good, bad = torch.ones(3, 2, 2), torch.tensor(float("nan")).expand(3, 2, 2)
    with pytest.raises(ValueError, match=r"tensors\[1\] must be finite"):
        truncated_tsvds([good, bad], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"thresholds: 1, expected one for each of 2 tensors"):
        truncated_tsvds([good, good], [1.0])


def test_all_layers_of_lenet5_fit_together_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten clients of the paper's model: one sequence of products, which its speed rests on."""
    groups: list[list[tuple[int, ...]]] = []

    def together(stacks: Sequence[shrinkage.Stack]) -> list[Tensor]:
        groups.append([tuple(matrices.shape) for matrices, _, _ in stacks])
        return [matrices for matrices, _, _ in stacks]

    monkeypatch.setattr(truncation, "CHUNK_BYTES", {"cpu": truncation.CHUNK_BYTES["cuda"]})
    monkeypatch.setattr(shrinkage, "prefers_products", lambda m: True)
    monkeypatch.setattr(shrinkage, "shrink_together", together)
    shapes = [(75, 32), (1, 32), (800, 64), (1, 64), (1600, 512), (1, 512), (512, 512), (1, 512), (512, 10), (1, 10)]
    truncated_tsvds([make("noise", (d, h, 10), torch.float32, 0) for d, h in shapes], [1.0] * len(shapes))
    large = [(4, 1600, 512), (2, 1600, 512), (4, 512, 512), (2, 512, 512)]
    assert groups == [[(6, 75, 32), (6, 800, 64), *large, (6, 512, 10)]]


def test_what_does_not_fit_together_is_worked_in_turns(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    layers = [make("signal and noise", shape, torch.float32, 0) for shape in ((30, 20, 25), (8, 40, 25), (1, 9, 3))]
    thresholds = [threshold_at(w, 0.1) for w in layers]
    whole = truncated_tsvds(layers, thresholds)
    monkeypatch.setattr(truncation, "CHUNK_BYTES", {"cpu": 30_000})
    monkeypatch.setattr(shrinkage, "TOGETHER_BYTES", 1)
    for apart, together in zip(truncated_tsvds(layers, thresholds), whole, strict=True):
        assert torch.allclose(apart, together, atol=1e-5)


def test_what_is_certainly_zero_is_zero_exactly_by_both_paths(path: str) -> None:
    """The other layer of the same call is not zero."""
    layers = [make("noise", (40, 12, 10), torch.float32, 0), make("noise", (30, 8, 10), torch.float32, 1)]
    first, second = truncated_tsvds(layers, [threshold_at(layers[0], 1.2), threshold_at(layers[1], 0.5)])
    assert not first.any() and second.any()


@given(tensors(kinds=("noise", "signal and noise")), seeds)
def test_a_threshold_per_frequency(w: Tensor, seed: int) -> None:
    k = w.shape[2]
    draw = torch.rand(k // 2 + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    taus = torch.stack([draw[min(i, k - i)] for i in range(k)]) * threshold_at(w, 1.0)
    taus[0] = 0.0
    assert_accurate(w, taus)


@given(tensors(dtype=torch.float64), st.sampled_from([1e-3, 0.1, 0.5, 0.9]))
def test_the_output_minimises_the_objective(w: Tensor, fraction: float) -> None:
    """X minimises tau ||X - W||^2 + ||X||_* iff 2 tau (W - X) is a subgradient of the nuclear norm at X.

    Per Fourier slice, with D = W - X: every singular value of D is at most the threshold, and <D, X> equals the
    threshold times the nuclear norm of X.
    """
    threshold = threshold_at(w, fraction)
    x = truncated_tsvd(w, threshold)
    size = 1 + float(naive_tsvd.spectrum(w).max())
    assert float(naive_tsvd.spectrum(w - x).max()) <= threshold + 1e-11 * size
    inner = float(((w - x) * x).sum())
    assert inner == pytest.approx(threshold * float(nuclear_norm(x)), abs=1e-10 * size**2 * w.numel())


@given(tensors(kinds=("signal and noise",), dtype=torch.float64), fractions)
def test_the_mean_over_clients_is_the_thresholded_mean(w: Tensor, fraction: float) -> None:
    threshold = threshold_at(w, fraction)
    expected = naive_tsvd.soft_threshold(w.mean(2).numpy(), threshold / w.shape[2])
    assert torch.allclose(truncated_tsvd(w, threshold).mean(2), torch.from_numpy(expected), atol=1e-11)


@given(tensors(kinds=("signal and noise",), dtype=torch.float64))
def test_proposition_3_2(w: Tensor) -> None:
    """Above every singular value but the mean's, all clients get the thresholded mean."""
    k = w.shape[2]
    threshold = 1.001 * float(naive_tsvd.spectrum(w)[1:].max()) if k > 1 else 0.1
    x = truncated_tsvd(w, threshold)
    expected = torch.from_numpy(naive_tsvd.soft_threshold(w.mean(2).numpy(), threshold / k))
    for client in range(k):
        assert torch.allclose(x[:, :, client], expected, atol=1e-11)


@given(tensors(), fractions, st.integers(1, 9))
def test_cyclic_shifts_of_the_clients_commute(w: Tensor, fraction: float, shift: int) -> None:
    threshold = threshold_at(w, fraction)
    shifted = truncated_tsvd(w.roll(shift, 2), threshold)
    assert torch.allclose(
        shifted, truncated_tsvd(w, threshold).roll(shift, 2), atol=2 * PROMISED[w.dtype] * float(w.norm() + 1)
    )


@given(tensors(kinds=("noise", "repeated")), st.sampled_from([-300, -60, 60, 300]))
def test_scale_does_not_matter(w: Tensor, exponent: int) -> None:
    if w.dtype == torch.float32:
        exponent = exponent // 5
    factor = 2.0**exponent
    threshold = 0.5 * threshold_at(w, 1.0)
    scaled = truncated_tsvd(w * factor, threshold * factor) / factor
    assert naive_tsvd.error(scaled, naive_tsvd.truncated_tsvd(w, threshold), w) <= PROMISED[w.dtype]


@given(dtypes)
def test_extreme_thresholds(dtype: torch.dtype) -> None:
    w = make("noise", (6, 5, 4), dtype, 0)
    assert torch.allclose(truncated_tsvd(w, 0.0), w, atol=1e-6)
    assert not truncated_tsvd(w, float("inf")).any()
    assert not truncated_tsvd(w, 1.0001 * float(spectrum(w).max())).any()


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    w = make("signal and noise", (30, 20, 25), torch.float32, 0)
    threshold = threshold_at(w, 0.1)
    whole = truncated_tsvd(w, threshold)
    monkeypatch.setattr(truncation, "CHUNK_BYTES", {"cpu": 1})
    assert torch.allclose(truncated_tsvd(w, threshold), whole, atol=1e-6)


def test_a_slice_that_is_certainly_zero_is_not_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    w = make("noise", (200, 50, 10), torch.float32, 0)
    threshold = threshold_at(w, 1.3)

    def refuse(*_: object) -> Tensor:
        raise AssertionError("a zero slice was decomposed")

    for name in ("filter_by_eigh", "filter_by_sign"):
        monkeypatch.setattr(shrinkage, name, refuse)
    assert not truncated_tsvd(w, threshold).any()


def test_a_view_with_the_clients_first_is_taken_as_it_is() -> None:
    stored = make("noise", (4, 6, 5), torch.float32, 0).movedim(2, 0).contiguous()
    view = stored.movedim(0, 2)
    assert torch.equal(truncated_tsvd(view, 1.0), truncated_tsvd(view.contiguous(), 1.0))


def test_no_gradient_flows_and_the_input_stays() -> None:
    w = make("noise", (4, 6, 5), torch.float32, 0).requires_grad_()
    before = w.detach().clone()
    assert not truncated_tsvd(w, 1.0).requires_grad
    assert torch.equal(w.detach(), before)


@NEEDS_A_GPU
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(300, 64, 10), (64, 300, 9), (40, 12, 10), (40, 12, 50), (1, 50, 10)])
def test_a_gpu_gives_the_same(kind: str, shape: tuple[int, int, int]) -> None:
    for dtype in PROMISED:
        w = make(kind, shape, dtype, seed=5)
        for fraction in (0.0, 1e-4, 0.02, 0.5, 1.1):
            threshold = threshold_at(w, fraction)
            out = truncated_tsvd(w.cuda(), threshold)
            assert out.is_cuda
            if w.any():
                assert naive_tsvd.error(out.cpu(), naive_tsvd.truncated_tsvd(w, threshold), w) <= PROMISED[dtype]
