"""`--set` and `--grid` take the place of what stands in the file."""

from pathlib import Path

import pytest

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, load_experiment
from fedceo.methods.fedceo import FedCEOSettings
from fedceo.studies.cells import find_cells
from fedceo.studies.tune import changed

FILE = """
[data]
name = "digits"
clients = 12
[cohort]
size = 4
[privacy]
target_epsilon = 8.0
max_epsilon = 9.0
[method]
name = "fedceo"
restart = "mean"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def both_ways(file: Path, name: str, value: object) -> Experiment:
    """The experiment that --set gives; `tune`, which changes whole experiments, must come to the same."""
    said = load_experiment(file, [f"{name}={value}"])
    assert changed(load_experiment(file), {name: value}) == said
    return said


def test_another_method_has_none_of_the_fields_of_the_one_before(file: Path) -> None:
    assert both_ways(file, "method.name", "fedavg").method.name == "fedavg"
    ceo = both_ways(file, "method.name", "fedceo").method
    assert isinstance(ceo, FedCEOSettings) and ceo.restart == "mean"
    names = [
        cell.experiment.method.name for cell in find_cells(file, 1, [], ['method.name=["fedavg", "fedprox"]'], file)
    ]
    assert names == ["fedavg", "fedprox"]


def test_another_model_has_none_of_the_settings_of_the_one_before(tmp_path: Path) -> None:
    path, above = tmp_path / "mine.toml", tmp_path / "above.toml"
    path.write_text(FILE + '[model]\nname = "scattering"\nhidden = 8\n')
    assert both_ways(path, "model.name", "small-cnn").model.settings == {}
    assert both_ways(path, "model.name", "scattering").model.settings == {"hidden": 8}
    above.write_text('extends = ["mine.toml"]\n[model]\nname = "small-cnn"\nnorm = "group"\n')
    assert load_experiment(above).model.settings == {"norm": "group"}
    above.write_text('extends = ["mine.toml"]\n[model]\nhidden = 3\n')
    assert load_experiment(above).model.settings == {"hidden": 3}


def test_noise_is_said_in_one_way(file: Path) -> None:
    privacy = both_ways(file, "privacy.noise_multiplier", 1.5).privacy
    assert (privacy.noise_multiplier, privacy.target_epsilon, privacy.max_epsilon) == (1.5, None, 9.0)
    assert (
        load_experiment(file, ["privacy.noise_multiplier=1.5", "privacy.target_epsilon=3.0"]).privacy.target_epsilon
        == 3
    )


def test_without_a_mechanism_there_is_no_noise(file: Path) -> None:
    assert both_ways(file, "privacy.mechanism", "none").privacy.target_epsilon is None
    assert both_ways(file, "privacy.mechanism", "central").privacy.target_epsilon == 8.0
    with pytest.raises(UsageError, match="takes neither"):
        load_experiment(file, ["privacy.mechanism=none", "privacy.noise_multiplier=1.0"])
