"""Experiment files that are no text, no TOML or made to exhaust a parser: one line each."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedceo.cli.app import main
from tests.support.experiment_text import FILE

HIGH = "# caf\xe9\n".encode("latin1") + FILE.encode()
FILES: dict[str, tuple[bytes, str]] = {
    "high bits in a comment": (HIGH, "not a TOML file: 'utf-8' codec can't decode byte 0xe9"),
    "high bits in a name": (FILE.replace("digits", "d\xefgits").encode("latin1"), "not a TOML file: 'utf-8' codec"),
    "high bits in a grid": (FILE.encode() + b'[grid]\nnoise = ["l\xf6w"]\n', "not a TOML file: 'utf-8' codec"),
    "UTF-16": (FILE.encode("utf-16"), "not a TOML file: 'utf-8' codec"),
    "zeros": (bytes(100), "not a TOML file: "),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(50), "not a TOML file: "),
    "brackets within brackets": (b"a = " + b"[" * 100_000, "not a TOML file: "),
    "tables within tables": (b"a = " + b"{b=" * 100_000, "not a TOML file: "),
    "a long number": (b"seed = " + b"9" * 5000 + b"\n" + FILE.encode(), "not a TOML file: Exceeds the limit"),
    "a name with a zero": (b'extends = ["a\\u0000b.toml"]\n', "embedded null"),
    "a name that is too long": (b'extends = ["' + b"a" * 300 + b'.toml"]\n', "cannot be read (File name too long)"),
}
Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    monkeypatch.chdir(tmp_path)

    def line(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
        with pytest.raises(SystemExit, match="2"):
            main()
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("fedceo: ") and err.count("\n") == 1 and err.endswith("\n")
        return err

    return line


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["run", "partition", "privacy account", "sweep", "tune", "flower new app"])
def test_files(kind: str, command: str, refused: Refused) -> None:
    content, words = FILES[kind]
    Path("mine.toml").write_bytes(content)
    line = refused(*command.split(), "mine.toml")
    assert (words in line and "mine.toml" in line) or kind.startswith("a name")
    assert [path.name for path in Path().iterdir()] == ["mine.toml"], "nothing is written"


@pytest.mark.parametrize("kind", FILES)
def test_a_list_names_what_cannot_be_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    Path("mine.toml").write_bytes(FILES[kind][0])
    Path("experiments", "other.toml").write_bytes(FILES[kind][0])
    Path("experiments", "gone.toml").symlink_to("nowhere")
    Path("experiments", "folder.toml").mkdir()
    monkeypatch.setattr(sys, "argv", ["fedceo", "list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    is_experiment = kind.startswith("a name")  # by its field `extends`; other files here may be another program's
    words = " ".join(capsys.readouterr().out.split())  # long lines fold
    assert words.count("cannot be read: ") == 3 + is_experiment


@pytest.mark.parametrize("value", ["[" * 9999, "9" * 5000, "\udcff", "a\nb"], ids=["deep", "long", "byte", "lines"])
def test_values_on_the_command_line(value: str, refused: Refused) -> None:
    Path("mine.toml").write_text(FILE)
    assert "train.rounds" in refused("run", "mine.toml", "--set", f"train.rounds={value}")
    assert "data.name" in refused("run", "mine.toml", "--set", f"data.name={value}")
    assert "--grid" in refused("sweep", "mine.toml", "--grid", f"train.rounds={value}").replace("--set", "--grid")


@pytest.mark.parametrize("option", ["--out", "--resume"])
def test_names_that_are_too_long(option: str, refused: Refused) -> None:
    Path("mine.toml").write_text(FILE)
    file = ["mine.toml"] if option == "--out" else []
    assert "ile name too long" in refused("run", *file, option, "a" * 300)
