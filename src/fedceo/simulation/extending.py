"""More rounds for a run that is finished, in a folder of their own.

The longer run is the finished one with further rounds: its ledger, and so every row of the accountant, holds all of
them. Whoever decides by what was released whether to go on decides by post-processing, so that the epsilon of all
rounds covers the decision too. The further rounds have a noise key that no other run has: with the old key two
continuations of different lengths would share noise, and with the key of a run of as many rounds from the start those
two would.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from fedceo.data import Federation, Source
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.models import can_be_built
from fedceo.simulation.callbacks import Callback, Callbacks
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.identity import continued_key
from fedceo.simulation.preparing import MADE_IN_PYTHON, as_path, budget_of, next_round, prepare
from fedceo.simulation.runs import OnRound, Run, ShouldStop, about_run, carry_on, check_same, never, on

if TYPE_CHECKING:  # slow to import, and not always needed
    from fedceo.scale.cluster import Workers


def extend(
    path: str | Path,
    more: int,
    *,
    out: str | Path,
    data: Federation | Source | None = None,
    model: nn.Module | None = None,
    workers: "Workers | None" = None,
    on_round: OnRound | None = None,
    should_stop: ShouldStop = never,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = True,
) -> Run:
    """Go on with a finished run for more rounds; the run in `path` stays as it is.

    What is not named here is as for `fedceo.run`.

    Args:
        more: further rounds.
        out: a new or empty folder for the longer run, which has all rounds of both.
    """
    watchers, source, folder = Callbacks(callbacks), RunFolder(as_path(path)), RunFolder(as_path(out, "out"))
    before = source.experiment()
    if not source.finished:
        raise UsageError(f"{path}: the run is unfinished; first end it with: fedceo run --resume {path}")
    result, (state, about, average, noise) = source.result(), source.load_checkpoint()
    done = result["rounds"]
    if about["round"] != done:
        raise UsageError(
            f"{path}: its checkpoint is of round {about['round']}, not of the last, {done}: it was made by an earlier "
            "version, and its last rounds cannot be gone on from"
        )
    _check(source, before, more)
    if model is None and not can_be_built(before.model.name):
        raise UsageError(MADE_IN_PYTHON.format(folder=path))
    longer = _longer(before, done, more)
    key = continued_key(about["noise_key"], done, longer.train.rounds)
    simulation = prepare(longer, data, model, key)
    check_same(simulation, before, about, source)
    ledger = source.ledger(repeatable=simulation.ledger.repeatable, least=about["ledger"])
    history = source.history(done)
    if longer.release.average == "tail":
        average = None  # whose rounds are all among the further ones
    simulation.restore(state, done, about["clip"], ledger, about["seconds_by_part"], average, noise)
    _, refused = next_round(simulation, budget_of(simulation))
    if refused is not None:
        raise UsageError(refused)
    with on(workers, simulation, folder), folder.held():
        started = about_run(simulation, about["seconds"])
        folder.create(
            simulation.experiment, simulation.state, started, history, simulation.ledger.entries, simulation.average
        )
        return carry_on(simulation, folder, history, about["seconds"], None, on_round, should_stop, progress, watchers)


def _check(folder: RunFolder, experiment: Experiment, more: int) -> None:
    """Refuse what was made for the number of rounds that the run had."""
    privacy, train, release = experiment.privacy, experiment.train, experiment.release
    if not isinstance(more, int) or more < 1:
        raise UsageError(f"--more: {more!r}, expected at least 1 round")
    if folder.is_federation:
        raise UsageError(f"{folder.path}: is the run of a federation, whose server alone can go on with it")
    if (folder.path / "study.json").exists():
        raise UsageError(f"{folder.path}: was chosen by a private study, whose epsilon covers no further round")
    if privacy.target_epsilon is not None:
        raise UsageError(
            f"--more: the noise was solved for privacy.target_epsilon, {privacy.target_epsilon:g}, in {train.rounds} "
            "rounds; run the experiment again with more train.rounds"
        )
    if privacy.noise == "banded":
        raise UsageError(
            f'--more: privacy.noise "banded" is made for {train.rounds} rounds; run the experiment again with more'
        )
    if train.schedule != "constant":
        raise UsageError(
            f'--more: train.schedule "{train.schedule}" has come to its end after {train.rounds} rounds; run the '
            "experiment again with more"
        )
    if experiment.method.looks_ahead:
        raise UsageError(
            f'--more: method "{experiment.method.name}" counts its rounds from the end; run the experiment again with '
            "more train.rounds"
        )
    if release.average == "tail" and more < release.length:
        raise UsageError(
            f"--more: {more}, expected at least release.length, {release.length}: a tail of the last rounds"
        )


def _longer(experiment: Experiment, done: int, more: int) -> Experiment:
    """The experiment of all rounds, checked again, with a note that says what it is."""
    table = experiment.model_dump(exclude_none=True)
    table["train"]["rounds"] = done + more
    remark = f"goes on after round {done}"
    table["note"] = f"{experiment.note}; {remark}" if experiment.note else remark
    return parse_experiment(table)
