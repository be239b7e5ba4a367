"""Random images that follow from no data: dead leaves, discs of all sizes that lie on each other at random.

They share edges, flat patches and objects of all sizes with photographs (Lee, Mumford and Huang 2001). That is enough
to know roughly the mean and the spread of a photograph's features, and tells nothing about anybody.
"""

import numpy as np
import torch
from torch import Tensor

LEAVES = 60
"""Discs of an image, which begins as one plain colour."""
SMALLEST, LARGEST = 1 / 20, 0.6
"""Least and largest radius as parts of the image's shorter side; in between, images look alike at every zoom."""
MARGIN = 1 / 8
"""How far outside the image centres may lie, as a part of its side."""
TINT = 0.25
"""How far the colours of a disc spread around its grey; grey goes from 0 to 1."""


def dead_leaves(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """(count, *shape) images, every colour with mean 0 and standard deviation 1 over all of them.

    Args:
        shape: (colours, height, width).
    """
    colours, height, width = shape
    draw = np.random.Generator(np.random.PCG64(seed)).random
    smallest, largest = (max(1.0, part * min(height, width)) for part in (SMALLEST, LARGEST))
    images = np.broadcast_to(draw((count, colours, 1, 1)), (count, *shape)).copy()
    y, x = np.arange(height)[:, None], np.arange(width)
    for _ in range(LEAVES):
        # the inverse of the distribution of radii whose density falls as their third power
        radius = smallest / np.sqrt(1 - draw((count, 1, 1)) * (1 - (smallest / largest) ** 2))
        down, right = (side * ((1 + 2 * MARGIN) * draw((count, 1, 1)) - MARGIN) for side in (height, width))
        covered = ((y - down) ** 2 + (x - right) ** 2 < radius**2)[:, None]
        colour = draw((count, 1, 1, 1)) + TINT * (draw((count, colours, 1, 1)) - 0.5)
        images = np.where(covered, colour.clip(0, 1), images)
    images -= images.mean((0, 2, 3), keepdims=True)
    return torch.from_numpy(images / images.std((0, 2, 3), keepdims=True))
