"""Figures of recorded rounds: the models of a cohort before noise, as uploaded, and after smoothing."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedceo.errors import UsageError
from fedceo.report.style import LARGE_IS_RED, SEQUENCE, STAGE_NAMES, Array, Drawing, light_grid, panels, styled
from fedceo.simulation.recording import Recording
from fedceo.tensors import fold, spectrum

DROP = 0.10
"""Loss of accuracy, compared with before the noise, from which on a class is marked."""
LEAST_BAR = 2
"""Least height in points of a marked bar: a class that fell to zero must not look like one without records."""
MOST_CLIENTS = 4
"""Clients in a figure of bars."""
DARKEST = 1e-4
"""Smallest value with a colour of its own, relative to the largest value."""


def of_recording(recording: Recording) -> dict[str, Drawing]:
    """All figures that can be drawn from one recorded round, by name."""
    layers = layers_of(recording)
    drawings = {"class_bars": class_bars(recording)}
    if layers and len(recording.clients) > 1:
        drawings["smoothness"] = smoothness(recording)
    if layers:
        drawings["singular_values"] = singular_values(recording)
    return drawings


def layers_of(recording: Recording) -> list[str]:
    """The recorded weight matrices and convolutions, in the model's order."""
    stack = next(iter(recording.stacks.values()))
    return [name for name, w in stack.items() if w.ndim > 2]


@styled
def smoothness(recording: Recording, layer: str | None = None) -> Drawing:
    """A figure of the distance of each client's weights of each class to the other clients' weights.

    R[c, k] = 1/2 sum_l |w_ck - w_cl|^2 / (m - 1) over the other clients l, the Laplacian form of a complete graph. The
    scale-free form divides by the mean of |w_ck|^2 over clients, because soft-thresholding shrinks all norms.

    Args:
        layer: a weight whose first axis is classes; left out: the last recorded one.

    Returns:
        data["raw"] and data["relative"], (stages, classes, m).
    """
    layer = _layer(recording, layer)
    stages = list(recording.stacks)
    raw, relative = [], []
    for stage in stages:
        w = recording.stacks[stage][layer].double().flatten(2)  # (m, classes, entries)
        m = len(w)
        if m < 2:
            raise UsageError(f"round {recording.round}: one client alone is neither near to others nor far")
        apart = (w - w.mean(0)).square().sum(2)
        r = (m * apart + apart.sum(0)) / (2 * (m - 1))
        size = w.square().sum(2).mean(0).clamp_min(torch.finfo(torch.float64).tiny)
        raw.append(r.T.numpy())
        relative.append((r / size).T.numpy())
    data = {"raw": np.stack(raw), "relative": np.stack(relative)}
    classes, clients = raw[0].shape
    figure, axes = panels(2, len(stages), 1.2 + 2.0 * len(stages), 4.4, sharex=True, sharey=True)
    rows = (("raw", "squared distance"), ("relative", "over own size"))
    for row, (kind, label) in enumerate(rows):
        top = float(data[kind].max()) or 1.0
        scale = LogNorm(max(float(data[kind].min()), DARKEST * top), top)
        for column, stage in enumerate(stages):
            panel = axes[row, column]
            edges = (np.arange(clients + 1) - 0.5, np.arange(classes + 1) - 0.5)
            image = panel.pcolormesh(*edges, data[kind][column].clip(scale.vmin), norm=scale, cmap=LARGE_IS_RED)
            panel.set_title(STAGE_NAMES[stage] if row == 0 else "")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes[row, 0].set_ylabel("class")
        figure.colorbar(image, ax=list(axes[row]), label=label)
    for panel in axes[-1]:
        panel.set_xlabel("place in the cohort")
    means = ", ".join(
        f"{STAGE_NAMES[stage]} {values.mean():.3g}" for stage, values in zip(stages, data["relative"], strict=True)
    )
    caption = (
        f"Round {recording.round}, {layer}: squared distance of each client's weights of a class to the other "
        f"clients', as it is (above) and over the weights' own size (below), one logarithmic colour scale in each row. "
        f"Mean of the lower row: {means}."
    )
    return Drawing(figure, data, caption)


@styled
def class_bars(recording: Recording, clients: Sequence[int] | None = None) -> Drawing:
    """A figure of single clients' accuracies on each class, stage by stage, with losses over 10 points marked.

    Args:
        clients: client numbers to draw; left out: the first four of the cohort.

    Returns:
        data["accuracy"], (stages, clients drawn, classes), in 0..1, and data["marked"], the same shape.
    """
    chosen = list(recording.clients[:MOST_CLIENTS]) if clients is None else list(clients)
    missing = [client for client in chosen if client not in recording.clients]
    if missing:
        raise UsageError(f"clients: {missing[0]} was not in round {recording.round}")
    positions = [recording.clients.index(client) for client in chosen]
    stages = list(recording.accuracy)
    accuracy = np.stack([recording.accuracy[stage].numpy()[positions] for stage in stages])
    marked = accuracy[:1] - accuracy > DROP
    figure, axes = panels(
        len(chosen), len(stages), 0.6 + 2.3 * len(stages), 0.7 + 1.1 * len(chosen), sharex=True, sharey=True
    )
    for row, client in enumerate(chosen):
        for column, stage in enumerate(stages):
            panel = axes[row, column]
            for number, (value, fell) in enumerate(zip(accuracy[column, row], marked[column, row], strict=True)):
                look = {"color": "#F4A6C0", "hatch": "////", "edgecolor": "#99004D"} if fell else {"color": "#0072B2"}
                panel.bar(number, max(100 * value, LEAST_BAR * fell), width=0.8, linewidth=0.6, **look)
            panel.set_ylim(0, 100)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            light_grid(panel)
            if row == 0:
                panel.set_title(STAGE_NAMES[stage])
        name = recording.names[positions[row]] if recording.names else client
        axes[row, 0].set_ylabel(f"client {name}\naccuracy, %", parse_math=False)
    for panel in axes[-1]:
        panel.set_xlabel("class")
    caption = f"Round {recording.round}: accuracy of single clients' models on the test records of each class."
    if len(stages) > 1:
        caption += f" Hatched: more than {100 * DROP:.0f} points lower than {STAGE_NAMES[stages[0]]}."
    return Drawing(figure, {"accuracy": accuracy, "marked": marked}, caption)


@styled
def singular_values(recording: Recording, layer: str | None = None) -> Drawing:
    """A figure of the singular values of the uploads in the Fourier domain of the client axis, before smoothing.

    Args:
        layer: the weight to decompose; left out: the first recorded one.

    Returns:
        data["values"], (floor(m / 2) + 1, min(d, h)): one row for each distinct frequency, the client sum first;
        data["threshold"] and data["edge"], one number each or none: the threshold of smoothing, and the largest
        singular value of noise of this size alone, s sqrt(m) (sqrt(d) + sqrt(h)).
    """
    layer = _layer(recording, layer, first=True)
    w = fold(recording.stacks["uploaded"], [layer])[layer]
    d, h, m = w.shape
    values = spectrum(w)[: m // 2 + 1].numpy()
    edge = [recording.noise * m**0.5 * (d**0.5 + h**0.5)] if recording.noise else []
    threshold = [recording.thresholds[layer]] if layer in recording.thresholds else []
    figure, axes = panels(1, 1, 5.6, 3.6)
    panel = axes[0, 0]
    colours = colormaps[SEQUENCE]
    scale = Normalize(1, max(m // 2, 2))
    order = np.arange(1, values.shape[1] + 1)
    marker = "." if values.shape[1] < 40 else None
    for frequency in range(len(values) - 1, 0, -1):
        panel.plot(order, values[frequency], color=colours(0.9 * scale(frequency)), linewidth=1, marker=marker)
    panel.plot(order, values[0], color="black", linewidth=2, marker=marker, label="frequency 0, the sum of all clients")
    for level, words, dash in ((threshold, "threshold", "dashed"), (edge, "edge of the noise", "dotted")):
        if level:
            panel.axhline(level[0], color="#D55E00", linestyle=dash, linewidth=1.5, label=f"{words}, {level[0]:.3g}")
    panel.set_yscale("log")
    floor = DARKEST * float(values.max())
    panel.set_ylim(bottom=max(float(values[values > 0].min(initial=floor)), floor) / 1.5)
    panel.set(xlabel="singular value, in order", ylabel="size")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    light_grid(panel)
    if len(values) > 1:
        shades = ScalarMappable(scale, ListedColormap(colours(np.linspace(0, 0.9, 256))))
        figure.colorbar(shades, ax=panel, label="frequency", ticks=MaxNLocator(integer=True))
    figure.legend(loc="outside upper left")
    others = f"; the largest of the other frequencies is {values[1:].max():.3g}" if len(values) > 1 else ""
    caption = (
        f"Round {recording.round}, {layer}: singular values of the {m} uploads in the Fourier domain of the client "
        f"axis. The largest of frequency 0 is {values[0].max():.3g}{others}."
    )
    return Drawing(figure, {"values": values, "threshold": np.array(threshold), "edge": np.array(edge)}, caption)


@styled
def survivors(recordings: Sequence[Recording], layer: str | None = None) -> Drawing:
    """A figure of the number of singular values of each frequency above the threshold, smoothing after smoothing.

    Cohorts of different sizes have different numbers of frequencies; cells of a smaller cohort's missing frequencies
    stay empty.

    Args:
        recordings: rounds of one run; those that do not smooth are left out.

    Returns:
        data["rounds"], (rounds,), and data["counts"], (frequencies, rounds), NaN where there is no such frequency.
    """
    smoothed = [recording for recording in recordings if recording.thresholds]
    if not smoothed:
        raise UsageError(
            "survivors: none of the recorded rounds smooths; let record.every be a multiple of method.interval"
        )
    layer = _layer(smoothed[0], layer, first=True)
    if layer not in smoothed[0].thresholds:
        raise UsageError(f"layer: {layer} is not smoothed, only {', '.join(smoothed[0].thresholds)}")
    columns = []
    for recording in smoothed:
        w = fold(recording.stacks["uploaded"], [layer])[layer]
        above = (spectrum(w) > recording.thresholds[layer]).sum(1)
        columns.append(above[: w.shape[2] // 2 + 1].tolist())
    height = max(map(len, columns))
    counts = np.array([column + [np.nan] * (height - len(column)) for column in columns], dtype=float).T
    rounds = np.array([recording.round for recording in smoothed])
    return Drawing(*_draw_survivors(rounds, counts), caption=_survivors_caption(rounds, counts, layer))


def _draw_survivors(rounds: Array, counts: Array) -> tuple[Figure, dict[str, Array]]:
    figure, axes = panels(1, 1, 5.6, 3.4)
    panel = axes[0, 0]
    edges = (np.arange(len(rounds) + 1) - 0.5, np.arange(len(counts) + 1) - 0.5)
    top = max(float(np.nanmax(counts)), 1.0)
    image = panel.pcolormesh(*edges, counts, vmin=0, vmax=top, cmap=SEQUENCE)
    if counts.size <= 200:
        for (frequency, column), count in np.ndenumerate(counts):
            if not np.isnan(count):
                colour = "white" if count < 0.5 * top else "black"
                panel.text(column, frequency, f"{count:.0f}", ha="center", va="center", fontsize=7, color=colour)
    shown = range(0, len(rounds), -(-len(rounds) // 10))
    panel.set_xticks(list(shown), [str(rounds[column]) for column in shown])
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set(xlabel="round", ylabel="frequency")
    figure.colorbar(image, ax=panel, label="singular values above the threshold", ticks=MaxNLocator(integer=True))
    return figure, {"rounds": rounds, "counts": counts}


def _survivors_caption(rounds: Array, counts: Array, layer: str) -> str:
    first, last = np.nansum(counts[:, 0]), np.nansum(counts[:, -1])
    return (
        f"{layer}: singular values that survive smoothing, by frequency (0 is what clients have in common). All "
        f"frequencies together: {first:.0f} in round {rounds[0]}, {last:.0f} in round {rounds[-1]}."
    )


def _layer(recording: Recording, layer: str | None, first: bool = False) -> str:
    known = layers_of(recording)
    if layer is None and known:
        return known[0] if first else known[-1]
    if layer not in known:
        names = ", ".join(known) or "none"
        raise UsageError(f"layer: {layer!r} was not recorded in round {recording.round}; there are: {names}")
    return layer
