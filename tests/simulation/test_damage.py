"""Files that are damaged, cut short, gone or of an earlier version: refused in one line, or read as they were."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.durable import Lines, read_json, write_json
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.tensor_files import read_tensors, save_tensors
from tests.support.edited_runs import take_checksums_out
from tests.support.failing_disk import failing_disk
from tests.support.flips import command
from tests.support.small_runs import changed

ROUNDS: list[dict[str, Any]] = [{"round": 1, "loss": 0.5}, {"round": 2, "loss": float("nan")}, {"round": 3, "a": "é"}]
ACCOUNT = command("privacy", "account", "FOLDER", "--json")


def text_of(tables: list[dict[str, Any]]) -> str:
    return json.dumps(tables)  # NaN is not equal to itself


def line_file(path: Path) -> Lines:
    file = Lines(path)
    file.rewrite(ROUNDS[:1])
    for table in ROUNDS[1:]:
        file.append(table)
    return file


def flips(content: bytes) -> list[bytes]:
    """The content with each of its bytes changed in turn, in four ways."""
    return [
        content[:place] + bytes([content[place] ^ change]) + content[place + 1 :]
        for place in range(len(content))
        for change in (1, 0x20, 0x80, content[place] ^ 0x0A or 2)
    ]


def test_a_flipped_byte_in_a_line_is_found(tmp_path: Path) -> None:
    file = line_file(tmp_path / "lines.jsonl")
    content = file.path.read_bytes()
    assert text_of(file.read(expected=True)) == text_of(ROUNDS)
    for flipped in flips(content):
        file.path.write_bytes(flipped)
        with pytest.raises(UsageError, match=r"line \d does not match its checksum"):
            Lines(file.path).read(expected=True)


def test_a_line_that_is_missing_or_moved_is_found(tmp_path: Path) -> None:
    file = line_file(tmp_path / "lines.jsonl")
    one, two, three = file.path.read_bytes().splitlines(keepends=True)
    for other in (two + three, one + three, two + one + three, one + two + two + three, one + b"\n" + two):
        file.path.write_bytes(other)
        with pytest.raises(UsageError, match="does not match its checksum"):
            Lines(file.path).read(expected=True)


def test_only_what_is_left_of_the_last_line_is_dropped(tmp_path: Path) -> None:
    file = line_file(tmp_path / "lines.jsonl")
    content = file.path.read_bytes()
    two = len(content.rstrip().rpartition(b"\n")[0]) + 1
    for cut in range(two, len(content)):
        file.path.write_bytes(content[:cut])
        again = Lines(file.path)
        kept = 2 if cut < len(content) - 1 else 3  # where only the end of the line is missing, what it says counts
        assert text_of(again.read(expected=True)) == text_of(ROUNDS[:kept])
        assert file.path.read_bytes() == content[:cut], "reading changes nothing: a run may be at work"
        assert again.mend() == kept
        again.append({"round": 4})
        assert len(Lines(file.path).read(expected=True)) == kept + 1


def test_a_flipped_byte_in_json_and_tensors_is_found(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"rounds": 7, "words": "é"})
    save_tensors(tmp_path / "a.safetensors", {"w": torch.arange(5.0)}, {"round": 3})
    for file, read in ((tmp_path / "a.json", read_json), (tmp_path / "a.safetensors", read_tensors)):
        content = file.read_bytes()
        read(file, expected=True)
        for flipped in flips(content):
            file.write_bytes(flipped)
            with pytest.raises(UsageError, match=r"^[^\n]*$"):
                read(file, expected=True)
        file.write_bytes(content)


def stopped(folder: Path, after: int = 7, **sections: dict[str, Any]) -> Path:
    rounds = iter(range(1, 100))
    fedceo.run(changed(**sections), out=folder, should_stop=lambda: next(rounds) == after)
    return folder


def test_who_lost_its_ledger_has_no_epsilon(tmp_path: Path) -> None:
    """An empty ledger is an epsilon of 0, which is no answer for rounds that were taken."""
    ledger = stopped(tmp_path / "run", checkpoint={"every": 100}) / "ledger.jsonl"
    content = ledger.read_bytes()
    assert ACCOUNT(tmp_path / "run")
    for lost in (None, b"", content.partition(b"\n")[0] + b"\n"):
        ledger.unlink() if lost is None else ledger.write_bytes(lost)
        for use in (ACCOUNT, fedceo.resume):
            with pytest.raises(UsageError, match=r"ledger\.jsonl(: no such file| has lost rounds)"):
                use(tmp_path / "run")
    take_checksums_out(tmp_path / "run")
    ledger.unlink()
    with pytest.raises(UsageError, match="has lost rounds"):
        ACCOUNT(tmp_path / "run")


def test_a_finished_run_without_all_of_its_ledger_or_metrics_is_refused(tmp_path: Path) -> None:
    fedceo.run(changed(privacy={"randomness": "system"}), out=tmp_path / "run")
    for name, words in (("ledger", "has lost rounds"), ("metrics", "metrics.jsonl has 11 rounds, result.json 12")):
        content = (tmp_path / "run" / f"{name}.jsonl").read_bytes()
        (tmp_path / "run" / f"{name}.jsonl").write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
        with pytest.raises(UsageError, match=words):
            fedceo.load(tmp_path / "run")
        (tmp_path / "run" / f"{name}.jsonl").write_bytes(content)


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("every", [1, 100])
def test_a_folder_that_is_removed_is_not_made_anew(tmp_path: Path, is_replaced: bool, every: int) -> None:
    def remove(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            shutil.rmtree(tmp_path / "run")
            if is_replaced:
                (tmp_path / "run").mkdir()

    table = changed(checkpoint={"every": every}, record={"every": 3})
    with pytest.raises(UsageError, match="was removed while the run was writing to it"):
        fedceo.run(table, out=tmp_path / "run", on_round=remove)
    assert list(tmp_path.iterdir()) == ([tmp_path / "run"] if is_replaced else [])
    assert not is_replaced or not list((tmp_path / "run").iterdir())


def test_finished_runs_of_earlier_versions_are_read(tmp_path: Path) -> None:
    run = fedceo.run(changed(record={"every": 3}), out=tmp_path / "run")
    take_checksums_out(tmp_path / "run")
    assert not RunFolder(tmp_path / "run").has_checksums
    back = fedceo.load(tmp_path / "run")
    assert back.history == run.history and back.ledger.entries == run.ledger.entries
    assert all(torch.equal(back.weights[name], run.weights[name]) for name in run.weights)


@pytest.mark.parametrize(
    "name", ["experiment.toml", "metrics.jsonl", "ledger.jsonl", "model.safetensors", "result.json"]
)
def test_a_checksum_that_was_taken_out_is_missed(tmp_path: Path, name: str) -> None:
    fedceo.run(changed(train={"rounds": 2}), out=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    take_checksums_out(tmp_path / "old")
    shutil.copy(tmp_path / "old" / name, tmp_path / "run" / name)
    with pytest.raises(UsageError, match=r"has lost its|does not match its checksum"):
        fedceo.load(tmp_path / "run")


def test_wrong_json_in_the_header_of_an_old_checkpoint_is_one_line(tmp_path: Path) -> None:
    take_checksums_out(stopped(tmp_path / "run"))
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    content = checkpoint.read_bytes()
    for new in (b'"{[\\"roun\\"', b'"{\\"tower\\"', b'"{\\"roun\xff\\"', b'"[\\"round\\"'):
        assert len(content) == len(content.replace(b'"{\\"round\\"', new)) and new not in content
        checkpoint.write_bytes(content.replace(b'"{\\"round\\"', new))
        with pytest.raises(UsageError, match=r"^[^\n]*\n?$"):
            ACCOUNT(tmp_path / "run")


@pytest.mark.parametrize("name", ["experiment.toml", "metrics.jsonl", "ledger.jsonl", "checkpoint.safetensors"])
def test_bytes_above_127_are_one_line_in_old_folders_too(tmp_path: Path, name: str) -> None:
    take_checksums_out(stopped(tmp_path / "run"))
    file = tmp_path / "run" / name
    file.write_bytes(file.read_bytes().replace(b'"', b"\xff", 1))
    with pytest.raises(UsageError, match=r"^[^\n]*\n?$"):
        ACCOUNT(tmp_path / "run")


def test_a_rename_is_on_the_disk_before_anything_counts_on_it(tmp_path: Path) -> None:
    with failing_disk(tmp_path, 0, "full") as steps:
        fedceo.run(changed(train={"rounds": 2}, checkpoint={"every": 1}, record={"every": 1}), out=tmp_path / "run")
    after = [steps[number + 1] for number, step in enumerate(steps) if step.startswith(("replace", "mkdir"))]
    assert after and set(after) == {f"fsync {tmp_path.name}", "fsync run", "fsync records"}


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    table = changed(train={"rounds": 2})
    with failing_disk(tmp_path / "run", 0, "full") as steps:
        fedceo.run(table, out=tmp_path / "run")
    begins = steps.index("replace experiment.toml.part") + 1
    for step in range(1, begins + 1):
        shutil.rmtree(tmp_path / "run")
        with failing_disk(tmp_path / "run", step, "full"), pytest.raises(UsageError, match="No space left"):
            fedceo.run(table, out=tmp_path / "run")
        assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())
        (tmp_path / "run").mkdir(exist_ok=True)
