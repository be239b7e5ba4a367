"""A table of one's own, from the file to a paper: seeds together, and whatever the task is measured by."""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedceo.cli.app import main

FILE = """
[data]
path = "people.csv"
{target}
client_column = "who"
local_test = 0.3
[task]
name = "{task}"
[model]
name = "logistic"
[cohort]
size = 3
[train]
rounds = 2
learning_rate = 0.03
[privacy]
mechanism = "central"
noise_multiplier = 1.0
[method]
name = "fedavg"
"""
TASKS = {"regression": 'target_columns = ["pressure"]', "classification": 'label_column = "ill"'}


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    with Path("people.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "age", "pressure", "ill"])
        for number in range(90):
            rows.writerow([f"doctor {number % 6}", *draw.normal(size=2).round(3), ["no", "yes"][number % 2]])

    def said(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedceo", *words])
        with pytest.raises(SystemExit) as code:
            main()
        found = capsys.readouterr()
        assert not code.value.code, found.err
        return found.out

    return said


@pytest.mark.parametrize("task, head", [("regression", "last RMSE"), ("classification", "last, %")])
def test_seeds_of_a_table_are_one_experiment_in_a_paper(said: Any, task: str, head: str) -> None:
    Path("mine.toml").write_text(FILE.format(task=task, target=TASKS[task]))
    features = 'data.feature_columns=["age"]'
    said("sweep", "mine.toml", "--seeds", "2", "--jobs", "1", "--set", features, "--out", "runs")
    assert "FedAvg" in Path("runs/table.tex").read_text()
    for runs in ("runs", "runs/results.json"):
        table = said("table", runs)
        assert head in table and table.count("| FedAvg |") == 1 and " ± " in table and "over 2 seeds" in table
        assert ("| P-loc RMSE | worst RMSE |" in table) == (task == "regression"), "what each client has"
        assert "All rows: data people.csv, partition natural" in table
        assert "bands are one standard deviation" in said("figure", "accuracy", runs, "-o", "f.pdf")
