"""Writes docs/experiment-file.md from the settings, docs/privacy-numbers.md with the accountant, and the table in
docs/attacks.md from what benchmarks/attacks.py and benchmarks/attack_speed.py measured.

python tools/pages/generate.py
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedceo.accounting.calibration import calibrate
from fedceo.accounting.plan import AS_PLANNED, Plan, Realised, RecordSteps
from fedceo.accounting.printed import rounded_up
from fedceo.accounting.rows import answer
from fedceo.accounting.selection import Score, study_rows
from fedceo.accounting.trials import Trials
from fedceo.attacks.metrics import median
from fedceo.experiment import file as config
from fedceo.experiment.fields import TOP, Described, described_sections
from fedceo.mechanisms.banded import released_spread
from fedceo.mechanisms.base import noise_coefficients, workload
from fedceo.simulation.spending import settled, solve_noise

HEAD = """# The experiment file

One TOML file says everything that a run depends on. It is checked before anything is trained; a misspelt field is
refused with the nearest known name. `fedceo run FILE --set section.field=value` changes single fields. This page is
written by `tools/pages/generate.py` from the settings in `src/fedceo/experiment/sections.py` and those of the methods
in `src/fedceo/methods/`.

A file may begin with the tables of others (`extends`) and hold many experiments, the cells of a `[grid]`:
[studies.md](studies.md#a-table-in-one-file).

Rounds count from 1. Fields without a default must be given. `data.path` and `data.root` are relative to the working
directory, not to the file; a run folder keeps them in full. The same settings in Python: [python.md](python.md). Words:
[glossary](glossary.md).
"""


def page() -> str:
    return "\n".join([HEAD, *(section(title(name), fields) for name, fields in described_sections().items())])


def title(name: str) -> str:
    table, _, method = name.partition(".")
    return name if name == TOP else f'[{table}], name = "{method}"' if method else f"[{name}]"


def section(title: str, fields: Sequence[Described]) -> str:
    lines = [f"## {title}", "", "| field | values | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        cells = (f"`{field.name}`", field.values, field.default, field.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


NUMBERS_HEAD = """# Privacy in numbers

N = 100 clients, K = 10 a round, T = 300 rounds, delta = 1e-5, user level unless said,
[zero-out](glossary.md#what-is-promised). This page is written by
`tools/pages/generate.py` with the accountant of `fedceo privacy account`.
"""

SIGMAS = (1.0, 1.5, 2.0)
PLAN = {"clients": 100, "cohort": 10, "rounds": 300, "delta": 1e-5, "noise_multiplier": 1.0}
CENTRAL, SHARES = {"mechanism": "central"}, {"mechanism": "distributed"}
AUTHORS = {"mechanism": "record", "record_steps": (RecordSteps(1 / 7, 210),)}
PERSONAL = SHARES | {"release": "personalised"}
QUESTIONS: tuple[tuple[str, str, dict[str, Any], Realised], ...] = (
    ("outsider, central noise, Poisson cohorts", "outsider", CENTRAL | {"sampling": "poisson"}, AS_PLANNED),
    (
        "outsider, central noise, ten whole groups that take turns",
        "outsider",
        CENTRAL | {"sampling": "cyclic", "groups": 10},
        AS_PLANNED,
    ),
    ("outsider, central or distributed noise, fixed-size cohorts", "outsider", SHARES, AS_PLANNED),
    ("the same, replace-one", "outsider", SHARES | {"adjacency": "replace-one"}, AS_PLANNED),
    (
        "outsider, distributed noise, Poisson cohorts (their size shows)",
        "outsider",
        SHARES | {"sampling": "poisson"},
        AS_PLANNED,
    ),
    ("one curious participant, distributed noise", "participant", SHARES, AS_PLANNED),
    ("outsider, 7 of 10 report in every round", "outsider", SHARES, Realised(reports=((7, 300),))),
    ("outsider, noise shares for min_reports = 7", "outsider", SHARES | {"min_reports": 7}, AS_PLANNED),
    ("outsider, cap of 54 participations", "outsider", SHARES | {"participation_cap": 54}, AS_PLANNED),
    ("server, 30 participations (the mean)", "server", SHARES, Realised(participations=30)),
    ("server, over the draw of the cohorts", "server", SHARES, AS_PLANNED),
    ("server, cap of 54 participations", "server", SHARES | {"participation_cap": 54}, AS_PLANNED),
    ("FedCEO, restart own, I = 10: everybody but the server", "client", PERSONAL | {"interval": 10}, AS_PLANNED),
    ("FedCEO, restart own, I = 30", "client", PERSONAL | {"interval": 30}, AS_PLANNED),
    ("FedCEO, restart mean: the outsider's row", "outsider", SHARES, AS_PLANNED),
    (
        "*record level*, authors' CIFAR-10 set-up, one participation",
        "server",
        AUTHORS,
        Realised(participations=1),
    ),
    ("*record level*, 30 participations", "server", AUTHORS, Realised(participations=30)),
)
TARGETS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("outsider, central, Poisson", "outsider", CENTRAL | {"sampling": "poisson"}),
    ("outsider, fixed-size", "outsider", SHARES),
    ("outsider, fixed-size, replace-one", "outsider", SHARES | {"adjacency": "replace-one"}),
    ("server, cap 54", "server", SHARES | {"participation_cap": 54}),
)


STUDIES_HEAD = """`fedceo tune --private`, validation records declared public; N = 1,000, K = 100, T = 100, central
noise for the epsilon of one run that the head says, Poisson cohorts. An outsider sees the chosen trial, a participant
all of them.
"""
LAWS = {
    "geometric, 12 trials on average": Trials("geometric", 12),
    "geometric, 50": Trials("geometric", 50),
    "negative binomial, shape 0, 12": Trials("negative-binomial", 12, 0.0),
    "Poisson, 12": Trials("poisson", 12),
}


def studies_table(wanted: Sequence[float]) -> list[str]:
    """The epsilon of whole studies for that of one run."""
    lines = [
        "| trials | who | " + " | ".join(f"one run {e:g}" for e in wanted) + " |",
        "|---|---|" + "---|" * len(wanted),
    ]
    plan = Plan(1000, 100, 100, 1.0, 1e-5, "central", sampling="poisson")
    plans = [replace(plan, noise_multiplier=calibrate(epsilon, "outsider", plan)) for epsilon in wanted]
    for words, law in LAWS.items():
        rows = [study_rows([each], law, Score()) for each in plans]
        for place in (0, 1):
            epsilons = (found[place].epsilon for found in rows)
            shown = ("none" if epsilon is None else f"{rounded_up(epsilon):g}" for epsilon in epsilons)
            lines.append(f"| {words} | {rows[0][place].observer} | " + " | ".join(shown) + " |")
    return lines


def numbers() -> str:
    lines = [NUMBERS_HEAD, "## Epsilon for a noise multiplier", ""]
    lines += [
        "| who sees what | " + " | ".join(f"sigma = {s:g}" for s in SIGMAS) + " |",
        "|---|" + "---|" * len(SIGMAS),
    ]
    for words, observer, fields, realised in QUESTIONS:
        plans = (Plan(**(PLAN | fields | {"noise_multiplier": sigma})) for sigma in SIGMAS)
        found = (answer(plan, observer, realised).epsilon for plan in plans)
        lines.append(f"| {words} | " + " | ".join(f"{rounded_up(epsilon):g}" for epsilon in found) + " |")
    lines += ["", "## Noise multiplier for an epsilon", ""]
    wanted = (1.0, 2.0, 4.0, 8.0)
    lines += [
        "| who sees what | " + " | ".join(f"epsilon = {e:g}" for e in wanted) + " |",
        "|---|" + "---|" * len(wanted),
    ]
    for words, observer, fields in TARGETS:
        sigmas = (calibrate(epsilon, observer, Plan(**(PLAN | fields))) for epsilon in wanted)
        lines.append(f"| {words} | " + " | ".join(f"{sigma:.3g}" for sigma in sigmas) + " |")
    lines += ["", "## Epsilon of a private study", "", STUDIES_HEAD, *studies_table(wanted)]
    return "\n".join([*lines, "", *banded_noise()]) + "\n"


BANDED_HEAD = """## Noise that cancels

Noise in the models (root mean square over rounds) with `noise = "banded"`, over that of independent noise with Poisson
cohorts at the same epsilon, and the number of bands that `bands = "auto"` takes; outsider, delta = 1e-5.
"""
FEDERATIONS = ((1000, 100, 100), (1000, 20, 300))
EPSILONS = (0.5, 2.0, 8.0)


def banded_noise() -> list[str]:
    """The lines about what correlated noise gains."""
    found = [BANDED_HEAD, "| N, K, T | server | " + " | ".join(f"epsilon = {e:g}" for e in EPSILONS) + " |"]
    found.append("|---|---|" + "---|" * len(EPSILONS))
    for clients, size, rounds in FEDERATIONS:
        for optimizer in ("sgd", "momentum"):
            cells = (_gain(clients, size, rounds, optimizer, epsilon) for epsilon in EPSILONS)
            found.append(f"| {clients:,}, {size}, {rounds} | `{optimizer}` | " + " | ".join(cells) + " |")
    return found


def _gain(clients: int, size: int, rounds: int, optimizer: str, epsilon: float) -> str:
    def noise(cohort: dict[str, Any], kind: dict[str, Any]) -> tuple[float, config.Experiment]:
        table = {
            "data": {"name": "digits", "clients": clients},
            "cohort": {"size": size} | cohort,
            "train": {"rounds": rounds, "server_optimizer": optimizer},
            "privacy": {"mechanism": "central", "target_epsilon": epsilon, "delta": 1e-5} | kind,
            "method": {"name": "fedavg"},
        }
        experiment = settled(config.parse_experiment(table), clients)
        spread = released_spread(workload(experiment), noise_coefficients(experiment))
        return solve_noise(experiment, [1] * clients) * float(np.linalg.norm(spread)), experiment

    banded, chosen = noise({"sampling": "cyclic"}, {"noise": "banded"})
    independent, _ = noise({"sampling": "poisson"}, {})
    return f"{banded / independent:.2f} (b = {chosen.privacy.bands})"


ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks" / "results"
MARKS = "<!-- what tools/pages/generate.py writes -->\n", "<!-- until here -->\n"


def with_attacks(page: str) -> str:
    """docs/attacks.md with its table made anew."""
    before, rest = page.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return before + MARKS[0] + attack_table() + MARKS[1] + after


def attack_table() -> str:
    """The outcome of every attack on everything that an attacker can hold."""
    found = json.loads((MEASURED / "attacks-cpu.json").read_text())
    studies = found["studies"]
    colour = studies["dlg"]["T1"]["rows"][0]["psnr"]
    lines = [
        f"{found['images']} training images; best constant colour {_interval(colour)} dB; float32; "
        f"{found['machine']}, {found['cores']} thread, torch {found['torch']}, {found['date']}.",
        "",
        "| attack | steps | starts | the attacker holds | PSNR, dB | over the colour | SSIM | label hit | beats it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for attack, by_holding in studies.items():
        for holds, study in by_holding.items():
            for row in study["rows"][1:]:
                what = f"{holds} without privacy (control)" if row["name"] == "control" else row["holds"]
                beats = "yes" if row["over_constant"]["low"] > 0 else "no"
                lines.append(
                    f"| `{attack}` | {study['iterations']} | {study['restarts']} | {what} | {_interval(row['psnr'])} | "
                    f"{_interval(row['over_constant'])} | {row['ssim']['value']:.2f} | "
                    f"{_interval(row['label_hit'], 2)} | {beats} |"
                )
    lines += ["", "T2 over T1, record by record, median of the differences in PSNR:", ""]
    for attack, by_holding in studies.items():
        smoothed, plain = (torch.tensor(by_holding[h]["rows"][-1]["psnr_of_each"]) for h in ("T2", "T1"))
        lines.append(f"- `{attack}`: {_interval(median(smoothed - plain).as_dict())} dB")
    lines += ["", "`ig` on T1 with a weight of the total variation that does not fall, over the colour:", ""]
    for weight, study in found["smooth"].items():
        lines.append(f"- {weight}: {_interval(study['rows'][-1]['over_constant'])} dB")
    lines += ["", attack_speed()]
    return "\n".join(lines) + "\n"


def attack_speed() -> str:
    """The gain of working on many rows at once."""
    timed = json.loads((MEASURED / "attack-speed-cpu.json").read_text())
    rows, seconds = timed["rows"], timed["seconds_a_row_and_step"]
    together = seconds["all rows at once"]
    alone, loop = (seconds[name] / together for name in ("row by row", "torch.optim.LBFGS"))
    return (
        f"A step of DLG on {rows} rows takes {rows * together:.1f} s of one core, {alone:.1f} times as fast as one\n"
        f"row at a time with the same code and {loop:.1f} times as fast as a loop over `torch.optim.LBFGS`\n"
        "(`benchmarks/attack_speed.py`)."
    )


def _interval(estimate: dict[str, float | None], digits: int = 1) -> str:
    value, low, high = (f"{estimate[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    attacks = ROOT / "docs" / "attacks.md"
    attacks.write_text(with_attacks(attacks.read_text()))
    (ROOT / "docs" / "privacy-numbers.md").write_text(numbers())
    (ROOT / "docs" / "experiment-file.md").write_text(page())
