"""The cost of importing the package, and the names that it shows."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fedceo


def test_import_loads_nothing_slow() -> None:
    code = "import sys, fedceo; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "matplotlib", "dp_accounting", "scipy"} & set(done.stdout.split())


def test_names_that_are_imported_when_used_show_before() -> None:
    code = "import sys, fedceo; seen = dir(fedceo); import fedceo.accounting; seen += dir(fedceo.accounting);"
    code += "print(*seen);"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert {"run", "resume", "load", "from_arrays", "tensors", "__version__", "account", "calibrate", "Plan"} <= seen
    assert not {"torch", "scipy"} & loaded, "looking costs nothing"


def test_names_that_are_shown_exist() -> None:
    for module in (fedceo, fedceo.accounting):
        for name in module.__all__:
            assert name in dir(module) and getattr(module, name) is not None


def test_the_constraints_let_the_hub_extra_in() -> None:
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert {"datasets", "fsspec"} <= pinned.keys(), "a newer fsspec than datasets knows leaves no version of it"
    try:
        needs = [Requirement(line) for line in requires("datasets") or []]
    except PackageNotFoundError:
        pytest.skip("the extra is not installed")
    for need in (need for need in needs if need.marker is None and need.name in pinned):
        assert need.specifier.contains(pinned[need.name]), need
