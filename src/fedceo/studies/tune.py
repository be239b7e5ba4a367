"""Settings chosen on the validation records, with the same number of trials for every method.

The search knows the paper's grids for FedCEO. What a search learns from validation records is a release of its own that
no privacy row accounts for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedceo.config import Experiment, parse_experiment, to_toml
from fedceo.errors import UsageError
from fedceo.method_settings import PPSGD, BlurLus, DPFedLS, DPFedSAM, DPFedSGD, FedCEO, FedProx, JainAnil
from fedceo.simulation.folder import write_whole
from fedceo.studies.cells import Cell
from fedceo.studies.sweep import run_cell

Space = dict[str, list[Any]]
OnTrial = Callable[[int, dict[str, Any], float], None]

RATES = [0.003, 0.01, 0.03, 0.1, 0.3]
SERVER_RATES = [0.03, 0.1, 0.3, 1.0, 3.0]


def tune(experiment: Experiment, trials: int, out: Path, on_trial: OnTrial | None = None) -> Experiment:
    """The experiment with the best settings found, written to out/tuned.toml; trials that were run are not run again.

    Args:
        trials: how many settings are tried; a method with more settings gets no more trials.
        out: a folder; each trial is a run in it.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError("fedceo tune: needs the extra fedceo[tune]") from None
    if experiment.data.validation == 0:
        raise UsageError("data.validation: 0, but settings are chosen on validation records")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = search_space(experiment)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=experiment.seed))
    for number in range(trials):
        trial = study.ask()
        chosen = {name: trial.suggest_categorical(name, values) for name, values in space.items()}
        cell = Cell(f"trial-{number}", changed(experiment, chosen), out / f"trial-{number}")
        score = best_validation(cell)
        study.tell(trial, score)
        if on_trial is not None:
            on_trial(number, chosen, score)
    note = f"best of {trials} trials on validation over {', '.join(space)}"
    tuned = changed(experiment, study.best_params).model_copy(update={"note": note})
    write_whole(out / "tuned.toml", to_toml(tuned).encode())
    return tuned


def search_space(experiment: Experiment) -> Space:
    """What is searched for the experiment's method: its learning rate, and what is its own."""
    method, sigma = experiment.method, experiment.privacy.noise_multiplier or 1.5
    one_gradient = isinstance(method, DPFedSGD | JainAnil) or (isinstance(method, PPSGD) and method.form == "gradient")
    space: Space = {"train.server_learning_rate": SERVER_RATES} if one_gradient else {"train.learning_rate": RATES}
    match method:
        case FedCEO(threshold="noise"):
            space |= {"method.kappa": [0.1, 0.3, 0.5, 1.0], "method.interval": [10, 15, 20, 30]}
        case FedCEO():
            strengths: dict[float, list[Any]] = {1.0: [55 + 5 * k for k in range(10)], 1.5: [0.1, 0.3, 1.0, 3.0, 10.0]}
            near = min((1.0, 1.5, 2.0), key=lambda known: abs(known - sigma))
            space |= {
                "method.strength": strengths.get(near, [0.01, 0.03, 0.1, 0.3, 1.0]),
                "method.ratio": [1 + k / 100 for k in range(1, 11)] if method.ratio > 1 else [1.0],
                "method.interval": [10, 15, 20, 25, 30],
            }
        case FedProx():
            space |= {"method.mu": [0.001, 0.01, 0.1, 0.5, 1.0]}
        case BlurLus():
            space |= {"method.strength": [0.01, 0.1, 0.5, 1.0], "method.sparsity": [0.0, 0.3, 0.5, 0.7, 0.9]}
        case PPSGD(form="gradient"):
            space |= {"method.alpha": [0.1, 0.3, 1.0, 3.0, 10.0, 30.0]}
        case DPFedSAM():
            space |= {"method.radius": [0.01, 0.05, 0.1, 0.5]}
        case DPFedLS():
            space |= {"method.coefficient": [0.1, 0.5, 1.0, 2.0]}
    return space


def changed(experiment: Experiment, values: dict[str, Any]) -> Experiment:
    """The experiment with "section.field" set, checked again."""
    table = experiment.model_dump(exclude_none=True)
    for name, value in values.items():
        section, field = name.split(".")
        table[section][field] = value
    return parse_experiment(table)


def best_validation(cell: Cell) -> float:
    """The best validation accuracy of the cell's run."""
    import json

    run_cell(cell)
    records = [json.loads(line) for line in (cell.folder / "metrics.jsonl").read_text().splitlines()]
    found = [record["validation_accuracy"] for record in records if record.get("validation_accuracy") is not None]
    return max(found, default=0.0)
