"""The ledger of a run, its end on a budget, and clients that are missing or capped."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.preparing import prepare
from fedceo.simulation.spending import planned_rows
from tests.support.small_runs import changed, same_weights
from tests.support.weights import distance


def epsilon(run: fedceo.Run, observer: str) -> Any:
    return next(row["epsilon"] for row in run.result["privacy"] if row["observer"] == observer)


def test_the_ledger_is_written_and_read(tmp_path: Path) -> None:
    run = fedceo.run(changed(cohort={"dropout": 0.3}), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 13))
    assert [line["cohort"] for line in lines] == [record["cohort"] for record in run.history]
    assert [len(line["reported"]) for line in lines] == [record["reports"] for record in run.history]
    assert [line["smoothed"] for line in lines] == [t % 4 == 0 for t in range(1, 13)]
    assert any(len(line["reported"]) < 6 for line in lines)
    assert fedceo.load(tmp_path / "run").ledger.entries == run.ledger.entries


def test_dropouts_cost_and_leave_the_rest_alone() -> None:
    everyone, some = fedceo.run(changed(method={"restart": "mean"})), fedceo.run(
        changed(method={"restart": "mean"}, cohort={"dropout": 0.4})
    )  # fmt: skip
    assert [r["cohort"] for r in everyone.history] == [r["cohort"] for r in some.history]
    assert epsilon(some, "outsider") > epsilon(everyone, "outsider")


def test_no_target_is_promised_where_noise_may_go_missing() -> None:
    aim = {"target_epsilon": 8.0, "noise_multiplier": None}
    one_model = {"restart": "mean"}
    with pytest.raises(UsageError, match=r"cohort.dropout.*expected privacy.min_reports"):
        fedceo.run(changed(cohort={"dropout": 0.3}, privacy=aim, method=one_model))
    sized = changed(cohort={"dropout": 0.3}, privacy=aim | {"min_reports": 4}, method=one_model)
    assert epsilon(fedceo.run(sized), "outsider") <= 8.0
    alone = changed(cohort={"dropout": 0.3}, method=one_model)
    (row, *_) = planned_rows(fedceo.parse_experiment(alone), [1] * 30)
    assert "if nobody drops out, and cohort.dropout is 0.3" in row.assumption


def test_records_that_several_clients_hold_have_no_row() -> None:
    with pytest.raises(UsageError, match="gives one record to several clients"):
        fedceo.run(changed(data={"partition": "resampled", "records": 20}, privacy={"mechanism": "record"}))


def test_rounds_with_too_few_reports_are_discarded() -> None:
    table = changed(cohort={"dropout": 0.4}, privacy={"min_reports": 4}, method={"restart": "mean"})
    run = fedceo.run(table)
    discarded = [record for record in run.history if "discarded" in record]
    assert discarded and all(record["reports"] < 4 for record in discarded)
    assert run.result["discarded_rounds"] == len(discarded)
    assert all(record["reports"] >= 4 for record in run.history if "discarded" not in record)
    assert run.ledger.entries[0].noise == pytest.approx(0.5 / 2)


def test_discarded_rounds_leave_the_model_alone() -> None:
    table = changed(cohort={"dropout": 0.99}, privacy={"min_reports": 6}, train={"rounds": 3})
    run = fedceo.run(table)
    start = prepare(fedceo.parse_experiment(table)).state.weights
    assert run.result["discarded_rounds"] == 3 and distance(run.weights, start) == 0
    assert epsilon(run, "outsider") == 0.0


@pytest.mark.parametrize("mechanism", ["distributed", "central", "record"])
def test_a_capped_client_sends_nothing_of_its_own(mechanism: str) -> None:
    fields = {"mechanism": mechanism, "participation_cap": 2}
    run = fedceo.run(changed(privacy=fields, method={"restart": "mean"}))
    assert max(run.ledger.participations.values()) == 2
    capped = [entry.capped for entry in run.ledger.entries if entry.capped]
    if mechanism == "record":
        assert not capped and any(len(entry.reported) < 6 for entry in run.ledger.entries)
    else:
        assert capped
    # after the cap's last round everyone is capped: noise alone moves the model, or nothing does
    everyone = fedceo.run(
        changed(
            privacy=fields | {"participation_cap": 1},
            cohort={"size": 30},
            train={"rounds": 3},
            method={"restart": "mean"},
        )
    )
    assert [len(entry.own) for entry in everyone.ledger.entries] == [30, 0, 0]


def test_capped_clients_leave_noise_of_the_right_size() -> None:
    table = changed(
        cohort={"size": 30}, train={"rounds": 2}, method={"restart": "mean", "strength": 1e9},
        privacy={"participation_cap": 1, "noise_multiplier": 3.0}, checkpoint={"every": 1},
    )  # fmt: skip
    two, one = fedceo.run(table), fedceo.run(table, should_stop=lambda: True)
    moved = torch.cat([(two.weights[name] - one.weights[name]).flatten() for name in one.weights])
    assert float(moved.std()) == pytest.approx(3.0 / 30, rel=0.05)


@pytest.mark.parametrize("observer", ["outsider", "server"])
def test_a_run_ends_before_it_spends_too_much(tmp_path: Path, observer: str) -> None:
    table = changed(privacy={"observer": observer, "noise_multiplier": 3.0}, method={"restart": "mean"})
    limit = {"outsider": 1.2, "server": 6.0}[observer]
    run = fedceo.run(table | {"privacy": table["privacy"] | {"max_epsilon": limit}}, out=tmp_path / "run")
    assert run.finished and 0 < len(run.history) < 12
    assert epsilon(run, observer) <= limit
    assert "privacy.max_epsilon" in run.result["ended_early"] and observer in run.result["ended_early"]
    assert "test_accuracy" in run.history[-1]
    free = fedceo.run(table)
    assert [r["train_loss"] for r in run.history] == [r["train_loss"] for r in free.history][: len(run.history)]


def test_a_budget_below_the_first_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"privacy.max_epsilon = 0.001: round 1 would raise"):
        fedceo.run(changed(privacy={"max_epsilon": 0.001}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def interrupted(table: dict[str, Any], folder: Path, after: int) -> None:
    """A run that is killed between checkpoints: rounds that were taken are lost, all but their ledger."""
    seen = 0

    class KilledError(Exception):
        pass

    def kill(record: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        if seen == after:
            raise KilledError

    with pytest.raises(KilledError):
        fedceo.run(table, out=folder, on_round=kill)


def test_a_resumed_run_never_forgets_what_was_spent(tmp_path: Path) -> None:
    system = changed(privacy={"randomness": "system"})
    interrupted(system, tmp_path / "system", 8)  # the checkpoint is of round 5
    again = fedceo.resume(tmp_path / "system")
    assert [entry.round for entry in again.ledger.entries] == [*range(1, 9), *range(6, 13)]
    assert epsilon(again, "outsider") > epsilon(fedceo.run(system), "outsider")
    interrupted(changed(), tmp_path / "seeded", 8)
    same = fedceo.resume(tmp_path / "seeded")
    whole = fedceo.run(changed())
    assert same.ledger.entries == whole.ledger.entries and same.result["privacy"] == whole.result["privacy"]
    assert len((tmp_path / "seeded" / "ledger.jsonl").read_text().splitlines()) == 12


def test_a_cap_survives_a_kill(tmp_path: Path) -> None:
    table = changed(privacy={"participation_cap": 2})
    interrupted(table, tmp_path / "run", 8)
    assert same_weights(fedceo.resume(tmp_path / "run"), fedceo.run(table))


def test_a_ledger_with_lost_rounds_is_refused(tmp_path: Path) -> None:
    interrupted(changed(), tmp_path / "run", 8)
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + lines[-1][:20])  # killed while writing: that round released nothing
    assert fedceo.resume(tmp_path / "run").finished
    interrupted(changed(), tmp_path / "other", 8)
    (tmp_path / "other" / "ledger.jsonl").write_text("".join(lines[:3]))
    with pytest.raises(UsageError, match=r"ledger.jsonl has lost rounds"):
        fedceo.resume(tmp_path / "other")


@pytest.mark.parametrize(
    "privacy, words",
    [
        ({"mechanism": "none", "noise_multiplier": None, "max_epsilon": 1.0}, "takes no max_epsilon"),
        ({"mechanism": "none", "noise_multiplier": None, "participation_cap": 3}, "takes no participation_cap"),
        ({"mechanism": "central", "observer": "server", "max_epsilon": 1.0}, "the server has no epsilon"),
    ],
)
def test_limits_that_mean_nothing_are_refused(privacy: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fedceo.run(changed(privacy=privacy, method={"restart": "mean"}))
