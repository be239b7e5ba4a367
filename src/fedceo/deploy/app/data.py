"""The records of nodes and server: change the two functions to read your own.

As they are, they partition the data set that experiment.toml names, so that the app runs before you bring any data.
"""

from pathlib import Path

from fedceo.data import Federation
from fedceo.deploy.flower import dealt_public_records, dealt_records, load_experiment

experiment = load_experiment(Path(__file__).with_name("experiment.toml"))


def own(client: int) -> Federation:
    """The training records of the node that was started with partition-id=CLIENT; they stay on that node.

    With records of your own, x (records, ...) and y (records,):

        from fedceo.deploy.flower import own_records

        return own_records(x, y, client=client, clients=experiment.data.clients, classes=10)
    """
    return dealt_records(experiment, client)


def public() -> Federation:
    """The records on which the server measures the model. They must be public, and may be none at all.

    With records of your own, x (records, ...) and y (records,):

        from fedceo.deploy.flower import public_records

        return public_records(x, y, clients=experiment.data.clients, classes=10)
    """
    return dealt_public_records(experiment)
