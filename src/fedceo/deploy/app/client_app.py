"""The app of a node. A mod inside clips and noises each upload; nothing else leaves the node."""

from fedceo.deploy.flower import client_app

from .data import experiment, own

app = client_app(experiment, own)
