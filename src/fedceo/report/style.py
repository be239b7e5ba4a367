"""The common style of all figures: vector graphics, readable in grey and by colour-blind readers."""

import io
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[Any]

COLOURS = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
"""The colours of Okabe and Ito, distinct to colour-blind eyes; dashes and markers tell lines apart in grey."""
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LARGE_IS_RED = "YlOrRd"
SEQUENCE = "cividis"

STAGE_NAMES = {"trained": "before noise", "uploaded": "as uploaded", "smoothed": "after smoothing"}

_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedceo",
}

styled = matplotlib.rc_context(_SETTINGS)
"""A decorator that gives a function's figures the common style and leaves matplotlib's settings as they were."""


@dataclass(frozen=True)
class Drawing:
    """A figure with its data and caption.

    Attributes:
        figure: a matplotlib figure with constrained layout; `figure.savefig("name.pdf")` saves it for a paper.
        data: the arrays drawn, by name.
        caption: one or two sentences that describe the figure, for readers and for screen readers.
    """

    figure: Figure
    data: dict[str, Array]
    caption: str

    def svg(self) -> str:
        """The figure as SVG text, the same for the same data."""
        out = io.StringIO()
        with matplotlib.rc_context(_SETTINGS):
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return out.getvalue()


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Array]:
    """A figure with (rows, columns) axes; width and height of the whole in inches."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    return figure, np.asarray(figure.subplots(rows, columns, squeeze=False, **options))


def line_style(number: int) -> dict[str, Any]:
    """Colour, dash and marker of the line with this number; 32 lines differ in at least one."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number // len(COLOURS) + number) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 3.5,
        "linewidth": 1.5,
    }


def light_grid(axes: Axes) -> None:
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
