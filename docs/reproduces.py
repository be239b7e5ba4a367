"""Writes docs/what-reproduces.md: which of the paper's numbers come out again, from the files in results/.

python docs/reproduces.py
"""

import json
import statistics

from paper_tables import ACCURACY, SIGMAS
from runs_found import NAMES, ROOT, Found, load, markdown, spread

MODES = {
    "udp-fedavg": "UDP-FedAvg",
    "own": "Algorithm 2 as written: from the smoothed model of the round before, else the mean",
    "stored": "the authors' program without its slip: from the client's last stored model",
    "stored-resubmit": "the authors' program: a client never seen resubmits another's weights",
    "stored-unsmoothed": "`stored` with a threshold of nothing: what old models do without smoothing",
    "mean": "restart from the mean, which is FedAvg with a soft-thresholded mean",
}
RATES = ("0.1", "0.01")

HEAD = """# What reproduces

Which of the paper's numbers come out again, what explains those that do not, and how sure that is. Written by
`docs/reproduces.py` from the files in `results/`; all numbers here are record-level DP-SGD inside clients, which is
what the authors' program does, not the user-level algorithm of their text. The tables themselves:
[results.md](results.md).

FedCEO restarts here as Algorithm 2 is written (`own`) where nothing else is said.

## In short

- **The MLP's row for iid clients comes out at the paper's learning rate, 0.1, with the restart of the authors'
  program**: UDP-FedAvg's numbers to within a point by its last round, FedCEO's by its best, and so most of its lead.
  With Algorithm 2 as written it does not: at that rate it ends where UDP-FedAvg ends, or below. **So the lead is that
  of restarts from models that are many rounds old, rather than the smoothing's, and at 0.01 it is gone**: every method
  is better there, UDP-FedAvg the best ([numbers](#which-restart-is-the-papers)).
- **FedCEO at sigma_g = 2: best or last?** In two of the three cells run the paper's number is our best round's, while
  our last ones are far below it; in the third it is our last one's. All of them were measured right after a smoothing.
- **UDP-FedAvg: the paper's numbers come out at its learning rate, 0.1, for LeNet-5 at sigma_g = 2, and about for
  LeNet-5 at sigma_g = 1 and the MLP with iid clients; for two label shards they come out at no rate tried.** At 0.1
  LeNet-5 diverges at sigma_g = 2, and what the paper gives is about the best round of a diverging run.
- **At 0.1 FedCEO's numbers for LeNet-5 do not come out with Algorithm 2 as written** (the program's restart is not run
  yet): at sigma_g = 2 its trial was at guessing after 60 rounds, and at sigma_g = 1 it is level with UDP-FedAvg where
  the paper has it ten points above.
- **The order of the methods mostly does not come out with equal tuning.** With a rate chosen from four, UDP-FedAvg
  gains more than FedCEO (vartheta > 1) in every cell that both have, and FedCEO stays above it in one of nine: LeNet-5
  at sigma_g = 1.5, by one point where the paper has it sixteen above. FedCEO with vartheta = 1 is above UDP-FedAvg
  there and at sigma_g = 2, with the cautions in results.md, and level at sigma_g = 1.
"""

TAIL = """## How sure

- Seeds: three for tuned numbers (one for PPSGD with LeNet-5 at sigma_g = 2) and for the restarts, two for the diverging
  runs, one for trials, which are 60 rounds and measured on validation records. The restarts have been run for the MLP
  with iid clients alone. AlexNet, Sentiment140, EMNIST letters and the intervals have not been run.
- The data are the paper's for CIFAR-10; its split, cohorts drawn with replacement and random numbers are not known or
  not reproduced. FedCEO's lambda, vartheta and I are the paper's for LeNet-5 on CIFAR-10, also in the MLP's cells, for
  which the paper gives none.
- Which round the paper tabulates is not known: LeNet-5 speaks for the best; the MLP, with the program's restart, for
  the last of UDP-FedAvg and the best of FedCEO. That it ran both at 0.1 is an inference: the paper gives 0.1, the
  program had it as default until after publication, and the MLP's numbers come out there and not at 0.01.
"""


def page() -> str:
    cells = load()
    return "\n".join([HEAD, differences(cells), at_sigma_2(cells), at_the_papers_rate(cells), modes(cells), TAIL])


def differences(cells: dict[str, Found]) -> str:
    """Ours less the paper's, by method."""
    said = (
        "## Ours less the paper's, in points\n\n"
        "Tuned rate, mean over the cells that were run, and from the least to the most.\n\n"
    )
    rows = []
    for method, name in NAMES.items():
        found = [(cells[cell], paper) for cell, paper in ACCURACY.items() if cell in cells and _is(cell, method)]
        if found:
            off = (
                [statistics.fmean(each.percent(which)) - paper for each, paper in found] for which in ("last", "best")
            )
            rows.append((name, str(len(found)), *map(_range, off)))
    return said + markdown(("method", "cells", "last", "best"), rows)


def at_sigma_2(cells: dict[str, Found]) -> str:
    """FedCEO's last and best beside the paper's where the two differ most."""
    rows = [
        (
            cell.removeprefix("paper/").removesuffix("/sigma-2.0/fedceo"), f"{ACCURACY[cell]:.2f}",
            spread(cells[cell].percent("last")), spread(cells[cell].percent("best")),
        )
        for cell in sigma_2(cells)
    ]  # fmt: skip
    said = "## FedCEO (vartheta > 1) at sigma_g = 2\n\n"
    return said + markdown(("cell", "paper", "last", "best"), rows)


def sigma_2(cells: dict[str, Found]) -> list[str]:
    return [cell for cell in ACCURACY if cell in cells and cell.endswith("/sigma-2.0/fedceo")]


def _is(cell: str, method: str) -> bool:
    return cell.rpartition("/")[2] == method


def _range(values: list[float]) -> str:
    return f"{statistics.fmean(values):+.1f} ({min(values):+.1f} to {max(values):+.1f})"


def at_the_papers_rate(cells: dict[str, Found]) -> str:
    """UDP-FedAvg and FedCEO at 0.1, from the trials of the tuning and the benchmark of the diverging runs."""
    trials = json.loads((ROOT / "results" / "paper" / "heterogeneity.trials.json").read_text())
    timed = json.loads((ROOT / "benchmarks" / "results" / "cifar10-h200.json").read_text())["rows"]
    diverging = [row["best"] for row in timed if row["run"].startswith("UDP-FedAvg, lr 0.1,")]
    lenet5 = "paper/table1/cifar10-lenet5/sigma-2.0/udp-fedavg"
    of_lenet5 = json.loads((ROOT / "results" / "paper" / "table1" / "cifar10-lenet5.trials.json").read_text())
    (fedceo,) = (each for each in of_lenet5["sigma-2.0/fedceo"] if each["train.learning_rate"] == 0.1)
    lines = [
        "## At the paper's learning rate, 0.1",
        "",
        f"LeNet-5 on CIFAR-10, sigma_g = 2, UDP-FedAvg: best of 120 rounds {spread(diverging)} (two seeds,",
        f"both at guessing in the end; `benchmarks/gpu_cifar10.py`); the paper: {ACCURACY[lenet5]}; ours, tuned, last:",
        f"{spread(cells[lenet5].percent('last'))}. FedCEO there, validation accuracy after 60 rounds at 0.1:",
        f"{100 * fedceo['validation_accuracy']:.1f}; the paper: {ACCURACY[lenet5.replace('udp-fedavg', 'fedceo')]}.",
        "",
        "LeNet-5, sigma_g = 1, where 0.1 is also the rate that trials chose, 300 rounds, last (best):",
        *(
            f"{NAMES[method]} {_last_and_best(cells[near])}, the paper {ACCURACY[near]}{end}"
            for method, end in (("udp-fedavg", ";"), ("fedceo", "."))
            for near in [f"paper/table1/cifar10-lenet5/sigma-1.0/{method}"]
        ),
        "",
        "MLP on CIFAR-10, validation accuracy after the 60 rounds of the trial at 0.1, beside the paper's test",
        "accuracy:",
        "",
    ]
    rows = []
    for split in ("iid", "non-iid"):
        for sigma in SIGMAS:
            columns = []
            for method in ("udp-fedavg", "fedceo"):
                name = f"{split}/sigma-{sigma}/{method}"
                (trial,) = (each for each in trials[name] if each["train.learning_rate"] == 0.1)
                columns += [
                    f"{100 * trial['validation_accuracy']:.1f}",
                    f"{ACCURACY[f'paper/heterogeneity/{name}']:.1f}",
                ]
            rows.append((f"{split}, sigma_g = {sigma}", *columns))
    after = [
        "There the two methods are the same to within half a point: at that rate smoothing changes nothing in the",
        "first 60 rounds. Two label shards come out lower than in the paper, which takes a larger lambda for FedCEO",
        "there that it does not tell.",
    ]
    head = ("setting", "UDP-FedAvg, ours", "paper", "FedCEO, ours", "paper")
    return "\n".join([*lines, markdown(head, rows), *after]) + "\n"


def modes(cells: dict[str, Found]) -> str:
    """FedCEO by what its clients restart from, last and best, at both rates."""
    parts = [
        "## Which restart is the paper's?",
        "",
        "`fedceo sweep experiments/modes/cifar10-mlp --grid 'train.learning_rate=[0.1, 0.01]' --seeds 3`, and the same",
        "with `cifar10-lenet5`; last (best) after 300 rounds.",
    ]
    for model in ("cifar10-mlp", "cifar10-lenet5"):
        folder = f"modes/{model}"
        if not any(name.startswith(f"{folder}/") for name in cells):
            parts += ["", f"`{folder}`: not run, no GPU time yet."]
            continue
        rows = [
            (sigma, rate, *(_last_and_best(cells.get(_mode(folder, sigma, mode, rate))) for mode in MODES))
            for sigma in SIGMAS
            for rate in RATES
        ]
        parts += ["", f"### {model}", "", markdown(("sigma_g", "rate", *MODES), rows).rstrip()]
    parts += ["", *(f"- `{mode}`: {what}" for mode, what in MODES.items()), "", beside_the_paper(cells)]
    return "\n".join(parts) + "\n"


def beside_the_paper(cells: dict[str, Found]) -> str:
    """The MLP's row of the paper, iid clients, beside what comes nearest."""
    row = "paper/heterogeneity/iid"
    rows = []
    for method, mode in (("udp-fedavg", "udp-fedavg"), ("fedceo", "stored")):
        for sigma in SIGMAS:
            found = [cells[_mode("modes/cifar10-mlp", sigma, mode, rate)] for rate in RATES]
            said = f"{ACCURACY[f'{row}/sigma-{sigma}/{method}']:.2f}", *map(_last_and_best, found)
            rows.append((f"{MODES[mode].partition(':')[0]}, sigma_g = {sigma}", *said))
    return (
        "The MLP with iid clients beside the paper:\n\n" + markdown(("", "paper", "at 0.1", "at 0.01"), rows).rstrip()
    )


def _mode(folder: str, sigma: str, mode: str, rate: str) -> str:
    """The cell's name as `fedceo sweep --grid` gives it."""
    return f"{folder}/sigma-{sigma}/{mode},train.learning_rate={rate}"


def _last_and_best(found: Found | None) -> str:
    return "not run" if found is None else f"{spread(found.percent('last'))} ({spread(found.percent('best'))})"


if __name__ == "__main__":
    (ROOT / "docs" / "what-reproduces.md").write_text(page())
