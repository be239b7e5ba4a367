"""The section of docs/results.md on fixed features, and what it says of settings that others publish."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from fedceo.accounting.calibration import calibrate
from fedceo.simulation.spending import privacy_plan
from fedceo.studies.cells import find_experiments

ROOT = Path(__file__).resolve().parents[2]
FEATURES = ROOT / "experiments" / "beyond" / "features"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools" / "pages")
    return importlib.import_module("features_page")


def runs(page: ModuleType, epsilon: float | None, *accuracies: float) -> Any:
    found = importlib.import_module("runs_found").Found
    result = {"privacy": [{"epsilon": epsilon}]}
    return found(
        [
            {"seed": seed, "result": result | {"accuracy": {"last": value, "average": value}}}
            for seed, value in enumerate(accuracies)
        ]
    )


def test_published_settings_are_shown_as_soon_as_they_were_run(
    page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "trials_of", lambda name: [trial(0.1), trial(0.2)])
    name = "beyond/features/cifar10-500/dp-fedsam"
    text = page.published({name: runs(page, 13.66, 0.5, 0.52)})
    row = next(line for line in text.splitlines() if line.startswith("| `cifar10-500` |"))
    assert "| DP-FedSAM: features, momentum | 9.94 | 13.7 | 51.00 ± 1.41 |" in row
    assert "Not run yet: 4 of 5 cells of `cifar10-500`, 5 of 5 cells of `cifar10-pfl/as-simulated`" in text
    assert "| setting |" not in page.published({}), "no table of nothing"


def trial(rate: float) -> dict[str, float]:
    return {"train.learning_rate": rate, "privacy.clip": 0.2, "validation_accuracy": rate}


def test_the_epsilon_of_dp_fedsam_is_what_its_program_computes(page: ModuleType) -> None:
    """Renyi divergences at its orders, composed over 300 rounds, at its delta of 5e-3."""
    accountant = RdpAccountant(orders=list(np.arange(1.61, 100, 0.05)))
    accountant.compose(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(0.95)), 300)
    assert accountant.get_epsilon(5e-3) == pytest.approx(page.FEDSAM_EPSILON, abs=0.005)


def test_the_noise_of_pfl_is_that_of_its_million_users_for_a_smaller_cohort() -> None:
    """A mean of 50 with sigma times 50 / 1,000 has the noise of a mean of 1,000 with sigma."""
    cells = find_experiments(FEATURES / "cifar10-pfl.toml", [])
    claimed, simulated = cells["as-claimed/fedavg"], cells["as-simulated/fedavg"]
    plan = privacy_plan(claimed, [50] * 1_000_000, 1.0)
    sigma = calibrate(2.0, "outsider", plan)
    assert simulated.privacy.noise_multiplier == pytest.approx(sigma * 50 / 1000, rel=2e-3)
