"""Where records come from: change the two functions to read your own.

As they are, they deal the data set that experiment.toml names, so that the app runs before anybody has brought data.
"""

from pathlib import Path

from fedceo.data import Federation
from fedceo.deploy.flower import dealt_public_records, dealt_records, load_experiment

experiment = load_experiment(Path(__file__).with_name("experiment.toml"))


def own(client: int) -> Federation:
    """What the node that was started with partition-id=CLIENT trains on; it stays on that node.

    With records of your own, x (records, ...) and y (records,):

        from fedceo.deploy.flower import own_records

        return own_records(x, y, client=client, clients=experiment.data.clients, classes=10)
    """
    return dealt_records(experiment, client)


def public() -> Federation:
    """What the server measures the model on. It may be no record at all, but one that is here must be public.

    With records of your own, x (records, ...) and y (records,):

        from fedceo.deploy.flower import public_records

        return public_records(x, y, clients=experiment.data.clients, classes=10)
    """
    return dealt_public_records(experiment)
