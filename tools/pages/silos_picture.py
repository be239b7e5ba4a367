"""The pictures of docs/collaboration.md, from results/silos/: which method is best where, and every single silo.

python tools/pages/silos_picture.py
"""

import json
from itertools import product
from typing import Any

import numpy as np
from runs_found import ROOT, Found, compare, load
from silos_cells import NAMES, OURS, P_DIST, axes, mean_of, place
from silos_page import CLIENTS

from fedceo.report.style import COLOURS, Drawing, light_grid, panels, styled

TABLE = "silos/cifar10-100"
KINDS = {"fedceo": "FedCEO", "local": "alone", "fedavg": "one model for all"}
"""The kind of a method by the first word of its name; the others are of one kind."""
COLOUR = {
    "FedCEO": COLOURS[0], "alone": COLOURS[1], "one model for all": "#999999", "other personal methods": COLOURS[3],
}  # fmt: skip


def _lines(method: str) -> str:
    """A method's name in lines that fit a square."""
    return NAMES[method].replace(", ", "\n", 1)


@styled
def winners(cells: dict[str, Found]) -> Drawing:
    """A square for every epsilon and partition, in the colour of the kind of its best method by mean P-dist.

    Returns:
        data["EPSILON/PARTITION"], (2,): the best mean P-dist in percent and its lead over the next method.
    """
    run = [(e, p) for e, p in product(*axes(TABLE)) if sum(place(TABLE, e, m, p) in cells for m in NAMES) > 1]
    epsilons, partitions = ([each for each in axis if any(each in pair for pair in run)] for axis in axes(TABLE))
    figure, ((panel,),) = panels(1, 1, max(6.4, 2.4 + 1.6 * len(partitions)), 1.2 + 0.8 * len(epsilons))
    data = {}
    for row, epsilon in enumerate(epsilons):
        for column, partition in enumerate(partitions):
            places = {method: place(TABLE, epsilon, method, partition) for method in NAMES}
            found = {method: cells[name] for method, name in places.items() if name in cells}
            means = {method: mean for method, each in found.items() if (mean := mean_of(each)) is not None}
            if len(means) < 2:  # one method alone has won nothing
                panel.text(column, row, "not compared", ha="center", va="center", color="#888888")
                continue
            best, *others = sorted(means, key=lambda method: -means[method])
            lead = means[best] - means[others[0]]
            data[f"{epsilon}/{partition}"] = np.array([means[best], lead])
            open_ = compare(*(found[method].by_seed(P_DIST) for method in (best, others[0]))) == "open"
            panel.barh(row, 0.96, 0.92, column - 0.48, color=COLOUR[_kind(best)], alpha=0.3 if open_ else 0.7)
            said = [_lines(best), f"{means[best]:.1f}", f"+{lead:.1f} on {_lines(others[0])}"]
            panel.text(column, row, "\n".join(said), ha="center", va="center", fontsize=6.5)
    for kind, colour in COLOUR.items():
        panel.barh(0, 0, color=colour, alpha=0.7, label=kind)
    panel.set_xticks(range(len(partitions)), partitions)
    panel.set_yticks(range(len(epsilons)), [each.replace("-", " ") for each in epsilons])
    panel.set(xlim=(-0.5, len(partitions) - 0.5), ylim=(-0.5, len(epsilons) - 0.5))
    figure.legend(loc="outside lower center", ncols=4)
    return Drawing(
        figure, data, "The best method by P-dist and its lead over the next; pale where seeds leave it open."
    )


@styled
def of_each_silo(measured: dict[str, Any]) -> Drawing:
    """P-dist of every silo alone, with the global model and collaborating, silos sorted by the last.

    Args:
        measured: the file that tools/silo_clients.py writes.

    Returns:
        data[METHOD], (silos,) in percent, in the order of the picture.
    """
    found = {method: 100 * np.array(values, dtype=float) for method, values in measured["p_dist"].items()}
    order = np.argsort(found[OURS])
    figure, ((panel,),) = panels(1, 1, 8.2, 3.2)
    data = {method: values[order] for method, values in found.items()}
    styles = {"local": ("alone", "v"), "fedavg": ("one model for all", "s"), OURS: ("FedCEO", "o")}
    for method, (kind, marker) in styles.items():
        label = f"{NAMES[method]}, mean {np.nanmean(data[method]):.1f}"
        panel.plot(data[method], marker, color=COLOUR[kind], markersize=3.5, label=label)
    panel.set(xlabel="silos, sorted", ylabel="P-dist, %")
    light_grid(panel)
    figure.legend(loc="outside lower center", ncols=3)
    return Drawing(figure, data, f"Every silo's own accuracy, {measured['setting'].replace('/', ', ')}, one seed.")


def _kind(method: str) -> str:
    word = method.partition("-")[0] if method != "fedavg-finetune" else method
    return KINDS.get(word, "other personal methods")


def main() -> None:
    cells = load()
    if any(name.startswith(f"{TABLE}/") for name in cells):
        _save(winners(cells), "silos-winners")
    if CLIENTS.exists():
        _save(of_each_silo(json.loads(CLIENTS.read_text())), "silos-clients")


def _save(drawing: Drawing, name: str) -> None:
    drawing.figure.savefig(ROOT / "docs" / f"{name}.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
