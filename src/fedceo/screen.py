"""What the terminal shows: progress while a run goes on, tables when it is done."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from fedceo.live import Advance

if TYPE_CHECKING:
    from fedceo.simulation.runs import Run

NAMES = {
    "last": "last round",
    "best": "best round (chosen on the test set)",
    "at_best_validation": "at best validation",
}


@contextmanager
def progress(rounds: int, name: str = "training", quiet: bool = False) -> Iterator[Advance]:
    """A progress bar over rounds; the value yielded is called with every round's record."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TextColumn("{task.fields[epsilon]}"),
        TimeRemainingColumn(compact=True),
    )
    bar = Progress(*columns, console=Console(stderr=True), disable=quiet)
    task = bar.add_task(name, total=rounds, accuracy="", epsilon="")

    def advance(record: dict[str, Any]) -> None:
        bar.start()  # not before the first round, so that a refused experiment prints its one line and nothing else
        if "test_accuracy" in record:
            bar.update(task, accuracy=f"test accuracy {percent(record['test_accuracy'])}")
        if "epsilon" in record:
            bar.update(task, epsilon=f"epsilon {record['epsilon']:.3g} after round {record['round']}")
        bar.update(task, completed=record["round"])

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


def show_run(run: "Run", folder: Path) -> None:
    """A finished run's tables, or how to go on with an unfinished one."""
    if run.finished:
        show_result(run.result, folder)
    else:
        done, rounds = len(run.history), run.experiment.train.rounds
        console().print(f"stopped after round {done} of {rounds}; go on with: fedceo run --resume {folder}")


def show_result(result: dict[str, Any], folder: Path) -> None:
    """One run: what it was, its accuracies, its privacy rows."""
    out = console()
    out.print(
        f"{result['method']} on {result['data']} with {result['model']}: {result['clients']} clients, "
        f"{result['rounds']} rounds, seed {result['seed']}, {result['seconds']:.1f} s ({result['engine']} engine, "
        f"{result['device']}{place_of(result)})"
    )
    out.print(f"regime: {result['regime']}{noise_of(result)}")
    table = Table("test accuracy of the global model", "%")
    accuracy = result["accuracy"]
    for key, name in NAMES.items():
        table.add_row(name, percent(accuracy[key]))
    if "last_unsmoothed" in accuracy:
        table.add_row(f"the last round smoothed; {without_smoothing(accuracy)}", percent(accuracy["last_unsmoothed"]))
    out.print(table)
    show_privacy(result["privacy"], out)
    if result["ended_early"]:
        out.print(f"ended early by {result['ended_early']}")
    if result["discarded_rounds"]:
        out.print(f"{result['discarded_rounds']} rounds had too few reports and were discarded")
    if result["nonfinite_updates"]:
        out.print(f"{result['nonfinite_updates']} updates were NaN or Inf and counted as zero")
    out.print(f"results: {folder}")


def place_of(result: dict[str, Any]) -> str:
    """Which workers trained, where it was not the process itself."""
    workers = result.get("workers")
    if workers is None:
        return ""
    lost = f", {workers['lost']} lost and replaced" if workers["lost"] else ""
    return f", {workers['count']} Ray workers on {workers['machines']} machines{lost}"


def without_smoothing(accuracy: Mapping[str, Any]) -> str:
    """Which round, after the last one with a smoothing, shows the model without one."""
    t = accuracy["last_unsmoothed_round"]
    return "no round without smoothing was measured" if t is None else f"round {t}, which did not smooth"


def show_comparison(runs: Mapping[str, "Run"], folder: Path) -> None:
    """Several runs beside each other, and the privacy rows of those that have any."""
    out = console()
    table = Table("", "regime", "noise multiplier", *(NAMES.values()), "seconds", title="test accuracy, %")
    for name, run in runs.items():
        accuracies = [percent(run.result["accuracy"][key]) for key in NAMES]
        sigma = run.result["noise_multiplier"]
        table.add_row(
            name, run.result["regime"], f"{sigma:.2f}" if sigma else "-", *accuracies, f"{run.result['seconds']:.1f}"
        )
    out.print(table)
    for name, run in runs.items():
        accuracy = run.result["accuracy"]
        if accuracy.get("last_unsmoothed") is not None:
            shown = percent(accuracy["last_unsmoothed"])
            out.print(f"{name}'s last round smoothed; {without_smoothing(accuracy)}: {shown}")
    seen: list[Any] = []
    for run in runs.values():
        rows = run.result["privacy"]
        if rows not in seen and any(row["epsilon"] is not None for row in rows):
            seen.append(rows)
            same = [other for other in runs if runs[other].result["privacy"] == rows]
            out.print(f"what is learnt of one client, {' and '.join(same)}:")
            show_privacy(rows, out)
    out.print(f"results: {folder}  (one run each: differences of a few points are noise)")


def show_privacy(rows: list[dict[str, Any]], out: Console) -> None:
    """The privacy rows, each with the observer it speaks of."""
    if all(row["epsilon"] is None for row in rows):
        out.print(f"privacy: none ({rows[0]['assumption']})")
        return
    several = len({row["mechanism"] for row in rows}) > 1
    notes = list(dict.fromkeys(row["assumption"] for row in rows))
    table = Table("observer", *(["mechanism"] if several else []), "unit", "adjacency", "sampling")
    table.add_column("epsilon", justify="right")
    for name in ("delta", "accountant", "note"):
        table.add_column(name)
    for row in rows:
        table.add_row(
            row["observer"], *([row["mechanism"]] if several else []), row["unit"], row["adjacency"], row["sampling"],
            or_none(row["epsilon"]), f"{row['delta']:.1e}", row["accountant"],
            str(notes.index(row["assumption"]) + 1),
        )  # fmt: skip
    out.print(table)
    grid = Table.grid(padding=(0, 1))
    for number, note in enumerate(notes, 1):
        grid.add_row(f"{number:>2}", note)
    out.print(grid, highlight=False)


def show_calibration(found: list[dict[str, Any]], epsilon: float) -> None:
    """The noise multiplier of each mechanism that may be meant."""
    table = Table("mechanism", "noise multiplier", "epsilon", "delta", "under which assumption")
    for each in found:
        table.add_row(
            each["mechanism"], f"{each['noise_multiplier']:.4g}", f"{each['epsilon']:.4g}", f"{each['delta']:.1e}",
            each["assumption"],
        )  # fmt: skip
    out = console()
    out.print(f"noise for an epsilon of {epsilon:g} against the {found[0]['observer']}, per {found[0]['unit']}:")
    out.print(table)


def show_audit(report: dict[str, Any]) -> None:
    """What an audit found: the mechanism as a function, then what canaries showed in each view."""
    out = console()
    out.print(
        f"audit of mechanism {report['mechanism']}, noise multiplier {report['noise_multiplier']:.4g}, "
        f"{report['rounds']} rounds with canaries, delta {report['delta']:.1e}"
    )
    checks = Table("check of the mechanism", "measured", "expected", "verdict")
    for finding in report["findings"]:
        verdict = "passed" if finding["passed"] else "[bold red]FAILED[/bold red]"
        checks.add_row(finding["check"], f"{finding['measured']:.4g}", finding["expected"], verdict)
    out.print(checks)
    views = Table("view", "observer", title="what canaries showed")
    for name in ("scores", "mu claimed", "mu at least (95 %)", "epsilon of the run claimed", "at least", "verdict"):
        views.add_column(name, justify="left" if name == "verdict" else "right")
    for view in report["views"]:
        verdict = "[bold red]REFUTED[/bold red]" if view["verdict"] == "refuted" else view["verdict"]
        views.add_row(
            view["view"], view["observer"], str(view["scores"]), f"{view['claim']:.3f}", f"{view['bound']:.3f}",
            or_none(view["epsilon_claimed"]), or_none(view["epsilon_run"]), verdict,
        )  # fmt: skip
    out.print(views)
    if report["refuted"]:
        out.print("[bold red]the claim is refuted[/bold red]")
    else:
        out.print("nothing refuted; an audit can refute a claim, never prove it")


def or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def show_sweep(rows: list[dict[str, Any]], folder: Path) -> None:
    """One row for each experiment, mean and spread over its seeds."""
    from fedceo.studies.table import show

    names = ("regime", "sigma", "seeds", "last", "best", "unsmoothed", "at best validation", "P-loc", "P-glob",
             "epsilon outsider", "epsilon server", "tuned")  # fmt: skip
    shown = [name for name in names if any(row[name] is not None for row in rows)]
    same = [name for name in ("regime", "sigma", "seeds", "tuned") if len({row[name] for row in rows}) == 1]
    out = console()
    out.print("; ".join(f"{name}: {show(rows[0], name)}" for name in same if name in shown))
    table = Table(title="test accuracy of the global model, % (mean ± sd over seeds)")
    table.add_column("experiment", no_wrap=True)
    for name in shown:
        if name not in same:
            table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["experiment"], *(show(row, name) for name in shown if name not in same))
    out.print(table)
    if "unsmoothed" in shown:
        out.print("unsmoothed: the last round measured without a smoothing, where the last round had one")
    out.print(f"best is chosen on the test set; tables: {folder}/table.csv, .md, .tex")


def show_tuned(found: Mapping[str, Mapping[str, Any]]) -> None:
    """The best settings of each experiment."""
    table = Table("experiment", "best validation accuracy, %", "settings", "how")
    for name, each in found.items():
        table.add_row(name, percent(each["validation_accuracy"]), each["file"], each["note"])
    console().print(table)


def show_inventory(inventory: Mapping[str, Mapping[str, str]]) -> None:
    """Everything that can be named, kind by kind."""
    out = console()
    for kind, entries in inventory.items():
        out.print(f"[bold]{kind}[/bold]")
        width = max(map(len, entries), default=0)
        for name, line in entries.items():
            out.print(f"  {name:<{width}}  {line}", highlight=False)
        if not entries:
            out.print("  none here")


def show_data(rows: list[dict[str, Any]], root: Path | None) -> None:
    """Which data sets are there; where the others are looked for."""
    out = console()
    table = Table("data set", "", "looked for in the data folder")
    for row in rows:
        table.add_row(row["name"], "there" if row["missing"] is None else "missing", row["where"])
    out.print(table)
    out.print(f"data folder: {root or 'none; set FEDCEO_DATA or data.root'}", highlight=False)


def show_checked(rows: list[dict[str, Any]]) -> None:
    """Files beside their checksums."""
    table = Table("file", "bytes", "MD5", "")
    for row in rows:
        table.add_row(row["file"], f"{row['bytes']:,}", row["md5"], row["verdict"])
    console().print(table)


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar for each file that is fetched; the value yielded is called with its name, bytes done and total."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, Any] = {}

    def advance(name: str, done: int, total: int | None) -> None:
        bar.start()  # not before the first byte, so that a refusal prints its one line and nothing else
        if name not in tasks:
            tasks[name] = bar.add_task(name)
        bar.update(tasks[name], completed=done, total=total)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


def noise_of(result: dict[str, Any]) -> str:
    """The noise multiplier in words, where there is noise."""
    return f", noise multiplier {result['noise_multiplier']:.3g}" if result["noise_multiplier"] else ""


def percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.2f}"


def console() -> Console:
    """Standard output, as wide as the terminal and wide enough for a table elsewhere."""
    out = Console()
    return out if out.is_terminal else Console(width=160)
