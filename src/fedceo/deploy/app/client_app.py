"""What runs on a node. The mod inside clips and noises; nothing else leaves the node."""

from fedceo.deploy.flower import client_app

from .data import experiment, own

app = client_app(experiment, own)
