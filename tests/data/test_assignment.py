"""Assignments of records to clients: the same as lists, and a million clients in next to no memory."""

from typing import Any

import pytest
import torch

import fedceo
from fedceo.data import build_federation
from fedceo.data.assignment import Assignment, Resampled
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data


def test_an_assignment_is_the_list_it_was_made_of() -> None:
    indices = [torch.tensor([4, 2]), torch.tensor([], dtype=torch.int64), torch.tensor([7, 0, 1])]
    assignment = Assignment(indices)
    assert len(assignment) == 3 and assignment.sizes.tolist() == [2, 0, 3]
    assert all(torch.equal(a, b) for a, b in zip(assignment, indices, strict=True))
    assert torch.equal(assignment[-1], indices[-1]) and len(assignment[1:]) == 2
    with pytest.raises(IndexError):
        assignment[3]


def test_resampled_clients_draw_the_same_records_every_time() -> None:
    assignment = Resampled(torch.arange(100, 200), 1_000_000, 20, seed=3)
    one, again, other = assignment[999_999], assignment[999_999], assignment[5]
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert len(one.unique()) == 20 and int(one.min()) >= 100 and int(one.max()) < 200
    assert assignment.sizes.shape == (1_000_000,) and assignment.sizes.untyped_storage().nbytes() == 8
    with pytest.raises(IndexError):
        assignment[1_000_000]


def test_a_resampled_federation_keeps_validation_apart() -> None:
    data = build_federation(Data(name="digits", clients=5000, partition="resampled", records=30), seed=1)
    assert data.clients == 5000 and len(data.test_y) > 0
    assert not set(data.validation.tolist()) & set(torch.cat(list(data.train[:200])).tolist())


def test_a_resampled_federation_trains() -> None:
    run = fedceo.run(
        {
            "data": {"name": "digits", "clients": 100_000, "partition": "resampled", "records": 30},
            "cohort": {"size": 20}, "train": {"rounds": 15, "local_epochs": 2, "batch_size": 16},
            "privacy": {"mechanism": "none"}, "method": {"name": "fedavg"},
        }
    )  # fmt: skip
    assert run.result["accuracy"]["last"] > 0.7


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"partition": "resampled"}, "belong together"),
        ({"records": 5}, "belong together"),
        ({"partition": "resampled", "records": 5, "local_test": 0.1}, "keeps no local_test"),
    ],
)
def test_resampling_is_checked(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Data(name="digits", **fields)


def test_more_records_than_there_are() -> None:
    with pytest.raises(UsageError, match=r"data.records: 5000, more than the \d+ records"):
        build_federation(Data(name="digits", partition="resampled", records=5000), seed=0)
