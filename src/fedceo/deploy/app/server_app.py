"""What runs beside the SuperLink."""

from fedceo.deploy.flower import server_app

from .data import experiment, public

app = server_app(experiment, public)
