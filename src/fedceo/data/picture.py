"""A picture of a partition: how many training records of each label every client holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedceo.data.federation import Federation
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#117733",
    "#999933",
    "#DDCC77",
    "#CC6677",
    "#882255",
    "#AA4499",
    "#BBBBBB",
)
"""Paul Tol's muted scheme, distinct to colour-blind eyes."""
MOST_BARS = 60
MOST_NAMED = 40
"""Clients whose names there is room for below their bars; more are numbered."""


def label_counts(federation: Federation) -> Tensor:
    """(clients, classes) numbers of training records of each client with each label; (clients, 1) without labels."""
    if federation.y.ndim > 1:
        return federation.sizes[:, None]
    return torch.stack([federation.y[indices].bincount(minlength=federation.classes) for indices in federation.train])


def draw_partition(federation: Federation, path: str | Path) -> None:
    """Save the picture as .png or .pdf."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".png", ".pdf"):
        raise UsageError(f"{path}: expected a name that ends in .png or .pdf")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder to save a picture in")
    unfinished = path.with_name(f"{path.name}.part")  # a picture file appears complete or not at all
    partition_figure(federation).savefig(unfinished, format=suffix[1:])
    unfinished.replace(path)


def partition_figure(federation: Federation) -> "Figure":
    """A figure of stacked bars, or of a heat map where there are too many clients or labels for bars."""
    from matplotlib.figure import Figure  # here, because it is slow to import

    counts = label_counts(federation)
    figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    names = federation.label_names or tuple(map(str, range(federation.classes)))
    if federation.y.ndim > 1:
        names = ("any",)
    if federation.clients <= MOST_BARS and counts.shape[1] <= len(COLOURS):
        _bars(axes, counts, names)
    else:
        _heat_map(axes, counts, names)
    axes.set_xlabel("client")
    title = f"{federation.name}: {int(counts.sum()):,} training records of {federation.clients} clients"
    axes.set_title(title, parse_math=False)  # a data set's name may have dollars
    if federation.client_names and federation.clients <= MOST_NAMED:
        axes.set_xticks(range(federation.clients), federation.client_names, rotation=90, parse_math=False)
    else:
        axes.locator_params("x", integer=True)  # clients have whole numbers
    return figure


def _bars(axes: "Axes", counts: Tensor, names: Sequence[str]) -> None:
    clients, classes = counts.shape
    below = torch.zeros(clients, dtype=counts.dtype)
    for label in range(classes):
        axes.bar(
            range(clients),
            counts[:, label].numpy(),
            bottom=below.numpy(),
            color=COLOURS[label],
            edgecolor="white",
            linewidth=0.4,
            label=names[label],
        )
        below = below + counts[:, label]
    axes.set_ylabel("training records")
    axes.margins(x=0.01)
    axes.set_ylim(0, 1.05 * float(below.max()))
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles[::-1], labels[::-1], title="label", loc="outside right center", frameon=False)


def _heat_map(axes: "Axes", counts: Tensor, names: Sequence[str]) -> None:
    from matplotlib.colors import PowerNorm

    held = np.ma.masked_equal(counts.T.numpy(), 0)  # zero stays white: it must not look like a few
    scale = PowerNorm(0.5, vmin=0, vmax=float(counts.max()))  # a few large clients must not hide the others
    image = axes.imshow(held, norm=scale, cmap="YlGnBu", aspect="auto", interpolation="nearest", origin="lower")
    axes.figure.colorbar(image, ax=axes, label="training records (white: none)")
    axes.set_ylabel("label")
    if counts.shape[1] <= 30:
        axes.set_yticks(range(counts.shape[1]), names, parse_math=False)
