"""The page on methods: its method of a user's own works as it stands, and its numbers are those of the code."""

import math
from pathlib import Path

import pytest

import fedceo
from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.errors import UsageError
from fedceo.methods.base import Setup
from fedceo.methods.fedceo import FedCEO, FedCEOSettings
from fedceo.methods.label_prior import LabelPriorSettings
from fedceo.models import build_model, parameters_of
from tests.support.user_methods import table_of
from tests.support.user_modules import module_here


def test_the_method_of_the_documentation_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    lines = page[page.index("    # mine.py") : page.index("An experiment file names it")].splitlines()
    mine = module_here("mine", "\n".join(line[4:] for line in lines), tmp_path, monkeypatch)
    run = fedceo.run(table_of(f"{mine}:TrimmedMean", trim=2))
    assert run.finished and run.result["own_method"]
    with pytest.raises(UsageError, match="aggregate gives NaN or Inf"):
        fedceo.run(table_of(f"{mine}:TrimmedMean", trim=3))


def test_the_papers_threshold_is_a_ten_thousandth_of_the_noise() -> None:
    """The numbers of docs/methods.md: fc1 of LeNet-5, sigma = C = 1, K = 10."""
    paper = FedCEO(FedCEOSettings(strength=85, ratio=1.03, interval=15))
    aware = FedCEO(FedCEOSettings(threshold="noise"), Setup(noise=10**-0.5))
    fc1 = parameters_of(build_model("lenet5", (3, 32, 32), 10, seed=0))["fc1.weight"].shape
    assert round(aware.filter.threshold(fc1, 10, 15)) == 63
    assert [round(paper.filter.threshold(fc1, 10, t), 3) for t in (15, 300)] == [0.006, 0.011]


def test_what_counts_cost_by_themselves_is_rounded_up() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "methods.md").read_text().split())
    for settings, words in (
        (
            FedCEOSettings(filter="damp", alpha="voted"),
            "with the noise of 15 costs a record epsilon {:.2f} at delta 1e-5",
        ),
        (LabelPriorSettings(), "(10 costs a record epsilon {:.2f} by itself at delta 1e-5)"),
    ):
        counts = settings.counts
        assert counts is not None
        epsilon = math.ceil(100 * gaussian_epsilon(counts.moved / counts.noise, 1e-5)) / 100
        assert words.format(epsilon) in page
