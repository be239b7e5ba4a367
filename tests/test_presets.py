"""Every experiment file in the repository is valid and says what it is."""

from pathlib import Path

import pytest

from fedceo.config import load_experiment, parse_experiment, to_toml
from fedceo.presets import demo_experiments, experiment_files

ROOT = Path(__file__).parents[1]
FILES = experiment_files(ROOT / "experiments")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_are_valid(path: Path) -> None:
    experiment = load_experiment(path)
    assert path.read_text().startswith("# ")
    import tomllib

    assert parse_experiment(tomllib.loads(to_toml(experiment))) == experiment, "TOML in, TOML out"


def test_there_are_the_four_modes() -> None:
    assert {path.stem for path in FILES} >= {"authors-lr01", "authors-lr001", "paper-literal", "paper-own-step"}


def test_the_demo_compares_like_with_like() -> None:
    runs = demo_experiments()
    assert runs["UDP-FedAvg"].privacy == runs["FedCEO"].privacy
    assert len({(run.seed, run.data, run.cohort, run.train) for run in runs.values()}) == 1


def test_the_page_on_the_experiment_file_is_what_the_settings_say() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs" / "experiment-file.md").read_text() == generate.page(), "run: python docs/generate.py"
    assert (ROOT / "docs" / "privacy-numbers.md").read_text() == generate.numbers(), "run: python docs/generate.py"
