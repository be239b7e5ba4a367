"""A grid of reconstructions: a row for each picture, from the truth over the start to the end, with PSNR below."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedceo.attacks.metrics import psnr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 8


def grid_figure(
    truth: Tensor, path: Mapping[int, Tensor], names: Sequence[str], title: str, most: int = MOST_ROWS
) -> "Figure":
    """A figure with a row for each of the first `most` records.

    Args:
        truth: (n, channels, height, width) from 0 to 1.
        path: step -> (n, channels, height, width); step 0 is the start.
        names: the label of each row.
    """
    from matplotlib.figure import Figure  # here, because it is slow to import

    rows, columns = min(most, len(truth)), [None, *path]
    figure = Figure(figsize=(0.95 * len(columns) + 0.6, 1.18 * rows + 0.5), layout="constrained", dpi=150)
    axes = figure.subplots(rows, len(columns), squeeze=False)
    for column, step in enumerate(columns):
        shown = truth if step is None else path[step]
        decibels = psnr(shown, truth)
        for row in range(rows):
            panel = axes[row, column]
            panel.imshow(_pixels(shown[row]), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_xlabel("" if step is None else f"{float(decibels[row]):.1f} dB", fontsize=7, labelpad=2)
            if row == 0:
                panel.set_title(_heading(step, max(path)), fontsize=8)
            if column == 0:
                panel.set_ylabel(names[row], fontsize=7)
    figure.suptitle(title, fontsize=9)
    return figure


def _heading(step: int | None, last: int) -> str:
    if step is None:
        return "truth"
    if step == 0:
        return "start"
    return f"end ({step})" if step == last else f"step {step}"


def _pixels(picture: Tensor) -> object:
    """A picture (channels, height, width) as matplotlib takes it; without three channels it is shown as their mean."""
    picture = picture.detach().cpu().clamp(0, 1)
    return (picture.permute(1, 2, 0) if len(picture) == 3 else picture.mean(0)).numpy()
