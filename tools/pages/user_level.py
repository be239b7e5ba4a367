"""The section of docs/results.md on the paper's own algorithm: user level, as Algorithms 1 and 2 are written."""

from collections.abc import Mapping

from not_run import lacking
from paper_tables import ACCURACY
from runs_found import NAMES, Found, cells_in, markdown, own_settings, spread

from fedceo.accounting.printed import rounded_up

TABLES = {
    "paper/user/heterogeneity": ("MLP on CIFAR-10", "paper/heterogeneity"),
    "paper/user/cifar10-lenet5": ("LeNet-5 on CIFAR-10", "paper/table1/cifar10-lenet5"),
}
"""The title of each table and the record-level one beside which the paper's numbers stand."""

HEAD = """## User level, the paper's letter

Algorithms 1 and 2 as they are written: each of K = 10 clients of N = 100 clips its whole update at C = 1 and adds its
share N(0, sigma^2 C^2 / K) of the noise; plain local SGD, 300 rounds, E = 30.

- *literal*: eta = 0.1 is the local rate and, as in Algorithm 1, the factor of the noised update once more. Nothing is
  tuned; lambda, vartheta and I are the paper's for LeNet-5.
- *own-step*: the server has a step of its own. Every method has the same local rates and steps to try, and FedCEO its
  own settings beside them in as many trials (`tools/pages/paper_blocks.py`); chosen on validation records with seed 0.
- *before smoothing*: in round 299; the last round smooths. Epsilon is that of a whole client, delta = 1e-5, zero-out,
  for an *outsider* who sees every global model, for the *server*, which sees every upload, and for a *client* that is
  handed models made from single uploads (FedCEO alone; outsiders then have the same row). Above 20 it means little.

"""
HEADINGS = (
    "setting", "method", "paper", "last", "before smoothing", "best", "P-loc", "rate, step", "epsilon: outsider",
    "server", "client",
)  # fmt: skip


def section(cells: Mapping[str, Found]) -> str:
    return HEAD + "\n".join(
        f"### {title}, user level\n\nExperiments in `experiments/{table}.toml`.\n\n{_table(table, like, cells)}"
        for table, (title, like) in TABLES.items()
    )


def _table(table: str, like: str, cells: Mapping[str, Found]) -> str:
    rows = [
        _row(name.removeprefix(f"{table}/"), like, cells[name])
        for name in cells_in(table)
        if name in cells and cells[name].done
    ]
    return "\n".join(filter(None, [markdown(HEADINGS, rows) if rows else "", lacking(table, cells)]))


def _row(cell: str, like: str, found: Found) -> tuple[str, ...]:
    setting, _, method = cell.rpartition("/")
    paper = ACCURACY.get(f"{like}/{cell.partition('/')[2]}")
    train = found.done[0]["experiment"]["train"]
    last = spread(found.percent("last"))
    last += f", {found.collapsed} of {len(found.done)} collapsed" if found.collapsed else ""
    rates = f"{train['learning_rate']:g}, {train['server_learning_rate']:g}"
    is_tuned = setting.startswith("own-step") and method == "fedceo"
    rates += own_settings(found) if is_tuned else ""
    before, best, local = found.at(299).values(), found.percent("best"), found.percent("local_accuracy_last")
    return (
        setting, NAMES[method], "-" if paper is None else f"{paper:.2f}", last, spread(list(before)), spread(best),
        spread(local), rates, *(_epsilon(found, observer) for observer in ("outsider", "server", "client")),
    )  # fmt: skip


def _epsilon(found: Found, observer: str) -> str:
    """The largest epsilon over the runs, whose most active clients differ."""
    rows = [row for run in found.done for row in run["result"]["privacy"]]
    known = [row["epsilon"] for row in rows if row["observer"] == observer and row["unit"] == "user"]
    if not known:
        return "-"
    return "none" if None in known else f"{rounded_up(max(known)):g}"
