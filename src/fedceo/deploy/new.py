"""The Flower app that `fedceo flower new` writes from an experiment."""

import json
import re
import shlex
from importlib import resources
from pathlib import Path

from fedceo.deploy.supported import for_deployment
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, to_toml

PACKAGE = "federation"
FILES = ("__init__.py", "data.py", "client_app.py", "server_app.py")

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = {description}
license = "Apache-2.0"
# fedceo[flower] has to be installed wherever this runs; name it here if your SuperLink installs what apps need.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "{name}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
# The run folder, on the machine of the SuperLink; an unfinished run in it goes on. Not inside the app, whose files
# `flwr run` sends to every node.
out = {out}
# Seconds that a round waits for nodes, and for their uploads.
timeout = 600
"""


def write_app(folder: Path, experiment: Experiment) -> Experiment:
    """Write the app into a new or empty folder, all of it or nothing; returns the experiment as it will be run."""
    deployed = for_deployment(experiment)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: not an empty folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or PACKAGE
    data = deployed.data.name or Path(str(deployed.data.path)).name
    texts = {f"{PACKAGE}/{file}": resources.files("fedceo.deploy.app").joinpath(file).read_text() for file in FILES}
    readme = resources.files("fedceo.deploy.app").joinpath("README.md").read_text()
    texts["README.md"] = readme.replace("hospitals", shlex.quote(folder.resolve().name))
    texts[f"{PACKAGE}/experiment.toml"] = to_toml(deployed)
    texts["pyproject.toml"] = PYPROJECT.format(
        name=name,
        package=PACKAGE,
        description=json.dumps(f"A federation: {deployed.method.name} on {data}"),
        out=json.dumps((folder.resolve().with_name(f"{name}-runs") / "first").as_posix()),
    )
    unfinished = folder.with_name(folder.name + ".part")
    try:
        for path, text in texts.items():
            (unfinished / path).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / path).write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to ({error.strerror})") from None
    return deployed
