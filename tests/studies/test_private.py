"""Private studies: what leaves them, what they cost, and what they refuse."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedceo.accounting.plan import Plan
from fedceo.accounting.selection import Score, study_rows
from fedceo.accounting.trials import Trials
from fedceo.cli.app import main
from fedceo.data import build_federation
from fedceo.errors import UsageError
from fedceo.experiment.file import load_experiment, parse_experiment
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.release import release
from fedceo.simulation.runs import load
from fedceo.studies.private import Question, Study, tune_privately
from fedceo.training.system_draws import SystemGenerator

TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 30},
    "cohort": {"size": 6, "sampling": "poisson"},
    "train": {"rounds": 2, "local_epochs": 1, "batch_size": 32},
    "privacy": {"mechanism": "central", "noise_multiplier": 3.0, "randomness": "system"},
    "method": {"name": "fedavg"},
    "evaluation": {"every": 2},
}
RATES = [1e-6, 0.1, 0.2]
SETTINGS = tuple({"train.learning_rate": rate} for rate in RATES)


def asked(trials: Trials, score_noise: float | None = None, **changes: Any) -> Question:
    return Question(parse_experiment(TABLE | changes), SETTINGS, trials, score_noise)


def draws(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "private" / "draws.json").read_text())
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    out = tmp_path_factory.mktemp("study") / "of-rates"
    return out, tune_privately(asked(Trials("negative-binomial", 3, 50.0)), out, jobs=1)


def test_the_best_trial_leaves_and_nothing_else(study: tuple[Path, Study]) -> None:
    out, found = study
    known = draws(out)
    assert sorted(path.name for path in out.iterdir()) == ["chosen", "private", "study.json", "tuned.toml"]
    assert (out / "private").stat().st_mode & 0o077 == 0, "for nobody but its owner"
    trials = [load(out / "private" / f"trial-{number}") for number in range(len(known["settings"]))]
    assert [trial.experiment.train.learning_rate for trial in trials] == [RATES[k] for k in known["settings"]]
    scores = [trial.history[-1]["validation_accuracy"] for trial in trials]
    assert scores == known["scores"], "public validation records need no noise"
    best = scores.index(max(scores))
    assert found.folder == out / "chosen" and found.score == max(scores)
    model, of_best = (RunFolder(path).load_model() for path in (out / "chosen", out / "private" / f"trial-{best}"))
    assert model.keys() == of_best.keys() and all(model[name].equal(of_best[name]) for name in model)
    assert load_experiment(out / "tuned.toml").train.learning_rate == RATES[known["settings"][best]]
    assert str(load_experiment(out / "tuned.toml").note).startswith(
        "chosen by a private study (negative-binomial, 3 trials"
    )
    shown = (out / "study.json").read_text() + (out / "chosen" / "study.json").read_text()
    assert "settings" not in shown and "declared public" in shown


def test_trials_are_independent(study: tuple[Path, Study]) -> None:
    out, _ = study
    known = draws(out)["settings"]
    weights = [RunFolder(out / "private" / f"trial-{k}").load_model() for k in range(len(known))]
    first = [np.concatenate([w.numpy().ravel() for w in each.values()]) for each in weights]
    assert all(not np.array_equal(first[0], other) for other in first[1:])


def test_a_study_is_drawn_once(study: tuple[Path, Study]) -> None:
    out, found = study
    before = draws(out)
    again = tune_privately(asked(Trials("negative-binomial", 3, 50.0)), out, jobs=1)
    assert draws(out) == before and again == found
    with pytest.raises(UsageError, match="holds another study"):
        tune_privately(asked(Trials("geometric", 3)), out, jobs=1)


def test_a_trial_that_was_cut_short_is_begun_anew(tmp_path: Path) -> None:
    question = asked(Trials("negative-binomial", 3, 50.0))
    tune_privately(question, tmp_path, jobs=1)
    known = draws(tmp_path)
    (tmp_path / "private" / "trial-0" / "result.json").unlink()
    from fedceo.simulation.durable import write_json

    known.pop("sha256")
    write_json(tmp_path / "private" / "draws.json", known | {"scores": None})
    again = tune_privately(question, tmp_path, jobs=1)
    assert draws(tmp_path)["discarded"] == 1 and RunFolder(tmp_path / "private" / "trial-0").finished
    rows = {row.observer: row.epsilon for row in again.rows}
    before = {row.observer: row.epsilon for row in study_rows(plans(question), question.trials, Score())}
    assert rows["outsider"] == before["outsider"]
    assert rows["participant"] is not None and before["participant"] is not None
    assert rows["participant"] > before["participant"], "who was there has seen one more trial"


def plans(question: Question) -> list[Plan]:
    return [Plan(30, 6, 2, 3.0, 1e-5, "central", sampling="poisson")]


def test_rows_are_those_of_the_plan(study: tuple[Path, Study]) -> None:
    _, found = study
    assert found.rows == study_rows(plans(asked(Trials("geometric", 3))), Trials("negative-binomial", 3, 50.0), Score())


def test_protected_scores_carry_noise_for_their_largest_client(tmp_path: Path) -> None:
    uneven = {"name": "digits", "clients": 30, "partition": "dirichlet"}
    question = asked(Trials("geometric", 2), score_noise=0.1, data=uneven)
    found = tune_privately(question, tmp_path, jobs=1)
    federation = build_federation(question.experiment.data, 0)
    assert federation.most_validated is not None
    score = Score(federation.most_validated / len(federation.validation) / 0.1)
    assert score.mu > 1 / 30 / 0.1, "some client has more than its part"
    assert found.rows == study_rows(plans(question), question.trials, score)
    known = draws(tmp_path)
    trials = [load(tmp_path / "private" / f"trial-{k}") for k in range(len(known["settings"]))]
    exact = [trial.history[-1]["validation_accuracy"] for trial in trials]
    assert all(abs(a - b) > 1e-6 for a, b in zip(known["scores"], exact, strict=True))


def test_noise_of_scores_has_the_deviation_that_is_accounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Twice(SystemGenerator):
        def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
            return np.full(size, 2.0)

    monkeypatch.setattr("fedceo.studies.private.SystemGenerator", Twice)
    question = asked(Trials("geometric", 1), score_noise=0.05)
    found = tune_privately(question, tmp_path, jobs=1)
    exact = load(tmp_path / "chosen").history[-1]["validation_accuracy"]
    assert found.score == pytest.approx(exact + 0.1)


def test_most_validated_is_the_largest_share() -> None:
    data = parse_experiment(TABLE | {"data": {"name": "digits", "clients": 20, "partition": "shards"}}).data
    federation = build_federation(data, 3)
    assert federation.most_validated is not None
    fair = len(federation.validation) / 20
    assert fair <= federation.most_validated <= 3 * fair
    resampled = {"name": "digits", "clients": 20, "partition": "resampled", "records": 5}
    assert build_federation(parse_experiment(TABLE | {"data": resampled}).data, 3).most_validated is None


def test_without_a_trial_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Trials, "draw", lambda self: 0)
    found = tune_privately(asked(Trials("poisson", 1)), tmp_path, jobs=1)
    assert found.folder is None and found.score is None and not (tmp_path / "chosen").exists()
    assert load_experiment(tmp_path / "tuned.toml") == asked(Trials("poisson", 1)).experiment


def test_the_card_of_the_chosen_run_has_the_epsilon_of_the_study(study: tuple[Path, Study], tmp_path: Path) -> None:
    out, found = study
    card = release(out / "chosen", tmp_path / "card")
    (promised,) = (row.epsilon for row in found.rows if row.observer == "outsider")
    (printed,) = (row["epsilon"] for row in card["privacy"] if row["observer"] == "outsider")
    assert promised is not None and promised <= printed <= 1.01 * promised
    words = (tmp_path / "card" / "README.md").read_text()
    assert "A private study chose this run" in words and "declared public" in words
    assert "choice of these settings" not in words
    with pytest.raises(UsageError, match="only the chosen run may be passed on"):
        release(out / "private" / "trial-0", tmp_path / "another")


def test_a_study_of_records_promises_nothing_to_a_whole_client(tmp_path: Path) -> None:
    record = {"mechanism": "record", "noise_multiplier": 2.0, "randomness": "system"}
    question = asked(Trials("geometric", 1), privacy=record, cohort={"size": 6})
    study = tune_privately(question, tmp_path, jobs=1)
    card = release(tmp_path / "chosen", tmp_path / "card")
    said = {(row["observer"], row["unit"]): row["epsilon"] for row in card["privacy"]}
    outsider = next(row for row in study.rows if row.observer == "outsider")
    assert outsider.unit == "record" and outsider.epsilon is not None and outsider.epsilon_run is not None
    assert outsider.epsilon >= outsider.epsilon_run, "a study costs no less than one of its runs"
    assert said["outsider", "record"] >= outsider.epsilon and said["outsider", "user"] is None


@pytest.mark.parametrize(
    ("changes", "score_noise", "words"),
    [
        ({"privacy": TABLE["privacy"] | {"randomness": "seeded"}}, None, 'expected "system"'),
        ({"data": TABLE["data"] | {"validation": 0.0}}, None, "data.validation: 0"),
        ({"privacy": {"mechanism": "none", "randomness": "system"}}, None, "no epsilon for the outsider"),
        ({"data": TABLE["data"] | {"partition": "resampled", "records": 9}}, 0.1, "no client's"),
        (
            {
                "privacy": TABLE["privacy"] | {"mechanism": "distributed"},
                "cohort": {"size": 6, "dropout": 0.2},
            },
            None,
            "cohort.dropout: lets noise go missing",
        ),
        ({"method": {"name": "centaur", "head_epochs": 1}}, None, "last layers that clients keep"),
    ],
)
def test_studies_that_cannot_be_are_refused(
    changes: dict[str, Any], score_noise: float | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        tune_privately(asked(Trials("geometric", 2), score_noise, **changes), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_settings_leave_the_data_as_they_are(tmp_path: Path) -> None:
    question = Question(parse_experiment(TABLE), ({"data.clients": 20},), Trials("geometric", 2), None)
    with pytest.raises(UsageError, match=r"--grid: data\.clients"):
        tune_privately(question, tmp_path, jobs=1)


# The command


def call(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(TABLE))
    return str(path)


def test_the_command_says_both_epsilons_and_no_number_of_trials(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tune", file, "--private", "--trials", "3", "--grid", "train.learning_rate=[0.1, 0.2]", "--jobs", "1"]
    arguments += ["--public-validation", "--out", str(tmp_path / "out")]
    assert call([*arguments, "--json"], monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)
    outsider = found["rows"][0]
    assert 0 < outsider["epsilon_run"] < outsider["epsilon"] and "trials" not in found
    assert call(arguments, monkeypatch) == 0
    out = capsys.readouterr()
    for words in ("epsilon", "declared public", "repeat and select", "fedceo release"):
        assert words in out.out
    assert "trial-" not in out.out + out.err


def test_plain_tuning_says_that_it_is_not_counted(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tune", file, "--grid", "train.learning_rate=[0.1]", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert call(arguments, monkeypatch) == 0
    assert "epsilon of tuning is not counted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--private", "--law", "uniform"], "--law: 'uniform'"),
        (["--private", "--score-noise", "0"], "--score-noise: 0"),
        (["--private", "--score-noise", "0.1", "--public-validation"], "--score-noise: scores of public"),
        (["--private", "--grid", "train.learning_rate=[0.1]", "--rounds", "1"], "not with --private"),
        (["--law", "poisson"], "only with --private"),
        (["--private", "--shape", "2"], "--shape: belongs to"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str],
    words: str,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["tune", file, *arguments], monkeypatch) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_two_experiments_are_two_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(tomli_w.dumps(TABLE))
    assert call(["tune", str(tmp_path), "--private"], monkeypatch) == 2
    assert "studies of the same records add up" in capsys.readouterr().err


def test_scores_cost_nothing_where_records_are_public() -> None:
    assert Score().is_public and not Score(0.1).is_public and math.isclose(Score().mu, 0)
