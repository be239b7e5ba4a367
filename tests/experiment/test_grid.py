"""Experiment files with a grid: which cells they have, what each cell is, and how mistakes are told."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedceo
from fedceo.errors import UsageError
from fedceo.experiment.file import load_experiment, load_grid, parse_experiment
from fedceo.methods.fedceo import FedCEOSettings
from fedceo.studies.cells import find_cells, find_experiments

ROOT = Path(__file__).resolve().parents[2]
BASE = """# A grid of two axes
[data]
name = "digits"
clients = 12
[cohort]
size = 4
[train]
rounds = 1
local_epochs = 1
[privacy]
mechanism = "central"
target_epsilon = 8.0
"""
AXES = """
[grid]
noise = ["low", "high"]
method = ["fedavg", "ceo"]
"""
VALUES = """
[grid.values.noise]
low = { privacy.noise_multiplier = 0.2 }
high = { privacy.noise_multiplier = 0.6, method = { name = "fedceo", ratio = 1.5 } }
[grid.values.method]
fedavg = { method.name = "fedavg" }
ceo = { method = { strength = 2.0, restart = "mean", name = "fedceo" } }
unused = { method.name = "nothing" }
"""
GRID = BASE + AXES + VALUES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(GRID)
    return path


def by_hand(noise: float, method: dict[str, Any], rounds: int = 1) -> dict[str, Any]:
    """The experiment that a cell of GRID has to be."""
    return {
        "data": {"name": "digits", "clients": 12},
        "cohort": {"size": 4},
        "train": {"rounds": rounds, "local_epochs": 1},
        "privacy": {"mechanism": "central", "noise_multiplier": noise},
        "method": method,
    }


def test_cells_are_the_cross_of_the_axes_and_later_axes_go_over_earlier_ones(file: Path) -> None:
    ceo = {"name": "fedceo", "strength": 2.0, "restart": "mean"}
    assert find_experiments(file, []) == {
        "low/fedavg": parse_experiment(by_hand(0.2, {"name": "fedavg"})),
        "low/ceo": parse_experiment(by_hand(0.2, ceo)),
        "high/fedavg": parse_experiment(by_hand(0.6, {"name": "fedavg"})),
        "high/ceo": parse_experiment(by_hand(0.6, ceo | {"ratio": 1.5})),
    }
    assert list(find_experiments(file, [])) == ["low/fedavg", "low/ceo", "high/fedavg", "high/ceo"], "as the axes list"
    assert str(load_grid(file)) == "4 cells: 2 noise x 2 method"


def test_one_cell_by_its_name_and_with_overrides(file: Path) -> None:
    found = load_experiment(file, ["train.rounds=7"], "high/fedavg")
    assert found == parse_experiment(by_hand(0.6, {"name": "fedavg"}, rounds=7))
    assert fedceo.load_experiment(file, cell="low/ceo").privacy.noise_multiplier == 0.2


def test_exceptions_set_fields_or_drop_cells_and_others_stand_outside_the_cross(file: Path) -> None:
    file.write_text(
        GRID
        + """
[[grid.except]]
where = { method = "ceo" }
train.rounds = 3
method.strength = 9.0
[[grid.except]]
where = { noise = ["low"], method = ["ceo"] }
train.rounds = 5
[[grid.except]]
where = { noise = "high", method = "fedavg" }
drop = true
[grid.also]
"without-privacy/fedavg" = { privacy.mechanism = "none", method.name = "fedavg" }
"""
    )
    found = find_experiments(file, [])
    assert list(found) == ["low/fedavg", "low/ceo", "high/ceo", "without-privacy/fedavg"]
    assert [each.train.rounds for each in found.values()] == [1, 5, 3, 1], "later exceptions go over earlier ones"
    ceo = found["high/ceo"].method
    assert isinstance(ceo, FedCEOSettings) and ceo.strength == 9.0
    assert found["without-privacy/fedavg"].privacy.target_epsilon is None, "none leaves no room for it"
    assert str(load_grid(file)) == "4 cells: 2 noise x 2 method - 1 + 1"


def test_axes_and_values_come_from_parts_too(tmp_path: Path) -> None:
    (tmp_path / "part.toml").write_text(VALUES)
    (tmp_path / "mine.toml").write_text('extends = ["part.toml"]\n' + BASE + '[grid]\nmethod = ["fedavg"]\n')
    assert list(find_experiments(tmp_path / "mine.toml", [])) == ["fedavg"]
    axes = '[grid]\nnoise = ["low"]\nmethod = ["fedavg", "prox"]\n'
    value = '[grid.values.method]\nprox.method.name = "fedprox"\n'
    (tmp_path / "more.toml").write_text(f'extends = ["mine.toml"]\n{axes}{value}')
    found = find_experiments(tmp_path / "more.toml", [])
    assert list(found) == ["fedavg/low", "prox/low"], "axes keep the order in which they are first named"
    assert [each.method.name for each in found.values()] == ["fedavg", "fedprox"]


def test_cells_of_a_folder_have_the_name_of_their_file_before_their_own(file: Path) -> None:
    (file.parent / "plain.toml").write_text(BASE + '[method]\nname = "fedavg"\n')
    names = ["mine/low/fedavg", "mine/low/ceo", "mine/high/fedavg", "mine/high/ceo", "plain"]
    assert list(find_experiments(file.parent, [])) == names
    assert list(find_experiments(file.parent, [], ["*/low/*", "plain"])) == ["mine/low/fedavg", "mine/low/ceo", "plain"]
    with pytest.raises(UsageError, match=r"--cell: 'mine/low/ceoo' matches none of the 5 .*did you mean mine/low/ceo"):
        find_experiments(file.parent, [], ["mine/low/ceoo"])
    (file.parent / "mine").mkdir()
    (file.parent / "mine" / "low").mkdir()
    (file.parent / "mine" / "low" / "ceo.toml").write_text(BASE + '[method]\nname = "fedavg"\n')
    with pytest.raises(UsageError, match=r"mine/low/ceo is the name of an experiment in .* too"):
        find_experiments(file.parent, [])


def test_the_option_grid_composes_with_the_grid_of_a_file(file: Path) -> None:
    cells = find_cells(file, 2, [], ["train.learning_rate=[0.1, 0.01]"], file.parent / "out", ["high/*"])
    assert len(cells) == 2 * 2 * 2 and len({cell.folder for cell in cells}) == 8
    assert cells[0].name == "high/fedavg,train.learning_rate=0.1"
    assert cells[0].folder.relative_to(file.parent).as_posix() == "out/high/fedavg_train.learning_rate=0.1/seed-0"


def bad(axes: str = AXES, values: str = VALUES, more: str = "") -> str:
    return BASE + axes + values + more


MISTAKES = {
    "no axis": (bad("[grid]\n"), "grid: no axis, expected AXIS"),
    "an axis without values": (bad(AXES + "rate = []\n"), r"grid.rate: \[\], expected a list of names"),
    "an axis that is no list": (bad(AXES + 'rate = "low"\n'), "grid.rate: 'low', expected a list of names"),
    "an unknown value": (
        bad('[grid]\nnoise = ["loww"]\n'),
        r"grid.noise: 'loww' is not defined in \[grid.values.noise\], did you mean low?",
    ),
    "a value that is no table": (
        bad(values="[grid.values]\nnoise.low = 3\nnoise.high = 4\nmethod.ceo = 5\nmethod.fedavg = 6\n"),
        "grid.values.noise.low: 3, expected a table",
    ),
    "an unknown field": (
        bad(values=VALUES.replace("strength", "strenght")),
        "grid.values.method.ceo: method.strenght: unknown field, did you mean strength?",
    ),
    "an unknown section": (
        bad(values=VALUES.replace("low = { privacy.", "low = { privaci.")),
        "grid.values.noise.low: privaci: unknown field, did you mean privacy?",
    ),
    "a section that is no table": (
        bad(values=VALUES.replace("low = { privacy.noise_multiplier", "low = { privacy")),
        "grid.values.noise.low: privacy: ",
    ),
    "a value out of bounds": (
        bad(values=VALUES.replace("0.6", "-0.6")),
        "grid.values.noise.high: privacy.noise_multiplier: .*, got -0.6",
    ),
    "a field of an exception": (
        bad(more='[[grid.except]]\nwhere.noise = "low"\ntrain.roundz = 3\n'),
        "grid.except, entry 1: train.roundz: unknown field, did you mean rounds?",
    ),
    "an unknown axis of an exception": (
        bad(more='[[grid.except]]\nwhere.noize = "low"\ndrop = true\n'),
        "grid.except, entry 1: where: 'noize' is not an axis, did you mean noise?",
    ),
    "an unknown value of an exception": (
        bad(more='[[grid.except]]\nwhere.noise = "lov"\ndrop = true\n'),
        "grid.except, entry 1: where.noise: 'lov' is not a value of that axis, did you mean low?",
    ),
    "an exception that matches no cell": (
        bad(more='[[grid.except]]\nwhere.noise = "low"\ndrop = true\n[[grid.except]]\nwhere.noise = "low"\nseed = 3\n'),
        "grid.except, entry 2: where .*noise.* matches no cell",
    ),
    "an exception for no cells": (
        bad(more="[[grid.except]]\ndrop = true\n"),
        "grid.except, entry 1: where: missing",
    ),
    "an exception without an effect": (
        bad(more='[[grid.except]]\nwhere.noise = "low"\n'),
        "grid.except, entry 1: expected either fields to set or drop = true",
    ),
    "an exception that is no entry": (
        bad(more="[grid.except]\ndrop = true\n"),
        r"grid.except: expected entries \[\[grid.except\]\]",
    ),
    "nothing left": (
        bad(more='[[grid.except]]\nwhere.noise = ["low", "high"]\ndrop = true\n'),
        "grid: no cell is left",
    ),
    "two cells of one name": (
        bad(AXES.replace('"ceo"', '"ceo", "ceo"')),
        "grid: 2 cells are named low/ceo, expected names that differ",
    ),
    "a cell of a name in the cross": (
        bad(more='[grid.also]\n"low/ceo" = { method.name = "fedavg" }\n'),
        "grid: 2 cells are named low/ceo",
    ),
    "a name that leaves its folder": (
        bad(more='[grid.also]\n"../ceo" = { method.name = "fedavg" }\n'),
        "grid: '../ceo' names a cell, expected letters, digits",
    ),
    "no table": ('grid = 3\n' + BASE, "grid: 3, expected a table"),
}  # fmt: skip


@pytest.mark.parametrize("text, words", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line_that_names_the_file_and_the_axis(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as raised:
        find_experiments(file, [])
    assert str(raised.value).startswith(f"{file}: ") and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("mine.toml",), "mine.toml: a grid of 4 cells, expected --cell NOISE/METHOD, such as --cell low/fedavg"),
        (("mine.toml", "--cell", "low/fedavgg"), "mine.toml: --cell: 'low/fedavgg' is not among the 4 cells, did you"),
        (("plain.toml", "--cell", "low/ceo"), "plain.toml: --cell: 'low/ceo', but the file has no [grid]"),
        (("--resume", "runs/mine", "--cell", "low/ceo"), "--resume: takes the folder alone, without FILE, --cell"),
        (("bad.toml", "--cell", "low/ceo"), "bad.toml: grid.rate: [], expected a list of names of values"),
    ],
)
def test_mistakes_of_the_command_are_one_line_and_exit_code_2(
    file: Path, arguments: tuple[str, ...], words: str
) -> None:
    (file.parent / "plain.toml").write_text(BASE + '[method]\nname = "fedavg"\n')
    (file.parent / "bad.toml").write_text(bad(AXES + "rate = []\n"))
    done = command(file.parent, "run", *arguments)
    assert done.returncode == 2 and done.stderr.startswith(f"fedceo: {words}") and done.stderr.count("\n") == 1


def test_a_cell_can_be_run_alone(file: Path) -> None:
    done = command(file.parent, "run", "mine.toml", "--cell", "high/fedavg", "--set", "seed=3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == "runs/mine/high/fedavg"
    ran = load_experiment(file.parent / "runs" / "mine" / "high" / "fedavg" / "experiment.toml")
    assert ran.privacy.noise_multiplier == 0.6 and ran.method.name == "fedavg" and ran.seed == 3


def test_other_commands_take_a_cell_too(file: Path) -> None:
    done = command(file.parent, "privacy", "account", "mine.toml", "--cell", "low/fedavg", "--json")
    low = json.loads(done.stdout)[0]["epsilon"]
    done = command(file.parent, "privacy", "account", "mine.toml", "--cell", "high/fedavg", "--json")
    assert done.returncode == 0 and low > json.loads(done.stdout)[0]["epsilon"] > 0, "more noise, less epsilon"
    without = command(file.parent, "privacy", "account", "mine.toml")
    assert without.returncode == 2 and "mine.toml: a grid of 4 cells, expected --cell" in without.stderr
    no_file = command(file.parent, "privacy", "account", ".", "--cell", "low/fedavg")
    assert no_file.returncode == 2 and "--cell: 'low/fedavg' names a cell of an experiment file" in no_file.stderr


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "fedceo", *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


OF_OTHER_PROGRAMS = ("theory.json", "theory.bound.json", "cifar10-100.clients.json", "alpha.votes.json")
RESULTS = sorted(file for file in (ROOT / "results").rglob("*.json") if file.name not in OF_OTHER_PROGRAMS)
"""Files that `fedceo sweep`, `fedceo tune` and tools/measure.py wrote."""


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.name)
def test_results_are_found_again_under_the_names_of_cells(file: Path) -> None:
    kept = json.loads(file.read_text())
    names = set(kept) if isinstance(kept, dict) else {entry["name"] for entry in kept}
    table = file.relative_to(ROOT / "results").with_name(file.name.split(".")[0] + ".toml")
    cells = find_experiments(ROOT / "experiments" / table, [])
    assert {name.removesuffix("/tuned").partition(",")[0] for name in names} <= set(cells)
