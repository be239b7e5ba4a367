"""What a newcomer meets on the first day beside refusals: notes, short forms, fields, exit codes."""

import json
import sys
from pathlib import Path

import pytest

from fedceo.cli.app import app, main
from fedceo.experiment.fields import described_sections
from fedceo.experiment.file import _say_once, load_experiment
from tests.support.experiment_text import FILE
from tests.support.user_modules import module_here

DIVERGED = """
import torch
from torch import nn

def nan(shape, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    nn.init.constant_(model[1].weight, torch.nan)
    return model
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    _say_once.cache_clear()
    return tmp_path


def fedceo(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_what_an_override_drops_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedceo(monkeypatch, "privacy", "account", "mine.toml", "--set", "privacy.target_epsilon=4") == 0
    said = "fedceo: --set privacy.target_epsilon=4: drops privacy.noise_multiplier = 1.0 of mine.toml\n"
    assert capsys.readouterr().err == said
    (folder / "mine.toml").write_text(FILE.replace('"fedavg"', '"fedprox"\nmu = 0.5'))
    assert fedceo(monkeypatch, "partition", "mine.toml", "--json", "--set", "method.name=fedavg") == 0
    assert "drops method.mu = 0.5 of mine.toml" in capsys.readouterr().err
    assert fedceo(monkeypatch, "partition", "mine.toml", "--json", "--set", "train.rounds=2") == 0
    assert capsys.readouterr().err == ""


def test_short_forms_say_what_set_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("--rounds", "1", "--seed", "7", "--epsilon", "5", "--device", "cpu", "--method", "fedprox")
    fields = ("train.rounds=1", "seed=7", "privacy.target_epsilon=5.0", "train.device=cpu", "method.name=fedprox")
    assert fedceo(monkeypatch, "run", "mine.toml", *short, "--set", "method.mu=0.25", "--out", "run", "--json") == 0
    ran = load_experiment("run/experiment.toml")
    assert ran == load_experiment("mine.toml", [*fields, "method.mu=0.25"])


def test_a_model_that_is_nan_ends_with_a_warning_and_exit_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{module_here('diverged', DIVERGED, folder, monkeypatch)}:nan"
    assert fedceo(monkeypatch, "run", "mine.toml", "--set", f"model.name={name}", "--out", "run") == 1
    assert capsys.readouterr().err.endswith(
        "fedceo: run: the model is NaN or Inf: training has diverged, and its accuracies say nothing\n"
    )
    assert json.loads((folder / "run" / "result.json").read_text())["model_is_finite"] is False
    assert fedceo(monkeypatch, "show", "run") == 0
    assert "the model is NaN or Inf" in capsys.readouterr().out


def test_going_on_with_a_finished_run_says_that_nothing_was_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedceo(monkeypatch, "run", "mine.toml", "--out", "run", "--json") == 0
    assert fedceo(monkeypatch, "run", "--resume", "run", "--json") == 0
    assert "fedceo: run: was finished already, after 4 rounds; nothing was run" in capsys.readouterr().err


def test_a_file_with_a_byte_order_mark_is_read(folder: Path) -> None:
    (folder / "marked.toml").write_text(FILE, encoding="utf-8-sig")
    assert load_experiment("marked.toml") == load_experiment("mine.toml")


def test_a_file_is_listed_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "experiments").symlink_to(folder)
    (folder / "bad.toml").write_text("[data]\n[grid]\n")
    assert fedceo(monkeypatch, "list") == 0
    printed = capsys.readouterr().out
    assert printed.count("mine.toml") == 1 and printed.count("bad.toml") == 1
    assert "cannot be read: grid: no axis" in printed


def test_fields_are_printed_with_values_default_and_meaning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedceo(monkeypatch, "fields", "train") == 0
    printed = capsys.readouterr().out
    assert "rounds: int, at least 1; default 300" in printed and "T, communication rounds" in printed
    assert "clients" not in printed.split("[train]")[0]
    assert fedceo(monkeypatch, "fields", "fedprox") == 0
    assert 'name = "fedprox"' in capsys.readouterr().out
    assert fedceo(monkeypatch, "fields", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: [field["name"] for field in fields] for name, fields in found.items()} == {
        name: [field.name for field in fields] for name, fields in described_sections().items()
    }
    assert all(field["meaning"] for fields in found.values() for field in fields if field["name"] != "name")


def test_run_comes_first_and_every_command_is_in_the_help(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedceo(monkeypatch, "--help") == 0
    printed = capsys.readouterr().out
    found = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    named = [name.replace("_", "-").strip("-") for name in found]
    named += [str(group.name) for group in app.registered_groups]
    places = {name: printed.find(f" {name} ") for name in named}
    assert min(places, key=lambda name: places[name]) == "run" and min(places.values()) > 0
