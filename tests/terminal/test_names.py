"""Names of users and of files are shown as they are, whatever markup, emoji codes or mathematics they look like."""

import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedceo
from fedceo.cli.app import main
from fedceo.report.writers import escaped
from fedceo.terminal.progress import downloads, progress, waiting
from fedceo.terminal.studies import show_tuned
from fedceo.terminal.tables import console

NAMES = ("run[fast]", "[/]", "[red]x", "[/red]x", "[link=x]a:smile:b", "$\\bad$", "{0}|%s|_&#")
TABLES = """
note = '{note}'
[data]
path = '{data}'
clients = 6
[model]
name = "logistic"
[cohort]
size = 3
[train]
rounds = 2
local_epochs = 1
[privacy]
mechanism = "central"
noise_multiplier = 1.0
[method]
name = "fedavg"
"""
Said = Callable[..., tuple[str, str]]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name, and the working directory has an experiment and data that are called so."""
    named = str(request.param)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDCEO_DATA", raising=False)
    file, data = Path("experiments", f"{named}.toml"), Path(f"{named}.npz")
    for path in (file, data):
        path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    np.savez(data, x=rng.normal(size=(90, 4)), y=np.arange(90) % 3)
    file.write_text(f"# about {named}" + TABLES.format(note=named, data=data))
    return named


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command prints to standard output and error; lines are broken nowhere but at their ends."""

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, err
        return out, err

    return run


def test_runs(name: str, said: Said) -> None:
    file, data = f"experiments/{name}.toml", Path(f"{name}.npz").name
    out, _ = said("run", file, "--out", name)
    assert f"fedavg on {data} with logistic" in out and f"results: {name}\n" in out
    assert f"results: {name}\n" in said("show", name)[0]
    assert json.loads(said("show", name, "--json")[0])["data"] == data
    assert "noise multiplier 1" in said("privacy", "account", name)[0]
    assert f"{name}.html, " in said("report", name, "-o", f"{name}.html")[0]
    assert name in Path(f"{name}.html").read_text() or "&" in name, "what HTML escapes looks otherwise"
    assert f"{name}-out: model" in said("release", name, "-o", f"{name}-out")[0]
    _, err = said("run", file, "--out", name, code=2)
    assert err.startswith(f"fedceo: {name}: holds a run already") and err.count("\n") == 1


def test_a_run_that_was_stopped(name: str, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    from fedceo.terminal.results import show_run

    stopped = fedceo.run(f"experiments/{name}.toml", out=name, should_stop=lambda: True)
    show_run(stopped, Path(name))
    assert capsys.readouterr().out == f"stopped after round 1 of 2; go on with: fedceo run --resume {name}\n"
    assert said("show", name, code=2)[1].endswith(f"go on with: fedceo run --resume {name}\n")


def test_partitions_and_lists(name: str, said: Said) -> None:
    file = f"experiments/{name}.toml"
    assert said("partition", file, "--out", f"{name}.png")[0].endswith(f"partition iid: {name}.png\n")
    out, _ = said("list")
    assert f"  {file}\n      about {name}\n" in out
    assert f"data folder: {name}\n" in said("data", "list", "--root", name)[0]
    assert said("data", "verify", "mnist", "--root", name, code=2)[1].startswith(f"fedceo: {name}/mnist: no such")
    assert said("data", "verify", name, code=2)[1].startswith(f"fedceo: data.name: unknown data set {name!r}")
    assert (
        said("run", file, "--cell", name, code=2)[1]
        == f"fedceo: {file}: --cell: {name!r}, but the file has no [grid]\n"
    )


def test_studies(name: str, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said("sweep", "experiments", "--out", name, "--jobs", "1")
    assert f"tuned: {name}\n" in out and f"│ {name} " in out and f"tables: {name}/table.csv" in out
    head, _, row = Path(name, "table.md").read_text().splitlines()
    assert len(re.split(r"(?<!\\)\|", row)) == head.count("|") + 1, "a name is one cell"
    said("table", name, "--name", f"FedAvg={name}", "--columns", "last", "--out", f"{name}.tex")
    row = Path(f"{name}.tex").read_text().splitlines()[7]
    assert escaped(name) in row and len(re.split(r"(?<!\\)&", row)) == 2
    show_tuned({name: {"validation_accuracy": 0.5, "file": f"{name}/tuned.toml", "note": name}})
    assert capsys.readouterr().out.count(name) == 3


def test_an_app_for_a_federation(name: str, said: Said) -> None:
    pytest.importorskip("flwr")
    settings = ("--set", "privacy.mechanism=distributed", "--set", "privacy.min_reports=2")
    out, _ = said("flower", "new", f"{name}-app", f"experiments/{name}.toml", *settings)
    assert f"a Flower app: {name}-app\n" in out


@pytest.mark.parametrize("name", NAMES)
def test_progress(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress(2, name) as advance:
        advance({"round": 1, "test_accuracy": 0.5})
    with downloads() as receive:
        receive(name, 1, 2)
    with waiting(name):
        pass
    assert capsys.readouterr().err.count(name) >= 3


@pytest.mark.parametrize("name", ["plain"], indirect=True)
def test_bytes_that_are_no_letters(name: str, said: Said) -> None:
    """A folder's name that is not UTF-8 is shown with its bytes written out."""
    folder, shown = os.fsdecode(b"run-\xe9\xff"), "run-\\udce9\\udcff"
    assert f"results: {shown}\n" in said("run", f"experiments/{name}.toml", "--out", folder)[0]
    assert f"results: {shown}\n" in said("show", folder)[0]
    assert f"{shown}.html, " in said("report", folder, "-o", f"{folder}.html")[0]
    assert f"data folder: {shown}\n" in said("data", "list", "--root", folder)[0]
    assert said("run", f"{folder}.toml", code=2)[1].count("\n") == 1
    os.chdir(folder)
    shutil.copy(f"../{name}.npz", ".")
    file = f"../experiments/{name}.toml"
    assert f"partition iid: {shown}" in said("partition", file, "--out", f"{folder}.png")[0]
    _, err = said("run", file, "--out", "here", code=2)
    assert err.startswith("fedceo: data.path: ") and err.count("\n") == 1 and not Path("here").exists()


def test_every_console_is_made_in_one_place() -> None:
    """A name that is printed by another console, or a column that reads markup, would be forgotten."""
    source = Path(fedceo.__file__).parent
    found = []
    for file in sorted(source.rglob("*.py")):
        place, tree = file.relative_to(source).as_posix(), ast.parse(file.read_text())
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(module.partition(".")[0] == "rich" for module in modules) and not place.startswith("terminal/"):
                found.append(f"{place}: {ast.unparse(node)}")
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            plain = any(word.arg == "markup" and ast.unparse(word.value) == "False" for word in node.keywords)
            if (called.endswith(("Console", "TextColumn")) and not plain) or called.endswith(
                ("from_markup", "Spinner")
            ):
                found.append(f"{place}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "\n".join(found)
    assert isinstance(console(), Console) and console(stderr=True).stderr
