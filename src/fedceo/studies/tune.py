"""Settings chosen on the validation records, with the same number of trials for every method.

`tune` searches, and knows the paper's grids for FedCEO; `tune_on_grid` tries every value of a grid for all experiments
alike, in short runs where asked, of which the best are run again at full length. Both go by the validation accuracy,
or the metric of another task, after a trial's last round. Choosing by validation records releases something about them
that no privacy row accounts for; `fedceo.studies.private` counts it.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedceo.data import build_federation
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, parse_experiment, put, to_toml
from fedceo.experiment.sections import Data
from fedceo.simulation.durable import make_folder, write_whole
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.spending import with_solved_noise
from fedceo.studies.cells import Cell, combinations, trial_folder
from fedceo.studies.sweep import OnCell, run_cell, sweep
from fedceo.tasks import main_metric

OnTrial = Callable[[int, dict[str, Any], float], None]
"""A function of a trial's number, settings and score, of which the highest is the best."""
Cells = dict[tuple[str, int], Cell]
"""Cells by the experiment's name and the number of the setting in the grid."""


def tune(experiment: Experiment, trials: int, out: Path, on_trial: OnTrial | None = None) -> Experiment:
    """The experiment with the best settings found, written to out/tuned.toml; trials that were run are not run again.

    Args:
        trials: the number of settings that are tried, the experiment's own first, whatever the size of the search
            space.
        out: the folder in which each trial has its run folder, named by what it runs.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError("fedceo tune: needs the extra fedceo[tune]") from None
    _check_validation(experiment)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    own, space = search_space(experiment)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=experiment.seed))
    study.enqueue_trial(own)
    for number in range(trials):
        trial = study.ask()
        chosen = {name: trial.suggest_categorical(name, values) for name, values in space.items()}
        candidate = changed(experiment, chosen)
        cell = Cell(f"trial {number}", candidate, trial_folder(out, candidate))
        run_cell(cell)
        score = last_validation(cell)
        study.tell(trial, score)
        if on_trial is not None:
            on_trial(number, chosen, score)
    note = f"best of {trials} trials on validation over {_listed(study.best_params)}; {_budget(trials, len(space))}"
    return _written(changed(experiment, study.best_params), note, out)


def tune_on_grid(
    experiments: Mapping[str, Experiment],
    grid: Sequence[str],
    out: Path,
    rounds: int | None = None,
    finalists: int = 1,
    jobs: int | None = None,
    on_cell: OnCell | None = None,
    stack: int | None = None,
) -> dict[str, tuple[Experiment, float]]:
    """Each experiment with the best values of the grid, written to out/NAME/tuned.toml, and its score on validation.

    out/trials.json holds every trial's values, folder and validation accuracy (null where it failed), and for finalists
    the accuracy `at_full_length`. A trial's folder is named by what it runs, so that a grid that has grown, or one with
    other fields, runs nothing again that was run before.

    Args:
        experiments: the experiments by name; each gets every trial of the grid. A trial that fails counts as tried.
        grid: "section.field=[value, ...]", of which all combinations are tried.
        out: the folder in whose subfolders NAME the trials have their run folders.
        rounds: the length of a trial, where it is shorter than the experiment; its noise is that of the whole
            experiment.
        finalists: the number of the best short trials that are run again at full length, of which the best is chosen,
            because a setting that is quick at first need not be good in the end. With 1 the best short trial is chosen.
        jobs, on_cell, stack: as for `sweep`.
    """
    settings = combinations(grid)
    if rounds is not None and "train.rounds" in settings[0]:
        raise UsageError("--rounds: is the length of every trial, and --grid has train.rounds too")
    if finalists > 1 and rounds is None:
        raise UsageError("--finalists: are short trials run again at full length, and --rounds is not given")
    for name, experiment in experiments.items():
        if rounds is not None and rounds >= experiment.train.rounds:
            raise UsageError(f"--rounds: {rounds}, expected fewer than the {experiment.train.rounds} of {name}")
    if finalists > len(settings):
        raise UsageError(f"--finalists: {finalists}, but --grid has {len(settings)} trials")
    whole: Cells = {}
    for name, experiment in experiments.items():
        _check_validation(experiment)
        for number, values in enumerate(settings):
            candidate = changed(experiment, values)
            cell = Cell(f"{name}, finalist {number}", candidate, trial_folder(out / name, candidate))
            whole[name, number] = cell
    trials: Cells = {}
    for (name, number), cell in whole.items():
        candidate = cell.experiment if rounds is None else _shortened(cell.experiment, rounds)
        trials[name, number] = Cell(f"{name}, trial {number}", candidate, trial_folder(out / name, candidate))
    for cells in (whole, trials):
        if len({cell.folder for cell in cells.values()}) < len(cells):
            raise UsageError("--grid: two of its trials are the same, expected values that differ")
    errors: dict[str, str] = {}

    def note_error(cell: Cell, result: dict[str, Any] | None, error: str | None) -> None:
        if error is not None:
            errors[cell.name] = error
        if on_cell is not None:
            on_cell(cell, result, error)

    scores = _run(trials, jobs, note_error, stack)
    finals: Cells = {}
    if finalists > 1:
        for name in experiments:
            ranked = sorted(range(len(settings)), key=lambda number: -scores[name, number])
            finals |= {(name, number): whole[name, number] for number in ranked[:finalists]}
    final_scores = _run(finals, jobs, note_error, stack)
    decisive_cells = finals or trials
    for name in experiments:
        decided = [cell.name for (of, _), cell in decisive_cells.items() if of == name]
        if all(each in errors for each in decided):
            raise UsageError(f"{name}: no trial came to an end; {decided[0]}: {errors[decided[0]]}")

    def shown(key: tuple[str, int], cells: Cells, scores: Mapping[tuple[str, int], float]) -> float | None:
        return None if cells[key].name in errors else main_metric(cells[key].experiment.task).value_of(scores[key])

    tuned, said = {}, {}
    for name, experiment in experiments.items():
        decisive = {number: score for (of, number), score in (final_scores or scores).items() if of == name}
        best = max(decisive, key=decisive.__getitem__)
        failed = sum(cell.name in errors for (of, _), cell in (*trials.items(), *finals.items()) if of == name)
        ending = f"; {failed} failed" if failed else ""
        note = note_of(len(settings), settings[best], rounds, finalists)
        tuned[name] = _written(changed(experiment, settings[best]), note + ending, out / name), decisive[best]
        metric = main_metric(experiment.task).name
        said[name] = [
            values | {"folder": trials[name, number].folder.name}
            | {f"validation_{metric}": shown((name, number), trials, scores)}
            | ({"at_full_length": shown(key, finals, final_scores)} if (key := (name, number)) in finals else {})
            for number, values in enumerate(settings)
        ]  # fmt: skip
    write_whole(out / "trials.json", json.dumps(said).encode())
    return tuned


def settings_of(experiment: Experiment, grid: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Every combination of the grid's values or, without a grid, of those that `tune` would search."""
    if grid:
        return tuple(combinations(grid))
    _, space = search_space(experiment)
    return tuple(dict(zip(space, values, strict=True)) for values in itertools.product(*space.values()))


def search_space(experiment: Experiment) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The experiment's own values of all that its method has values to try for, and these together with its own."""
    known = experiment.method.search_space(experiment)
    own = {name: _value(experiment, name) for name in known}
    return own, {name: [*dict.fromkeys([own[name], *values])] for name, values in known.items()}


def _run(cells: Cells, jobs: int | None, on_cell: OnCell | None, stack: int | None) -> dict[tuple[str, int], float]:
    """Run all cells and return the score of each, as `last_validation` gives it."""
    sweep(list(cells.values()), jobs, on_cell, stack)
    return {key: last_validation(cell) for key, cell in cells.items()}


def note_of(trials: int, chosen: Mapping[str, Any], rounds: int | None = None, finalists: int = 1) -> str:
    """The note of a tuned experiment: among how many trials, of which length, its values were chosen."""
    length = "" if rounds is None else f" of {rounds} rounds"
    again = f", the best {finalists} again at full length," if finalists > 1 else ""
    budget = _budget(trials, len(chosen))
    return f"best of {trials} trials{length}{again} on validation over {_listed(chosen)}; {budget}"


def _budget(trials: int, settings: int) -> str:
    """The trials in words that methods with different numbers of tuned settings can be compared by."""
    return f"{trials / settings:.3g} trials for each of {settings} tuned setting{'s' if settings > 1 else ''}"


def _listed(chosen: Mapping[str, Any]) -> str:
    return ", ".join(f"{field} ({value})" for field, value in chosen.items())


def _shortened(experiment: Experiment, rounds: int) -> Experiment:
    """The experiment with fewer rounds and the noise of the whole one.

    A target epsilon would allow less noise for fewer rounds. A schedule of the learning rate is that of the short run.
    """
    if experiment.privacy.target_epsilon is not None:
        experiment = with_solved_noise(experiment, _sizes(experiment.data, experiment.seed))
    return changed(experiment, {"train.rounds": rounds})


@cache
def _sizes(data: Data, seed: int) -> list[int]:
    return build_federation(data, seed).sizes.tolist()


def _check_validation(experiment: Experiment) -> None:
    if experiment.data.validation == 0:
        raise UsageError("data.validation: 0, but settings are chosen on validation records")


def _written(experiment: Experiment, note: str, out: Path) -> Experiment:
    tuned = experiment.model_copy(update={"note": note})
    make_folder(out)
    write_whole(out / "tuned.toml", to_toml(tuned).encode())
    return tuned


def _value(experiment: Experiment, name: str) -> Any:
    section, _, field = name.partition(".")
    return getattr(getattr(experiment, section), field)


def changed(experiment: Experiment, values: dict[str, Any]) -> Experiment:
    """The experiment with other values of "section.field", checked again."""
    table = experiment.model_dump(exclude_none=True)
    for name, value in values.items():
        section = name.partition(".")[0]
        if not isinstance(table.get(section), dict):
            raise UsageError(f"{name}: expected section.field of an experiment")
        put(table[section], name, value)
    return parse_experiment(table)


def last_validation(cell: Cell) -> float:
    """The score of the cell's run; one that failed has the worst."""
    folder = RunFolder(cell.folder)
    return validation_score(cell.experiment, folder.history()[-1] if folder.finished else {})


def validation_score(experiment: Experiment, last: Mapping[str, Any]) -> float:
    """A score of which the highest is the best: the validation accuracy after the last round of a run.

    For other tasks it is their metric, with its sign turned where lower is better. Where [release] asks for an average,
    it is that of the average, which is then the model to use. A run that was not measured has the worst.

    Args:
        last: the metrics of the last round.
    """
    metric = main_metric(experiment.task)
    found = (last.get(f"{of}validation_{metric.name}") for of in ("average_", ""))
    return metric.score(next((value for value in found if value is not None), None))
