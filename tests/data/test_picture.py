"""The picture of a partition: right counts, complete files, and no import of matplotlib before it is needed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedceo.data import Federation, draw_partition, federate, from_arrays, label_counts
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data


def federation(clients: int, classes: int = 10) -> Federation:
    source = from_arrays(np.ones((2000, 1)), np.arange(2000) % classes)
    return federate(source, Data(name="digits", clients=clients, partition="dirichlet"), 0)


def test_label_counts() -> None:
    dealt = federation(7)
    counts = label_counts(dealt)
    assert counts.shape == (7, 10)
    for client, train in enumerate(dealt.train):
        assert counts[client].tolist() == [int((dealt.y[train] == label).sum()) for label in range(10)]


@pytest.mark.parametrize("clients, classes", [(1, 1), (12, 10), (60, 10), (61, 10), (12, 62), (500, 10)])
@pytest.mark.parametrize("suffix, magic", [("png", b"\x89PNG"), ("PDF", b"%PDF")])
def test_pictures(tmp_path: Path, clients: int, classes: int, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"who.{suffix}"
    draw_partition(federation(clients, classes), path)
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


def test_a_label_nobody_has() -> None:
    source = from_arrays(np.ones((50, 1)), np.full(50, 3))
    assert label_counts(federate(source, Data(name="digits", clients=2, validation=0), 0))[:, :3].sum() == 0


@pytest.mark.parametrize(
    "name, words", [("who.jpg", r"who\.jpg: expected .* \.png or \.pdf"), ("no/who.png", "no such")]
)
def test_bad_paths(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        draw_partition(federation(3), str(tmp_path / name))


def test_slow_imports_wait() -> None:
    code = "import sys, fedceo.data; assert not {'matplotlib', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_counts_are_whole_numbers() -> None:
    assert label_counts(federation(3)).dtype == torch.int64
