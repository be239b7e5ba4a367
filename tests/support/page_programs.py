"""The programs that write pages, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load_program(name: str) -> ModuleType:
    """tools/pages/NAME.py, which must not import its neighbours."""
    path = Path(__file__).parents[2] / "tools" / "pages" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
