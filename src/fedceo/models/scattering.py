"""A fixed scattering transform of images under a trained head (Bruna and Mallat 2013; Tramer and Boneh 2021).

With few records and much noise a model of few parameters on good features beats one that must learn its features. These
follow from no data, so that they cost no privacy.
"""

from functools import cache
from math import cos, pi, sin

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.dead_leaves import dead_leaves
from fedceo.models.features import OnFeatures
from fedceo.models.registry import MODELS

SCALES = 2
"""J: wavelets have the scales 1 and 2, averages are taken over about 2^J pixels and sampled at as many."""
STRIDE = 2**SCALES
ANGLES = 8
GROUP = 9
"""Channels that are normalised together, of the 81 of each colour."""
TINY = 1e-20
CELLS = 4
"""Rows and columns to which the maps of a channel are pooled, where they have more."""
RANDOM_IMAGES = 512
"""Images whose features say what a feature is on average and how far it spreads."""
LEAST_SPREAD = 0.1
"""The relative deviation that a feature is divided by at least: one that hardly moves there is not blown up."""


@MODELS.register(
    "scattering",
    "fixed wavelet features of images under a linear layer (or one of `hidden` units), 38,890 parameters on CIFAR-10",
)
class Scattering(OnFeatures):
    """A network of scattering transform -> [linear (hidden) -> ReLU] -> linear (classes).

    It has 38,890 parameters for 3x32x32 and 10 classes without a hidden layer.
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, hidden: int | None = None, standardised: bool | None = None
    ) -> None:
        if len(shape) != 3 or min(shape[1:]) < 2 * STRIDE:
            least = 2 * STRIDE
            raise UsageError(
                f"model.name: scattering takes images of at least {least}x{least}, channels first, got records of "
                f"shape {shape}"
            )
        transform = StandardisedTransform(shape) if standardised else ScatteringTransform(shape)
        head = nn.Linear(transform.features, hidden or classes)
        super().__init__(transform, nn.Sequential(head, nn.ReLU(), nn.Linear(hidden, classes)) if hidden else head)


class ScatteringTransform(nn.Module):
    """Normalised scattering coefficients of orders 0 to 2, pooled to at most 4 x 4 for each channel.

    S0 = x * phi, S1 = |x * psi_j,a| * phi, S2 = ||x * psi_0,a| * psi_1,b| * phi, for scales j of 0 and 1 and eight
    angles a, b: 81 channels for each colour. Images are reflected at their edges, by 4 pixels or up to 7 where a side
    is no multiple of 4, convolutions are circular, moduli of scale 1 are taken at every other pixel and averages at
    every fourth. Then every 9 channels of a record have their mean taken out and are divided by their standard
    deviation (group norm): nothing is fitted.
    """

    version = "scattering 1"
    wavelets: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        """shape: (colours, height, width) of an image."""
        super().__init__()
        colours, *sides = shape
        out = [-(-side // STRIDE) for side in sides]
        height, width = padded = [(n + 2) * STRIDE for n in out]
        self.groups = colours * (1 + SCALES * ANGLES + ANGLES**2) // GROUP
        self.cells = tuple(min(n, CELLS) for n in out)
        self.features = self.groups * GROUP * self.cells[0] * self.cells[1]
        self.margins = [m for n, side in zip(reversed(padded), reversed(sides), strict=True)
                        for m in (STRIDE, n - STRIDE - side)]  # fmt: skip
        self.register_buffer("wavelets", wavelet_spectra(height, width).float())
        for name, side, n in zip(("rows", "columns"), padded, out, strict=True):
            at = STRIDE * torch.arange(1, n + 1)
            self.register_buffer(name, torch.stack([gaussian(side).roll(int(k)) for k in at]).float())

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, colours, height, width) -> (B, features)."""
        normalised = F.group_norm(self.coefficients(x).flatten(1, 2), self.groups)
        return F.adaptive_avg_pool2d(normalised, self.cells).flatten(1)

    def coefficients(self, x: Tensor) -> Tensor:
        """S0, S1 and S2 before any normalisation, (B, colours, 81, rows, columns)."""
        x = F.pad(x, self.margins, mode="reflect")
        first = torch.cat([x.unsqueeze(2), _moduli(x, self.wavelets[:ANGLES])], 2)
        second = _moduli(first, self.wavelets[ANGLES:], every=2).flatten(2, 3)
        return torch.cat([self._averages(first), self._averages(second, every=2)], 2)

    def _averages(self, x: Tensor, every: int = 1) -> Tensor:
        """x * phi at every fourth pixel, without margins, of images of which every n-th row and column is given."""
        rows, columns = (every * average[:, ::every] for average in (self.rows, self.columns))
        return rows @ x @ columns.mT


class StandardisedTransform(ScatteringTransform):
    """The same features less their mean on random images, all scaled to the same standard deviation there.

    A mean that all records share takes up much of a client's update, and so of its clip, and teaches nothing; features
    that spread far drown the others. Random images know both nearly as well as the records, at no cost of privacy.
    """

    version = "scattering 1, standardised"
    centre: Tensor
    spread: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        for name, value in zip(("centre", "spread"), _moments(shape), strict=True):
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) - self.centre) / self.spread


@cache
def _moments(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(features,) means of features of random images, and standard deviations relative to the average one.

    Rates and clips of plain features suit these too, since their scale is the same. Taken on a CPU whatever is trained
    where.
    """
    transform = ScatteringTransform(shape)
    with torch.inference_mode():
        found = torch.cat([transform(images) for images in dead_leaves(RANDOM_IMAGES, shape).float().split(4)])
    spread = found.std(0)
    return found.mean(0).clone(), (spread / spread.mean()).clamp_min(LEAST_SPREAD).clone()


def _moduli(x: Tensor, wavelets: Tensor, every: int = 1) -> Tensor:
    """|x * psi| at every n-th row and column of images (..., height, width), for each wavelet: (..., wavelets, ...)."""
    spectra = torch.fft.fft2(x).unsqueeze(-3) * (wavelets / every**2)
    if every > 1:  # the pixels that are left cannot tell these frequencies apart
        spectra = sum(part for half in spectra.chunk(every, -1) for part in half.chunk(every, -2))
    found = torch.fft.ifft2(spectra)
    # three times as fast as abs() on a CPU; what is added keeps the slope at zero finite, for whoever attacks
    return (found.real.square() + found.imag.square() + TINY).sqrt()


def wavelet_spectra(height: int, width: int) -> Tensor:
    """Discrete Fourier transforms, which are real, of all wavelets, (scales * angles, height, width), in float64.

    A Morlet wavelet is psi(u) = (exp(i u.xi) - beta) g(u) with g a Gaussian of standard deviation s = 0.8 2^j along the
    angle and s ANGLES / 4 across it, |xi| = (3 pi / 4) 2^-j, and beta such that its mean is zero; wrapped around the
    image. Together with phi they amplify no frequency: before its normalisation the transform moves no more than the
    image does.
    """
    return torch.stack([_morlet(height, width, j, pi * a / ANGLES) for j in range(SCALES) for a in range(ANGLES)])


def _morlet(height: int, width: int, scale: int, angle: float) -> Tensor:
    spread, slant = 0.8 * 2**scale, 4 / ANGLES
    wraps = torch.arange(-2, 3, dtype=torch.float64)
    y = (torch.arange(height)[:, None] + height * wraps)[:, :, None, None]
    x = torch.arange(width)[:, None] + width * wraps
    along, across = x * cos(angle) + y * sin(angle), y * cos(angle) - x * sin(angle)
    envelope = torch.exp(-(along.square() + (slant * across).square()) / (2 * spread**2))
    wave = torch.polar(envelope, 0.75 * pi / 2**scale * along).sum((1, 3))
    envelope = envelope.sum((1, 3))
    psi = (wave - wave.sum() / envelope.sum() * envelope) * slant / (2 * pi * spread**2)
    return torch.fft.fft2(psi).real


def gaussian(side: int) -> Tensor:
    """One axis of phi: a Gaussian of standard deviation 0.8 2^(J-1) around 0, wrapped around, (side,) of sum 1."""
    u = torch.arange(side)[:, None] + side * torch.arange(-2, 3, dtype=torch.float64)
    bump = torch.exp(-u.square() / (2 * (0.8 * 2 ** (SCALES - 1)) ** 2)).sum(1)
    return bump / bump.sum()
