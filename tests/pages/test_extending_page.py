"""Every extension of docs/extending.md, written into a copy of the package as it stands there, and run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"```(python|toml|diff)\n(.*?)```", re.S)

MORE_FILES = {"a term in local training": 2}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package, into which a reader of the page would write."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def section(title: str) -> str:
    """The part of the page under a heading."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def write_blocks(tree: Path, title: str) -> tuple[list[Path], list[Path]]:
    """Writes every block of a section to the path in its first line; source files and experiment files."""
    source: list[Path] = []
    experiments: list[Path] = []
    for kind, text in BLOCK.findall(section(title)):
        path = tree / text.split("\n", 1)[0].removeprefix("#").strip()
        assert not path.exists(), "a new file, not a change of one that is there"
        path.write_text(text)
        (source if kind == "python" else experiments).append(path)
    return source, experiments


def fedceo(tree: Path, *arguments: str) -> str:
    """Output of a command, run with the copy of the package."""
    code = f"import sys; sys.path.insert(0, {str(tree / 'src')!r}); from fedceo.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("title", ["A method", "A mechanism", "A model", "A data set"])
def test_one_file_adds(title: str, tree: Path) -> None:
    source, (experiment,) = write_blocks(tree, title)
    assert len(source) == 1, "the page promises one file"
    name = experiment.stem
    fedceo(tree, "run", experiment.name, "--out", "run")
    result = json.loads((tree / "run" / "result.json").read_text())
    assert result["rounds"] == 2 and result["accuracy"]["last"] is not None
    rows = json.loads(fedceo(tree, "privacy", "account", experiment.name, "--json"))
    assert rows and all(row["mechanism"] == result["privacy"][0]["mechanism"] for row in rows)
    if title != "A mechanism":
        assert name in fedceo(tree, "list")


@pytest.mark.slow
def test_one_file_adds_a_task(tree: Path) -> None:
    source, (experiment,) = write_blocks(tree, "A task")
    assert len(source) == 1, "the page promises one file"
    (tree / "visits.csv").write_text("age,visits\n" + "".join(f"{k / 100},{k % 3}\n" for k in range(100)))
    engines = {}
    for engine in ("loop", "batched"):
        fedceo(tree, "run", experiment.name, "--out", engine, "--set", f"train.engine={engine}")
        engines[engine] = json.loads((tree / engine / "result.json").read_text())["mae"]["last"]
    assert engines["loop"] == pytest.approx(engines["batched"], rel=1e-4)
    assert experiment.stem in fedceo(tree, "list")


@pytest.mark.slow
def test_a_mechanism_that_is_added_keeps_its_parents_epsilon(tree: Path) -> None:
    _, (experiment,) = write_blocks(tree, "A mechanism")
    rounded, central = (
        json.loads(fedceo(tree, "privacy", "account", experiment.name, "--json", "--set", f"privacy.mechanism={name}"))
        for name in ("rounded", "central")
    )
    assert [row["epsilon"] for row in rounded] == [row["epsilon"] for row in central]
    refused = subprocess.run(
        [sys.executable, "-m", "fedceo", "run", experiment.name, "--set", "privacy.clip=0.001"],
        cwd=tree, capture_output=True, text=True, env={"PYTHONPATH": str(tree / "src"), "PATH": ""},
    )  # fmt: skip
    assert refused.returncode == 2 and "expected at least two steps of the grid" in refused.stderr


def test_one_file_adds_an_observers_row(tree: Path) -> None:
    write_blocks(tree, "A method")
    before = json.loads(fedceo(tree, "privacy", "account", "signed.toml", "--json"))
    source, _ = write_blocks(tree, "An observer's row")
    assert len(source) == 1
    after = json.loads(fedceo(tree, "privacy", "account", "signed.toml", "--json"))
    (added,) = [row for row in after if row not in before]
    assert added["observer"] == "reader of the last model"
    assert added["epsilon"] == next(row["epsilon"] for row in before if row["observer"] == "outsider")


@pytest.mark.slow
def test_two_files_add_a_term_to_local_training(tree: Path) -> None:
    (_, patch), *_ = BLOCK.findall(section("A term in local training"))
    changes = re.findall(r"^--- (.*?)\n@@ after\n(.*?)\n@@ insert\n(.*?)\n(?=---|\Z)", patch, re.S | re.M)
    assert len(changes) == 2, "the page promises two files"
    for name, after, inserted in changes:
        file = tree / name
        text = file.read_text()
        assert text.count(after) == 1, (name, after)
        file.write_text(text.replace(after, f"{after}\n{inserted}"))
    for engine in ("loop", "batched"):
        code = f"""
import sys; sys.path.insert(0, {str(tree / "src")!r})
from dataclasses import replace
import torch
from fedceo.experiment.file import parse_experiment
from fedceo.simulation.preparing import prepare
table = {{"data": {{"name": "digits", "clients": 5}}, "cohort": {{"size": 5}}, "model": {{"name": "logistic"}},
         "train": {{"rounds": 1, "local_epochs": 1, "engine": {engine!r}, "learning_rate": 0.5}},
         "privacy": {{"mechanism": "none"}}, "method": {{"name": "fedavg"}}}}
simulation = prepare(parse_experiment(table))
starts = {{name: w.expand(2, *w.shape) for name, w in simulation.state.weights.items()}}
work = replace(simulation.phases(1)[0], epochs=1, steps=1)
plain, decayed = (simulation.trainer.train(starts, [0, 1], 1, replace(work, decay=d)).weights for d in (0.0, 0.1))
for name, w in plain.items():  # one step: w - eta (g + decay w)
    assert torch.allclose(decayed[name], w - 0.5 * 0.1 * starts[name], atol=1e-6), name
    assert not torch.equal(decayed[name], w)
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
