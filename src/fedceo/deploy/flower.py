"""The names that a Flower app needs to run FedCEO and its rivals; `fedceo flower new` writes such an app.

    app = server_app(experiment, public)           # in server_app.py
    app = client_app(experiment, own)              # in client_app.py

Names are imported when they are first used, since a node needs no server code.
"""

from typing import TYPE_CHECKING

from fedceo.errors import UsageError
from fedceo.lazy import on_first_use

try:
    import flwr  # noqa: F401
except ModuleNotFoundError:
    raise UsageError("flower: needs flwr, from the extra fedceo[flower]") from None

if TYPE_CHECKING:
    from fedceo.deploy.client import Node, PrivacyMod, client_app
    from fedceo.deploy.records import dealt_public_records, dealt_records, own_records, public_records
    from fedceo.deploy.server import server_app
    from fedceo.deploy.strategy import MethodStrategy
    from fedceo.experiment.file import load_experiment

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

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "fedceo.experiment.file": ("load_experiment",),
        "fedceo.deploy.client": ("Node", "PrivacyMod", "client_app"),
        "fedceo.deploy.records": ("dealt_public_records", "dealt_records", "own_records", "public_records"),
        "fedceo.deploy.server": ("server_app",),
        "fedceo.deploy.strategy": ("MethodStrategy",),
    },
)
