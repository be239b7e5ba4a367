"""From what a user gives to a simulation before its first round: everything that can be refused is refused here."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedceo.accounting.ledger import Entry
from fedceo.data import Federation, Source, build_federation, federate
from fedceo.data.files import first_line
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, load_experiment, parse_experiment
from fedceo.experiment.plugins import is_own
from fedceo.methods.hosted import check_same_method
from fedceo.models import build_model, can_be_built, check_trainable
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.identity import identity
from fedceo.simulation.rounds import Simulation
from fedceo.simulation.spending import check_observer_of, privacy_plan, settled, solve_noise
from fedceo.tasks import make_task
from fedceo.training.schedule import Schedule
from fedceo.training.work import local_work

if TYPE_CHECKING:  # slow to import, and not always needed
    from fedceo.accounting.budget import Budget

MADE_IN_PYTHON = (
    "{folder}: was made with other data or a model of your own, which only Python can give: "
    "fedceo.resume(folder, data=..., model=...)"
)


def as_experiment(
    given: Experiment | str | Path | Mapping[str, Any], data: Federation | Source | None = None
) -> Experiment:
    """The experiment that `fedceo.run` was given in any of its forms, read and checked.

    data: the user's own, whose name stands in for that of [data] where a mapping has none.
    """
    if isinstance(given, Experiment):
        experiment = given
    elif not isinstance(given, str | Path | Mapping):
        raise UsageError(f"experiment: {type(given).__name__}, expected an experiment, a mapping or a file's path")
    else:
        own = {} if data is None else {"name": getattr(data, "name", "own")}
        named = _with_data(given, own) if isinstance(given, Mapping) else None
        experiment = load_experiment(given) if named is None else parse_experiment(named)  # type: ignore[arg-type]
    return with_absolute_places(experiment)


def _with_data(given: Mapping[str, Any], own: Mapping[str, str]) -> Mapping[str, Any]:
    table = given.get("data", {})
    if not own or not isinstance(table, Mapping) or table.keys() & {"name", "path"}:
        return given
    return {**given, "data": {**own, **table}}


def as_path(given: object, name: str = "path") -> Path:
    """A folder's path as users give it."""
    if not isinstance(given, str | Path):
        raise UsageError(f"{name}: {type(given).__name__}, expected a folder's path")
    return Path(given)


def with_absolute_places(experiment: Experiment) -> Experiment:
    """The same experiment with absolute paths, so that it can be resumed from any folder."""
    places = {name: getattr(experiment.data, name) for name in ("path", "root")}
    absolute = {name: str(Path(place).expanduser().resolve()) for name, place in places.items() if place is not None}
    for name, place in absolute.items():
        if place != place.encode(errors="ignore").decode():
            raise UsageError(f"data.{name}: {place} is not UTF-8, and so cannot stand in an experiment file")
    return experiment.model_copy(update={"data": experiment.data.model_copy(update=absolute)})


def prepare(
    experiment: Experiment,
    data: Federation | Source | None = None,
    model: nn.Module | None = None,
    noise_key: str | None = None,
) -> Simulation:
    """A simulation before its first round; everything that can be refused is refused here, before a file is written.

    noise_key: that of a run which is resumed.
    """
    if not isinstance(data, Federation | Source | None):
        raise UsageError(f"data: {type(data).__name__}, expected a Federation or a Source, as from_arrays makes")
    if model is not None:
        check_trainable(model, "model: ")
        named = experiment.model.model_copy(update={"name": type(model).__name__})
        experiment = experiment.model_copy(update={"model": named})
    experiment.method.prepare()
    if experiment.release_kind != "average" and not experiment.mechanism.shows_uploads:
        raise UsageError(
            f"method.name: {experiment.method.name} needs each client's upload, which mechanism "
            f'"{experiment.privacy.mechanism}" does not release; use mechanism "distributed"'
        )
    if isinstance(data, Federation):
        federation = data
    elif data is not None:
        federation = federate(data, experiment.data, experiment.seed)
    else:
        federation = build_federation(experiment.data, experiment.seed)
    task = make_task(experiment.task)
    federation = task.prepared(federation)
    is_foreign = model is not None or is_own(experiment.model.name)
    if model is None:
        seed = Schedule(experiment.seed).number("model")
        settings = experiment.model.settings
        model = build_model(experiment.model.name, federation.shape, federation.classes, seed, settings)
    else:
        model = copy.deepcopy(model)  # the caller's stays as it is
    experiment = settled(experiment, federation.clients)
    noise_multiplier = solve_noise(experiment, federation.sizes.tolist())
    plan = privacy_plan(experiment, federation.sizes.tolist(), noise_multiplier)  # refuses what has no account
    check_observer_of(experiment, plan)
    simulation = Simulation(experiment, federation, model, experiment.model.name, noise_multiplier, noise_key)
    if any(is_own(name) for name in experiment.task.metrics or []):
        simulation.evaluator.measure(simulation.state.weights)  # what a metric refuses should not wait for a round
    if is_foreign:
        _try_out(simulation)
    work = local_work(experiment.train, 1, simulation.mechanism.local_privacy)
    simulation.method.try_out(work, experiment.cohort.size)
    _, ended = next_round(simulation, budget_of(simulation))
    if ended is not None:
        raise UsageError(ended)
    return simulation


def _try_out(simulation: Simulation) -> None:
    """Take one local step of one client: a model of the user's own may do something that no engine can compute."""
    starts = {name: w.unsqueeze(0) for name, w in simulation.state.weights.items()}
    work = local_work(simulation.experiment.train, 1, simulation.mechanism.local_privacy)
    try:
        simulation.trainer.train(starts, [0], 1, replace(work, epochs=1, steps=1))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise UsageError(
            f"model: {simulation.model_name} cannot be trained by the {simulation.engine} engine under mechanism "
            f"{simulation.experiment.privacy.mechanism!r}: {first_line(error)}"
        ) from None


def prepare_again(folder: RunFolder) -> Simulation:
    """The simulation of a folder's experiment; refused if it had data or a model that the experiment does not name."""
    experiment = folder.experiment()
    if not can_be_built(experiment.model.name):
        raise UsageError(MADE_IN_PYTHON.format(folder=folder.path))
    simulation = prepare(experiment)
    noted = folder.result() if folder.finished else folder.load_checkpoint().about
    check_same_method(noted, simulation.experiment.method, folder.path)
    if folder.finished:
        same = (noted.get("data_digest"), noted["model"]) == (simulation.federation.digest, simulation.model_name)
    else:
        same = noted["identity"] == identity(simulation, simulation.experiment)
    if not same:
        raise UsageError(MADE_IN_PYTHON.format(folder=folder.path))
    return simulation


def budget_of(simulation: Simulation) -> "Budget | None":
    privacy = simulation.experiment.privacy
    if privacy.max_epsilon is None:
        return None
    from fedceo.accounting.budget import Budget

    plan = privacy_plan(simulation.experiment, simulation.federation.sizes.tolist(), simulation.noise_multiplier)
    return Budget(privacy.max_epsilon, privacy.observer, plan)


def next_round(simulation: Simulation, budget: "Budget | None") -> tuple[Entry | None, str | None]:
    """The entry of the next round; None at the end, with the reason where it is the budget that ends the run."""
    if simulation.round == simulation.experiment.train.rounds:
        return None, None
    entry = simulation.draw()
    refused = budget.refuses(simulation.ledger, entry) if budget is not None else None
    return (None, refused) if refused else (entry, None)
