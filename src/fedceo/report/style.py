"""The common style of all figures: vector graphics, readable in grey and by colour-blind readers."""

import io
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedceo.errors import UsageError
from fedceo.simulation.durable import write_whole

Array = NDArray[Any]
Span = tuple[float, float] | None
FORMATS: dict[str, dict[str, None]] = {
    "pdf": {"CreationDate": None}, "png": {"Software": None}, "svg": {"Date": None, "Creator": None},
}  # fmt: skip
"""Endings of figure files, with what is left out of them so that the same data give the same file."""

COLOURS = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
"""The colours of Okabe and Ito, distinct to colour-blind eyes; dashes and markers tell lines apart in grey."""
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
BELOW: Final = "outside lower center"
"""The place of legends."""
SMALLEST, LARGEST = 1.0, 60.0
"""Inches of a figure's side: below nothing but its letters would be left, above no page or screen shows it."""
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

_CHOSEN: ContextVar[dict[str, Any]] = ContextVar("chosen", default={})  # noqa: B039 - it is never changed
"""Settings of matplotlib that go over the common ones."""
P = ParamSpec("P")


def styled(draw: "Callable[P, Drawing]") -> "Callable[P, Drawing]":
    """A decorator that gives a function's figures the common style and leaves matplotlib's settings as they were."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Drawing:
        with matplotlib.rc_context(_SETTINGS | _CHOSEN.get()):
            return draw(*args, **kwargs)

    return drawn


def _sheet(name: str) -> dict[str, Any]:
    """The settings of a style sheet; matplotlib only logs what is wrong with a file and goes on with the rest."""
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    logger = logging.getLogger("matplotlib")
    logger.addHandler(listener)
    try:
        library: dict[str, Any] = matplotlib.style.library
        sheet: Any = library.get(name) or matplotlib.rc_params_from_file(name, use_default_template=False)
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--style: {name!r}, expected a style sheet of matplotlib, or a file with one") from None
    finally:
        logger.removeHandler(listener)
    if said:
        raise UsageError(f"--style: {name!r} is no style sheet of matplotlib: {said[0]}")
    return dict(sheet)


@contextmanager
def restyled(name: str | None) -> Iterator[None]:
    """Figures drawn inside have one of matplotlib's style sheets, or that of a file, over the common style."""
    settings: dict[str, Any] = {}
    if name is not None:
        settings = _sheet(name)
    token = _CHOSEN.set(settings)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


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

    def save(self, path: Path, size: Span = None, xlim: Span = None, ylim: Span = None) -> None:
        """Write the figure to a file, whole or not at all, in the format of its ending.

        Args:
            size: width and height in inches.
            xlim: limits of the horizontal axis, of a figure that has one pair of axes.
            ylim: those of the vertical axis.
        """
        self._check(size, xlim, ylim)
        if size:
            self.figure.set_size_inches(size)
            self._fit_legend()
        for panel in self.figure.axes if xlim or ylim else ():
            panel.set(**{name: span for name, span in (("xlim", xlim), ("ylim", ylim)) if span})
        kind = path.suffix.removeprefix(".")
        if kind not in FORMATS:
            raise UsageError(f"--out: {path}, expected a name that ends in .{', .'.join(FORMATS)}")
        out = io.BytesIO()
        with matplotlib.rc_context(_SETTINGS | _CHOSEN.get()):
            self.figure.savefig(out, format=kind, dpi=300, metadata=FORMATS[kind])
        write_whole(path, out.getvalue())

    def _check(self, size: Span, xlim: Span, ylim: Span) -> None:
        """Refuse what matplotlib would answer by a traceback, or by a figure that nobody asked for."""
        if size and not all(SMALLEST <= side <= LARGEST for side in size):
            given = "x".join(f"{side:g}" for side in size)
            raise UsageError(f"--size: {given}, expected two numbers of inches from {SMALLEST:g} to {LARGEST:g}")
        if (xlim or ylim) and len(self.figure.axes) > 1:
            raise UsageError("--xlim, --ylim: this figure has several axes, expected none")
        for name, span in (("x", xlim), ("y", ylim)):
            if not span:
                continue
            given = ",".join(f"{limit:g}" for limit in span)
            if not -math.inf < span[0] < span[1] < math.inf:
                raise UsageError(f"--{name}lim: {given}, expected two numbers, the smaller one first")
            if getattr(self.figure.axes[0], f"get_{name}scale")() == "log" and span[0] <= 0:
                raise UsageError(f"--{name}lim: {given}, expected numbers above 0: this axis is logarithmic")

    def _fit_legend(self) -> None:
        """Give a legend below the figure fewer columns until it is no wider than the figure.

        It is made anew every time, because matplotlib arranges a legend only once.
        """
        for columns in (2, 1):
            self.figure.draw_without_rendering()
            wide = [each for each in self.figure.legends if each.get_window_extent().width > self.figure.bbox.width]
            if not wide:
                return
            for legend in wide:
                legend.remove()
                with matplotlib.rc_context(_SETTINGS | _CHOSEN.get()):
                    self.figure.legend(loc=BELOW, ncols=columns)

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


def line_style(method: int, variant: int = 0) -> dict[str, Any]:
    """Colour and marker of the method with this number, and the dash of its variant with that number."""
    return {
        "color": COLOURS[method % len(COLOURS)],
        "linestyle": DASHES[(method // len(COLOURS) + variant) % len(DASHES)],
        "marker": MARKERS[(method + variant // len(DASHES)) % len(MARKERS)],
        "markersize": 3.5,
        "linewidth": 1.5,
    }


def light_grid(axes: Axes) -> None:
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
