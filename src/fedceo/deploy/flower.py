"""FedCEO and its rivals on Flower: all that an app needs. `fedceo flower new` writes an app that uses it.

    app = server_app(experiment, public)           # in server_app.py
    app = client_app(experiment, own)              # in client_app.py

Names are imported when they are first used: a node starts a process for every message, and needs no server there.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedceo.errors import UsageError

try:
    import flwr  # noqa: F401
except ModuleNotFoundError:
    raise UsageError("flower: needs flwr, from the extra fedceo[flower]") from None

if TYPE_CHECKING:
    from fedceo.config import load_experiment
    from fedceo.deploy.client import Node, PrivacyMod, client_app
    from fedceo.deploy.records import dealt_public_records, dealt_records, own_records, public_records
    from fedceo.deploy.server import server_app
    from fedceo.deploy.strategy import MethodStrategy

__all__ = [
    "MethodStrategy",
    "Node",
    "PrivacyMod",
    "client_app",
    "dealt_public_records",
    "dealt_records",
    "load_experiment",
    "own_records",
    "public_records",
    "server_app",
]

_HOMES = {
    "fedceo.config": ("load_experiment",),
    "fedceo.deploy.client": ("Node", "PrivacyMod", "client_app"),
    "fedceo.deploy.records": ("dealt_public_records", "dealt_records", "own_records", "public_records"),
    "fedceo.deploy.server": ("server_app",),
    "fedceo.deploy.strategy": ("MethodStrategy",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
