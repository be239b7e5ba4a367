"""More rounds for a finished run: all rounds are accounted for, no noise comes twice, and what cannot be is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

import fedceo
from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder
from fedceo.training.schedule import Schedule
from tests.support.small_runs import changed, same_weights

SMALL: dict[str, Any] = changed(train={"rounds": 4}, method={"name": "fedavg"}) | {"method": {"name": "fedavg"}}


def with_fields(**sections: dict[str, Any]) -> dict[str, Any]:
    return SMALL | {name: SMALL.get(name, {}) | fields for name, fields in sections.items()}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    fedceo.run(SMALL, out=tmp_path / "run")
    return tmp_path / "run"


def epsilons(rows: Any) -> dict[str, float | None]:
    return {row["observer"]: row["epsilon"] for row in rows}


@pytest.mark.parametrize("mechanism", ["distributed", "central", "record"])
def test_the_rows_are_those_of_all_rounds(mechanism: str, tmp_path: Path) -> None:
    table = with_fields(privacy={"mechanism": mechanism})
    short = fedceo.run(table, out=tmp_path / "run")
    longer = fedceo.extend(tmp_path / "run", 3, out=tmp_path / "longer")
    whole = fedceo.run(with_fields(privacy={"mechanism": mechanism}, train={"rounds": 7}))
    assert epsilons(longer.result["privacy"]) == epsilons(whole.result["privacy"])
    spent = {name: value for name, value in epsilons(short.result["privacy"]).items() if value is not None}
    assert all(epsilons(longer.result["privacy"])[name] > value for name, value in spent.items())  # type: ignore[operator]
    assert [entry.round for entry in longer.ledger.entries] == list(range(1, 8))
    assert longer.history[:4] == short.history and [r["round"] for r in longer.history] == list(range(1, 8))


def test_a_run_that_went_on_twice_has_the_epsilon_of_the_closed_form(tmp_path: Path) -> None:
    """Everybody in every round, noise on the sum: nine Gaussian releases are one with noise sigma / 3."""
    table = with_fields(cohort={"size": 30}, privacy={"mechanism": "central", "noise_multiplier": 5.0})
    fedceo.run(table, out=tmp_path / "a")
    fedceo.extend(tmp_path / "a", 2, out=tmp_path / "b")
    row = fedceo.extend(tmp_path / "b", 3, out=tmp_path / "c").result["privacy"][0]
    mu, epsilon = 3 / 5.0, row["epsilon"]
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert row["observer"] == "outsider" and delta == pytest.approx(row["delta"], rel=1e-3)
    assert delta <= row["delta"] * (1 + 1e-9), "no epsilon is too small"


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The first numbers of every noise that is drawn from now on."""
    seen: list[bytes] = []
    right = Schedule.generator

    def noted(self: Schedule, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        if purpose.endswith("noise"):
            seen.append(right(self, purpose, round_, client).random(4).tobytes())
        return right(self, purpose, round_, client)

    monkeypatch.setattr(Schedule, "generator", noted)
    return seen


def test_no_noise_comes_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the run itself, nor of another continuation, nor of a run of as many rounds from the start."""
    seen = drawn(monkeypatch)

    def noises(run: Any) -> set[bytes]:
        seen.clear()
        run()
        assert len(set(seen)) == len(seen) > 0
        return set(seen)

    parts = [
        noises(lambda: fedceo.run(SMALL, out=tmp_path / "run")),
        noises(lambda: fedceo.extend(tmp_path / "run", 2, out=tmp_path / "two")),
        noises(lambda: fedceo.extend(tmp_path / "run", 3, out=tmp_path / "three")),
        noises(lambda: fedceo.extend(tmp_path / "two", 1, out=tmp_path / "two-one")),
        noises(lambda: fedceo.run(with_fields(train={"rounds": 7}))),
    ]
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_the_old_run_stays_and_the_new_one_repeats_and_can_be_stopped(finished: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in finished.iterdir()}
    whole = fedceo.extend(finished, 3, out=tmp_path / "whole")
    seen: list[int] = []
    part = fedceo.extend(
        finished,
        3,
        out=tmp_path / "part",
        on_round=lambda record: seen.append(record["round"]),
        should_stop=lambda: len(seen) >= 1,
    )
    assert not part.finished
    ended = fedceo.resume(tmp_path / "part")
    assert ended.finished and same_weights(whole, ended) and ended.history == whole.history
    assert {file.name: file.read_bytes() for file in finished.iterdir()} == before
    assert whole.experiment.note == "goes on after round 4" and whole.experiment.train.rounds == 7
    assert fedceo.load(tmp_path / "whole").history == whole.history


def test_it_goes_on_from_the_model_that_the_run_ended_with(tmp_path: Path) -> None:
    """Without noise or sampling the longer run is the run of as many rounds, memory of clients and all."""
    free: dict[str, Any] = {"privacy": {"mechanism": "none", "noise_multiplier": None}, "method": {"name": "scaffold"}}
    fedceo.run(with_fields(**free), out=tmp_path / "run")
    longer = fedceo.extend(tmp_path / "run", 3, out=tmp_path / "longer")
    whole = fedceo.run(with_fields(train={"rounds": 7}, **free))
    assert all(torch.equal(w, whole.weights[name]) for name, w in longer.weights.items())


def test_an_average_of_the_last_rounds_is_that_of_the_longer_run(tmp_path: Path) -> None:
    none: dict[str, Any] = {"mechanism": "none", "noise_multiplier": None}
    for average in ({"average": "tail", "length": 2}, {"average": "ema", "decay": 0.5}):
        name = str(average["average"])
        fedceo.run(with_fields(privacy=none, release=average), out=tmp_path / name)
        longer = fedceo.extend(tmp_path / name, 2, out=tmp_path / f"{name}-longer")
        whole = fedceo.run(with_fields(privacy=none, release=average, train={"rounds": 6}))
        assert longer.average is not None and whole.average is not None
        assert all(torch.equal(w, whole.average[each]) for each, w in longer.average.items())


@pytest.mark.parametrize(
    "sections, more, says",
    [
        ({"privacy": {"noise_multiplier": None, "target_epsilon": 50.0}}, 3, r"solved for privacy.target_epsilon, 50,"),
        ({"train": {"schedule": "cosine"}}, 3, r'train.schedule "cosine" has come to its end after 4 rounds'),
        ({"method": {"name": "fedavg-finetune", "home_rounds": 1}}, 3, r'"fedavg-finetune" counts its rounds from'),
        ({"release": {"average": "tail", "length": 3}}, 2, r"2, expected at least release.length, 3"),
        ({}, 0, r"0, expected at least 1 round"),
    ],
)  # fmt: skip
def test_what_was_made_for_its_rounds_is_refused(
    sections: dict[str, Any], more: int, says: str, tmp_path: Path
) -> None:
    fedceo.run(with_fields(**sections), out=tmp_path / "run")
    with pytest.raises(UsageError, match=f"^--more: .*{says}"):
        fedceo.extend(tmp_path / "run", more, out=tmp_path / "longer")
    assert not (tmp_path / "longer").exists()


def test_a_budget_is_kept(tmp_path: Path) -> None:
    rows = [epsilons(fedceo.run(with_fields(train={"rounds": t})).result["privacy"])["outsider"] for t in (4, 5, 6)]
    four, five, six = (float(epsilon) for epsilon in rows if epsilon is not None)
    spent = with_fields(privacy={"max_epsilon": (four + five) / 2, "observer": "outsider"})
    fedceo.run(spent, out=tmp_path / "spent")
    with pytest.raises(UsageError, match=r"max_epsilon"):
        fedceo.extend(tmp_path / "spent", 3, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()
    fedceo.run(with_fields(privacy={"max_epsilon": (five + six) / 2, "observer": "outsider"}), out=tmp_path / "some")
    longer = fedceo.extend(tmp_path / "some", 3, out=tmp_path / "longer")
    assert longer.result["rounds"] == 5 and longer.result["ended_early"] is not None, "one round more, not three"


def test_folders_that_cannot_be_gone_on_from(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds a run already"):
        fedceo.extend(finished, 1, out=finished)
    (finished / "study.json").write_text("{}")
    with pytest.raises(UsageError, match=r"was chosen by a private study, whose epsilon covers no further round$"):
        fedceo.extend(finished, 1, out=tmp_path / "longer")
    (finished / "study.json").unlink()
    (finished / "result.json").unlink()
    with pytest.raises(UsageError, match=r"is unfinished; first end it with: fedceo run --resume "):
        fedceo.extend(finished, 1, out=tmp_path / "longer")
    assert not (tmp_path / "longer").exists()


def test_on_the_command_line(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*words: str) -> tuple[object, str]:
        monkeypatch.setattr("sys.argv", ["fedceo", "run", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().err

    needed = "fedceo: --more: is for a finished run, expected its folder too: fedceo run RUN --more N\n"
    assert ended("--more", "2") == (2, needed)
    for words, name in (([str(finished)], "run-more-2"), (["--resume", str(finished)], "run-more-2-2")):
        assert not ended(*words, "--more", "2", "--json")[0]
        folder = RunFolder(finished.with_name(name))
        assert folder.finished and folder.result()["rounds"] == 6
