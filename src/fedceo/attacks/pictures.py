"""Reconstructions as a grid: a row for each picture, from the truth over the start to the end, PSNR underneath."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedceo.attacks.metrics import psnr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 8


def grid_figure(truth: Tensor, path: Mapping[int, Tensor], names: Sequence[str], title: str) -> "Figure":
    """A row for each of the first 8 records.

    Args:
        truth: (n, channels, height, width) from 0 to 1.
        path: step -> (n, channels, height, width), from 0, the start.
        names: what each row is called.
    """
    from matplotlib.figure import Figure  # here, because it is slow to import

    rows, columns = min(MOST_ROWS, len(truth)), [None, *path]
    figure = Figure(figsize=(0.95 * len(columns) + 0.6, 1.18 * rows + 0.5), layout="constrained", dpi=150)
    axes = figure.subplots(rows, len(columns), squeeze=False)
    for column, step in enumerate(columns):
        shown = truth if step is None else path[step]
        decibels = psnr(shown, truth)
        for row in range(rows):
            place = axes[row, column]
            place.imshow(_pixels(shown[row]), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            place.set_xticks([])
            place.set_yticks([])
            place.set_xlabel("" if step is None else f"{float(decibels[row]):.1f} dB", fontsize=7, labelpad=2)
            if row == 0:
                place.set_title(_heading(step, max(path)), fontsize=8)
            if column == 0:
                place.set_ylabel(names[row], fontsize=7)
    figure.suptitle(title, fontsize=9)
    return figure


def _heading(step: int | None, last: int) -> str:
    if step is None:
        return "truth"
    if step == 0:
        return "start"
    return f"end ({step})" if step == last else f"step {step}"


def _pixels(picture: Tensor) -> object:
    """(channels, height, width) as matplotlib takes it; all but colour pictures are shown as the mean of channels."""
    picture = picture.detach().cpu().clamp(0, 1)
    return (picture.permute(1, 2, 0) if len(picture) == 3 else picture.mean(0)).numpy()
