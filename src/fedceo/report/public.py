"""Runs as a public page may show them: only what follows from noised updates, settings and public test records."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedceo.errors import UsageError
from fedceo.report.loading import LoadedRun
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.release import is_covered, is_measured_in_public, public_rows
from fedceo.simulation.summary import summarise
from fedceo.tasks import is_measured

KEPT = (
    "method", "data", "model", "own_model", "own_method", "test_digest", "regime", "noise_multiplier", "rounds",
    "ended_early", "clients", "versions",
)  # fmt: skip
"""The fields of a result that a public page may use."""


def public_runs(runs: Sequence[LoadedRun]) -> tuple[list[LoadedRun], list[str]]:
    """The public part of each run, and one sentence for each run that has none."""
    kept, left_out = [], []
    for run in runs:
        name = _public_name(run.name)
        if run.result is None:
            left_out.append(f"{name} is left out: it is unfinished, and privacy is accounted for at the end.")
            continue
        if not RunFolder(run.path).exists:
            raise UsageError(f"--public: {name} has no folder, whose ledger says what was spent; expected run folders")
        rows = public_rows(RunFolder(run.path), run.experiment, run.result)
        if is_covered(rows):
            kept.append(_public_part(run, rows))
        else:
            left_out.append(f"{name} is left out: no epsilon covers its models ({rows[0]['assumption']}).")
    if not kept:
        raise UsageError(f"--public: nothing may be shown. {left_out[0]}")
    return kept, list(dict.fromkeys(left_out))


def _public_part(run: LoadedRun, rows: list[dict[str, Any]]) -> LoadedRun:
    """A run without figures from before the noise; what the test records say stays where these are public."""
    assert run.result is not None
    metric, name = run.metric, run.metric.name
    shown = ("round", f"test_{name}", f"average_test_{name}", *metric.about)
    history = [
        {field: record[field] for field in shown if field in record}
        | ({"smoothed": True} if record.get("smoothed") else {})
        for record in run.history
        if is_measured_in_public(run.experiment, run.result) and is_measured(record)
    ]
    measured = summarise([record | {f"validation_{name}": None} for record in history])
    result = {field: run.result[field] for field in KEPT if field in run.result}
    experiment = run.experiment.model_copy(update={"note": None})
    return replace(
        run,
        name=_public_name(run.name),
        experiment=experiment,
        history=history,
        result=result | {"privacy": rows, name: measured} | metric.about,
        recordings=[],
    )


def _public_name(name: str) -> str:
    """A run's name without its seed."""
    parts = [part for part in name.split("/") if not part.startswith("seed-")]
    return "/".join(parts) or "run"
