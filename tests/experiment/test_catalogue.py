"""Every experiment file of the repository is valid and begins with a line that describes it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedceo.attacks import metrics
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
    assert len(files) < 60 and len(find_experiments(ROOT / "experiments", [])) == 387
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
    assert files["experiments/bad.toml"].startswith("cannot be read: experiments/bad.toml: grid: no axis")


def test_there_are_the_four_modes() -> None:
    assert {path.stem for path in FILES} >= {"authors-lr01", "authors-lr001", "paper-literal", "paper-own-step"}


def test_the_demo_compares_like_with_like() -> None:
    runs = demo_experiments()
    assert runs["UDP-FedAvg"].privacy == runs["FedCEO"].privacy
    assert len({(run.seed, run.data, run.cohort, run.train) for run in runs.values()}) == 1


def generate() -> Any:
    """tools/pages/generate.py as a module."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "pages" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_on_the_experiment_file_is_what_the_settings_say() -> None:
    made = generate()
    assert (ROOT / "docs" / "experiment-file.md").read_text() == made.page(), "run: python tools/pages/generate.py"
    assert (ROOT / "docs" / "privacy-numbers.md").read_text() == made.numbers(), "run: python tools/pages/generate.py"


def test_the_tables_of_the_experiment_file_have_four_columns() -> None:
    rows = [line for line in generate().page().splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows), "bars within a cell are escaped"
    assert "| `layers` | str or list of str | `all` |" in "\n".join(rows)
    assert "| `ratio` | float, at least 1, at most 2 | `1.04` |" in "\n".join(rows)


def test_the_table_of_attacks_is_what_was_measured() -> None:
    page = (ROOT / "docs" / "attacks.md").read_text()
    assert page == generate().with_attacks(page), "run: python tools/pages/generate.py"


def test_what_is_claimed_of_the_attacks_was_measured() -> None:
    """Each attack works without privacy; none beats the colour on a noised upload, and smoothing makes it no easier.

    Of several local steps this is said of two attacks: DLG, which looks for the label too, gets stuck there by itself.
    """
    found = json.loads((ROOT / "benchmarks" / "results" / "attacks-cpu.json").read_text())
    studies = found["studies"]
    assert all(study["rows"][-1]["over_constant"]["low"] <= 0 for study in found["smooth"].values())
    assert set(studies) == {"dlg", "idlg", "ig"}
    for name, study in studies.items():
        assert set(study) == {"T0", "T1", "T2", "T3"}
        rows = {(holds, row["name"]): row for holds in study for row in study[holds]["rows"]}
        for without_privacy in (("T0", "attack"), ("T1", "control"), ("T3", "control")):
            assert rows[without_privacy]["over_constant"]["low"] > 0 or (name, without_privacy[0]) == ("dlg", "T3")
        for holds in ("T1", "T2", "T3"):
            assert rows[holds, "attack"]["over_constant"]["low"] <= 0
        smoothed, plain = (np.array(rows[holds, "attack"]["psnr_of_each"]) for holds in ("T2", "T1"))
        low = metrics.median(torch.from_numpy(smoothed - plain)).low
        assert low is not None and low <= 0
