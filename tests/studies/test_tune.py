"""Tuning: equal budgets, on validation records, repeatable."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, load_experiment, parse_experiment, to_toml
from fedceo.experiment.method_table import known_methods
from fedceo.methods.fedprox import FedProxSettings
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.preparing import prepare
from fedceo.simulation.runs import load, run
from fedceo.studies.cells import Cell, default_folder, find_cells, find_experiments, trial_folder
from fedceo.studies.sweep import sweep
from fedceo.studies.tune import changed, tune, tune_on_grid

TABLE = {
    "data": {"name": "digits", "clients": 12},
    "cohort": {"size": 4},
    "train": {"rounds": 2, "local_epochs": 1, "batch_size": 32},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.1},
    "method": {"name": "fedprox"},
    "evaluation": {"every": 1},
}


def test_the_best_trial_on_validation_wins(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    seen = []
    tuned = tune(parse_experiment(TABLE), 4, tmp_path, lambda number, chosen, score: seen.append((score, chosen)))
    assert len(seen) == 4
    own = parse_experiment(TABLE)
    assert isinstance(own.method, FedProxSettings)
    assert seen[0][1] == {
        "train.learning_rate": own.train.learning_rate,
        "train.server_learning_rate": own.train.server_learning_rate,
        "train.server_optimizer": "sgd",
        "method.mu": own.method.mu,
        "privacy.clip": own.privacy.clip,
    }
    best = max(seen, key=lambda each: each[0])[1]
    assert tuned.train.learning_rate == best["train.learning_rate"]
    assert load_experiment(tmp_path / "tuned.toml") == tuned and "best of 4 trials on validation" in str(tuned.note)
    again = []
    tune(parse_experiment(TABLE), 4, tmp_path, lambda number, chosen, score: again.append((score, chosen)))
    assert again == seen  # the trials are there, and are read
    other = tune(parse_experiment(TABLE | {"method": {"name": "fedavg"}}), 1, tmp_path)
    assert other.method.name == "fedavg", "trials of another experiment lie beside these"


@pytest.mark.parametrize("name", known_methods())
def test_every_method_has_a_space_of_valid_settings(name: str) -> None:
    privacy = {"mechanism": "record", "noise_multiplier": 1.0}
    experiment = parse_experiment(TABLE | {"method": {"name": name}, "train": {"rounds": 12}, "privacy": privacy})
    for field, values in experiment.method.search_space(experiment).items():
        for value in values:
            changed(experiment, {field: value})


@pytest.mark.parametrize("name", known_methods())
def test_every_method_searches_rate_clip_and_momentum(name: str) -> None:
    train = {"rounds": 20, "local_epochs": 1, "batch_size": 32}  # some methods spend rounds at home
    privacy = {"mechanism": "record" if name in ("local", "label-prior") else "distributed", "noise_multiplier": 1.0}
    experiment = parse_experiment(TABLE | {"method": {"name": name}, "privacy": privacy, "train": train})
    space = experiment.method.search_space(experiment)
    assert (min(space["privacy.clip"]), max(space["privacy.clip"])) == (0.03, 3.0)
    assert "train.server_learning_rate" in space
    assert space.get("train.server_optimizer") == (None if name == "fedceo" else ["sgd", "momentum"])
    without = parse_experiment(TABLE | {"method": {"name": name}, "privacy": {"mechanism": "none"}, "train": train})
    assert "privacy.clip" not in without.method.search_space(without)


def test_intervals_without_a_smoothing_are_not_tried() -> None:
    short = parse_experiment(TABLE | {"method": {"name": "fedceo"}, "train": {"rounds": 16}})
    assert short.method.search_space(short)["method.interval"] == [10, 15]


def test_the_papers_grids() -> None:
    def strengths(sigma: float) -> list[float]:
        privacy = {"mechanism": "record", "noise_multiplier": sigma}
        experiment = parse_experiment(TABLE | {"method": {"name": "fedceo"}, "privacy": privacy})
        return experiment.method.search_space(experiment)["method.strength"]

    assert strengths(1.0) == [55, 60, 65, 70, 75, 80, 85, 90, 95, 100]
    assert (min(strengths(1.5)), max(strengths(1.5))) == (0.1, 10.0)
    assert (min(strengths(2.0)), max(strengths(2.0))) == (0.01, 1.0)


def test_without_validation_records_nothing_is_chosen(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(UsageError, match=r"data.validation: 0"):
        tune(parse_experiment(TABLE | {"data": {"name": "digits", "clients": 12, "validation": 0.0}}), 2, tmp_path)


def test_a_grid_gives_every_experiment_the_same_trials(tmp_path: Path) -> None:
    experiments = {name: parse_experiment(TABLE | {"method": {"name": name}}) for name in ("fedavg", "fedceo")}
    grid = ["train.learning_rate=[1e-6, 0.1, 0.01]"]
    seen = []
    tuned = tune_on_grid(experiments, grid, tmp_path, rounds=1, jobs=1, on_cell=lambda c, r, e: seen.append(c.name))
    assert len(seen) == 6
    for name, (experiment, score) in tuned.items():
        kept = json.loads((tmp_path / "trials.json").read_text())[name]
        trials = [load(tmp_path / name / trial["folder"]) for trial in kept]
        scores = [trial.history[-1]["validation_accuracy"] for trial in trials]
        assert all(trial.experiment.train.rounds == 1 for trial in trials), "trials are short"
        assert score == max(scores) and experiment.train.rounds == 2, "what is tuned is not"
        assert experiment.train.learning_rate == [1e-6, 0.1, 0.01][scores.index(max(scores))]
        assert load_experiment(tmp_path / name / "tuned.toml") == experiment
        assert [trial["validation_accuracy"] for trial in kept] == scores
        rate = experiment.train.learning_rate
        said = f"best of 3 trials of 1 rounds on validation over train.learning_rate ({rate})"
        assert experiment.note == f"{said}; 3 trials for each of 1 tuned setting"


def test_finalists_are_judged_at_full_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = {name: parse_experiment(TABLE | {"method": {"name": name}}) for name in ("fedavg", "fedceo")}
    at_first = {0.1: 0.9, 0.05: 0.8, 0.01: 0.7, 0.001: 0.6}
    in_the_end = {0.1: 0.1, 0.05: 0.3, 0.01: 0.95, 0.001: 0.95}  # the last two would win, had they been let in

    def score(cell: Cell) -> float:
        assert RunFolder(cell.folder).finished
        rate = cell.experiment.train.learning_rate
        return in_the_end[rate] if cell.experiment.train.rounds == 2 else at_first[rate]

    monkeypatch.setattr("fedceo.studies.tune.last_validation", score)
    seen: list[str] = []
    grid = ["train.learning_rate=[0.001, 0.01, 0.1, 0.05]"]
    tuned = tune_on_grid(
        experiments, grid, tmp_path, 1, finalists=2, jobs=1, on_cell=lambda c, r, e: seen.append(c.name)
    )
    assert len(seen) == 2 * (4 + 2)
    trials = json.loads((tmp_path / "trials.json").read_text())
    for name, (experiment, best) in tuned.items():
        assert experiment.train.learning_rate == 0.05 and best == 0.3
        assert [trial.get("at_full_length") for trial in trials[name]] == [None, None, 0.1, 0.3]
        assert [trial["validation_accuracy"] for trial in trials[name]] == [0.6, 0.7, 0.9, 0.8]
        said = "best of 4 trials of 1 rounds, the best 2 again at full length, on validation over train.learning_rate"
        assert experiment.note == f"{said} (0.05); 4 trials for each of 1 tuned setting"
        assert load(trial_folder(tmp_path / name, experiment)).experiment.train.rounds == 2


def test_finalists_need_short_trials_and_enough_of_them(tmp_path: Path) -> None:
    experiments, grid = {"a": parse_experiment(TABLE)}, ["train.learning_rate=[0.1, 0.2]"]
    with pytest.raises(UsageError, match=r"--finalists: .* --rounds is not given"):
        tune_on_grid(experiments, grid, tmp_path, finalists=2)
    with pytest.raises(UsageError, match=r"--finalists: 3, but --grid has 2 trials"):
        tune_on_grid(experiments, grid, tmp_path, rounds=1, finalists=3)
    assert not list(tmp_path.iterdir())


def test_a_short_trial_has_the_noise_of_the_whole_experiment(tmp_path: Path) -> None:
    target = {"privacy": {"mechanism": "distributed", "target_epsilon": 8.0}}
    experiment = changed(parse_experiment(TABLE | target), {"train.rounds": 20})
    tune_on_grid({"fedavg": experiment}, ["train.learning_rate=[0.1]"], tmp_path, rounds=1, jobs=1)
    (name,) = [trial["folder"] for trial in json.loads((tmp_path / "trials.json").read_text())["fedavg"]]
    trial, tuned = load(tmp_path / "fedavg" / name), load_experiment(tmp_path / "fedavg" / "tuned.toml")
    assert trial.experiment.train.rounds == 1
    assert trial.result["noise_multiplier"] == prepare(experiment).noise_multiplier
    assert tuned.privacy.target_epsilon == 8.0 and tuned.privacy.noise_multiplier is None


def test_a_trial_that_fails_counts_as_tried(tmp_path: Path) -> None:
    experiments = {"fedavg": parse_experiment(TABLE)}
    tuned = tune_on_grid(experiments, ['train.device=["cpu", "nowhere"]'], tmp_path, jobs=1)
    experiment, _ = tuned["fedavg"]
    assert experiment.train.device == "cpu" and str(experiment.note).endswith("; 1 failed")


def test_a_grid_over_what_is_not_there(tmp_path: Path) -> None:
    for grid in ("nothing.here=[1]", "seeds=[1]"):
        with pytest.raises(UsageError, match=r"expected section.field"):
            tune_on_grid({"a": parse_experiment(TABLE)}, [grid], tmp_path)
    assert not list(tmp_path.iterdir())


def test_if_no_trial_comes_to_an_end_nothing_is_chosen(tmp_path: Path) -> None:
    experiment = parse_experiment(TABLE)
    with pytest.raises(UsageError, match=r"one: no trial came to an end; one, trial 0: .*unknown model 'nothing'"):
        tune_on_grid({"one": experiment}, ['model.name=["nothing", "none"]'], tmp_path, jobs=1)
    assert not (tmp_path / "one" / "tuned.toml").exists() and not (tmp_path / "trials.json").exists()
    tune_on_grid({"one": experiment}, ['model.name=["nothing", "logistic"]'], tmp_path / "half", jobs=1)
    said = json.loads((tmp_path / "half" / "trials.json").read_text())["one"]
    assert said[0]["validation_accuracy"] is None and said[1]["validation_accuracy"] > 0


def test_a_trial_is_shorter_than_its_experiment(tmp_path: Path) -> None:
    experiment = parse_experiment(TABLE)
    rounds = experiment.train.rounds
    with pytest.raises(UsageError, match=f"--rounds: {rounds}, expected fewer than the {rounds} of one"):
        tune_on_grid({"one": experiment}, ["train.learning_rate=[0.1, 0.3]"], tmp_path, rounds=rounds)


def test_every_cell_of_a_grid_is_tuned_and_the_outcome_can_be_swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedceo.cli.app import main

    axes = {
        "noise": ["low", "high"],
        "method": ["fedavg"],
        "values": {
            "noise": {"low": {"privacy": {"noise_multiplier": 0.1}}, "high": {"privacy": {"noise_multiplier": 0.3}}},
            "method": {"fedavg": {"method": {"name": "fedavg"}}},
        },
        "also": {"alone": {"method": {"name": "fedprox"}}},
    }
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(TABLE | {"grid": axes}))
    monkeypatch.chdir(tmp_path)
    words = ["--grid", "train.learning_rate=[0.1, 0.01]", "--rounds", "1", "--jobs", "1", "--json"]
    monkeypatch.setattr("sys.argv", ["fedceo", "tune", "mine.toml", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    found = json.loads(capsys.readouterr().out)
    assert not ended.value.code and list(found) == ["low/fedavg", "high/fedavg", "alone"]
    assert {name: each["file"] for name, each in found.items()} == {
        name: f"runs/tune/mine/{name}/tuned.toml" for name in found
    }
    tuned = find_experiments(Path("runs/tune/mine"), [])
    assert {name: each.privacy.noise_multiplier for name, each in tuned.items()} == {
        "low/fedavg/tuned": 0.1, "high/fedavg/tuned": 0.3, "alone/tuned": 0.1
    }  # fmt: skip
    assert set(json.loads(Path("runs/tune/mine/trials.json").read_text())) == set(found)


def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The experiments of the runs that are started from now on."""
    seen: list[dict[str, Any]] = []

    def noted(experiment: Experiment, **rest: Any) -> Any:
        seen.append(experiment.model_dump())
        return run(experiment, **rest)

    monkeypatch.setattr("fedceo.studies.sweep.run", noted)
    return seen


def test_what_was_run_is_not_run_again_when_the_grid_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments, seen = {"one": parse_experiment(TABLE)}, started(monkeypatch)
    clip = experiments["one"].privacy.clip

    def rates(*grid: str) -> list[float]:
        seen.clear()
        tune_on_grid(experiments, grid, tmp_path, jobs=1)
        return [each["train"]["learning_rate"] for each in seen]

    assert rates("train.learning_rate=[0.1, 0.01]") == [0.1, 0.01]
    assert rates("train.learning_rate=[0.1, 0.01]") == []
    assert rates("train.learning_rate=[1.0, 0.3, 0.1, 0.01]") == [1.0, 0.3], "in whatever order"
    assert rates("train.learning_rate=[0.3, 0.01]", f"privacy.clip=[{clip}, 0.5]") == [0.3, 0.01], "a field more"
    assert {each["privacy"]["clip"] for each in seen} == {0.5}


def test_a_sweep_takes_the_finalist_of_its_own_seed_from_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = ["train.learning_rate=[0.1, 0.01, 0.001]"]
    tune_on_grid({"one": parse_experiment(TABLE)}, grid, tmp_path / "study", rounds=1, finalists=2, jobs=1)
    seen = started(monkeypatch)
    cells = find_cells(tmp_path / "study", 2, [], [], tmp_path / "out")
    results = sweep(cells, jobs=1)
    assert [each["seed"] for each in seen] == [1], "seed 0 is there already"
    alone = run(cells[0].experiment)
    assert results[0] is not None and results[0]["accuracy"] == alone.result["accuracy"]
    other = find_cells(tmp_path / "study", 1, ["train.rounds=3"], [], tmp_path / "out")
    assert other[0].folder.is_relative_to(tmp_path / "out"), "another experiment is another run"


def test_values_that_come_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--grid: two of its trials are the same, expected values that differ$"):
        tune_on_grid({"one": parse_experiment(TABLE)}, ["train.learning_rate=[1, 1.0]"], tmp_path)


def test_no_two_targets_or_changes_have_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b", "a/mine"):
        Path(folder).mkdir()
    files = [Path("mine.toml"), Path("a/mine.toml"), Path("b/mine.toml"), tmp_path.parent / "mine.toml"]
    for file in files:
        file.write_text("")
    asked = [(target, changes) for target in [*files, Path("a"), Path()] for changes in ([], ["seed=1"], ["seed=2"])]
    found = [default_folder("tune", target, changes) for target, changes in asked]
    assert len(set(found)) == len(asked)
    assert default_folder("sweep", Path("mine.toml"), []) == Path("runs/sweep/mine")
    assert default_folder("tune", tmp_path / "a" / "mine.toml", []) == Path("runs/tune/a/mine"), "however it is named"


def test_methods_get_as_many_trials_for_every_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    from fedceo.cli.app import main

    for name in ("fedavg", "fedprox"):
        (tmp_path / f"{name}.toml").write_text(to_toml(parse_experiment(TABLE | {"method": {"name": name}})))
    monkeypatch.chdir(tmp_path)

    def notes(*words: str) -> dict[str, str]:
        monkeypatch.setattr("sys.argv", ["fedceo", "tune", ".", *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return {name: each["note"] for name, each in json.loads(capsys.readouterr().out).items()}

    found = notes("--trials-per-setting", "1")
    assert "best of 4 trials " in found["fedavg"] and found["fedavg"].endswith(
        "; 1 trials for each of 4 tuned settings"
    )
    assert "best of 5 trials " in found["fedprox"]
