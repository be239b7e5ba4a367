"""Every experiment file of the repository is valid and begins with a line that describes it."""

import re
import tomllib
from pathlib import Path

import pytest

from fedceo.experiment.catalogue import demo_experiments, experiment_files
from fedceo.experiment.file import parse_experiment, to_toml
from fedceo.studies.cells import find_experiments
from fedceo.terminal.inventory import inventory

ROOT = Path(__file__).parents[2]
FILES = experiment_files(ROOT / "experiments")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT / "experiments").as_posix())
def test_files_are_valid(path: Path) -> None:
    assert path.read_text().startswith("# ")
    for experiment in find_experiments(path, []).values():
        assert parse_experiment(tomllib.loads(to_toml(experiment))) == experiment, "TOML in, TOML out"


def test_a_table_is_a_file() -> None:
    files = list((ROOT / "experiments").rglob("*.toml"))
    assert len(files) < 70 and len(find_experiments(ROOT / "experiments", [])) == 2252
    used = {part for file in files for part in re.findall(r"parts/[a-z0-9-]+\.toml", file.read_text())}
    assert used == {f"parts/{file.name}" for file in files if file.parent.name == "parts"}, "no part without a use"


def test_the_inventory_shows_the_design_of_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = inventory()["experiment files"]
    assert files["experiments/paper/table1/cifar10-lenet5.toml"] == (
        "Table 1: LeNet-5 on CIFAR-10 (22 cells: 3 sigma x 7 method + 1)"
    )
    assert files["experiments/beyond/femnist-1000.toml"].endswith("(51 cells: 2 epsilon x 2 noise x 13 method - 2 + 1)")
    assert "cells" not in files["experiments/presets/authors-lr01.toml"]


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "bad.toml").write_text("# Bad\n[grid]\n")
    (tmp_path / "experiments" / "good.toml").write_text("# Good\n")
    files = inventory()["experiment files"]
    assert files["experiments/good.toml"] == "Good"
    assert files["experiments/bad.toml"].startswith("cannot be read: grid: no axis")


def test_there_are_the_four_modes() -> None:
    assert {path.stem for path in FILES} >= {"authors-lr01", "authors-lr001", "paper-literal", "paper-own-step"}


def test_the_demo_compares_like_with_like() -> None:
    runs = demo_experiments()
    assert runs["UDP-FedAvg"].privacy == runs["FedCEO"].privacy
    recipe = runs.pop("Recipe")
    assert len({(run.seed, run.data, run.cohort, run.train) for run in runs.values()}) == 1
    same = (recipe.seed, recipe.data, recipe.cohort, recipe.train.rounds, recipe.privacy.mechanism)
    other = runs["FedCEO"]
    assert same == (other.seed, other.data, other.cohort, other.train.rounds, other.privacy.mechanism)
    assert recipe.privacy.target_epsilon < other.privacy.target_epsilon  # type: ignore[operator]
