"""`fedceo data` from the outside."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedceo.cli.app import app
from fedceo.data import DATASETS
from fedceo.errors import UsageError
from tests.support.published_layouts import write_mnist, write_sent140


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_says_what_is_there_and_where_the_rest_is_looked_for(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    rows = {row["name"]: row for row in json.loads(output("list", "--root", str(tmp_path), "--json"))}
    assert rows.keys() == DATASETS.keys()
    assert rows["mnist"]["missing"] is None and rows["digits"]["missing"] is None
    assert str(tmp_path / "sent140") in rows["sent140"]["missing"]
    shown = output("list", "--root", str(tmp_path))
    assert shown.count(" missing ") == sum(row["missing"] is not None for row in rows.values())
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert output("list", "--root", str(tmp_path)).count(" missing ") == shown.count(" missing ") + 1
    assert "cifar-10-batches-bin/" in shown and str(tmp_path) in shown


def test_list_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDCEO_DATA", raising=False)
    assert "set FEDCEO_DATA or data.root" in output("list")


def test_verify_refuses_other_files_than_the_published(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(UsageError, match="wrong checksum, published 6bbc9ace898e44ae57da46a324031adb, found"):
        output("verify", "mnist", "--root", str(tmp_path))


@pytest.mark.usefixtures("unpublished")
def test_verify_reads_what_has_no_published_checksum(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    shown = output("verify", "mnist", "--root", str(tmp_path))
    assert "mnist: 60 records, 20 to test on, 10 classes" in shown
    rows = json.loads(output("verify", "mnist", "--root", str(tmp_path), "--json"))
    assert [row["verdict"] for row in rows] == 4 * ["no published checksum"] and rows[0]["bytes"] > 0


def test_verify_reports_broken_rows(tmp_path: Path) -> None:
    write_sent140(tmp_path, [("4", "a", "x"), ("7", "a", "x")], packed="plain")
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        assert "sent140: 1 records, no test set" in output("verify", "sent140", "--root", str(tmp_path))


def test_get_says_what_to_do_by_hand(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"femnist: there is no file to fetch; what to put where: femnist/"):
        output("get", "femnist", "--root", str(tmp_path))
    with pytest.raises(UsageError, match="did you mean mnist"):
        output("get", "mnits", "--root", str(tmp_path))
