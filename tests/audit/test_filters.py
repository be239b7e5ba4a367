"""The audit of FedCEO's filters: what they make of private uploads is free, what they make of single ones is not."""

from typing import Any

import pytest

from fedceo.audit.report import Report, audit
from tests.audit.test_audit import ROUNDS, refuted_views, simulation
from tests.support.planted_faults import leak_personal_models

FILTERS: dict[str, dict[str, Any]] = {
    "damp": {"filter": "damp", "restart": "own"},
    "damp, mean of rounds": {"filter": "damp", "memory": "mean", "restart": "mean"},
    "damp, all": {"filter": "damp", "memory": "all", "restart": "mean"},
    "spare-mean": {"filter": "spare-mean", "strength": 20.0, "restart": "mean"},
}


def claims(report: Report) -> list[tuple[str, str, float, float | None]]:
    return [(view.view, view.observer, view.claim, view.epsilon_claimed) for view in report.views]


@pytest.mark.parametrize("name", FILTERS)
def test_under_record_privacy_every_claim_is_that_without_a_filter(name: str) -> None:
    method = {"name": "fedceo", "interval": 1} | FILTERS[name]
    plain, filtered = (
        audit(simulation("record", each, sigma=0.8), rounds=40, seed=1) for each in ({"name": "fedavg"}, method)
    )
    assert not filtered.refuted, filtered
    assert claims(filtered) == claims(plain) and claims(plain)


@pytest.mark.parametrize("name", ["damp", "spare-mean"])
def test_personal_models_of_single_uploads_have_a_claim_of_their_own(name: str) -> None:
    """A client that receives such a model has of each upload what the server has of it, not the share in a mean."""
    method = {"name": "fedceo", "interval": 5} | FILTERS[name]
    report = audit(simulation(method=method), rounds=40, seed=1)
    assert not report.refuted, report
    claimed = {view.view: view.claim for view in report.views}
    assert claimed["returned"] == claimed["returned to others"] == claimed["upload"] > claimed["released"]


@pytest.mark.parametrize("name", ["damp", "spare-mean"])
def test_models_that_are_filtered_without_their_noise_are_found(name: str) -> None:
    broken = simulation(method={"name": "fedceo", "interval": 5} | FILTERS[name] | {"restart": "own"})
    leak_personal_models(broken)
    assert "returned" in refuted_views(audit(broken, rounds=2 * ROUNDS, seed=1))
