"""The measured part of docs/collaboration.md, from results/silos/, which tools/measure.py writes.

    python tools/pages/silos_page.py

A cell's name is EPSILON/METHOD/PARTITION. Whatever has no runs is said to have none.
"""

import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence

from runs_found import ROOT, Found, cells_in, chosen, compare, difference, load, markdown, shown, trials_of
from silos_alpha import ALPHAS, by_runs, by_trials, by_votes
from silos_cells import NAMES, OURS, P_DIST, P_GLOB, P_LOC, WORST, Cells, axes, mean_of, place
from trial_grids import grown, joined, silos_grid

PAGE = ROOT / "docs" / "collaboration.md"
BEGIN, END = "<!-- begin measured -->\n", "<!-- end measured -->\n"

TABLES = {
    "silos/cifar10-100": "CIFAR-10 in 100 silos, a linear model on scattering features",
    "silos/cifar10-20": "CIFAR-10 in 20 silos, a linear model on scattering features",
    "silos/femnist": "FEMNIST, 294 writers, a linear model on scattering features",
    "silos/cifar10-100-unequal": "CIFAR-10 in 100 silos of unequal sizes, a linear model on scattering features",
    "silos/cifar10-100-small-cnn": "CIFAR-10 in 100 silos, a small CNN on pixels",
    "silos/cifar10-100-mlp": "CIFAR-10 in 100 silos, an MLP on pixels",
}
CLIENTS = ROOT / "results" / "silos" / "cifar10-100.clients.json"
"""What every silo has of three methods, as tools/silo_clients.py writes it."""

INTRO = """Every method at the same epsilon of a record (zero-out, delta = min(1e-5, n^-1.1) for n records), against
everybody, the server included; 30 rounds, everybody in each, E = 1, clip 1. Every method had 20 trials (its learning
rate and its one setting, or 20 rates where it has none), and more while its best rate, or that of a part of its own,
lay at an end of those tried; chosen by P-dist on validation records, which no epsilon here accounts for; then seeds 1,
2 and 3. P-dist in percent: the accuracy of silos' own models on the public test set, each class weighted as in the
silo; P-loc, where silos hold test records of their own: on these. Each is the mean over seeds and half of the 95 %
interval of that mean (Student's t). The model of *FedAvg, one model* is everybody's. Ditto, PPSGD and CENTAUR train
twice a round, which costs them noise. On the linear model CENTAUR has a hidden layer of 64 units, since it must share
one. *FedAvg + label prior* is a control: one model for all, and for each silo its outputs shifted by the logarithms of
the silo's label counts, released once with noise of 10 within the same epsilon.
"""


OF_WRITERS = """Writers have few records in 62 classes, and learn little alone: {alone:.1f} %. One model for all has
{fedavg:.1f} %, FedCEO's filter {ours:.1f} % with the alpha of {alpha:g} that its trials chose, close to one model. At
this epsilon a writer's own hand does not come through the noise of its own uploads.
"""
SUMMARY = """## Personal models across silos

Where silos have personal models under record-level privacy, all methods tuned alike
([collaboration.md](collaboration.md#what-was-measured) has the tables): settings of epsilon, partition and model in
which *FedCEO, damp, mean of rounds* is above, not told apart from or below another by P-dist, counted as before.

"""


EVERY_SILO = """### Every silo

![P-dist of every silo alone, with the global model and collaborating](silos-clients.png)

One run of each ({setting}, seed {seed}; `tools/silo_clients.py`). Collaborating ({name}), {gain} of {silos} silos are
better off than alone, and {more} than with the global model.
"""


def section(cells: Cells) -> str:
    """The measured part in Markdown."""
    parts = [INTRO]
    if any(name.startswith("silos/cifar10-100/") for name in cells):
        parts.append(
            "![The best of the methods that were run, in every setting that was measured](silos-winners.png)\n"
        )
    run = {table: any(name.startswith(f"{table}/") for name in cells) for table in (*TABLES, *ALPHAS)}
    for table, title in TABLES.items():
        if run[table]:
            parts.append(f"### {title}\n\nExperiments in `experiments/{table}.toml`.\n")
            parts.append(_table(table, cells))
    parts += [
        *by_trials(cells, TABLES),
        *by_votes(),
        *(by_runs(table, cells) for table in ALPHAS if run[table]),
        *_clients(),
    ]
    idle = [f"`{table}.toml` ({len(cells_in(table))})" for table, has_run in run.items() if not has_run]
    if idle:
        parts.append(f"### Not run yet\n\nFiles of `experiments/` and their cells: {', '.join(idle)}.\n")
    return "\n".join(parts)


def _table(table: str, cells: Cells) -> str:
    epsilons, partitions = axes(table)
    names = cells_in(table)
    lacking = [name for name in names if name not in cells or not cells[name].done]
    parts = []
    for epsilon in epsilons:
        measured = [p for p in partitions if any(place(table, epsilon, m, p) in cells for m in NAMES)]
        if not measured:
            continue
        columns = [p or "writers" for p in measured]
        found = {m: [cells.get(place(table, epsilon, m, p)) for p in measured] for m in NAMES}
        of_methods = {m: of_method for m, of_method in found.items() if any(of_method)}
        for head, shown_as in (
            (f"P-dist, {epsilon.replace('-', ' ')}", _mean), ("worst tenth / P-glob", _others), ("P-loc", _local),
        ):  # fmt: skip
            rows = [(NAMES[m], *map(shown_as, of_method)) for m, of_method in of_methods.items()]
            if any(value != "-" for _, *values in rows for value in values):
                parts.append(markdown((head, *columns), rows))
        rows = [(NAMES[m], *(_lead(cells, table, epsilon, m, p) for p in measured)) for m in of_methods if m != OURS]
        head = "Differences of runs with the same seed, in points of P-dist:\n\n"
        parts.append(head + markdown((f"{NAMES[OURS]}, less", *columns), rows))
        parts += _nearest(cells, table, epsilon, measured)
    parts += _of_writers(table, cells)
    if lacking:
        parts.append(f"Not run: {len(lacking)} of {len(names)} cells ({_listed(table, lacking)}).\n")
    return "\n".join([_chosen(table, names, cells), *parts])


def _of_writers(table: str, cells: Cells) -> Iterator[str]:
    """What the table of writers says, once it has those three."""
    names = {m: place(table, "epsilon-5", m, "") for m in ("fedavg", OURS, "local")}
    means = {m: mean_of(cells.get(name)) for m, name in names.items()}
    if table == "silos/femnist" and None not in means.values():
        alpha = chosen(trials_of(names[OURS]))["method.alpha"]
        words = OF_WRITERS.format(fedavg=means["fedavg"], ours=means[OURS], alpha=alpha, alone=means["local"])
        yield textwrap.fill(words, 120, break_long_words=False) + "\n"


def _mean(found: Found | None, which: str = P_DIST) -> str:
    mean = mean_of(found, which)
    if found is None or mean is None:
        return "-"
    seeds = found.by_seed(which)
    if len(seeds) < 2:
        return f"{mean:.1f} (one seed)"
    return f"{mean:.1f} ± {difference(seeds, dict.fromkeys(seeds, 0.0))[1]:.1f}"


def _local(found: Found | None) -> str:
    return _mean(found, P_LOC)


def _others(found: Found | None) -> str:
    worst, everywhere = mean_of(found, WORST), mean_of(found, P_GLOB)
    if everywhere is None:  # everybody's model is the global one
        everywhere = mean_of(found, "last")
    return "-" if worst is None or everywhere is None else f"{worst:.1f} / {everywhere:.1f}"


def _lead(cells: Cells, table: str, epsilon: str, rival: str, partition: str) -> str:
    ours, theirs = (cells.get(place(table, epsilon, method, partition)) for method in (OURS, rival))
    both = [found.by_seed(P_DIST) for found in (ours, theirs) if found is not None]
    if len(both) < 2 or len(both[0].keys() & both[1].keys()) < 2:
        return "-"
    return shown(difference(*both))


def _nearest(cells: Cells, table: str, epsilon: str, partitions: Sequence[str]) -> Iterator[str]:
    """A line that names the rival with the highest P-dist in each setting, and by how much it is behind or ahead."""
    said = []
    for partition in partitions:
        means = {m: mean_of(cells.get(place(table, epsilon, m, partition))) for m in NAMES}
        rivals = {m: mean for m, mean in means.items() if mean is not None and not m.startswith("fedceo")}
        ours = means[OURS]
        if ours is not None and rivals:
            best = max(rivals, key=rivals.__getitem__)
            lead = ours - rivals[best]
            words = f"{abs(lead):.1f} points {'behind' if lead >= 0 else 'ahead'}"
            lacking = "" if means["label-prior"] is not None else f"; without {NAMES['label-prior']}, not run"
            said.append(f"{NAMES[best]}, {words} ({partition or 'writers'}{lacking})")
    if said:
        yield f"The nearest rival: {'; '.join(said)}.\n"


def _chosen(table: str, names: Sequence[str], cells: Cells) -> str:
    """Which cells would be tuned further, since the best trial has a rate at an end of those tried."""
    tuned = {name: trials for name in names if name in cells and (trials := trials_of(name))}
    due = [name.removeprefix(f"{table}/") for name, trials in tuned.items() if _would_grow(name, trials)]
    if not tuned:
        return ""
    told = f"In {len(tuned) - len(due)} of {len(tuned)} cells no rate that was chosen lies at an end of those tried"
    return f"{told}; more trials are due in {', '.join(due)}.\n" if due else f"{told}.\n"


def _would_grow(name: str, trials: Sequence[dict[str, float]]) -> bool:
    grid = joined(silos_grid(name.split("/")[3]), trials)
    best = max(trials, key=lambda trial: trial["validation_accuracy"] or 0.0)
    return grown(grid, {field: best[field] for field in grid}) is not None


def _listed(table: str, names: Sequence[str]) -> str:
    """Names of cells, those of all methods together where all are lacking."""
    lacking: dict[str, list[str]] = {}
    for name in names:
        epsilon, method, *partition = name.removeprefix(f"{table}/").split("/")
        lacking.setdefault("/".join([epsilon, "*", *partition]), []).append(method)
    whole = (
        place if len(methods) == len(NAMES) else f"{place} ({', '.join(methods)})" for place, methods in lacking.items()
    )
    return ", ".join(whole)


def _clients() -> Iterator[str]:
    """The picture of every silo, and how many are better off than alone and than with the global model."""
    if not CLIENTS.exists():
        return
    measured = json.loads(CLIENTS.read_text())
    alone, shared, ours = (measured["p_dist"][method] for method in ("local", "fedavg", OURS))
    gain = sum(mine > other for mine, other in zip(ours, alone, strict=True))
    more = sum(mine > other for mine, other in zip(ours, shared, strict=True))
    yield EVERY_SILO.format(
        setting=measured["setting"], seed=measured["seed"], name=NAMES[OURS], gain=gain, silos=len(ours), more=more
    )


def summary(cells: Cells) -> str:
    """The section of docs/results.md: in how many settings FedCEO's damping is above, open or below each rival."""
    rows = []
    for rival in (method for method in NAMES if method != OURS):
        outcomes = [
            compare(*both)
            for table in TABLES
            for epsilon, partition in itertools.product(*axes(table))
            if len(both := _by_seed(cells, table, epsilon, rival, partition)) == 2
        ]
        rows.append((NAMES[rival], *(str(outcomes.count(each)) for each in ("above", "open", "below"))))
    run = any(count != "0" for _, *counts in rows for count in counts)
    return SUMMARY + (markdown(("", "above", "open", "below"), rows) if run else "Not run.\n")


def _by_seed(cells: Cells, table: str, epsilon: str, rival: str, partition: str) -> list[dict[int, float]]:
    found = (cells.get(place(table, epsilon, method, partition)) for method in (OURS, rival))
    return [each.by_seed(P_DIST) for each in found if each is not None and len(each.done) > 1]


def page(text: str, cells: Cells) -> str:
    """The page with its measured part written anew."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + section(cells) + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), load()))
