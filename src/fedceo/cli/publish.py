"""`fedceo table`, `fedceo figure` and `fedceo trade-off`: what goes from runs into a paper."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedceo.cli import studies
from fedceo.cli.options import Device, MethodName, Overrides, Rounds, with_short_forms
from fedceo.cli.studies import Cells
from fedceo.errors import UsageError

Runs = Annotated[
    list[Path], typer.Argument(help="Run folders, folders of them, or results files of sweeps (results.json).")
]
Renamed = Annotated[
    list[str] | None, typer.Option("--name", help="Show a method by another name: 'FedCEO=Ours'. May be repeated.")
]


def table(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file .tex, .md or .csv; left out: Markdown is printed.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns, with commas: last, average, best, P-dist, difference, outsider, train.rounds, ..."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The method that differences are taken to; left out: the best of each setting.")
    ] = None,
    names: Renamed = None,
    cells: Cells = None,
) -> None:
    """Write a table for a paper: methods by name, best in bold, differences with intervals over seeds."""
    from fedceo.report.loading import group_runs, load_runs
    from fedceo.report.table import paper_table
    from fedceo.report.writers import WRITERS
    from fedceo.simulation.durable import write_whole

    suffix = ".md" if out is None else out.suffix
    if suffix not in WRITERS:
        raise UsageError(f"--out: {out}, expected a name that ends in {', '.join(WRITERS)}")
    wanted = [name.strip() for name in columns.split(",")] if columns else []
    found = paper_table(group_runs(load_runs(runs, any_data=True, cells=cells or [])), wanted, against, names or [])
    text = WRITERS[suffix](found)
    if out is None:
        print(text, end="")
    else:
        write_whole(out, text.encode())
        print(f"{out}, {sum(map(len, found.blocks))} rows")


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="accuracy, trade-off, trade-off-sigma, forest, runtime; of recorded rounds: smoothness, class-bars, "
            "singular-values, survivors; of attacks: attack."
        ),
    ],
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, .pdf, .png or .svg.")],
    names: Renamed = None,
    cells: Cells = None,
    measure: Annotated[str, typer.Option(help="accuracy: G, P-loc, P-glob, P-dist or worst.")] = "G",
    observer: Annotated[str, typer.Option(help="trade-off: outsider, participant, server or client.")] = "outsider",
    round_: Annotated[
        int | None, typer.Option("--round", help="The recorded round; left out: the last one that smooths.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="The recorded layer; left out: the usual one.")] = None,
    size: Annotated[str | None, typer.Option(help="Width and height in inches: 3.3x2.4.")] = None,
    xlim: Annotated[str | None, typer.Option(help="Limits of the horizontal axis: 0,100.")] = None,
    ylim: Annotated[str | None, typer.Option(help="Limits of the vertical axis: 60,75.")] = None,
    style: Annotated[str | None, typer.Option(help="A style sheet of matplotlib, or a file with one.")] = None,
) -> None:
    """Draw a figure for a paper from runs."""
    from fedceo.report.by_name import Wanted, draw
    from fedceo.report.loading import load_runs
    from fedceo.report.style import restyled

    look = {"size": _pair("--size", size, "x"), "xlim": _pair("--xlim", xlim, ","), "ylim": _pair("--ylim", ylim, ",")}
    wanted = Wanted(load_runs(runs, cells=cells or []), names or [], observer, measure, round_, layer)
    with restyled(style):
        drawing = draw(name, wanted)
        drawing.save(out, **look)
    print(f"{out}: {drawing.caption}")


def trade_off(
    file: Annotated[Path, typer.Argument(help="An experiment file; every cell is run, or those of --cell.")],
    epsilons: Annotated[str, typer.Option(help="The epsilons to solve the noise for: 1,2,4,8.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with its own seed and those after it.")] = 1,
    overrides: Overrides = None,
    rounds: Rounds = None,
    method: MethodName = None,
    device: Device = None,
    only: Cells = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; left out: runs/trade-off/FILE.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; left out: what the machine can.")] = None,
) -> None:
    """Run an experiment at several epsilons, skip what is done, and draw accuracy over epsilon."""
    from fedceo.report.by_name import Wanted, draw
    from fedceo.report.loading import load_runs
    from fedceo.studies.cells import default_folder

    if not file.is_file():
        raise UsageError(f"{file}: no such experiment file")
    try:
        values = sorted({float(each) for each in epsilons.split(",")})
    except ValueError:
        raise UsageError(f"--epsilons: {epsilons!r}, expected numbers such as 1,2,4,8") from None
    if solved := next((each for each in overrides or [] if each.startswith("privacy.target_epsilon")), None):
        raise UsageError(f"--set {solved}: --epsilons says which epsilons there are")
    changes = with_short_forms(overrides, rounds=rounds, method=method, device=device)
    out = out or default_folder("trade-off", file, changes)
    grid = [f"privacy.target_epsilon={values}"]
    studies.sweep(file, seeds, changes, grid=grid, only=only, out=out, jobs=jobs)
    runs = load_runs([out])
    drawing = draw("trade-off", Wanted(runs, observer=runs[0].experiment.privacy.observer))
    drawing.save(out / "trade-off.pdf")
    print(f"{out / 'trade-off.pdf'}; to draw it otherwise: fedceo figure trade-off {shlex.quote(str(out))} -o FILE")


def _pair(option: str, text: str | None, between: str) -> tuple[float, float] | None:
    """Two numbers that an option gives."""
    if text is None:
        return None
    try:
        first, second = map(float, text.split(between))
    except ValueError:
        raise UsageError(f"{option}: {text!r}, expected two numbers such as 3{between}2") from None
    return first, second
