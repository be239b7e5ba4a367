"""Recordings by [record]: they hold the models of the round, and change no result."""

from pathlib import Path

import pytest
import torch

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder, read_recording
from fedceo.tensors import fold, truncated_tsvd
from tests.support.recorded_runs import TABLE


def test_a_recording_is_the_round(runs: Path) -> None:
    folder = RunFolder(runs / "fedceo" / "seed-0")
    files = folder.recordings()
    assert [file.stem for file in files] == ["round-00004", "round-00008"]
    recording = read_recording(files[-1])
    history = folder.history()
    assert list(recording.clients) == history[-1]["cohort"]
    assert list(recording.stacks) == ["trained", "uploaded", "smoothed"]
    assert list(recording.stacks["uploaded"]) == ["input.weight", "hidden.weight"]
    for name, uploaded in recording.stacks["uploaded"].items():
        assert recording.thresholds[name] == history[-1]["threshold"]
        folded = fold({name: uploaded})[name]
        smoothed = truncated_tsvd(folded, recording.thresholds[name])
        torch.testing.assert_close(fold({name: recording.stacks["smoothed"][name]})[name], smoothed)
    final = fedceo.load(folder.path).weights
    for name, smoothed in recording.stacks["smoothed"].items():
        torch.testing.assert_close(smoothed.mean(0), final[name])
    assert recording.noise == pytest.approx(0.5 / 6**0.5)
    assert recording.accuracy["trained"].shape == (6, 10)


def test_only_chosen_layers(tmp_path: Path) -> None:
    fedceo.run(TABLE | {"record": {"every": 8, "layers": "last 1"}}, out=tmp_path / "run")
    recording = read_recording(RunFolder(tmp_path / "run").recordings()[0])
    whole = fedceo.load(tmp_path / "run").weights
    assert set(recording.stacks["uploaded"]) == {"hidden.weight"} < set(whole)


def test_recording_changes_nothing_and_is_off_by_default(runs: Path, tmp_path: Path) -> None:
    plain = fedceo.run(TABLE | {"record": {}}, out=tmp_path / "plain")
    recorded = fedceo.load(runs / "fedceo" / "seed-0")
    assert plain.history == recorded.history
    assert not (tmp_path / "plain" / "records").exists()


def test_without_noise_there_is_nothing_before_noise(runs: Path) -> None:
    recording = read_recording(RunFolder(runs / "free").recordings()[0])
    assert list(recording.stacks) == ["uploaded"] and recording.noise == 0 and recording.thresholds == {}


def test_rounds_that_send_statistics_are_not_recorded(tmp_path: Path) -> None:
    method = {"name": "centaur", "initialisation": "power", "power_rounds": 3, "head_epochs": 1}
    fedceo.run(TABLE | {"method": method, "record": {"every": 1}, "train": {"rounds": 5}}, out=tmp_path / "run")
    found = [file.stem for file in RunFolder(tmp_path / "run").recordings()]
    assert found == ["round-00004", "round-00005"]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"record": {"every": 0}}, "record.every"),
        ({"record": {"every": 2, "layers": ["fc9"]}}, "record.layers: layers names 'fc9'"),
        (
            {
                "record": {"every": 2},
                "privacy": {"mechanism": "central", "noise_multiplier": 1.0},
                "method": {"name": "fedavg"},
            },
            "record.every: records single uploads",
        ),
    ],
)
def test_bad_settings(sections: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        fedceo.run(TABLE | sections, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
