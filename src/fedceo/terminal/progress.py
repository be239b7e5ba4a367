"""What the terminal shows: progress while a run goes on, tables when it is done."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
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
from rich.text import Text

from fedceo.report.verdicts import audit_in_words
from fedceo.terminal.monitor import Advance
from fedceo.terminal.tables import PRIVACY_COLUMNS, VIEW_COLUMNS, Cell, Column, apart, or_none, percent, show_table

if TYPE_CHECKING:
    from fedceo.simulation.runs import Run

NAMES = {
    "last": "last round",
    "best": "best round (chosen on the test set)",
    "at_best_validation": "at best validation",
}
OWN = {
    "local_accuracy_last": "P-loc, on their own test records",
    "personal_accuracy_last": "P-glob, on the public test set",
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
    show_accuracy(result["accuracy"], out)
    if result.get("global_model_caveat"):
        out.print(f"its global model is {result['global_model_caveat']}")
    show_privacy(result["privacy"], out)
    if result["ended_early"]:
        out.print(f"ended early by {result['ended_early']}")
    if result["discarded_rounds"]:
        out.print(f"{result['discarded_rounds']} rounds had too few reports and were discarded")
    if result["nonfinite_updates"]:
        out.print(f"{result['nonfinite_updates']} updates were NaN or Inf and counted as zero")
    out.print(f"results: {folder}")


def show_accuracy(accuracy: Mapping[str, Any], out: Console) -> None:
    """Of the global model and, where they were measured, of the clients' own."""
    rows = [(name, percent(accuracy[key])) for key, name in NAMES.items()]
    if "last_unsmoothed" in accuracy:
        rows.append((f"the last round smoothed; {without_smoothing(accuracy)}", percent(accuracy["last_unsmoothed"])))
    show_table(out, [Column("test accuracy of the global model", "words"), Column("%")], rows)
    own = [(name, percent(accuracy[key])) for key, name in OWN.items() if accuracy.get(key) is not None]
    if own:
        show_table(out, [Column("accuracy of clients' own models, last round", "words"), Column("%")], own)


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
    rows = []
    for name, run in runs.items():
        accuracies = [percent(run.result["accuracy"][key]) for key in NAMES]
        sigma = f"{run.result['noise_multiplier']:.2f}" if run.result["noise_multiplier"] else "-"
        rows.append([name, run.result["regime"], sigma, *accuracies, f"{run.result['seconds']:.1f}"])
    columns = [Column(name) for name in ("noise multiplier", *NAMES.values(), "seconds")]
    show_table(out, [Column("", "name"), Column("regime", "words"), *columns], rows, title="test accuracy, %")
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
    notes = list(dict.fromkeys(row["assumption"] for row in rows))
    shown: list[dict[str, Cell]] = [
        row | {"epsilon": or_none(row["epsilon"]), "delta": f"{row['delta']:.1e}",
               "note": str(notes.index(row["assumption"]) + 1)}
        for row in rows
    ]  # fmt: skip
    several = len({row["mechanism"] for row in rows}) > 1
    columns = [column for column in PRIVACY_COLUMNS if several or column.name != "mechanism"]
    same, columns = apart(columns, shown, kept=("observer", "epsilon", "note"))
    if same:
        out.print(same, highlight=False)
    show_table(out, columns, [[row[column.name] for column in columns] for row in shown])
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2)
    grid.add_column(overflow="fold")
    for number, note in enumerate(notes, 1):
        grid.add_row(f"{number:>2}", note)
    out.print(grid, highlight=False)


def show_calibration(found: list[dict[str, Any]], epsilon: float) -> None:
    """The noise multiplier of each mechanism that may be meant."""
    columns = (
        Column("mechanism", "name"), "noise multiplier", "epsilon", "delta", Column("under which assumption", "words"),
    )  # fmt: skip
    rows = [
        (each["mechanism"], f"{each['noise_multiplier']:.4g}", f"{each['epsilon']:.4g}", f"{each['delta']:.1e}",
         each["assumption"])
        for each in found
    ]  # fmt: skip
    out = console()
    out.print(f"noise for an epsilon of {epsilon:g} against the {found[0]['observer']}, per {found[0]['unit']}:")
    show_table(out, columns, rows)


def show_audit(report: dict[str, Any]) -> None:
    """What an audit found: the mechanism as a function, then what canaries showed in each view."""
    out = console()
    out.print(
        f"audit of mechanism {report['mechanism']}, noise multiplier {report['noise_multiplier']:.4g}, "
        f"{report['rounds']} rounds with canaries, delta {report['delta']:.1e}"
    )
    columns = (Column("check of the mechanism", "name"), "measured", Column("expected", "words"))
    checks = [
        (each["check"], f"{each['measured']:.4g}", each["expected"], "passed" if each["passed"] else alarm("FAILED"))
        for each in report["findings"]
    ]
    show_table(out, (*columns, Column("verdict", "name")), checks)
    views = [
        (view["view"], view["observer"], str(view["scores"]), f"{view['claim']:.3f}", f"{view['bound']:.3f}",
         or_none(view["epsilon_claimed"]), or_none(view["epsilon_run"]),
         alarm("REFUTED") if view["verdict"] == "refuted" else view["verdict"])
        for view in report["views"]
    ]  # fmt: skip
    show_table(out, VIEW_COLUMNS, views, title="what canaries showed")
    out.print(alarm(audit_in_words(report)) if report["refuted"] else audit_in_words(report), highlight=False)


def alarm(words: str) -> Text:
    return Text(words, "bold red")


def show_sweep(rows: list[dict[str, Any]], folder: Path) -> None:
    """One row for each experiment, mean and spread over its seeds."""
    from fedceo.studies.table import show

    names = ("regime", "sigma", "seeds", "last", "best", "unsmoothed", "at best validation", "P-loc", "P-glob",
             "epsilon outsider", "epsilon server", "tuned")  # fmt: skip
    shown = [name for name in names if any(row[name] is not None for row in rows)]
    same = [name for name in ("regime", "sigma", "seeds", "tuned") if len({row[name] for row in rows}) == 1]
    out = console()
    out.print("; ".join(f"{name}: {show(rows[0], name)}" for name in same if name in shown))
    left = [name for name in shown if name not in same]
    title = "test accuracy of the global model, % (mean ± sd over seeds)"
    cells = [[row["experiment"], *(show(row, name) for name in left)] for row in rows]
    show_table(out, [Column("experiment", "name"), *left], cells, title)
    for row in rows:
        if row.get("caveat"):
            out.print(f"{row['experiment']}: its global model is {row['caveat']}")
    if "unsmoothed" in shown:
        out.print("unsmoothed: the last round measured without a smoothing, where the last round had one")
    out.print(f"best is chosen on the test set; tables: {folder}/table.csv, .md, .tex")


def show_tuned(found: Mapping[str, Mapping[str, Any]]) -> None:
    """The best settings of each experiment."""
    columns = (
        Column("experiment", "name"), "best validation accuracy, %", Column("settings", "name"), Column("how", "words"),
    )  # fmt: skip
    rows = [(name, percent(each["validation_accuracy"]), each["file"], each["note"]) for name, each in found.items()]
    show_table(console(), columns, rows)


def show_inventory(inventory: Mapping[str, Mapping[str, str]]) -> None:
    """Everything that can be named, kind by kind."""
    out = console()
    for kind, entries in inventory.items():
        out.print(f"[bold]{kind}[/bold]")
        if kind == "experiment files":  # their names are long, and to be copied
            for name, line in entries.items():
                out.print(f"  {name}", soft_wrap=True, highlight=False, markup=False)
                out.print(Padding(Text(line), (0, 0, 0, 6)))
        else:
            grid = Table.grid(padding=(0, 2))
            for name, line in entries.items():
                grid.add_row(Text(f"  {name}"), Text(line))
            out.print(grid)
        if not entries:
            out.print("  none here")


def show_data(rows: list[dict[str, Any]], root: Path | None) -> None:
    """Which data sets are there; where the others are looked for."""
    out = console()
    columns = (Column("data set", "name"), Column("", "name"), Column("looked for in the data folder", "words"))
    show_table(out, columns, [(row["name"], "missing" if row["missing"] else "there", row["where"]) for row in rows])
    out.print(f"data folder: {root or 'none; set FEDCEO_DATA or data.root'}", highlight=False)


def show_checked(rows: list[dict[str, Any]]) -> None:
    """Files beside their checksums."""
    columns = (Column("file", "name"), "bytes", Column("MD5", "name"), Column("", "words"))
    show_table(console(), columns, [(row["file"], f"{row['bytes']:,}", row["md5"], row["verdict"]) for row in rows])


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


def console() -> Console:
    """Standard output, as wide as the terminal and wide enough for a table elsewhere."""
    out = Console()
    return out if out.is_terminal else Console(width=160)
