"""FedCEO and its rivals on Flower: all that an app needs. `fedceo flower new` writes an app that uses it.

app = server_app(experiment, public)           # in server_app.py
app = client_app(experiment, records)          # in client_app.py
"""

from fedceo.errors import UsageError

try:
    from fedceo.deploy.client import Node, PrivacyMod, client_app
    from fedceo.deploy.server import server_app
    from fedceo.deploy.strategy import MethodStrategy
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "flwr":
        raise
    raise UsageError("flower: needs flwr, from the extra fedceo[flower]") from None
from fedceo.config import load_experiment
from fedceo.deploy.records import dealt_public_records, dealt_records, own_records, public_records

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
