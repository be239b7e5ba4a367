"""The app of the server, which runs next to the SuperLink."""

from fedceo.deploy.flower import server_app

from .data import experiment, public

app = server_app(experiment, public)
