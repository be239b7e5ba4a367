"""Runs from start to finish: in memory for a notebook, or in a folder that survives being killed.

run = fedceo.run("my.toml", out="runs/mine")     # or an Experiment, or a nested dict
run.history, run.weights, run.result
fedceo.load("runs/mine").model
"""

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedceo.accounting.ledger import Ledger
from fedceo.data import Federation, Source
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.methods.hosted import check_same_method
from fedceo.models import build_model, can_be_built, fixed_parts, parameters_of
from fedceo.models.plugins import check_unchanged
from fedceo.simulation.callbacks import Callback, Callbacks
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.identity import identity
from fedceo.simulation.pace import logged
from fedceo.simulation.preparing import MADE_IN_PYTHON, as_experiment, as_path, budget_of, next_round, prepare
from fedceo.simulation.rounds import Simulation
from fedceo.simulation.shown import as_html, in_words
from fedceo.simulation.summary import own_model_of, result_of
from fedceo.tasks import is_measured
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:  # slow to import, and not always needed
    from fedceo.scale.cluster import Workers

OnRound = Callable[[dict[str, Any]], None]
OnStart = Callable[[Simulation], None]
ShouldStop = Callable[[], bool]


def never() -> bool:
    return False


@dataclass(frozen=True)
class Run:
    """A run: the experiment, the metrics of every round, the global model, and the summary.

    Attributes:
        history: the metrics of each round, a dict; rounds that were evaluated have "test_accuracy" and the like.
        weights: the global model's parameters after the last round taken.
        model: the module with those weights, in evaluation mode.
        result: the summary, as in result.json; accuracies in 0..1, and the privacy rows.
        finished: whether all rounds were taken, or all that privacy.max_epsilon allows.
        ledger: what every round has spent.
        folder: where it lies on disk, if it does.
        average: the average of the global models, where release.average asks for one.
    """

    experiment: Experiment
    history: list[dict[str, Any]]
    weights: dict[str, Tensor]
    model: nn.Module
    result: dict[str, Any]
    finished: bool
    ledger: Ledger
    folder: Path | None = None
    average: dict[str, Tensor] | None = None

    def __repr__(self) -> str:
        return in_words(self)

    def _repr_html_(self) -> str:
        return as_html(repr(self), self.history, self.experiment.train.rounds)


def run(
    experiment: Experiment | str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    data: Federation | Source | None = None,
    model: nn.Module | None = None,
    workers: "Workers | None" = None,
    on_start: OnStart | None = None,
    on_round: OnRound | None = None,
    should_stop: ShouldStop = never,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = True,
) -> Run:
    """Train a federation.

    Args:
        experiment: an experiment, a nested mapping of one, or the path of an experiment file.
        out: a new or empty folder for the run's files; without it nothing is written.
        data: data of your own, instead of those that [data] names: a Federation as it is, or a Source to be partitioned
            as [data] says.
        model: a module of your own that returns logits, instead of the one that [model] names.
        workers: Ray workers that train the cohort (fedceo.scale), instead of this process. They are no part
            of the experiment: the result is the same, and a run may be resumed elsewhere.
        on_start: called with the simulation before its first round, by whoever wants to watch it.
        on_round: called with every round's metrics.
        should_stop: asked after every round; the run is saved and left unfinished when it says yes.
        callbacks: objects of fedceo.Callback, or their names, that hear of the start, every measurement and the end.
        progress: whether rounds are told of: a line is logged for every measured one ("fedceo", level INFO) where
            logging is configured; where it is not, terminals and notebooks show a bar, anything else the lines.
    """
    watchers = Callbacks(callbacks)
    simulation = prepare(as_experiment(experiment, data), data, model)
    folder = None if out is None else RunFolder(Path(out))
    with on(workers, simulation, folder), folder.held() if folder is not None else nullcontext():
        if folder is not None:
            folder.create(simulation.experiment, simulation.state, about_run(simulation, 0.0))
        return carry_on(simulation, folder, [], 0.0, on_start, on_round, should_stop, progress, watchers)


def resume(
    path: str | Path,
    *,
    data: Federation | Source | None = None,
    model: nn.Module | None = None,
    workers: "Workers | None" = None,
    on_start: OnStart | None = None,
    on_round: OnRound | None = None,
    should_stop: ShouldStop = never,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = True,
) -> Run:
    """Go on with an unfinished run from its last checkpoint; the end is the same as without the interruption."""
    watchers, folder = Callbacks(callbacks), RunFolder(as_path(path))
    experiment = folder.experiment()
    with folder.held():
        if folder.finished:
            return load(path, model=model)
        folder.mend()
        state, about, average, noise = folder.load_checkpoint()
        if model is None and not can_be_built(experiment.model.name):
            raise UsageError(MADE_IN_PYTHON.format(folder=folder.path))
        simulation = prepare(experiment, data, model, about["noise_key"])
        check_same(simulation, experiment, about, folder)
        ledger = folder.ledger(repeatable=simulation.ledger.repeatable, least=about["ledger"])
        history, seconds = folder.rewind(about["round"]), about["seconds"]
        simulation.restore(state, about["round"], about["clip"], ledger, about["seconds_by_part"], average, noise)
        with on(workers, simulation, folder):
            return carry_on(simulation, folder, history, seconds, on_start, on_round, should_stop, progress, watchers)


def load(path: str | Path, *, model: nn.Module | None = None) -> Run:
    """A finished run from its folder; `model` is needed if it was one of your own."""
    folder = RunFolder(as_path(path))
    experiment = folder.experiment()
    if not folder.finished:
        raise UsageError(f"{path}: the run is unfinished; go on with: fedceo run --resume {path}")
    weights = folder.load_model()
    result = folder.result()
    if model is None:
        if result["model"] != experiment.model.name or not can_be_built(experiment.model.name):
            raise UsageError(f"{path}: was trained with a model of your own, {result['model']}; pass it as model=")
        shape, classes = tuple(result["record_shape"]), result["classes"]
        model = build_model(experiment.model.name, shape, classes, 0, experiment.model.settings)
        check_unchanged(result.get("own_model"), experiment.model.name, shape, classes, folder.path)
    model = copy.deepcopy(model).to(next(iter(weights.values())).dtype)
    expected = {name: w.shape for name, w in parameters_of(model).items()}
    fixed = dict(model.named_buffers())
    weights = {name: w for name, w in weights.items() if name not in fixed}
    saved = {name: w.shape for name, w in weights.items()}
    if expected != saved:
        other = sorted(name for name in expected | saved if expected.get(name) != saved.get(name))[0]
        raise UsageError(f"{path}: the model does not fit the saved weights, which differ in {other}")
    model.load_state_dict(weights, strict=False)
    seeded = experiment.privacy.randomness == "seeded"
    ledger = folder.ledger(repeatable=seeded, least=result.get("ledger", 0))
    average = None
    if folder.has_average:
        average = {name: w for name, w in folder.load_model("average").items() if name not in fixed}
    history = folder.history(result["rounds"])
    return Run(experiment, history, weights, model.eval(), result, True, ledger, folder.path, average)


def check_same(simulation: Simulation, experiment: Experiment, about: Mapping[str, Any], folder: RunFolder) -> None:
    """Refuse a checkpoint of another experiment, data, model or method; about: what it says of its run."""
    data = simulation.federation.origin
    check_unchanged(about.get("own_model"), simulation.model_name, data.shape, data.classes, folder.path)
    check_same_method(about, experiment.method, folder.path)
    if about["identity"] != identity(simulation, experiment):
        raise UsageError(f"{folder.path}: the checkpoint belongs to another experiment, data or model")


@contextmanager
def on(workers: "Workers | None", simulation: Simulation, folder: RunFolder | None) -> Iterator[None]:
    """The simulation with its training and smoothing on workers, if there are to be any, while inside."""
    if workers is None:
        yield
        return
    from fedceo.scale.cluster import RayGoneError
    from fedceo.scale.last_words import last_words
    from fedceo.scale.remote import on_workers

    further = "start it again" if folder is None else f"go on with: fedceo run --resume {folder.path}"
    try:
        with (
            last_words(f"fedceo: ended from outside, by Ray or the system; {further}"),
            on_workers(workers, simulation.context, simulation.engine) as remote,
        ):
            simulation.work_elsewhere(remote.trainer, remote.smooth, remote.about)
            yield
    except RayGoneError as error:
        if folder is None or not folder.exists:
            raise
        raise UsageError(f"{error}; {further}") from None


def carry_on(
    simulation: Simulation,
    folder: RunFolder | None,
    history: list[dict[str, Any]],
    seconds: float,
    on_start: OnStart | None,
    on_round: OnRound | None,
    should_stop: ShouldStop,
    progress: bool,
    watchers: Callbacks,
) -> Run:
    with logged(simulation.experiment.train.rounds, progress, watchers.with_epsilon) as log:

        def begin(simulation: Simulation) -> None:
            if on_start is not None:
                on_start(simulation)
            watchers.start(simulation, None if folder is None else folder.path)

        def told(record: dict[str, Any]) -> None:
            log(record)
            if on_round is not None:
                on_round(record)
            watchers.measure(record)

        run = _taken(simulation, folder, history, seconds, begin, told, should_stop)
    watchers.end(run.result)
    return run


def _taken(
    simulation: Simulation,
    folder: RunFolder | None,
    history: list[dict[str, Any]],
    seconds: float,
    on_start: OnStart,
    on_round: OnRound,
    should_stop: ShouldStop,
) -> Run:
    experiment = simulation.experiment
    start = time.perf_counter() - seconds
    budget = budget_of(simulation)
    entry, ended = next_round(simulation, budget)
    # rounds after the checkpoint that a seed repeats are in the ledger already
    written = len(folder.ledger(repeatable=simulation.ledger.repeatable).entries) if folder is not None else 0
    if folder is not None:
        simulation.on_recording = folder.save_recording
    on_start(simulation)
    stopped = False
    while entry is not None and not stopped:
        if folder is not None and len(simulation.ledger.entries) >= written:
            folder.spend(entry)  # before anything of the round can leave
        record = simulation.step(entry)
        entry, ended = next_round(simulation, budget)
        if ended is not None and not is_measured(record):
            record |= simulation.measure()
        history.append(record)
        stopped = should_stop()
        if folder is not None:
            folder.append(record)
            if simulation.round % experiment.checkpoint.every == 0 or stopped or entry is None:
                about = about_run(simulation, time.perf_counter() - start)
                folder.save_checkpoint(simulation.state, about, simulation.average, simulation.noise)
        on_round(record)
    finished = entry is None
    if finished and history and not is_measured(history[-1]):  # killed after the last round that was allowed
        history[-1] |= simulation.measure()
        if folder is not None:
            folder.rewrite(history)
    result = result_of(simulation, history, time.perf_counter() - start, ended)
    result |= {"workers": simulation.workers(), "seconds_by_part": simulation.clock.seconds}
    weights, average = _on_cpu(simulation.state.weights), None
    if simulation.average is not None:
        average = _on_cpu(simulation.average.weights)
    model = simulation.whole_model
    result["model_is_finite"] = all(bool(w.isfinite().all()) for w in weights.values())
    if folder is not None and finished:
        folder.save_model(weights | fixed_parts(model))
        if average is not None:
            folder.save_model(average | fixed_parts(model), "average")
        folder.save_result(result)
    model.load_state_dict(weights, strict=False)
    path = None if folder is None else folder.path
    return Run(experiment, history, weights, model.eval(), result, finished, simulation.ledger, path, average)


def _on_cpu(weights: Weights) -> dict[str, Tensor]:
    return {name: w.detach().cpu() for name, w in weights.items()}


def about_run(simulation: Simulation, seconds: float) -> dict[str, Any]:
    spent = len(simulation.ledger.entries)
    return {
        "round": simulation.round,
        "seconds": seconds,
        "seconds_by_part": simulation.clock.seconds,
        "ledger": spent,
        "clip": simulation.clip,
        "noise_multiplier": simulation.noise_multiplier,
        "sizes": Counter(simulation.federation.sizes.tolist()),  # clients by how many records they train on
        "identity": identity(simulation, simulation.experiment),
        "noise_key": simulation.schedule.noise_key,
        **own_model_of(simulation),
        **simulation.experiment.method.identity(),
    }
