"""Writes docs/results.md from the files in results/, which `fedceo sweep` and `fedceo tune` wrote.

    python tools/pages/results.py

results/PATH.json holds the runs of the cells of experiments/PATH.toml, results/PATH.trials.json how their learning
rates were chosen. A cell without runs is shown as not run.
"""

import json
import math
import statistics

import beyond_paper
import features_page
import leads
import lenet5_remarks
import silos_page
import times
import user_level
from not_run import lacking
from paper_tables import ACCURACY, SIGMAS
from runs_found import (
    FINALISTS,
    NAMES,
    ROOT,
    Found,
    cells_in,
    difference,
    load,
    markdown,
    own_settings,
    rate_edge,
    shown,
    spread,
    tally,
)

TABLES = {
    "paper/heterogeneity": ("MLP on CIFAR-10, iid and two label shards a client", "Appendix C, heterogeneity"),
    "paper/fair/heterogeneity": (
        "MLP on CIFAR-10, FedCEO's own settings tuned too",
        "Appendix C, heterogeneity, tuned alike: eight whole runs with seed 0 for UDP-FedAvg's rate, and as many for\n"
        "FedCEO's rate, lambda, vartheta, I and restart together, chosen on validation records after round 300",
    ),
    "paper/table1/femnist-letters-mlp": (
        "MLP on the letters of FEMNIST, in the place of EMNIST letters",
        "Table 1 with other letters, 19,106 of FEMNIST's; the paper's numbers are of EMNIST's 145,600",
    ),
    "paper/table1/mnist-mlp": ("MLP on MNIST, in the place of EMNIST letters", "no counterpart: the data differ"),
    "paper/table1/emnist-mlp": ("MLP on EMNIST letters", "Table 1"),
    "paper/table1/cifar10-lenet5": ("LeNet-5 on CIFAR-10", "Table 1"),
    "paper/intervals": ("FedCEO's interval, LeNet-5 on CIFAR-10", "Appendix C, intervals"),
    "paper/more/cifar10-alexnet": ("AlexNet on CIFAR-10", "Appendix C"),
    "paper/more/sent140-lstm": ("LSTM on Sentiment140, users pooled into 100 clients", "Appendix C"),
    "paper/more/sent140-users": (
        "LSTM on Sentiment140, each user with ten or more tweets a client",
        "Appendix C, a second reading: 394 clients",
    ),
}
"""The title of each table, by its file under experiments/, and its place in the paper."""

FEDCEO = ("fedceo-ratio-1", "fedceo")
BESIDE = {
    "paper/fair/heterogeneity": "paper/heterogeneity",
    "paper/table1/femnist-letters-mlp": "paper/table1/emnist-mlp",
    "paper/more/sent140-users": "paper/more/sent140-lstm",
}
"""The tables whose numbers of the paper stand beside another reading of the same cells."""

HEAD = """# Results

The paper's tables made anew, cell by cell, by `tools/pages/results.py` from the files in `results/`, each of which
holds the experiment, seed, machine, versions and curve of every run. How to make them again: `experiments/README.md`.
One cell alone, with the rate of its row:

    fedceo run experiments/paper/heterogeneity.toml --cell iid/sigma-1.0/fedceo --set train.learning_rate=0.03 --seed 1

How to read them:

- **Regime.** Where nothing else is said the paper's tables are in the regime of the authors' program: record-level
  DP-SGD inside clients. The paper's text is [user level](#user-level-the-papers-letter), which stands by itself, as do
  [many clients](#beyond-the-papers-setting). Record level protects one record, not a client, and sigma_g is its noise
  multiplier. epsilon is per record, delta = 1e-5, zero-out (a record's contribution as it is, or zero), over the rounds
  in which the most active client took part, against anyone, the server included; an epsilon above 20 means little. For
  a whole client there is no guarantee in this regime. CENTAUR trains its heads apart, so at the same sigma_g its
  epsilon is larger.
- **Methods.** FedCEO is our reading of Algorithm 2 (`restart = "own"`): a client restarts from its smoothed model if it
  was in the round before, and from the mean otherwise, of which the algorithm says nothing and which with K/N = 0.1 is
  the case of nine clients in ten. The authors' program restarts otherwise, see
  [what-reproduces.md](what-reproduces.md#which-restart-is-the-papers). Its lambda, vartheta and I are those that the
  paper gives for LeNet-5 on CIFAR-10 and for EMNIST; the MLP on CIFAR-10 has LeNet-5's and MNIST has EMNIST's, untuned,
  since the paper gives no others (for two label shards it says only that lambda is larger). The other methods' own
  settings are their defaults. What PPSGD and CENTAUR keep at home is trained with noise too, or it would leak through
  what they send; their authors' programs do not do that. It costs them accuracy, and PPSGD some epsilon. CENTAUR's
  global model is the shared body under the mean of its clients' heads, which nobody has in that method.
- **Tuning.** Every method got the same trials: learning rates 0.003, 0.01, 0.03 and 0.1 in runs of 60 rounds, chosen by
  validation accuracy after the last of them; *edge* marks a choice at the end of that grid. Nothing else was tuned,
  but in tables that say so. PPSGD's personal steps and CENTAUR's heads have a rate of their own, for which the paper
  gives nothing and which can decide how they end: they stand here twice, once with the tuned rate for both and once
  with that rate fixed, each with its own four trials. A trial of 60 rounds does not show what comes later, such as a
  threshold that grows, and FedCEO's end right after a smoothing; [one setting](#the-rate-chosen-at-full-length) has
  been tuned by whole runs too. 300 rounds, N = 100, K = 10, E = 30, B = 64, momentum 0.5, TF32.
- **Numbers.** Accuracy in percent of one global model on the whole test set: mean and standard deviation over seeds, or
  each seed where they are far apart; *last* after round 300, *best* of those measured (every 5 or 10 rounds), chosen on
  the test set and so optimistic. The paper does not say which of the two it gives. **300 is a multiple of every I, so
  FedCEO's last model has just been smoothed**: Algorithm 2 has no global model in such a round, and we take the mean of
  the smoothed ones. *Unsmoothed* is the last that was measured in a round without smoothing, where there is one.
- **P-loc**: on clients' own test records. For FedCEO and the personal methods these are clients' own models, FedCEO's
  those of the last cohort, which have just been trained on these very clients; for UDP-FedAvg it is the global model.
  These are not to be compared with each other.
- **Collapsed**: the last model is within 1.5 points of guessing. It may have come back in the next round: see
  *unsmoothed*. Nothing is left out.
"""


def page() -> str:
    cells = load()
    cells = intervals_of_table_1(cells) | cells
    parts = [HEAD, leads.section(cells), verdict(cells), user_level.section(cells)]
    for folder, (title, place) in TABLES.items():
        parts.append(f"## {title}\n\n{place};\nexperiments in `experiments/{folder}.toml`.\n\n{table(folder, cells)}")
        if "/sent140-" in folder:
            parts.append(majority(folder))
        if folder == "paper/heterogeneity":
            parts.append(whole_runs_at_another_rate(cells))
        if folder == "paper/table1/cifar10-lenet5":
            parts.append(lenet5_remarks.section(cells))
    parts += [
        times.section(cells),
        silos_page.summary(cells),
        features_page.section(cells),
        beyond_paper.section(cells),
    ]
    return "\n".join(parts)


def majority(folder: str) -> str:
    """What always saying the most frequent label would reach, from benchmarks/majority_share.py."""
    found = json.loads((ROOT / "benchmarks" / "results" / "sent140-majority.json").read_text())[folder]
    shares, records = (statistics.fmean(found[name]) for name in ("majority", "test_records"))
    return f"The most frequent label is that of {100 * shares:.1f} % of the {records:,.0f} test records.\n"


def intervals_of_table_1(cells: dict[str, Found]) -> dict[str, Found]:
    """The cells of the table of intervals that are FedCEO's in Table 1, at the same rate of 0.03."""
    same = (("1.0", 15, load(FINALISTS)), ("1.5", 10, cells), ("2.0", 10, cells))
    return {
        f"paper/intervals/sigma-{sigma}/interval-{interval}": found[f"paper/table1/cifar10-lenet5/sigma-{sigma}/fedceo"]
        for sigma, interval, found in same
    }


def whole_runs_at_another_rate(cells: dict[str, Found]) -> str:
    """A comparison of the trials' choice, 0.03, with the runs of docs/what-reproduces.md at 0.01."""
    rows = []
    for name, mode, cell in (("UDP-FedAvg", "udp-fedavg", "udp-fedavg"), ("FedCEO", "own", "fedceo")):
        gains = (
            difference(
                cells[f"modes/cifar10-mlp/sigma-{sigma}/{mode},train.learning_rate=0.01"].by_seed("last"),
                cells[f"paper/heterogeneity/iid/sigma-{sigma}/{cell}"].by_seed("last"),
            )
            for sigma in SIGMAS
        )
        rows.append((name, *map(shown, gains)))
    return (
        "Trials of 60 rounds favour rates that are quick at first. Whole runs with iid clients at 0.01, less those at\n"
        "0.03, which the trials chose (last, mean and half of its 95 % interval): clearly better for UDP-FedAvg at\n"
        "sigma_g = 2 alone.\n\n" + markdown(("", *(f"sigma_g = {sigma}" for sigma in SIGMAS)), rows)
    )


def table(folder: str, cells: dict[str, Found]) -> str:
    names = cells_in(folder)
    if not any(name in cells for name in names):
        return lacking(folder, cells)
    head = ("setting", "method", "paper", "last", "best", "unsmoothed", "P-loc", "rate", "epsilon")
    rows = markdown(head, (_row(folder, name, cells) for name in names))
    return "\n".join(filter(None, [rows, lacking(folder, cells)]))


def _row(folder: str, name: str, cells: dict[str, Found]) -> tuple[str, ...]:
    setting, _, method = name.removeprefix(folder).strip("/").rpartition("/")
    beside = name.replace(folder, BESIDE.get(folder, folder))
    paper = f"{ACCURACY[beside]:.2f}" if beside in ACCURACY else "-"
    found = cells.get(name)
    tuned = own_settings(found) if folder == "paper/fair/heterogeneity" and method == "fedceo" else rate_edge(name)
    return setting or "-", NAMES.get(method, method), paper, *ours(found, tuned)


def ours(found: Found | None, edge: str) -> tuple[str, ...]:
    if found is None or not found.runs:
        return ("not run", *[""] * 5)
    if not found.done:
        return (f"all {found.failed} failed: {found.runs[0]['error']}", *[""] * 5)
    last = spread(found.percent("last"))
    last += f", {found.collapsed} of {len(found.done)} collapsed" if found.collapsed else ""
    last += f", {found.failed} failed" if found.failed else ""
    rate = f"{found.done[0]['experiment']['train']['learning_rate']:g}{edge}"
    epsilon = "-" if found.epsilon is None else f"{math.ceil(found.epsilon)}"
    rest = (found.percent("best"), found.unsmoothed(), found.percent("local_accuracy_last"))
    return (last, *map(spread, rest), rate, epsilon)


VERDICT = """## FedCEO against the others

Runs of one seed share clients, cohorts and batches, so their differences are compared. FedCEO less UDP-FedAvg in every
setting that the paper has, last accuracy in points, mean and half of its 95 % interval (Student's t, three seeds; it
covers seeds, not the choice of test records):

"""
TALLY = """
In how many settings FedCEO is above, not told apart from (the interval holds 0, however wide it is) and below another
method, by last and by best accuracy. PPSGD and CENTAUR are taken with that of their two rates that trials favour;
settings with fewer than two seeds of both do not count, and nothing corrects for the number of comparisons.

"""
AFTER = """
- Every *below* against UDP-FedAvg was measured right after a smoothing, in cells without a measurement between
  smoothings. Where there is one (the MLP at 0.01, sigma_g = 2, in what-reproduces.md) the difference is {smoothed}
  right after a smoothing and {unsmoothed} before it.
- On MNIST, which is not the paper's, the difference at sigma_g = 2 is {mnist} with vartheta = 1, and with
  vartheta > 1 FedCEO collapses, both right after a smoothing.
- LeNet-5 has the paper's lambda, the MLP LeNet-5's. FedCEO's leads with LeNet-5 come with the
  [cautions below that table](#lenet-5-on-cifar-10).
- On clients' own records (P-loc) with two label shards, sigma_g = 1, CENTAUR less FedCEO: {centaur}.
"""


def verdict(cells: dict[str, Found]) -> str:
    """The comparison of FedCEO with the other methods, where all have several seeds."""
    paper = {name: found for name, found in cells.items() if name in ACCURACY}
    settings = sorted({name.rpartition("/")[0] for name in paper if name.endswith("/fedceo")})
    differences = [
        (setting.removeprefix("paper/"), *(_against_udp(paper, setting, method) for method in FEDCEO))
        for setting in settings
    ]
    counts = [
        (NAMES[method], NAMES[other], *map(str, (*tally(paper, method, other), *tally(paper, method, other, "best"))))
        for method in FEDCEO
        for other in ("udp-fedavg", "ppsgd", "centaur")
    ]
    mlp = {
        mode: cells[f"modes/cifar10-mlp/sigma-2.0/{mode},train.learning_rate=0.01"] for mode in ("own", "udp-fedavg")
    }
    shards = {m: cells[f"paper/heterogeneity/non-iid/sigma-1.0/{m}"] for m in ("centaur", "fedceo")}
    mnist = {m: cells[f"paper/table1/mnist-mlp/sigma-2.0/{m}"] for m in ("fedceo-ratio-1", "udp-fedavg")}
    after = AFTER.format(
        smoothed=shown(difference(*(found.by_seed("last") for found in mlp.values()))),
        unsmoothed=shown(difference(*(found.at(295) for found in mlp.values()))),
        mnist=shown(difference(*(found.by_seed("last") for found in mnist.values()))),
        centaur=shown(difference(*(found.by_seed("local_accuracy_last") for found in shards.values()))),
    )
    head = ("", "against", "last: above", "open", "below", "best: above", "open", "below")
    return (
        VERDICT
        + markdown(("setting", *(NAMES[method] for method in FEDCEO)), differences)
        + TALLY
        + markdown(head, counts)
        + after
    )


def _against_udp(cells: dict[str, Found], setting: str, method: str) -> str:
    name = f"{setting}/{method}"
    return leads.lead(cells, name, f"{setting}/udp-fedavg") if name in cells else "-"


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page())
