"""The app that is written, and the experiments that a federation does not support, each refused in one line."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedceo.cli.app import app
from fedceo.deploy.supported import check_supported, for_deployment
from fedceo.errors import UsageError
from fedceo.experiment.file import load_experiment, to_toml

MINE = """
seed = 3
[data]
name = "digits"
clients = 5
[cohort]
size = 5
[train]
rounds = 3
[privacy]
mechanism = "distributed"
target_epsilon = 8.0
observer = "server"
[method]
name = "fedceo"
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


def test_the_app_is_whole_and_runs_the_experiment_with_noise_of_the_system(mine: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")
    done = CliRunner().invoke(app, ["flower", "new", str(tmp_path / "My App"), str(mine), "--set", "train.rounds=4"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "My App"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "README.md",
        "pyproject.toml",
        "federation/__init__.py",
        "federation/data.py",
        "federation/client_app.py",
        "federation/server_app.py",
        "federation/experiment.toml",
    }
    written = load_experiment(folder / "federation" / "experiment.toml")
    check_supported(written)
    assert written.train.rounds == 4 and written.checkpoint.every == 1
    assert written.privacy.randomness == "system"
    assert written.privacy.target_epsilon is None and written.privacy.noise_multiplier is not None
    assert "epsilon of 8 of the server" in (written.note or "")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    out = Path(project["tool"]["flwr"]["app"]["config"]["out"])
    assert folder not in out.parents  # else `flwr run` would send the run's files to every node
    from flwr.common.config import validate_config

    valid, errors, warnings = validate_config(project, check_module=True, project_dir=folder)
    assert valid and not errors and not warnings


def test_the_written_app_imports_and_holds_both_apps(mine: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")
    CliRunner().invoke(app, ["flower", "new", str(tmp_path / "app"), str(mine)])
    program = (
        "from federation.client_app import app as client; from federation.server_app import app as server\n"
        "from federation.data import own, public\n"
        "print(type(client).__name__, type(server).__name__, len(own(4).y), len(public().test_y))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "app", capture_output=True, text=True)
    assert done.stdout.split()[:2] == ["ClientApp", "ServerApp"], done.stderr
    assert all(int(count) > 0 for count in done.stdout.split()[2:])


def test_the_readme_has_the_commands_of_the_page(mine: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")
    from tests.support.documented_federation import PAGE, commands

    CliRunner().invoke(app, ["flower", "new", str(tmp_path / "hospitals"), str(mine)])
    written = commands((tmp_path / "hospitals" / "README.md").read_text())
    assert set(written) <= set(commands(PAGE.read_text()))
    for each in ("superlink", "supernode"):
        assert sum(line.startswith(f"fedceo flower {each} ") for line in written) == 1
    CliRunner().invoke(app, ["flower", "new", str(tmp_path / "My App"), str(mine)])
    assert "fedceo flower supernode 'My App' --superlink" in (tmp_path / "My App" / "README.md").read_text()


def test_a_folder_that_is_not_empty_is_left_alone(mine: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine").write_text("mine")
    done = CliRunner().invoke(app, ["flower", "new", str(tmp_path / "app"), str(mine)])
    assert isinstance(done.exception, UsageError) and "not an empty folder" in str(done.exception)
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["mine"]
    assert not (tmp_path / "app.part").exists()


def test_without_flower_one_line_names_the_extra(mine: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['flwr'] = None\n"
        f"sys.argv = ['fedceo', 'flower', 'new', {str(tmp_path / 'app')!r}, {str(mine)!r}]\n"
        "from fedceo.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "fedceo: flower: needs flwr, from the extra fedceo[flower]\n"
    assert not (tmp_path / "app").exists()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"privacy": {"mechanism": "central", "noise_multiplier": 1.0}, "method": {"name": "fedavg"}}, "privacy.mechanism"),
    ({"privacy": {"mechanism": "record", "noise_multiplier": 1.0}}, "privacy.mechanism"),
    ({"privacy": {"mechanism": "none"}}, "privacy.mechanism"),
    ({"privacy": {"mechanism": "distributed", "noise_multiplier": 1.0, "clipping": "adaptive"}}, "privacy.clipping"),
    ({"method": {"name": "ppsgd"}}, "method.name"),
    ({"method": {"name": "centaur"}}, "method.name"),
    ({"method": {"name": "jain-anil"}}, "method.name"),
    ({"cohort": {"size": 5, "dropout": 0.1}}, "cohort.dropout"),
    ({"record": {"every": 1}}, "record.every"),
    ({"data": {"name": "digits", "partition": "natural"}}, "data.clients"),
]


@pytest.mark.parametrize("sections, field", REFUSED, ids=lambda given: str(given))
def test_what_cannot_be_carried_is_refused_by_its_field(sections: dict[str, Any], field: str) -> None:
    from fedceo.experiment.file import parse_experiment

    given = parse_experiment(tomllib.loads(MINE) | sections)
    with pytest.raises(UsageError) as refused:
        for_deployment(given)
    assert str(refused.value).startswith(f"{field}: ")
    assert "\n" not in str(refused.value)


def test_seeded_noise_is_refused_where_it_is_run(mine: Path) -> None:
    with pytest.raises(UsageError, match=r'^privacy\.randomness: "seeded", expected "system"'):
        check_supported(load_experiment(mine))
    assert "seeded" not in to_toml(for_deployment(load_experiment(mine)))
