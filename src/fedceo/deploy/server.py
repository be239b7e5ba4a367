"""The server of a federation as a Flower ServerApp."""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedceo.data import Federation
from fedceo.deploy.strategy import MethodStrategy
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment

LOG = logging.getLogger("flwr")


def server_app(experiment: Experiment, public: Callable[[], Federation]) -> ServerApp:
    """An app that runs the experiment into the folder that the run's `out` names, or resumes the run there."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        out, timeout = context.run_config.get("out"), context.run_config.get("timeout")
        if not isinstance(out, str) or not out:
            raise UsageError(f"out: {out!r}, expected a folder for the run: --run-config 'out=\"runs/mine\"'")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
            raise UsageError(f"timeout: {timeout!r}, expected seconds that a round may wait")
        folder = Path(out).expanduser().resolve()
        MethodStrategy(experiment, public(), folder, float(timeout)).run(grid)
        LOG.info("finished; look at it with: fedceo show %s", folder)

    return app
