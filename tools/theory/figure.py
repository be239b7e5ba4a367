"""The figure of docs/theory.md: how epsilon_u and epsilon_u epsilon_p grow, beside lines of the claimed exponents."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from words import NAMES

from fedceo.report.style import Array, Drawing, light_grid, line_style, panels, styled

SHOWN = ("udp-fedavg", "fedceo-theorem", "fedceo-scheduled-mean", "fedceo-noise-mean", "centaur", "jain")
"""Restart own is left out: its lines lie on those of restart mean."""
PANELS = (
    ("d", False, "d, dimension of a record", (0.5, 1.0, 1.5)),
    ("K, N fixed", False, "K, clients of a round, of N = 1,024", (-1.0, -2.0)),
    ("N, K fixed", True, "N, clients, of which K = 128 a round", (0.0, -1.0)),
    ("sigma", True, "sigma, noise multiplier", (0.0, 1.0)),
)
"""Sweep, whether epsilon_u is multiplied by epsilon_p, what varies, exponents drawn as grey lines."""

Measured = tuple[Mapping[float, list[float]], Mapping[float, float], Mapping[float, float]]


@styled
def draw(found: Mapping[tuple[str, str], Measured]) -> Drawing:
    """found: (sweep, method) -> epsilon_u of every seed, epsilon_p and the floor, by the varied number."""
    figure, axes = panels(2, 2, 8.4, 7.0)
    data: dict[str, Array] = {}
    for panel, (sweep, times_privacy, label, exponents) in zip(axes.flat, PANELS, strict=True):
        for number, method in enumerate(SHOWN):
            losses, privacy, _ = found[sweep, method]
            if not losses:
                continue
            x = np.array(list(losses), float)
            y = np.array([losses[at] for at in losses]) * (
                np.array([[privacy[at]] for at in losses]) if times_privacy else 1.0
            )
            data |= {f"{sweep}/{method}/x": x, f"{sweep}/{method}/y": y}
            style = line_style(number)
            panel.errorbar(
                x, y.mean(1), yerr=[y.mean(1) - y.min(1), y.max(1) - y.mean(1)], capsize=2,
                label=NAMES[method] if sweep == "d" else None, **style,
            )  # fmt: skip
        _guides(panel, exponents)
        product = "epsilon_u epsilon_p" if times_privacy else "epsilon_u"
        panel.set(xscale="log", yscale="log", xlabel=label, ylabel=product)
        ticks = [f"{x:g}" for x in found[sweep, SHOWN[0]][0]]
        panel.set_xticks([float(tick) for tick in ticks], ticks)
        panel.xaxis.set_minor_locator(NullLocator())
        light_grid(panel)
    figure.legend(loc="outside lower center", ncols=2)
    return Drawing(
        figure,
        data,
        "epsilon_u against d and K, and its product with epsilon_p against N and sigma, on logarithmic axes; mean over "
        "seeds, bars from least to most. Grey lines have the exponents written on them.",
    )


def _guides(panel: Axes, exponents: Sequence[float]) -> None:
    """Straight lines through the middle of what is drawn, each with its exponent at its end."""
    left, right = panel.dataLim.intervalx
    drawn = np.concatenate([line.get_ydata() for line in panel.get_lines()])
    low, high = drawn[drawn > 0].min(), drawn.max()  # a loss may come out below the least one known
    middle_x, middle_y = np.sqrt(left * right), np.sqrt(low * high)
    ends = np.array([left, right])
    for exponent in exponents:
        y = middle_y * (ends / middle_x) ** exponent
        panel.plot(ends, y, color="#999999", linewidth=0.8, zorder=0)
        panel.annotate(f"{exponent:g}", (right, y[1]), xytext=(3, 0), textcoords="offset points", color="#666666",
                       fontsize=7, va="center")  # fmt: skip
