"""`fedceo attack`: reconstructions of a client's record by an attacker."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedceo.cli.options import CellName, Json, Overrides, check_cell, new_folder
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation


def attack(
    target: Annotated[Path, typer.Argument(help="An experiment file (its initial weights), or a finished run folder.")],
    images: Annotated[int, typer.Option(help="Training records attacked, drawn at random.")] = 32,
    index: Annotated[list[int] | None, typer.Option(help="Attack this training record. May be repeated.")] = None,
    name: Annotated[str, typer.Option("--attack", help="dlg, idlg or ig.")] = "dlg",
    holds: Annotated[
        str | None,
        typer.Option(
            help="What the attacker holds: T0 a bare gradient, T1 an upload after one local step, T2 a smoothed model, "
            "T3 an upload after several steps. Left out: T1, and with --preset T2 too."
        ),
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Steps; left out: 300, or 4800 for ig.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="paper: records 25, 50, 100 at sigma 1.0, 1.5, 2.0, as one figure.")
    ] = None,
    cell: CellName = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; left out: runs/attacks/NAME.")] = None,
    as_json: Json = False,
) -> None:
    """Attack updates by gradient inversion, beside a control without privacy and the best constant colour."""
    from fedceo.attacks import PAPER, PAPER_RATE, Attack, choose, run_study, whole_figure
    from fedceo.simulation.durable import write_json
    from fedceo.terminal.progress import waiting
    from fedceo.terminal.studies import show_attack

    if preset not in (None, "paper"):
        raise UsageError(f'--preset: unknown preset {preset!r}, the only one is "paper"')
    if preset is not None and (index or iterations is not None):
        raise UsageError("--preset: says which records and how many steps; leave out --index and --iterations")
    check_cell(cell, target)
    settings = Attack(name, iterations)
    plans: list[tuple[Path, list[str], list[int] | None, str]] = [(Path(), [], index, holds or "T1")]
    if preset is not None:
        settings = Attack(name, 300, PAPER_RATE)
        plans = [
            (Path(f"record-{record}-sigma-{sigma}", *within), [f"privacy.noise_multiplier={sigma}"], [record], held)
            for record, sigma in PAPER
            for held, within in ([(holds, ())] if holds else [("T1", ()), ("T2", ("smoothed",))])
        ]
    folder = out or new_folder(Path("runs") / "attacks" / (target.stem or "here"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: not an empty folder")
    studies = []
    for within, changes, indices, held in plans:
        simulation = _simulation(target, [*(overrides or []), *changes], cell)
        chosen = choose(simulation, images, indices)
        with waiting(f"attacking {len(chosen)} records, first without privacy"):
            study = run_study(simulation, settings, held.upper(), chosen, control=within.name != "smoothed")
        (folder / within).mkdir(parents=True, exist_ok=True)
        write_json(folder / within / "attack.json", study.result)
        study.draw(folder / within)
        studies.append(study)
        if not as_json:
            show_attack(study.result)
    if preset is not None:
        whole_figure(studies).savefig(folder / "figure.png")
    if as_json:
        print(json.dumps({"folder": str(folder), "studies": [study.result for study in studies]}))
    else:
        print(f"results and pictures: {folder}")


def _simulation(target: Path, overrides: list[str], cell: str | None) -> "Simulation":
    """The simulation at the initial weights of an experiment file, or after the last round of a run."""
    from fedceo.experiment.file import load_experiment
    from fedceo.methods.base import State
    from fedceo.simulation.folder import RunFolder
    from fedceo.simulation.preparing import prepare, prepare_again
    from fedceo.simulation.runs import load

    if not target.is_dir():
        return prepare(load_experiment(target, overrides, cell))
    run = load(target)
    simulation = prepare_again(RunFolder(target))
    if overrides:
        simulation = prepare(load_experiment(target / "experiment.toml", overrides))
    clip = next((r["clip"] for r in reversed(run.history) if "clip" in r), simulation.clip)
    simulation.restore(State(run.weights), run.result["rounds"], clip)
    return simulation
