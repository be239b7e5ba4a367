"""`fedceo attack` as a user types it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedceo
from fedceo.attacks import reconstruct, study
from fedceo.cli.app import main
from fedceo.simulation.durable import read_json
from tests.support.experiment_text import FILE

Ask = Callable[..., tuple[int, str, str]]
MINE = FILE.replace('"central"', '"distributed"') + '[model]\nname = "dlg-lenet"\n'
QUICK = ("--images", "2", "--iterations", "1")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    (tmp_path / "mine.toml").write_text(MINE)
    monkeypatch.chdir(tmp_path)

    def answer(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedceo", "attack", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return answer


def test_an_experiment(ask: Ask) -> None:
    code, out, _ = ask("mine.toml", *QUICK)
    assert code == 0 and "T1, upload after one step" in out and "constant" in out and "control" in out
    assert "noise multiplier 1, clip 1" in out and "the control fails" not in out
    folder = Path("runs/attacks/mine")
    assert {file.name for file in folder.iterdir()} == {"attack.json", "attack.png", "control.png"}
    assert (folder / "attack.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = ask("mine.toml", *QUICK, "--holds", "t0", "--attack", "idlg", "--json", "--out", "again")
    printed = json.loads(out)
    assert code == 0 and printed["studies"] == [read_json(Path("again/attack.json"), expected=True)]
    assert printed["studies"][0]["control_fails"] in (True, False)


def test_a_run(ask: Ask) -> None:
    run = fedceo.run("mine.toml", out="run")
    code, out, _ = ask("run", *QUICK, "--json")
    study = json.loads(out)["studies"][0]
    assert code == 0 and study["rounds_trained"] == run.result["rounds"] == 4


def test_the_papers_setting(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "reconstruct", lambda attack, *rest: reconstruct(replace(attack, iterations=1), *rest))
    code, out, _ = ask("mine.toml", "--preset", "paper", "--holds", "T0", "--json", "--out", "paper")
    studies = json.loads(out)["studies"]
    assert code == 0 and [(s["records"], s["noise_multiplier"]) for s in studies] == [
        ([25], 1),
        ([50], 1.5),
        ([100], 2),
    ]
    assert all(s["learning_rate"] == 0.01 and s["iterations"] == 300 for s in studies)
    assert Path("paper/record-100-sigma-2.0/control.png").exists()


def test_the_papers_figure_in_one_call(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def kept(studies: Any) -> Any:
        drawn.append(study.whole_figure(studies))
        return drawn[0]

    monkeypatch.setattr(study, "reconstruct", lambda attack, *rest: reconstruct(replace(attack, iterations=1), *rest))
    monkeypatch.setattr("fedceo.attacks.whole_figure", kept)
    smoothed = MINE.partition("[method]")[0] + '[method]\nname = "fedceo"\n[model]\nname = "dlg-lenet"\n'
    Path("ceo.toml").write_text(smoothed)
    code, out, _ = ask("ceo.toml", "--preset", "paper", "--json", "--out", "paper")
    assert code == 0 and Path("paper/figure.png").read_bytes().startswith(b"\x89PNG")
    studies = json.loads(out)["studies"]
    assert [(s["records"][0], s["holds"]) for s in studies] == [(r, t) for r in (25, 50, 100) for t in ("T1", "T2")]
    labels = [panel.get_ylabel() for panel in drawn[0].axes if panel.get_ylabel()]
    assert labels == [
        words for r, s in ((25, 1), (50, 1.5), (100, 2))
        for words in (f"FedAvg\nrecord {r}", f"UDP-FedAvg, sigma {s}\nrecord {r}", f"FedCEO, sigma {s}\nrecord {r}")
    ]  # fmt: skip
    assert not Path("paper/record-25-sigma-1.0/smoothed/control.png").exists(), "one control serves both"


def test_mistakes_are_one_line(ask: Ask) -> None:
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/file").touch()
    fedceo.run("mine.toml", out="stopped", should_stop=lambda: True)
    for arguments, words in [
        (("empty",), "empty: not a run folder"),
        (("none.toml",), "no such experiment file"),
        (("stopped",), "the run is unfinished"),
        (("mine.toml", "--index", "99999"), "--index: 99999, expected 0 to 1437"),
        (("mine.toml", "--attack", "dgl"), "--attack: unknown attack 'dgl', did you mean dlg?"),
        (("mine.toml", "--holds", "T7"), "--holds: 'T7', expected one of"),
        (("mine.toml", "--preset", "papers"), "--preset: unknown preset"),
        (("mine.toml", "--preset", "paper", "--index", "3"), "--preset: says which records"),
        (("mine.toml", "--images", "0"), "--images: 0"),
        (("mine.toml", "--out", "full"), "full: not an empty folder"),
    ]:
        code, out, err = ask(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1) and words in err, (arguments, err)
