"""Writes docs/results.md from the files in results/, which `fedceo sweep` and `fedceo tune` wrote.

    python docs/results.py

results/PATH.json holds the runs of the experiments in experiments/PATH, results/PATH.trials.json how their learning
rates were chosen. A cell is an experiment file; one without runs is shown as not run.
"""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import beyond_paper
from paper_tables import ACCURACY, AUTHORS_PROGRAM, HOURS
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
NEAR_CHANCE = 0.015
"""A run whose last accuracy is this near to guessing, or nearer, has collapsed."""

NAMES = {
    "fedavg": "FedAvg, no privacy", "udp-fedavg": "UDP-FedAvg", "ppsgd": "PPSGD", "centaur": "CENTAUR",
    "fedceo-ratio-1": "FedCEO, vartheta = 1", "fedceo": "FedCEO, vartheta > 1",
}  # fmt: skip

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

LENET5 = """![Accuracy over rounds at sigma 2](lenet5-sigma-2.png)

Test accuracy over rounds, LeNet-5 at sigma_g = 2 (`docs/result_pictures.py`); FedCEO right after each smoothing. With
vartheta > 1 the threshold grows, and in the end takes more from the model than from the noise.
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
  validation accuracy after the last of them; *edge* marks a choice at the end of that grid. PPSGD's personal steps
  (0.1) and CENTAUR's heads (0.01) keep rates of their own that no trial changed. A trial of 60 rounds does not show
  what comes later, such as a threshold that grows. 300 rounds, N = 100, K = 10, E = 30, B = 64, momentum 0.5, TF32.
- **Numbers.** Accuracy in percent of one global model on the whole test set: mean and standard deviation over seeds;
  *last* after round 300, *best* of those measured (every 10 rounds), which is chosen on the test set and so optimistic.
  The paper does not say which of the two it gives. **300 is a multiple of every I, so FedCEO's last model has just been
  smoothed**; *unsmoothed* is the last that was measured in a round without smoothing, where there is one (none for
  I = 10). P-loc: clients' own models on their own test records, for FedCEO those of the last cohort.
- **Collapsed** counts the runs whose last model guesses. It may have come back in the next round: see *unsmoothed*.
  Nothing is left out.
"""


@dataclass(frozen=True)
class Found:
    """The runs of one cell."""

    runs: list[dict[str, Any]]

    def percent(self, name: str) -> list[float]:
        values = [run["result"]["accuracy"].get(name) for run in self.done]
        return [100 * value for value in values if value is not None]

    def by_seed(self, name: str) -> dict[int, float]:
        return dict(zip((run["seed"] for run in self.done), self.percent(name), strict=True))

    def unsmoothed(self) -> list[float]:
        """Test accuracies in percent in the last round measured that had no smoothing; of FedCEO's runs alone."""
        found = []
        for run in self.done:
            method, curves = run["experiment"]["method"], run["curves"]
            if method["name"] == "fedceo":
                measured = zip(curves["round"], curves["test_accuracy"], strict=True)
                found += [100 * value for t, value in measured if t % method["interval"]][-1:]
        return found

    @property
    def done(self) -> list[dict[str, Any]]:
        return [run for run in self.runs if "result" in run]

    @property
    def failed(self) -> int:
        return len(self.runs) - len(self.done)

    @property
    def collapsed(self) -> int:
        return sum(run["result"]["accuracy"]["last"] <= 1 / run["result"]["classes"] + NEAR_CHANCE for run in self.done)

    @property
    def epsilon(self) -> float | None:
        found = [row["epsilon"] for run in self.done for row in run["result"]["privacy"][:1]]
        known = [epsilon for epsilon in found if epsilon is not None]
        return max(known) if known else None


def load() -> dict[str, Found]:
    """Every cell that has runs, by the path of its experiment file."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((ROOT / "results").rglob("*.json")):
        if file.name.endswith(".trials.json") or file.name == "theory.json":  # that one is docs/theory.md's
            continue
        folder = file.relative_to(ROOT / "results").with_suffix("").as_posix()
        for run in json.loads(file.read_text()):
            cells.setdefault(f"{folder}/{run['name'].removesuffix('/tuned')}", []).append(run)
    return {name: Found(runs) for name, runs in cells.items()}


def page() -> str:
    cells = load()
    parts = [HEAD, verdict(cells)]
    for folder, (title, place) in TABLES.items():
        parts.append(f"## {title}\n\n{place}; experiments in `experiments/{folder}`.\n\n{table(folder, cells)}")
        if folder == "paper/table1/cifar10-lenet5":
            parts.append(LENET5 + smaller_rate())
    parts += [times(cells), beyond_paper.section(cells, files, spread, tally, rate_edge)]
    return "\n".join(parts)


def smaller_rate() -> str:
    """What UDP-FedAvg reaches at a rate that its short trials did not choose: a caution about the choice."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "cifar10-h200.json").read_text())["rows"]
    last = [row["last"] for row in rows if row["run"].startswith("UDP-FedAvg, lr 0.01, TF32")]
    return (
        "\nTrials of 60 rounds favour rates that are quick at first. At 0.01, which they did not choose, UDP-FedAvg\n"
        f"ended at {spread(last)} in the three seeds of `benchmarks/gpu_cifar10.py` (sigma_g = 2, other records for\n"
        "validation): level with FedCEO at vartheta = 1, whose own run at 0.01 is still owed.\n"
    )


def files(folder: str) -> list[str]:
    found = (ROOT / "experiments" / folder).rglob("*.toml")
    return sorted((f.relative_to(ROOT / "experiments").with_suffix("").as_posix() for f in found), key=_order)


def _order(name: str) -> tuple[str, int, str]:
    folder, _, method = name.rpartition("/")
    known = list(NAMES)
    return folder, known.index(method) if method in known else len(known), method


def table(folder: str, cells: dict[str, Found]) -> str:
    names = files(folder)
    if not any(name in cells for name in names):
        return f"Not run ({len(names)} cells): {NOT_RUN.get(folder, NO_TIME)}.\n"
    head = ("setting", "method", "paper", "last", "best", "unsmoothed", "P-loc", "collapsed", "rate", "epsilon")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in names:
        setting, _, method = name.removeprefix(folder).strip("/").rpartition("/")
        paper = f"{ACCURACY[name]:.2f}" if name in ACCURACY else "-"
        numbers = ours(cells.get(name), rate_edge(name))
        lines.append("| " + " | ".join((setting or "-", NAMES.get(method, method), paper, *numbers)) + " |")
    return "\n".join(lines) + "\n"


def ours(found: Found | None, edge: str) -> tuple[str, ...]:
    if found is None or not found.runs:
        return (f"not run: {NO_TIME}", *[""] * 6)
    if not found.done:
        return (f"all {found.failed} failed: {found.runs[0]['error']}", *[""] * 6)
    count = f"{found.collapsed} of {len(found.done)}" + (f", {found.failed} failed" if found.failed else "")
    rate = f"{found.done[0]['experiment']['train']['learning_rate']:g}{edge}"
    epsilon = "-" if found.epsilon is None else f"{found.epsilon:.0f}"
    shown = (found.percent("last"), found.percent("best"), found.unsmoothed(), found.percent("local_accuracy_last"))
    return (*map(spread, shown), count, rate, epsilon)


def rate_edge(name: str) -> str:
    """ ", edge" where the rate that the trials chose for an experiment is the least or the largest that was tried."""
    for parent in Path(name).parents:
        file = ROOT / "results" / f"{parent.as_posix()}.trials.json"
        if file.exists():
            trials = json.loads(file.read_text()).get(name.removeprefix(f"{parent.as_posix()}/"), [])
            rates = [trial["train.learning_rate"] for trial in trials]
            best = max(trials, key=lambda trial: trial["validation_accuracy"], default=None)
            return ", edge" if best and best["train.learning_rate"] in (min(rates), max(rates)) else ""
    return ""


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean} (one seed)"


def verdict(cells: dict[str, Found]) -> str:
    """FedCEO against the others, where all have several seeds."""
    lines = [
        "## FedCEO against the others",
        "",
        "Settings that the paper has in which FedCEO's last accuracy is above, level with or below that of a method.",
        "Runs of one seed share clients, cohorts and batches, so their differences are compared: level is where the",
        "95 % interval of their mean (Student's t) holds 0. Settings with one seed do not count; most of Table 1 has",
        "not been run. Where clients' data differ, PPSGD and CENTAUR are better on clients' own records (P-loc), which",
        "is what they are for. The one setting that vartheta = 1 wins is LeNet-5: see the caution below its table.",
        "",
        "| | against | above | level | below |",
        "|---|---|---|---|---|",
    ]
    paper = {name: found for name, found in cells.items() if name in ACCURACY}
    for method in ("fedceo-ratio-1", "fedceo"):
        for other in ("udp-fedavg", "ppsgd", "centaur"):
            above, level, below = tally(paper, method, other)
            lines.append(f"| {NAMES[method]} | {NAMES[other]} | {above} | {level} | {below} |")
    return "\n".join(lines) + "\n"


def tally(cells: Mapping[str, Found], method: str, other: str) -> tuple[int, int, int]:
    """In how many settings, folders of experiments, a method ends above, level with and below another."""
    outcomes = []
    for name, found in cells.items():
        folder, _, which = name.rpartition("/")
        rival = cells.get(f"{folder}/{other}")
        if which == method and rival is not None and min(len(found.done), len(rival.done)) > 1:
            outcomes.append(compare(found.by_seed("last"), rival.by_seed("last")))
    return outcomes.count("above"), outcomes.count("level"), outcomes.count("below")


def compare(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """above, level or below, by the differences of runs with the same seed."""
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if abs(mean) <= stats.t.ppf(0.975, len(differences) - 1) * error:
        return "level"
    return "above" if mean > 0 else "below"


def times(cells: dict[str, Found]) -> str:
    """The paper's hours and our seconds, from the benchmark that ran each alone on the machine."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "cifar10-h200.json").read_text())
    alone = {row["run"].partition(",")[0]: row["seconds"] for row in measured["rows"] if row["seconds"]}
    lines = [
        "## Time",
        "",
        f"300 rounds with evaluation every 5. Paper: one RTX 4090. Ours: alone on one {measured['machine']}",
        "(`benchmarks/gpu_cifar10.py`), or, after <, the quickest run in `results/`, which shared the GPU with others",
        "and was evaluated every 10. The authors' program was timed once on the same kind of GPU.",
        "",
        "| | method | paper, hours | authors' program, hours | ours, seconds |",
        "|---|---|---|---|---|",
    ]
    for setting, hours in HOURS.items():
        for method, paper in hours.items():
            found = alone.get(method.replace("udp-fedavg", "UDP-FedAvg").replace("fedceo", "FedCEO"))
            ours = "not run"
            if setting.startswith("CIFAR"):
                runs = cells[f"paper/table1/cifar10-lenet5/sigma-2.0/{method}"].done
                ours = f"{found:.1f}" if found else f"< {min(run['result']['seconds'] for run in runs):.0f}"
            theirs = AUTHORS_PROGRAM.get((setting, method), "not run")
            lines.append(f"| {setting} | {NAMES[method]} | {paper} | {theirs} | {ours} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page())
