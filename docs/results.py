"""Writes docs/results.md from the files in results/, which `fedceo sweep` and `fedceo tune` wrote.

    python docs/results.py

results/PATH.json holds the runs of the experiments in experiments/PATH, results/PATH.trials.json how their learning
rates were chosen. A cell is an experiment file; one without runs is shown as not run.
"""

import json
import statistics
from collections.abc import Iterator

import beyond_paper
from paper_tables import ACCURACY, AUTHORS_PROGRAM, HOURS, SIGMAS
from runs_found import NAMES, ROOT, Found, files, load, markdown, rate_edge, spread, tally

TABLES = {
    "paper/heterogeneity": ("MLP on CIFAR-10, iid and two label shards a client", "Appendix C, heterogeneity"),
    "paper/table1/mnist-mlp": ("MLP on MNIST, in the place of EMNIST letters", "no counterpart: the data differ"),
    "paper/table1/emnist-mlp": ("MLP on EMNIST letters", "Table 1"),
    "paper/table1/cifar10-lenet5": ("LeNet-5 on CIFAR-10", "Table 1"),
    "paper/intervals": ("FedCEO's interval, LeNet-5 on CIFAR-10", "Appendix C, intervals"),
    "paper/more/cifar10-alexnet": ("AlexNet on CIFAR-10", "Appendix C"),
    "paper/more/sent140-lstm": ("LSTM on Sentiment140, users pooled into 100 clients", "Appendix C"),
}
"""Folder of experiments -> what it is, and where the paper has it."""

LENET5 = """Test accuracy over rounds (`docs/result_pictures.py`), FedCEO right after each smoothing, at sigma_g = 1,

![Accuracy over rounds at sigma 1](lenet5-sigma-1.png)

at sigma_g = 1.5,

![Accuracy over rounds at sigma 1.5](lenet5-sigma-1.5.png)

and at sigma_g = 2, where with vartheta > 1 the threshold in the end takes more from the model than from the noise:

![Accuracy over rounds at sigma 2](lenet5-sigma-2.png)
"""

NOT_RUN = {"paper/table1/emnist-mlp": "EMNIST letters cannot be had where this was run"}
NO_TIME = "no GPU time yet"

HEAD = """# Results

The paper's tables made anew, cell by cell, by `docs/results.py` from the files in `results/`, each of which holds the
experiment, seed, machine, versions and curve of every run. How to make them again: `experiments/README.md`.

How to read them:

- **Regime.** Every number of the paper's tables is in the regime of the authors' program: record-level DP-SGD inside
  clients ([user level](#beyond-the-papers-setting) is further down). It protects one record, not a client, and sigma_g
  is its noise multiplier. epsilon is per record, delta = 1e-5, over the rounds in which the most active client took
  part, against anyone, the server included; an epsilon above 20 means little. For a whole client there is no guarantee
  in this regime. CENTAUR trains its heads apart, so at the same sigma_g its epsilon is larger.
- **Methods.** FedCEO restarts clients as Algorithm 2 is written (`restart = "own"`), not as the authors' program does.
  Its lambda, vartheta and I are those that the paper gives for LeNet-5 on CIFAR-10 and for EMNIST; the MLP on CIFAR-10
  has LeNet-5's and MNIST has EMNIST's, untuned, since the paper gives no others (for two label shards it says only that
  lambda is larger). The other methods' own settings are their defaults. CENTAUR's global model is the shared body under
  the mean of its clients' heads, which nobody has in that method.
- **Tuning.** Every method got the same trials: learning rates 0.003, 0.01, 0.03 and 0.1 in runs of 60 rounds, chosen by
  validation accuracy after the last of them; *edge* marks a choice at the end of that grid. PPSGD's personal steps and
  CENTAUR's heads have a rate of their own, for which the paper gives nothing and which can decide how they end: they
  stand here twice, once with the tuned rate for both and once with that rate fixed, each with its own four trials. A
  trial of 60 rounds does not show what comes later, such as a threshold that grows. 300 rounds, N = 100, K = 10,
  E = 30, B = 64, momentum 0.5, TF32.
- **Numbers.** Accuracy in percent of one global model on the whole test set: mean and standard deviation over seeds;
  *last* after round 300, *best* of those measured (every 5 or 10 rounds), chosen on the test set and so optimistic.
  The paper does not say which of the two it gives. **300 is a multiple of every I, so FedCEO's last model has just been
  smoothed**; *unsmoothed* is the last that was measured in a round without smoothing, where there is one. P-loc:
  clients' own models on their own test records, for FedCEO those of the last cohort.
- **Collapsed** counts the runs whose last model guesses. It may have come back in the next round: see *unsmoothed*.
  Nothing is left out.
"""


def page() -> str:
    cells = load()
    parts = [HEAD, verdict(cells)]
    for folder, (title, place) in TABLES.items():
        parts.append(f"## {title}\n\n{place}; experiments in `experiments/{folder}`.\n\n{table(folder, cells)}")
        if folder == "paper/heterogeneity":
            parts.append(whole_runs_at_another_rate(cells))
        if folder == "paper/table1/cifar10-lenet5":
            parts.append(LENET5 + cautions(cells))
    parts += [times(cells), beyond_paper.section(cells)]
    return "\n".join(parts)


def whole_runs_at_another_rate(cells: dict[str, Found]) -> str:
    """What the runs of docs/what-reproduces.md at 0.01 say of the trials' choice, 0.03."""
    said = []
    for name, mode, cell in (("UDP-FedAvg", "udp-fedavg", "udp-fedavg"), ("FedCEO", "own", "fedceo")):
        numbers = (
            f"{spread(cells[f'modes/cifar10-mlp/sigma-{sigma}/{mode},train.learning_rate=0.01'].percent('last'))} "
            f"({spread(cells[f'paper/heterogeneity/iid/sigma-{sigma}/{cell}'].percent('last'))} above)"
            for sigma in SIGMAS[1:]
        )
        said.append(f"- {name}: {' and '.join(numbers)}\n")
    return (
        "Trials of 60 rounds favour rates that are quick at first. Whole runs at 0.01, which they did not choose\n"
        "([what-reproduces.md](what-reproduces.md)), end at sigma_g = 1.5 and 2 with iid clients at\n\n" + "".join(said)
    )


def cautions(cells: dict[str, Found]) -> str:
    """What short trials do to the comparison."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "cifar10-h200.json").read_text())["rows"]
    last = [row["last"] for row in rows if row["run"].startswith("UDP-FedAvg, lr 0.01, TF32")]
    udp, ppsgd = (cells[f"paper/table1/cifar10-lenet5/sigma-1.0/{method}"] for method in ("udp-fedavg", "ppsgd"))
    tops = [run["result"]["accuracy"]["best_round"] for run in udp.done]
    return (
        "\nTrials of 60 rounds favour rates that are quick at first, and the order of the methods can be that of the\n"
        "rates they chose:\n\n"
        "- sigma_g = 2: at 0.01, which its trials did not choose, UDP-FedAvg ended at "
        f"{spread(last)} in the three\n  seeds of `benchmarks/gpu_cifar10.py` (other records for validation): level "
        "with FedCEO at vartheta = 1, whose\n  own run at 0.01 is still owed.\n"
        f"- sigma_g = 1: all but PPSGD chose 0.1, at which they fall again (UDP-FedAvg after rounds {min(tops)} to "
        f"{max(tops)},\n  from {spread(udp.percent('best'))} to {spread(udp.percent('last'))}); PPSGD failed its trial "
        f"at 0.1 and at its 0.01 ends at {spread(ppsgd.percent('last'))}.\n  That sigma_g = 1.5, where "
        "0.03 was chosen, shows more accuracy than sigma_g = 1 is probably these rates: in the\n  trials at 0.03 less "
        "noise is ahead; whole runs at 0.03 are still owed.\n"
    )


def table(folder: str, cells: dict[str, Found]) -> str:
    names = files(folder)
    if not any(name in cells for name in names):
        return f"Not run ({len(names)} cells): {NOT_RUN.get(folder, NO_TIME)}.\n"
    head = ("setting", "method", "paper", "last", "best", "unsmoothed", "P-loc", "collapsed", "rate", "epsilon")
    return markdown(head, (_row(folder, name, cells) for name in names))


def _row(folder: str, name: str, cells: dict[str, Found]) -> tuple[str, ...]:
    setting, _, method = name.removeprefix(folder).strip("/").rpartition("/")
    paper = f"{ACCURACY[name]:.2f}" if name in ACCURACY else "-"
    return setting or "-", NAMES.get(method, method), paper, *ours(cells.get(name), rate_edge(name))


def ours(found: Found | None, edge: str) -> tuple[str, ...]:
    if found is None or not found.runs:
        return (f"not run: {NO_TIME}", *[""] * 6)
    if not found.done:
        return (f"all {found.failed} failed: {found.runs[0]['error']}", *[""] * 6)
    count = f"{found.collapsed} of {len(found.done)}" + (f", {found.failed} failed" if found.failed else "")
    experiment = found.done[0]["experiment"]
    rate = f"{experiment['train']['learning_rate']:g}{edge}"
    epsilon = "-" if found.epsilon is None else f"{found.epsilon:.0f}"
    shown = (found.percent("last"), found.percent("best"), found.unsmoothed(), found.percent("local_accuracy_last"))
    return (*map(spread, shown), count, rate, epsilon)


VERDICT = """## FedCEO against the others

Settings that the paper has in which FedCEO's last accuracy is above, level with or below that of a method.
Runs of one seed share clients, cohorts and batches, so their differences are compared: level is where the
95 % interval of their mean (Student's t) holds 0. Settings with one seed do not count. Where clients' data
differ, PPSGD and CENTAUR are better on clients' own records (P-loc), which is what they are for. FedCEO is
above UDP-FedAvg for LeNet-5 alone: at sigma_g = 1.5 by {at_1_5}, at sigma_g = 2 with vartheta = 1 by
{at_2}, with the cautions below that table.

"""


def verdict(cells: dict[str, Found]) -> str:
    """FedCEO against the others, where all have several seeds."""
    paper = {name: found for name, found in cells.items() if name in ACCURACY}
    rows = [
        (NAMES[method], NAMES[other], *map(str, tally(paper, method, other)))
        for method in ("fedceo-ratio-1", "fedceo")
        for other in ("udp-fedavg", "ppsgd", "ppsgd-fixed-rate", "centaur", "centaur-fixed-rate")
    ]
    said = VERDICT.format(at_1_5=_gain(cells, "1.5", "fedceo"), at_2=_gain(cells, "2.0", "fedceo-ratio-1"))
    return said + markdown(("", "against", "above", "level", "below"), rows)


def _gain(cells: dict[str, Found], sigma: str, method: str) -> str:
    ours, udp = (
        statistics.fmean(cells[f"paper/table1/cifar10-lenet5/sigma-{sigma}/{name}"].percent("last"))
        for name in (method, "udp-fedavg")
    )
    return f"{ours - udp:.1f} points"


TIMES = """## Time

300 rounds with evaluation every 5. Paper: one RTX 4090. Ours: alone on one {machine}
(`benchmarks/gpu_cifar10.py`), or, after <, the quickest run in `results/`, which shared the GPU with others
and was evaluated every 5 or 10. The authors' program was timed once on the same kind of GPU.

"""


def times(cells: dict[str, Found]) -> str:
    """The paper's hours and our seconds, from the benchmark that ran each alone on the machine."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "cifar10-h200.json").read_text())
    alone = {row["run"].partition(",")[0]: row["seconds"] for row in measured["rows"] if row["seconds"]}

    def seconds(setting: str, method: str) -> str:
        if not setting.startswith("CIFAR"):
            return "not run"
        found = alone.get(method.replace("udp-fedavg", "UDP-FedAvg").replace("fedceo", "FedCEO"))
        names = (f"paper/table1/cifar10-lenet5/sigma-{sigma}/{method}" for sigma in SIGMAS)
        shared = [run["result"]["seconds"] for name in names if name in cells for run in cells[name].done]
        return f"{found:.1f}" if found else f"< {min(shared):.0f}"

    def rows() -> Iterator[tuple[str, ...]]:
        for setting, hours in HOURS.items():
            for method, paper in hours.items():
                theirs = AUTHORS_PROGRAM.get((setting, method), "not run")
                yield setting, NAMES[method], paper, theirs, seconds(setting, method)

    head = ("", "method", "paper, hours", "authors' program, hours", "ours, seconds")
    return TIMES.format(machine=measured["machine"]) + markdown(head, rows())


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page())
