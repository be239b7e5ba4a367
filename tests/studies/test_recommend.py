"""Recommended experiments are valid, keep their epsilon and follow the rules; what cannot be is one line."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedceo.accounting.rows import answer
from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.experiment.file import load_experiment, parse_experiment
from fedceo.simulation.spending import privacy_plan, solve_noise
from fedceo.studies.recommend import recommend, rules

SHAPES = (None, (3, 32, 32))


def call(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("numbers", "mechanism", "cohort", "model", "data"),
    [
        ((1000, 45, 2.0, (3, 32, 32)), "central", 100, "scattering", "cifar10"),
        ((20_000, 20, 0.5, (1, 28, 28)), "central", 1000, "scattering", "mnist"),
        ((3000, 5, 2.0, None), "central", 300, "logistic", "digits"),
        ((400, 30, 8.0, (1, 8, 8)), "central", 100, "logistic", "digits"),
        ((10, 4500, 4.0, (3, 32, 32)), "record", 10, "scattering", "cifar10"),
        ((5, 200, 4.0, None), "record", 5, "logistic", "digits"),
    ],
)
def test_rules(numbers: Any, mechanism: str, cohort: int, model: str, data: str) -> None:
    clients, records, epsilon, _ = numbers
    found = recommend(*numbers)
    experiment = parse_experiment(tomllib.loads(found.as_toml()))
    assert experiment.privacy.mechanism == mechanism and experiment.cohort.size == cohort
    assert (experiment.model.name, experiment.data.name, experiment.data.clients) == (model, data, clients)
    assert experiment.privacy.target_epsilon == epsilon and experiment.privacy.randomness == "system"
    sizes = [records] * clients
    sigma = solve_noise(experiment, sizes)
    assert sigma == pytest.approx(found.noise_multiplier)
    reached = answer(privacy_plan(experiment, sizes, sigma), experiment.privacy.observer).epsilon
    assert reached is not None and 0.99 * epsilon < reached <= epsilon
    said = {row.observer: row.epsilon for row in reversed(found.rows)}
    assert said[experiment.privacy.observer] == pytest.approx(reached, rel=1e-3)
    assert "paper" not in said, "which promises nothing"


def test_noise_cancels_over_rounds_only_where_clients_take_turns() -> None:
    """150 clients in cohorts of 100 are one group, in which nobody has a turn; 200 are two."""
    for clients, noise in ((150, "gaussian"), (200, "banded")):
        found = recommend(clients, 200, 8.0, (3, 32, 32))
        assert parse_experiment(tomllib.loads(found.as_toml())).privacy.noise == noise


def test_what_stands_in_has_the_shape_and_says_how_it_differs() -> None:
    for clients, records, words in (
        (100, 1_000_000, "45,000 records a client instead of 1,000,000"),
        (20, 2500, "2,250"),
    ):
        found = recommend(clients, records, 8.0, (3, 32, 32))
        assert found.table["data"]["name"] == "cifar10" and words in found.stand_in
    assert "another shape than 7" in recommend(1000, 5, 8.0, (7,)).stand_in
    assert ", with" not in recommend(1000, 45, 2.0, (3, 32, 32)).stand_in


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 100_000), st.integers(1, 2000), st.sampled_from([0.1, 1.0, 4.0]), st.sampled_from(SHAPES))
def test_whatever_is_recommended_is_within_the_limit(clients: int, records: int, epsilon: float, shape: Any) -> None:
    try:
        found = recommend(clients, records, epsilon, shape)
    except UsageError as error:
        noises = [float(each) for each in re.findall(r"\d\S*|inf", str(error).partition("noise of ")[2])[:2]]
        assert clients < 5000 and (epsilon < 4 or clients * records < 4000), "nobody else is sent away"
        assert len(noises) == 2 and min(noises) >= rules()["limits"]["noise"], "neither way would do"
        return
    assert found.noise <= rules()["limits"]["noise"]
    assert all(row.epsilon is None or row.epsilon <= epsilon for row in found.rows)
    assert tomllib.loads(found.as_toml()) == found.table


def test_the_printed_file_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["recommend", "--clients", "300", "--records", "12", "--epsilon", "4"], monkeypatch) == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    assert load_experiment(tmp_path / "mine.toml").cohort.size == 100
    assert call(["run", "mine.toml", "--set", "train.rounds=2", "--json"], monkeypatch) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["finished"] and result["privacy"][0]["epsilon"] <= 4.0


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["recommend", "--clients", "300", "--records", "12", "--epsilon", "4", "--json"], monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)
    assert parse_experiment(found["experiment"]).data.records == 12 and found["reasons"]
    assert [row["observer"] for row in found["privacy"]] == ["outsider", "participant", "server"]


@pytest.mark.parametrize(
    ("clients", "records", "epsilon", "shape", "words"),
    [
        ("10", "20", "0.1", None, "to hide a client"),
        ("1", "20", "1", None, "--clients: 1"),
        ("100", "0", "1", None, "--records: 0"),
        ("100", "10", "0", None, "--epsilon: 0.0, expected a finite"),
        ("100", "10", "nan", None, "--epsilon: nan"),
        ("100", "10", "1", "3x32xa", "--shape: '3x32xa'"),
        ("100", "10", "1", "3x0x32", "--shape: 3x0x32"),
    ],
)
def test_what_cannot_be_is_one_line(
    clients: str,
    records: str,
    epsilon: str,
    shape: str | None,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["recommend", "--clients", clients, "--records", records, "--epsilon", epsilon]
    assert call([*arguments, *(["--shape", shape] if shape else [])], monkeypatch) == 2
    shown = capsys.readouterr()
    assert words in shown.err and shown.err.count("\n") == 1 and not shown.out


def test_measured_settings_are_those_of_the_results() -> None:
    folder = Path(__file__).parents[2] / "results" / "beyond" / "features"
    found = {
        f"{table}/{run['name']}": run["experiment"]
        for table in ("cifar10-1000", "cifar10-10000")
        for run in json.loads((folder / f"{table}.json").read_text())
    }
    for row in rules()["settings"]:
        if "measured" in row:
            measured = found[row["measured"]]
            for section in ("model", "cohort", "train", "privacy", "release"):
                for field, value in row.get(section, {}).items():
                    assert measured[section][field] == value, f"{row['measured']}: {section}.{field}"
