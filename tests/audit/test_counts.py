"""The audit of counts that clients release: what is right passes, what is broken is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedceo.audit.report import Report, audit
from fedceo.experiment.method_table import Counts
from fedceo.mechanisms.base import Mechanism
from fedceo.methods.base import State
from fedceo.methods.label_prior import LabelPriorSettings
from fedceo.simulation import counting
from tests.support.audited_runs import simulation

VOTED: dict[str, Any] = {"name": "fedceo", "filter": "damp", "alpha": "voted", "interval": 1, "restart": "mean"}
METHODS: dict[str, dict[str, Any]] = {
    "votes": VOTED, "votes, mean of rounds": VOTED | {"memory": "mean"}, "label counts": {"name": "label-prior"},
}  # fmt: skip


def failed(report: Report) -> set[str]:
    return {finding.check for finding in report.findings if not finding.passed}


@pytest.mark.parametrize("name", METHODS)
def test_counts_as_they_are_pass(name: str) -> None:
    report = audit(simulation("record", METHODS[name], sigma=0.8), rounds=40, seed=1)
    assert not report.refuted, failed(report)
    measured = {finding.check: finding.measured for finding in report.findings}
    assert measured.keys() >= {"counts", "counts, sums"} and measured["counts, rounds"] == 1
    assert measured["counts, reach"] > 1, "records that add different rows were met"


def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Mechanism.noised_counts
    monkeypatch.setattr(Mechanism, "noised_counts", lambda self, c, k, noise: right(self, c, k, 0.5 * noise))


def the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Mechanism.noised_counts
    monkeypatch.setattr(Mechanism, "noised_counts", lambda self, c, k, noise: right(self, c, 0, noise))


def no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "bounded", lambda added, most: added)


def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds forget who has released counts."""
    right: Any = counting.noised_counts

    def anew(*given: Any) -> Any:
        return right(*(replace(each, counted=frozenset()) if isinstance(each, State) else each for each in given))

    monkeypatch.setattr("fedceo.simulation.round.noised_counts", anew)


def none_on_few(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Mechanism.noised_counts
    monkeypatch.setattr(
        Mechanism, "noised_counts", lambda self, c, k, noise: right(self, c, k, noise) if len(c) > 10 else c
    )


def too_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records that are farther apart than the accountant is told."""
    told = property(lambda self: Counts("label counts", self.label_noise, 1.0, 1.0))
    monkeypatch.setattr(LabelPriorSettings, "counts", told)


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    half_the_noise: "counts", the_same_for_all: "counts, sums", no_bound: "counts", none_on_few: "counts",
    forgotten: "counts, rounds",
}  # fmt: skip


@pytest.mark.parametrize("name", ["votes", "label counts"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_broken_is_found(
    name: str, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    report = audit(simulation("record", METHODS[name], sigma=0.8), rounds=2, seed=1)
    assert FAULTS[fault] in failed(report)


def test_rows_that_are_too_far_apart_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    too_near(monkeypatch)
    report = audit(simulation("record", METHODS["label counts"], sigma=0.8), rounds=2, seed=1)
    assert failed(report) == {"counts, reach"}


def test_a_run_without_counts_has_no_such_check() -> None:
    report = audit(simulation("record", {"name": "fedavg"}, sigma=0.8), rounds=2, seed=1)
    assert not any(finding.check.startswith("counts") for finding in report.findings)
