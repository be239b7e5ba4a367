"""Help, completion and answers to options that are none: whole in any terminal, and of use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedceo.cli.app import main
from fedceo.terminal.tables import console


def fedceo(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize(
    "command, whole",
    [
        (("run",), ["section.field=value", "privacy.target_epsilon=E.", "--tensorboard", "[x>=1]"]),
        (("tune",), ["section.field=[a, b].", "--trials-per-setting", "negative-binomial."]),
        (("figure",), ["trade-off-sigma", "singular-values"]),
        ((), ["--install-completion", "draw accuracy over epsilon.", "without noise, on handwritten digits."]),
        (("privacy",), ["of what the options say."]),
    ],
)
def test_nothing_of_the_help_is_cut(
    command: tuple[str, ...],
    whole: list[str],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert fedceo(monkeypatch, *command, "--help") == 0
    printed = capsys.readouterr().out
    letters = "".join(printed.split())  # lines may be broken behind a hyphen
    assert all("".join(words.split()) in letters for words in whole)
    assert "…" not in printed and "\\" not in printed and max(map(len, printed.splitlines())) <= columns


@pytest.mark.parametrize(
    "option, answer",
    [
        ("--lr", "--lr; that field is changed by --set train.learning_rate=VALUE"),
        ("--epochs", "--epochs; that field is changed by --set train.local_epochs=VALUE"),
        ("--model", "--model; that field is changed by --set model.name=VALUE"),
        ("--round", "--round; did you mean --rounds?"),
        ("--xyz", "--xyz"),
    ],
)
def test_an_option_that_is_none_is_answered_by_what_to_type(
    option: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedceo(monkeypatch, "run", "mine.toml", option, "3") == 2
    assert capsys.readouterr().err == f"fedceo: No such option: {answer}\n"


@pytest.mark.parametrize(
    "words, answer",
    [
        (("--rounds", "3"), "No such option: --rounds here; expected behind a command: fedceo run FILE --rounds"),
        (("mine.toml",), "No such command 'mine.toml'; an experiment file is run by: fedceo run mine.toml"),
        (("rnu", "mine.toml"), "No such command 'rnu'; did you mean fedceo run?"),
        (("account", "mine.toml"), "No such command 'account'; did you mean fedceo privacy account?"),
        (("privacy", "acount"), "No such command 'acount'; did you mean fedceo privacy account?"),
        (("data", "xyz"), "No such command 'xyz'; expected one of list, verify, get"),
        (("run", "--engine", "loop", "mine.toml"),
         '--engine: \'loop\', expected "here" or "ray"; how clients are trained: --set train.engine=loop'),
    ],
)  # fmt: skip
def test_a_guess_is_answered_by_what_to_type(
    words: tuple[str, ...], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedceo(monkeypatch, *words) == 2
    assert capsys.readouterr().err == f"fedceo: {answer}\n"


def test_completion_can_be_installed_and_knows_the_commands(tmp_path: Path) -> None:
    home = {**os.environ, "HOME": str(tmp_path)}
    # it asks which shell started it, and there may be none above the tests; with a command behind it bash stays
    asked_by_bash = ["bash", "-c", f"{sys.executable} -m fedceo --install-completion; exit $?"]
    subprocess.run(asked_by_bash, env=home, check=True, capture_output=True)
    assert any("COMPREPLY" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    asked = home | {"_FEDCEO_COMPLETE": "complete_bash", "COMP_WORDS": "fedceo tr", "COMP_CWORD": "1"}
    answered = subprocess.run(
        [sys.executable, "-c", "from fedceo.cli.app import app; app(prog_name='fedceo')"],
        env=asked,
        capture_output=True,
        text=True,
    )
    assert answered.stdout.split() == ["trade-off"]


def test_what_is_written_to_a_file_ends_where_its_words_do(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.padding import Padding

    console().print(Padding("words", (0, 0, 0, 2)))
    assert capsys.readouterr().out == "  words\n"
