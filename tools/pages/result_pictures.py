"""The pictures of docs/results.md, from the files in results/: accuracy over rounds, and what privacy costs.

python tools/pages/result_pictures.py
"""

from pathlib import Path

import numpy as np
from beyond_paper import FOLDERS, NAMES
from runs_found import NAMES as PAPER_NAMES
from runs_found import Found, cells_in, load

from fedceo.report.figures import accuracy_curves
from fedceo.report.loading import Group, from_entry
from fedceo.report.style import COLOURS, Array, Drawing, light_grid, panels, styled

DOCS = Path(__file__).resolve().parents[2] / "docs"
CURVES = {f"lenet5-sigma-{sigma}": f"paper/table1/cifar10-lenet5/sigma-{float(sigma)}" for sigma in ("1", "1.5", "2")}
"""The setting that each picture shows, by the picture's name."""
EPSILONS = ("0.5", "2", "8")


def over_rounds(setting: str, cells: dict[str, Found]) -> Drawing:
    """Accuracy over rounds of every method in one setting."""
    names = [name for name in cells_in(setting) if name in cells]
    groups = [
        Group(
            PAPER_NAMES[name.rpartition("/")[2]],
            tuple(from_entry(each, Path(each["name"])) for each in cells[name].done),
        )
        for name in names
    ]
    return accuracy_curves(groups)


@styled
def trade_offs(folder: str, cells: dict[str, Found]) -> Drawing:
    """Last accuracy of every method at both epsilons, under central and distributed noise; seeds as strokes.

    Returns:
        data["NOISE/METHOD"], (2,) mean accuracies in percent at epsilon 2 and 8; data["without privacy"], (1,).
    """
    figure, axes = panels(1, 2, 8.2, 3.6, sharex=True)
    level = float(np.mean(cells[f"{folder}/without-privacy/fedavg"].percent("last")))
    data: dict[str, Array] = {"without privacy": np.array([level])}
    for panel, noise in zip(axes[0], ("central", "distributed"), strict=True):
        methods = [m for m in NAMES if f"{folder}/epsilon-2/{noise}/{m}" in cells]
        for method in methods:
            found = [cells[f"{folder}/epsilon-{epsilon}/{noise}/{method}"].percent("last") for epsilon in (2, 8)]
            data[f"{noise}/{method}"] = np.array([np.mean(values) for values in found])
        methods.sort(key=lambda m: data[f"{noise}/{m}"][1])
        for row, method in enumerate(methods):
            low, high = data[f"{noise}/{method}"]
            panel.plot([low, high], [row, row], color="#BBBBBB", zorder=1)
            for epsilon, colour in ((2, COLOURS[0]), (8, COLOURS[1])):
                seeds = cells[f"{folder}/epsilon-{epsilon}/{noise}/{method}"].percent("last")
                panel.plot(seeds, [row] * len(seeds), "|", color=colour, markersize=9, zorder=1)
            panel.plot(low, row, "o", color=COLOURS[0], label="epsilon 2" if row == 0 else None)
            panel.plot(high, row, "D", color=COLOURS[1], label="epsilon 8" if row == 0 else None)
        panel.axvline(level, color="#000000", linestyle="dotted", label="FedAvg without privacy")
        panel.set_yticks(
            range(len(methods)),
            [
                NAMES[m]
                .replace(", one model", "")
                .replace("threshold by the noise", "noise-aware")
                .replace("personalised restarts", "personalised")
                for m in methods
            ],
        )
        panel.set(title=f"{noise} noise", xlabel="test accuracy, last round, %")
        light_grid(panel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return Drawing(figure, data, f"{FOLDERS[folder]}: last accuracy of every method, user level.")


OVER_EPSILON = {
    "fedavg-standardised-banded": ("FedAvg on standardised features, banded noise", COLOURS[4], "v"),
    "fedavg-standardised": ("FedAvg on standardised features", COLOURS[5], "P"),
    "fedavg-banded": ("FedAvg on fixed features, banded noise", COLOURS[0], "o"),
    "fedavg": ("FedAvg on fixed features", COLOURS[1], "D"),
    "fedceo-standardised": ("FedCEO on standardised features", COLOURS[2], "s"),
    "fedavg-small-cnn": ("FedAvg, small CNN", COLOURS[3], "^"),
}
"""Method -> its name, colour and mark in the picture of accuracy over epsilon."""


@styled
def over_epsilon(cells: dict[str, Found]) -> Drawing:
    """Accuracy over epsilon of tuned runs; every seed is a stroke, the line goes through their means.

    Returns:
        data[METHOD], (n, 2) epsilons and mean accuracies in percent.
    """
    table, data = "beyond/features/cifar10-1000", {}
    figure, axes = panels(1, 1, 7.0, 3.6)
    panel = axes[0, 0]
    for method, (name, colour, mark) in OVER_EPSILON.items():
        found = {e: cells.get(f"{table}/epsilon-{e}/central/{method}") for e in EPSILONS}
        seeds = {float(e): each.percent("average") for e, each in found.items() if each is not None}
        if not seeds:
            continue
        data[method] = np.array([(e, np.mean(values)) for e, values in seeds.items()])
        panel.plot(*data[method].T, color=colour, marker=mark, label=name)
        for epsilon, values in seeds.items():
            panel.plot([epsilon] * len(values), values, "_", color=colour, markersize=9)
    level = float(np.mean(cells[f"{table}/without-privacy/fedavg"].percent("average")))
    panel.axhline(level, color="#000000", linestyle="dotted", label="FedAvg on fixed features, no privacy")
    panel.set(xlabel="epsilon of an outsider, user level", ylabel="test accuracy, %", xscale="log")
    panel.set_xticks([float(e) for e in EPSILONS], EPSILONS)
    panel.minorticks_off()
    light_grid(panel)
    panel.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize="small")
    return Drawing(figure, data, "CIFAR-10 dealt to 1,000 clients: accuracy over epsilon.")


def main() -> None:
    cells = load()
    drawings = {name: over_rounds(setting, cells) for name, setting in CURVES.items()}
    for folder in FOLDERS:
        if all(name in cells for name in cells_in(folder)):
            drawings[f"trade-off-{folder.rpartition('/')[2]}"] = trade_offs(folder, cells)
    drawings["accuracy-over-epsilon"] = over_epsilon(cells)
    for name, drawing in drawings.items():
        drawing.figure.savefig(DOCS / f"{name}.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
