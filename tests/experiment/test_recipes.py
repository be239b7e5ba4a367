"""Recipes say why they are as they are, and run."""

import os
from pathlib import Path

import pytest

import fedceo
from fedceo.experiment.file import load_experiment
from fedceo.simulation.spending import noise_site

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "experiments" / "recipes").glob("*.toml"))
DATA = Path(os.environ.get("FEDCEO_DATA") or ROOT.parent / "shared" / "data")
FILES = {"cifar10": "cifar-10-batches-bin", "femnist": "femnist", "sent140": "sent140"}


def test_there_is_one_for_every_kind_of_data() -> None:
    expected = {"images-epsilon-2", "images-epsilon-8", "writers", "text", "tabular", "silos", "silos-personal"}
    assert {path.stem for path in RECIPES} == expected


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_why_and_for_whom(path: Path) -> None:
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert comments[0].startswith("# Recipe: ") and "epsilon" in comments[0] and len(comments) >= 4
    experiment = load_experiment(path)
    assert experiment.privacy.target_epsilon is not None
    assert noise_site(experiment).name in ("SUM", "STEPS")


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs(path: Path, tmp_path: Path) -> None:
    short = ["train.rounds=2", f'data.root="{DATA}"']
    if load_experiment(path).release.average == "tail":
        short.append("release.length=2")
    experiment = load_experiment(path, short)
    if not (DATA / FILES.get(str(experiment.data.name), ".")).exists():
        pytest.skip(f"no {experiment.data.name} in FEDCEO_DATA or ../shared/data")
    finished = fedceo.run(experiment, out=tmp_path / "run")
    assert len(finished.history) == 2 and finished.result["accuracy"]["last"] > 0
    promised = next(r for r in finished.result["privacy"] if r["observer"] == experiment.privacy.observer)["epsilon"]
    assert experiment.privacy.target_epsilon is not None
    assert 0 < promised <= experiment.privacy.target_epsilon
