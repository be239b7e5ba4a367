"""What importing the package costs."""

import subprocess
import sys


def test_import_loads_nothing_slow() -> None:
    code = "import sys, fedceo; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "matplotlib", "dp_accounting", "scipy"} & set(done.stdout.split())
