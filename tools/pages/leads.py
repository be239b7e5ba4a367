"""One line for each setting of the paper in docs/results.md: its lead, ours at its reading, ours tuned alike."""

from collections.abc import Mapping

from paper_tables import ACCURACY, SIGMAS
from runs_found import Found, difference, markdown, shown

HEAD = """## One line for each setting

FedCEO (vartheta > 1) less UDP-FedAvg in points of last accuracy, mean and half of its 95 % interval over seeds; both
with the same seeds, cohorts and batches. The columns:

- *paper*: the paper's lead.
- *its program, 0.1*: the paper's rate and the restart from stored models of the authors' program, record level. Nothing
  is tuned.
- *its letter*: the paper's algorithm as it is written, user level (`literal`). Nothing is tuned.
- *rate tuned*: record level, the rate alone, with as many trials for either.
- *all tuned*: record level; FedCEO's rate, lambda, vartheta, I and restart by as many whole runs as UDP-FedAvg's rate.
- *user level, tuned*: rate, server step and lambda, with as many trials for either.

A dash stands where no such experiment was planned, *not run* where it waits for its turn.

"""
SETTINGS = {
    "LeNet-5": ("paper/table1/cifar10-lenet5", "modes/cifar10-lenet5", "", "paper/user/cifar10-lenet5", ""),
    "MLP, iid": (
        "paper/heterogeneity/iid", "modes/cifar10-mlp", "paper/fair/heterogeneity/iid", "paper/user/heterogeneity",
        "iid/",
    ),
    "MLP, two shards": (
        "paper/heterogeneity/non-iid", "", "paper/fair/heterogeneity/non-iid", "paper/user/heterogeneity", "non-iid/"
    ),
    "MLP, FEMNIST letters (paper: EMNIST)": ("paper/table1/femnist-letters-mlp", "", "", "", ""),
    "AlexNet": ("paper/more/cifar10-alexnet", "", "", "", ""),
    "LSTM": ("paper/more/sent140-lstm", "", "", "", ""),
}  # fmt: skip
"""A setting's runs: with the rate tuned, by restart at 0.1, with all settings tuned, at user level and where there."""
EMNIST = "paper/table1/emnist-mlp"


def section(cells: Mapping[str, Found]) -> str:
    head = (
        "setting",
        "sigma_g",
        "paper",
        "its program, 0.1",
        "its letter",
        "rate tuned",
        "all tuned",
        "user level, tuned",
    )
    rows = [
        (setting, sigma, _of_paper(places[0], sigma), *_ours(cells, places, sigma))
        for setting, places in SETTINGS.items()
        for sigma in SIGMAS
    ]
    return HEAD + markdown(head, rows)


def _of_paper(table: str, sigma: str) -> str:
    where = EMNIST if "femnist" in table else table
    fedceo, udp = (ACCURACY[f"{where}/sigma-{sigma}/{method}"] for method in ("fedceo", "udp-fedavg"))
    return f"{fedceo - udp:+.2f}"


def _ours(cells: Mapping[str, Found], places: tuple[str, ...], sigma: str) -> tuple[str, ...]:
    table, modes, fair, user, part = places
    rate = ",train.learning_rate=0.1"
    at_01 = f"{modes}/sigma-{sigma}/stored{rate}", f"{modes}/sigma-{sigma}/udp-fedavg{rate}"
    if (
        modes.endswith("lenet5")
        and at_01[1] not in cells
        and _rates(cells.get(f"{table}/sigma-{sigma}/udp-fedavg")) == {0.1}
    ):
        at_01 = at_01[0], f"{table}/sigma-{sigma}/udp-fedavg"
    pairs = [
        (at_01, modes),
        (_pair(f"{user}/literal/{part}sigma-{sigma}"), user),
        (_pair(f"{table}/sigma-{sigma}"), table),
        (_pair(f"{fair}/sigma-{sigma}"), fair),
        (_pair(f"{user}/own-step/{part}sigma-{sigma}"), user),
    ]
    return tuple(lead(cells, *pair) if is_there else "-" for pair, is_there in pairs)


def _pair(setting: str) -> tuple[str, str]:
    return f"{setting}/fedceo", f"{setting}/udp-fedavg"


def _rates(found: Found | None) -> set[float]:
    return {run["experiment"]["train"]["learning_rate"] for run in found.done} if found else set()


def lead(cells: Mapping[str, Found], name: str, other: str) -> str:
    """The difference of two cells in words: with its interval, of one seed, or not run."""
    ours, theirs = (cells[each].by_seed("last") if each in cells else {} for each in (name, other))
    common = ours.keys() & theirs.keys()
    return shown(difference(ours, theirs)) if common else "not run"
