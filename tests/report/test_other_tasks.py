"""The page about runs of a task that is measured otherwise than by its accuracy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedceo
from tests.support.parsed_page import Page

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from fedceo.report.loading import load_runs
from fedceo.report.page import render, write_report

TABLE: dict[str, Any] = {
    "data": {"clients": 10, "local_test": 0.2},
    "task": {"name": "regression"},
    "model": {"name": "logistic"},  # flatten -> linear: linear regression
    "cohort": {"size": 5},
    "train": {"rounds": 4, "local_epochs": 1, "batch_size": 8, "learning_rate": 0.05, "device": "cpu"},
    "privacy": {"mechanism": "central", "noise_multiplier": 0.5, "clip": 0.3},
    "evaluation": {"every": 2},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linear regression by FedAvg, which learns, and by FedProx at a rate at which it does not; three seeds each."""
    root = tmp_path_factory.mktemp("regression")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 1)) + 0.1 * rng.normal(size=(600, 1))).astype(np.float32)
    np.savez(root / "linear.npz", x=x, y=y)
    for method, rate in (("fedprox", 0.0001), ("fedavg", 0.05)):
        for seed in range(3):
            run = TABLE | {"seed": seed, "method": {"name": method}, "train": TABLE["train"] | {"learning_rate": rate}}
            run["data"] = TABLE["data"] | {"path": str(root / "linear.npz")}
            fedceo.run(run, out=root / method / f"seed-{seed}")
    return root


def test_the_page_speaks_of_the_metric(folders: Path, tmp_path: Path) -> None:
    out = write_report([folders / "fedavg", folders / "fedprox"], tmp_path / "report.html")
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    results = [fedceo.load(folders / "fedavg" / f"seed-{seed}").result for seed in range(3)]
    last = [result["rmse"]["last"] for result in results]
    assert f"{np.mean(last):.4g}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{np.std(last, ddof=1):.4g}" in text
    for words in ("RMSE, less is better", "P-loc, worst tenth", "By the test RMSE of the global model"):
        assert words in page.words, words
    for words in ("accuracy", "points", "P-dist", "in percent"):
        assert words not in page.words, words
    assert {"chart-accuracy-test", "chart-accuracy-local", "chart-forest"} <= page.ids


def test_less_is_better(folders: Path) -> None:
    words = Page(render(load_runs([folders]))).words
    assert "FedAvg is ahead of FedProx, the next, by" in words
    assert "in RMSE (95 % interval -" in words


def test_a_public_page_has_no_number_of_ones_own_records(folders: Path, tmp_path: Path) -> None:
    page = Page(write_report([folders / "fedavg"], tmp_path / "public.html", public=True).read_text(encoding="utf-8"))
    assert "epsilon, outsider" in page.words and not {"chart-accuracy-test", "chart-accuracy-local"} & page.ids
