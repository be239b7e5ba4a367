"""docs/results.md says what the files in results/ say, and each of these can be traced to an experiment file."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedceo.config import load_experiment

ROOT = Path(__file__).resolve().parent.parent
RUN_OTHERWISE = {
    "note": ..., "seed": ..., "checkpoint": ..., "evaluation": ..., "train": {"learning_rate", "tf32"},
    "data": {"path", "root"},
}  # fmt: skip
"""What may differ from the experiment file: how it was run, and the learning rate, which was tuned."""


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("results")


def test_the_page_is_what_the_script_writes(results: ModuleType) -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results.page(), "run: python docs/results.py"


def test_every_run_is_of_the_experiment_file_of_its_name(results: ModuleType) -> None:
    exclude: Any = {name: True if fields is ... else fields for name, fields in RUN_OTHERWISE.items()}
    for name, found in results.load().items():
        file = load_experiment(ROOT / "experiments" / f"{name}.toml").model_dump(exclude=exclude, exclude_none=True)
        for run in found.runs:
            said = type(load_experiment(ROOT / "experiments" / f"{name}.toml")).model_validate(run["experiment"])
            assert said.model_dump(exclude=exclude, exclude_none=True) == file, name
            assert said.seed == run["seed"]
            assert {"machine", "versions", "date"} <= set(run["result"])


def test_learning_rates_are_those_that_the_trials_favour(results: ModuleType) -> None:
    for name, found in results.load().items():
        folders = [parent.as_posix() for parent in Path(name).parents]
        folder = next(f for f in folders if (ROOT / "results" / f"{f}.trials.json").exists())
        trials = json.loads((ROOT / "results" / f"{folder}.trials.json").read_text())[name.removeprefix(f"{folder}/")]
        best = max(trials, key=lambda trial: trial["validation_accuracy"])
        assert len(trials) == 4, "as many as every other method had"
        assert found.done[0]["experiment"]["train"]["learning_rate"] == best["train.learning_rate"], name


def test_above_level_and_below(results: ModuleType) -> None:
    assert results.compare([50.0, 50.2, 49.8], [40.0, 40.1, 39.9]) == "above"
    assert results.compare([50.0, 55.0, 45.0], [49.0, 54.0, 44.0]) == "level"
    assert results.compare([10.0, 10.0, 10.0], [39.0, 39.1, 39.2]) == "below"
