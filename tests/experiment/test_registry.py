"""Models and data sets that another package registers through entry points, in a process that finds the package."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from fedceo.errors import UsageError
from fedceo.experiment.registry import Registry

PACKAGE = """
import torch
from torch import nn

from fedceo.data import DATASETS, Source
from fedceo.data.dataset import DataSet
from fedceo.models import MODELS


@MODELS.register("plain", "one linear layer without a bias")
def plain(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes, bias=False))


@DATASETS.register("corners", "points in two corners of a square")
class Corners(DataSet):
    where = "nowhere: it is computed"

    def find(self, root):
        return []

    def read(self, files):
        y = torch.arange(40) % 2
        x = (2.0 * y - 1)[:, None].expand(40, 2).contiguous()
        return Source(self.name, x, y, x[:10], y[:10], classes=2)
"""

RUN = """
import fedceo

run = fedceo.run({
    "data": {"name": "corners", "clients": 2, "validation": 0.0},
    "model": {"name": "plain"},
    "cohort": {"size": 2},
    "train": {"rounds": 2, "local_epochs": 2, "batch_size": 4, "learning_rate": 0.5},
    "privacy": {"mechanism": "none"},
    "method": {"name": "fedavg"},
})
print(run.result["accuracy"]["last"], *run.weights)
"""


def install(folder: Path, code: str) -> None:
    """Write a package with its metadata as an installer leaves them."""
    (folder / "guest_package.py").write_text(code)
    metadata = folder / "guest_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: guest-package\nVersion: 1.0\n")
    groups = ("fedceo.models", "fedceo.datasets")
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]\nguest = guest_package\n" for group in groups))


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
    )


def test_a_model_and_a_data_set_of_another_package(tmp_path: Path) -> None:
    install(tmp_path, PACKAGE)
    answer = python(tmp_path, "-c", RUN)
    assert answer.stdout == "1.0 1.weight\n", answer.stderr
    listed = python(tmp_path, "-m", "fedceo", "list").stdout
    assert "one linear layer without a bias" in listed and "points in two corners of a square" in listed


def test_a_package_that_takes_a_name_of_the_library_is_refused(tmp_path: Path) -> None:
    install(tmp_path, PACKAGE.replace('"corners"', '"digits"'))
    answer = python(tmp_path, "-m", "fedceo", "data", "list")
    assert answer.returncode == 2 and answer.stdout == ""
    words = " ".join(answer.stderr.replace("│", " ").split())
    assert "data set 'digits': registered by fedceo.data.sets.digits.Digits and again by guest_package.Corners" in words


def test_a_broken_package_is_named_at_every_lookup(tmp_path: Path) -> None:
    install(tmp_path, "import no_such_module")
    code = """
    from fedceo.errors import UsageError
    from fedceo.models import MODELS
    for _ in range(2):
        try:
            list(MODELS)
        except UsageError as error:
            print(error)
    """
    said = (
        "entry point guest = guest_package of the group fedceo.models failed with ModuleNotFoundError: No module named "
    )
    assert python(tmp_path, "-c", dedent(code)).stdout == 2 * f"{said}'no_such_module'\n"


def test_names_stand_in_the_order_of_the_alphabet_whatever_was_registered_first() -> None:
    registry: Registry[type] = Registry("thing", "tests.support")

    @registry.register("pear", "a fruit")
    class Pear: ...

    @registry.register("apple", "another fruit")
    class Apple: ...

    assert list(registry) == list(registry.descriptions) == ["apple", "pear"]
    assert registry["pear"] is Pear and registry.descriptions["apple"] == "another fruit"
    assert registry.unknown("PEER") == "unknown thing 'PEER', did you mean pear? known are apple, pear"
    assert registry.unknown("x") == "unknown thing 'x'; known are apple, pear"
    with pytest.raises(UsageError, match=r"thing 'pear': registered by .*Pear and again by .*Apple"):
        registry.register("pear", "a third")(Apple)
