"""The cost of importing the package, and the names that it shows."""

import subprocess
import sys

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
