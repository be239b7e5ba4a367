"""Settings chosen at a known epsilon: a random number of trials, of which only the best leaves the study (D19).

Trials are drawn independently: settings uniformly from the grid, everything else by the operating system's generator.
Their number is a secret, and so is every trial but the chosen one. The score that chooses is the validation accuracy
after the last round, exact where the validation records are declared public, with noise where they are protected too.
"""

import json
import math
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedceo.accounting.plan import Plan
from fedceo.accounting.selection import Score, StudyRow, study_rows
from fedceo.accounting.trials import Trials
from fedceo.data import Federation, build_federation
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, to_toml
from fedceo.simulation.chosen import DRAWS, STUDY
from fedceo.simulation.durable import make_folder, read_json, write_json, write_whole
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.holding import Hold
from fedceo.simulation.spending import privacy_plan, solve_noise
from fedceo.studies.cells import Cell
from fedceo.studies.sweep import sweep
from fedceo.studies.tune import changed, last_validation
from fedceo.tasks import main_metric
from fedceo.training.system_draws import SystemGenerator

README = """# Private

The trials of a private study. Its epsilon is that of the chosen trial, which lies beside this folder: whoever sees one
more of these, or how many there are, has seen more than that. Pass nothing of this folder on, and delete it when the
study is done.
"""


@dataclass(frozen=True)
class Question:
    """What a study is asked to do.

    Attributes:
        settings: the settings that a trial is drawn from, "section.field" to value.
        trials: the law of the number of trials.
        score_noise: standard deviation of the noise of the scores; None where validation records are declared public.
    """

    experiment: Experiment
    settings: tuple[dict[str, Any], ...]
    trials: Trials
    score_noise: float | None

    @property
    def validation(self) -> str:
        """How the validation records are protected, in words."""
        if self.score_noise is None:
            return "declared public: no epsilon covers the validation records"
        return f"protected: scores carry noise with a standard deviation of {self.score_noise:g}"

    @property
    def in_words(self) -> str:
        """The study, for the notes of its runs."""
        return f"a private study ({self.trials.law}, {self.trials.mean:g} trials on average), its epsilon in {STUDY}"

    def as_dict(self) -> dict[str, Any]:
        about = {"settings": list(self.settings), "score_noise": self.score_noise} | asdict(self.trials)
        return {"experiment": to_toml(self.experiment)} | about


@dataclass(frozen=True)
class Study:
    """What a study releases.

    Attributes:
        rows: one for each observer.
        experiment: the experiment with the chosen settings; as given where no trial was drawn.
        folder: the chosen trial's run folder; None where no trial was drawn.
        score: the score of the chosen trial, with its noise.
    """

    rows: list[StudyRow]
    experiment: Experiment
    folder: Path | None
    score: float | None


def tune_privately(question: Question, out: Path, jobs: int | None = None) -> Study:
    """Run the study, or go on with it, and write out/chosen, out/tuned.toml and out/study.json.

    Args:
        out: the folder of the study; trials have their folders in out/private.
        jobs: trials at a time, as for `sweep`.
    """
    experiments = [_trial(question, values) for values in question.settings]
    for each in experiments:
        _check_trial(each)
    federation = _federation(question)
    plans = _plans(experiments, federation.sizes.tolist())
    score = _score(question, federation, plans[0])
    outsider = next(row for row in study_rows(plans, question.trials, score) if row.observer == "outsider")
    if outsider.epsilon is None:
        raise UsageError(
            f"--private: no epsilon for the outsider, to whom the chosen trial goes: {outsider.assumption}"
        )
    hold = Hold(out / "private")
    hold.take()
    try:
        draws = _draws(question, hold.path)
        best, score_of_best = _run(question, experiments, draws, hold.path, jobs)
        rows = study_rows(plans, question.trials, score, draws["discarded"])
        return _released(question, rows, hold.path.parent, best, score_of_best)
    finally:
        hold.release()


def _trial(question: Question, values: dict[str, Any]) -> Experiment:
    outside = [name for name in values if name.partition(".")[0] in ("data", "seed", "note")]
    if outside:
        raise UsageError(f"--grid: {outside[0]}, expected settings that leave the data as they are")
    note = f"a trial of {question.in_words}"
    return changed(question.experiment, values).model_copy(update={"note": note})


def _check_trial(experiment: Experiment) -> None:
    """Refuse a trial that could not be independent of the others, or whose score no epsilon would cover."""
    if experiment.data.validation == 0:
        raise UsageError("data.validation: 0, but settings are chosen on validation records")
    if experiment.privacy.randomness != "system":
        raise UsageError('privacy.randomness: "seeded", expected "system": trials of one seed are not independent')
    if experiment.may_lose_noise:
        raise UsageError("cohort.dropout: lets noise go missing, expected privacy.min_reports too")
    if experiment.method.keeps_heads and experiment.mechanism.is_user_level:
        raise UsageError(
            f'method.name: "{experiment.method.name}" is measured with last layers that clients keep, which no epsilon '
            "covers, so that no private study can choose by it"
        )


def _federation(question: Question) -> Federation:
    """The data, if scores on its validation records can be protected as asked."""
    experiment = question.experiment
    federation = build_federation(experiment.data, experiment.seed)
    if question.score_noise is not None and federation.most_validated is None:
        raise UsageError(
            f'data.partition: "{experiment.data.partition}" has validation records that are no client\'s; '
            "declare them public (--public-validation)"
        )
    return federation


def _plans(experiments: Sequence[Experiment], sizes: Sequence[int]) -> list[Plan]:
    plans = (privacy_plan(each, sizes, solve_noise(each, sizes)) for each in experiments)
    return list(dict.fromkeys(plans))


def _score(question: Question, federation: Federation, plan: Plan) -> Score:
    """The part of the accuracy that one client, or one record, can change, in standard deviations of its noise."""
    if question.score_noise is None:
        return Score()
    most = 1 if plan.protects_records else federation.most_validated
    assert most is not None
    metric = main_metric(question.experiment.task)
    if not metric.moves_by_one_in_n:
        raise UsageError(
            f"--private: nobody knows by how much one record changes the {metric.words}, so that no noise on it has an "
            "epsilon; declare validation records public (--public-validation)"
        )
    return Score(most / len(federation.validation) / question.score_noise)


def _draws(question: Question, private: Path) -> dict[str, Any]:
    """The number of trials and the settings of each, drawn once and kept: drawn again they would have another law."""
    file, asked = private / DRAWS, json.loads(json.dumps(question.as_dict()))
    if file.exists():
        draws: dict[str, Any] = read_json(file, expected=True)
        if draws["question"] != asked:
            raise UsageError(f"{private.parent}: holds another study; choose another --out")
    else:
        chosen = [secrets.randbelow(len(question.settings)) for _ in range(question.trials.draw())]
        draws = {"question": asked, "settings": chosen, "scores": None, "discarded": 0}
        private.chmod(0o700)
        write_whole(private / "README.md", README.encode())
    for number in range(len(draws["settings"])):
        folder = RunFolder(private / f"trial-{number}")
        # a run that is gone on with takes rounds anew, and both would count
        if draws["scores"] is None and folder.exists and not folder.finished:
            shutil.rmtree(folder.path)
            draws["discarded"] += 1
    write_json(file, draws)
    return draws


def _run(
    question: Question, experiments: Sequence[Experiment], draws: dict[str, Any], private: Path, jobs: int | None
) -> tuple[int | None, float | None]:
    """The number of the best trial and its score; None where no trial was drawn."""
    cells = [
        Cell(f"trial {number}", experiments[setting], private / f"trial-{number}")
        for number, setting in enumerate(draws["settings"])
    ]
    if not cells:
        return None, None
    if draws["scores"] is None:
        results = sweep(cells, jobs)
        noise = (question.score_noise or 0.0) * SystemGenerator().standard_normal(len(cells))
        draws["scores"] = [
            None if result is None else last_validation(cell) + float(each)
            for cell, result, each in zip(cells, results, noise, strict=True)
        ]
        write_json(private / DRAWS, draws)
    scores = [-math.inf if score is None else score for score in draws["scores"]]
    best = max(range(len(scores)), key=scores.__getitem__)
    if draws["scores"][best] is None:
        raise UsageError(f"{private.parent}: no trial came to an end")
    return best, scores[best]


def _released(question: Question, rows: list[StudyRow], out: Path, best: int | None, score: float | None) -> Study:
    """Write what may leave the study: the chosen run, its settings, and what all of it costs."""
    if score is not None:
        score = main_metric(question.experiment.task).value_of(score)
    table = {"validation": question.validation, "score": score, "rows": [row.as_dict() for row in rows]}
    experiment, chosen = question.experiment, None
    if best is not None:
        chosen = out / "chosen"
        unfinished = out / "chosen.part"
        for stale in (chosen, unfinished):
            shutil.rmtree(stale, ignore_errors=True)
        shutil.copytree(out / "private" / f"trial-{best}", unfinished)
        write_json(unfinished / STUDY, table)
        unfinished.rename(chosen)
        note = f"chosen by {question.in_words}"
        experiment = RunFolder(chosen).experiment().model_copy(update={"note": note})
    make_folder(out)
    write_json(out / STUDY, table)
    write_whole(out / "tuned.toml", to_toml(experiment).encode())
    return Study(rows, experiment, chosen, score)
