"""The scattering transform against wavelets and convolutions written out in NumPy, and what it promises of images."""

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedceo
from fedceo.errors import UsageError
from fedceo.models import OnFeatures, build_model, fixed_parts, parameters_of
from fedceo.models.dead_leaves import dead_leaves
from fedceo.models.scattering import (
    LEAST_SPREAD,
    ScatteringTransform,
    StandardisedTransform,
    gaussian,
    wavelet_spectra,
)

Array = npt.NDArray[Any]
REACH = 40
"""Pixels beyond which every wavelet is zero to float64."""


@cache
def naive_morlet(scale: int, angle: float) -> Array:
    """psi at all offsets from -REACH to REACH, entry by entry."""
    spread, offsets = 0.8 * 2**scale, range(-REACH, REACH + 1)
    wave = np.zeros((len(offsets), len(offsets)), complex)
    bump = np.zeros(wave.shape)
    for i, y in enumerate(offsets):
        for j, x in enumerate(offsets):
            along = x * math.cos(angle) + y * math.sin(angle)
            across = -x * math.sin(angle) + y * math.cos(angle)
            bump[i, j] = math.exp(-(along**2 + (across / 2) ** 2) / (2 * spread**2))
            wave[i, j] = bump[i, j] * np.exp(1j * along * 3 * math.pi / 4 / 2**scale)
    return (wave - wave.sum() / bump.sum() * bump) / (2 * math.pi * spread**2 * 2)


def naive_phi() -> Array:
    offsets = np.arange(-REACH, REACH + 1)
    bump = np.exp(-(offsets**2) / (2 * 1.6**2))
    return np.outer(bump, bump) / bump.sum() ** 2


def convolved(image: Array, kernel: Array) -> Array:
    """The circular convolution in space: every offset of the kernel moves the image once."""
    out = np.zeros(image.shape, kernel.dtype)
    for i, j in zip(*np.nonzero(np.abs(kernel) > 1e-14), strict=True):
        out += kernel[i, j] * np.roll(image, (i - REACH, j - REACH), (0, 1))
    return out


def an_image(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@cache
def naive_features(shape: tuple[int, ...]) -> Array:
    """The features of an image of (colours, height, width), in float64, straight from the definition."""
    image, (_, height, width) = an_image(shape), shape
    rows, columns = -(-height // 4), -(-width // 4)
    margins = ((0, 0), (4, 4 * rows + 4 - height), (4, 4 * columns + 4 - width))
    padded = np.pad(image, margins, mode="reflect")
    wavelets = [[naive_morlet(j, math.pi * a / 8) for a in range(8)] for j in range(2)]
    phi, zoomed = naive_phi(), 4 * naive_phi()
    channels = []
    for colour in padded:
        fine = [np.abs(convolved(colour, psi)) for psi in wavelets[0]]
        coarse = [np.abs(convolved(each, psi)) for each in [colour, *fine] for psi in wavelets[1]]
        whole = [convolved(each, phi) for each in [colour, *fine]]
        on_every_other = np.zeros(colour.shape)
        on_every_other[::2, ::2] = 1  # moduli of the coarser wavelets are taken at every other pixel
        whole += [convolved(each * on_every_other, zoomed) for each in coarse]
        channels += [each[4 : 4 + 4 * rows : 4, 4 : 4 + 4 * columns : 4] for each in whole]
    groups = np.array(channels).reshape(-1, 9, rows, columns)
    means, variances = groups.mean((1, 2, 3), keepdims=True), groups.var((1, 2, 3), keepdims=True)
    normalised = ((groups - means) / np.sqrt(variances + 1e-5)).reshape(-1, rows, columns)
    return np.concatenate([pooled(each) for each in normalised])


def pooled(map_: Array) -> Array:
    """Means over 4 x 4 cells whose edges are rounded outwards, or the map where it is smaller."""
    sides = [min(4, n) for n in map_.shape]
    cells = [
        [slice(k * n // parts, -(-(k + 1) * n // parts)) for k in range(parts)]
        for n, parts in zip(map_.shape, sides, strict=True)
    ]
    return np.array([map_[down, right].mean() for down in cells[0] for right in cells[1]])


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 9, 13), (3, 10, 8), (1, 28, 28)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_features_are_those_of_the_definition(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    """float64 rests on filters in float32, which a model is made with."""
    expected = naive_features(shape)
    transform = ScatteringTransform(shape).to(dtype)
    found = transform(torch.from_numpy(an_image(shape))[None].to(dtype))[0].double().numpy()
    assert found.shape == (transform.features,)
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)
    assert np.abs(found - expected).max() <= 10 * tolerance


def test_a_colour_image_of_cifar_has_3888_features() -> None:
    model = build_model("scattering", (3, 32, 32), 10, 0)
    assert isinstance(model, OnFeatures)
    assert model.transform(torch.randn(2, 3, 32, 32)).shape == (2, 3888)
    assert sum(w.numel() for w in parameters_of(model).values()) == 38_890
    assert set(fixed_parts(model)) == {"transform.wavelets", "transform.rows", "transform.columns"}


@pytest.mark.parametrize("height, width", [(16, 16), (20, 36), (40, 40), (72, 40)])
def test_no_frequency_is_amplified(height: int, width: int) -> None:
    """Littlewood-Paley: |phi|^2 + half the sum over psi of |psi(w)|^2 + |psi(-w)|^2 is at most 1, and 1 at w = 0."""
    spectra = wavelet_spectra(height, width)
    mirrored = spectra.flip(1, 2).roll((1, 1), (1, 2))
    phi = torch.fft.fft(gaussian(height)).real[:, None] * torch.fft.fft(gaussian(width)).real
    passed = phi.square() + (spectra.square() + mirrored.square()).sum(0) / 2
    assert float(passed.max()) <= 1 + 1e-12
    assert float(spectra[:, 0, 0].abs().max()) < 1e-14 and float(phi[0, 0]) == pytest.approx(1, abs=1e-14)
    assert float(passed.min()) > 0.1, "no frequency is lost"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(8, 21), st.integers(8, 21))
def test_energy_is_not_increased(seed: int, colours: int, height: int, width: int) -> None:
    """Coefficients at every fourth pixel of the padded image, each for 16 pixels, have at most the image's energy."""
    transform = ScatteringTransform((colours, height, width)).double()
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(2, colours, height, width, generator=rng, dtype=torch.float64)
    x = x * torch.rand(1, generator=rng, dtype=torch.float64) ** torch.arange(width)
    maps, padded = transform.coefficients(x), torch.nn.functional.pad(x, transform.margins, mode="reflect")
    assert float(16 * maps.square().sum()) <= float(padded.square().sum()) * (1 + 1e-6)
    distance = 16 * (maps[0] - maps[1]).square().sum()
    assert float(distance) <= float((padded[0] - padded[1]).square().sum()) * (1 + 1e-6)


def test_a_shift_by_a_pixel_moves_features_less_than_pixels() -> None:
    """A smooth picture in the middle of the image: pixels move by more of their norm than scattering features do."""
    rng = torch.Generator().manual_seed(0)
    middle = torch.nn.functional.avg_pool2d(torch.randn(8, 1, 20, 20, generator=rng), 3, 1, 1)
    x = torch.nn.functional.pad(middle, [6, 6, 6, 6])
    moved = x.roll(1, 3)
    transform = ScatteringTransform((1, 32, 32))

    def change(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a - b).norm() / a.norm())

    assert change(transform(x), transform(moved)) < 0.35 * change(x, moved)


def test_a_blank_image_has_finite_features_and_slopes() -> None:
    x = torch.zeros(1, 1, 12, 12, requires_grad=True)
    found = ScatteringTransform((1, 12, 12))(x)
    found.sum().backward()
    assert x.grad is not None and bool(found.isfinite().all()) and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("shape", [(1, 7, 32), (3, 32, 4), (64,), (2, 3, 8, 8)])
def test_images_that_are_too_small_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        UsageError, match=r"model.name: scattering takes images of at least 8x8, channels first, got records of"
    ):
        build_model("scattering", shape, 10, 0)


def test_a_hidden_layer_is_one_more() -> None:
    model = build_model("scattering", (1, 8, 8), 10, 0, {"hidden": 7})
    assert [tuple(w.shape) for w in parameters_of(model).values()] == [(7, 324), (7,), (10, 7), (10,)]
    with pytest.raises(UsageError, match=r"model.hidden: 7, but model mlp has no such setting"):
        build_model("mlp", (1, 8, 8), 10, 0, {"hidden": 7})


def test_a_setting_of_another_model_is_one_line_of_a_run() -> None:
    table = {
        "data": {"name": "digits"},
        "model": {"name": "scattering", "activation": "tanh"},
        "privacy": {"mechanism": "none"},
        "method": {"name": "fedavg"},
    }
    with pytest.raises(UsageError, match=r"model.activation: 'tanh', but model scattering has no such setting"):
        fedceo.run(table)


def test_random_images_are_the_same_everywhere_and_standardised_themselves() -> None:
    images = dead_leaves(64, (3, 16, 20))
    assert images.shape == (64, 3, 16, 20) and torch.equal(images, dead_leaves(64, (3, 16, 20)))
    assert not torch.equal(images, dead_leaves(64, (3, 16, 20), seed=1))
    means, deviations = images.mean((0, 2, 3)), images.std((0, 2, 3), correction=0)
    assert torch.allclose(means, torch.zeros(3).double(), atol=1e-12)
    assert torch.allclose(deviations, torch.ones(3).double())


def test_random_images_are_plain_patches_that_grow_with_the_image() -> None:
    """Few values an image, one for each leaf that is still seen, each colour as far from the others as leaves are."""
    (image,) = dead_leaves(1, (1, 32, 32))
    assert 2 < len(image.unique()) <= 61
    small, large = (dead_leaves(200, (1, side, side)) for side in (16, 64))
    edges = [float((x[..., 1:] != x[..., :-1]).double().mean()) for x in (small, large)]
    assert edges[0] > edges[1] > 0  # leaves grow with the image, so that fewer pixels are at an edge


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8)])
def test_standardised_features_are_the_plain_ones_moved_and_scaled(shape: tuple[int, ...]) -> None:
    """Against random images of another seed, which the moments have not seen."""
    plain, standardised = ScatteringTransform(shape), StandardisedTransform(shape)
    fresh = dead_leaves(300, shape, seed=7).float()
    before, after = plain(fresh), standardised(fresh)
    assert torch.allclose(after * standardised.spread + standardised.centre, before, atol=1e-4)
    moving = standardised.spread > LEAST_SPREAD
    assert moving.double().mean() > 0.9
    typical = before.std(0).mean()
    assert after.mean(0)[moving].abs().max() < 0.5 * typical
    assert (after.std(0)[moving] / typical - 1).abs().median() < 0.1


def test_standardised_features_are_a_setting_of_this_model_alone() -> None:
    model = build_model("scattering", (1, 8, 8), 10, 0, {"standardised": True})
    assert isinstance(model, OnFeatures) and isinstance(model.transform, StandardisedTransform)
    assert {name: p.shape for name, p in parameters_of(model).items()} == {
        name: p.shape for name, p in parameters_of(build_model("scattering", (1, 8, 8), 10, 0)).items()
    }
    assert model.transform.version != ScatteringTransform.version, "or the cache would mix them up"
    with pytest.raises(UsageError, match=r"model\.standardised"):
        build_model("mlp", (1, 8, 8), 10, 0, {"standardised": True})
