"""Trackers hear of settings, measurements and epsilon through callbacks; W&B and MLflow as modules that take notes."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedceo
from fedceo.accounting.rows import OBSERVERS
from fedceo.cli.app import main
from fedceo.experiment.file import parse_experiment, to_toml
from fedceo.simulation.callbacks import CALLBACKS, final_numbers_of
from tests.support.recorded_runs import TABLE
from tests.support.user_modules import module_here

SMALL: dict[str, Any] = TABLE | {"record": {}}


def ended(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def written(tmp_path: Path) -> str:
    (tmp_path / "mine.toml").write_text(to_toml(parse_experiment(TABLE)))
    return str(tmp_path / "mine.toml")


@pytest.mark.parametrize("option", [["--tensorboard"], ["--callback", "tensorboard"]])
def test_events_carry_curves_and_pictures(option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "run"
    assert not ended(["run", written(tmp_path), *option, "--out", str(out), "--json"], monkeypatch)
    found = accumulator.EventAccumulator(str(out / "events"))
    found.Reload()
    history = fedceo.load(out).history
    accuracy = [(e.step, e.value) for e in found.Scalars("test_accuracy")]
    assert accuracy == [(r["round"], pytest.approx(r["test_accuracy"])) for r in history if "test_accuracy" in r]
    assert found.Scalars("epsilon")[-1].step == 8
    for name in ("class_bars", "smoothness", "singular_values"):
        assert [image.step for image in found.Images(name)] == [4, 8]


class Notes(ModuleType):
    """A module that notes every call of its functions, and of the run that `init` gives."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.summary = SimpleNamespace(update=self.function("summary"))

    def function(self, name: str) -> Any:
        def note(*arguments: Any, **named: Any) -> "Notes":
            self.calls.append((name, arguments, named))
            return self

        return note

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.function(name)

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, named) for each, arguments, named in self.calls if each == name]


@pytest.fixture
def notes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Notes:
    made = Notes(request.param)
    monkeypatch.setitem(sys.modules, request.param, made)
    return made


def epsilons(run: fedceo.Run) -> dict[str, float]:
    rows = {row["observer"]: row["epsilon"] for row in run.result["privacy"] if row["observer"] in OBSERVERS}
    return {f"final_epsilon/{observer}": epsilon for observer, epsilon in rows.items() if epsilon is not None}


@pytest.mark.parametrize("notes", ["wandb"], indirect=True)
def test_weights_and_biases_is_told_and_goes_on_with_the_same_run(notes: Notes, tmp_path: Path) -> None:
    seen: list[int] = []
    fedceo.run(
        SMALL,
        out=tmp_path / "run",
        callbacks=["wandb"],
        on_round=lambda record: seen.append(record["round"]),
        should_stop=lambda: len(seen) == 2,
    )
    run = fedceo.resume(tmp_path / "run", callbacks=["wandb"])
    (_, first), (_, second) = notes.of("init")
    assert first["config"]["train"]["rounds"] == 8 and first["name"] == "run"
    assert first["id"] == second["id"] and second["resume"] == "allow"
    logged = {named["step"]: arguments[0] for arguments, named in notes.of("log")}
    assert list(logged) == list(range(1, 9)), "every round once"
    assert logged[8]["test_accuracy"] == run.history[-1]["test_accuracy"] and logged[8]["epsilon"] > 0
    (told,) = notes.of("summary")[-1][0]
    assert epsilons(run).items() <= told.items() and not any("paper" in name for name in told)
    assert len(notes.of("finish")) == 2


@pytest.mark.parametrize("notes", ["mlflow"], indirect=True)
def test_mlflow_is_told(notes: Notes, tmp_path: Path) -> None:
    run = fedceo.run(SMALL, out=tmp_path / "run", callbacks=["mlflow"])
    assert notes.calls[0] == ("start_run", (), {"run_name": "run"}) and notes.calls[-1][0] == "end_run"
    ((parameters,), _) = notes.of("log_params")[0]
    assert parameters["train.rounds"] == 8 and parameters["method.name"] == "fedceo"
    metrics = [(named["step"], arguments[0]) for arguments, named in notes.of("log_metrics")]
    assert [step for step, _ in metrics] == [*range(1, 9), 8]
    assert metrics[7][1]["epsilon"] == pytest.approx(epsilons(run)[f"final_epsilon/{run.experiment.privacy.observer}"])
    assert epsilons(run).items() <= metrics[8][1].items()
    assert not {name.split("/")[0] for name in metrics[8][1]} & metrics[7][1].keys(), "a folder and a file of one name"


def test_the_largest_epsilon_of_an_observer_is_told_and_none_that_is_no_promise() -> None:
    rows = [("server", 3.0), ("server", 5.0), ("server", 4.0), ("paper", 0.1), ("outsider", None)]
    result = {"accuracy": {"last": 0.5, "best": None}, "privacy": [{"observer": o, "epsilon": e} for o, e in rows]}
    assert final_numbers_of(result) == {"final_accuracy/last": 0.5, "final_epsilon/server": 5.0}


class Heard(fedceo.Callback):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_start(self, settings: dict[str, Any], folder: Path | None) -> None:
        self.told.append(f"start {settings['data']['name']} {folder}")

    def on_measurement(self, metrics: dict[str, Any]) -> None:
        self.told.append(f"round {metrics['round']}")

    def on_end(self, result: dict[str, Any]) -> None:
        self.told.append(f"end {result['rounds']}")


def test_an_object_of_ones_own_hears_everything_and_changes_nothing() -> None:
    heard = Heard()
    watched, alone = fedceo.run(SMALL, callbacks=[heard]), fedceo.run(SMALL)
    assert heard.told == ["start digits None", *(f"round {t}" for t in range(1, 9)), "end 8"]
    assert watched.history == alone.history and all(
        bool((w == alone.weights[name]).all()) for name, w in watched.weights.items()
    )


OWN = """
import fedceo

class Loud(fedceo.Callback):
    def on_measurement(self, metrics):
        print("HEARD", metrics["round"])

class Breaks(fedceo.Callback):
    def on_measurement(self, metrics):
        raise RuntimeError("no line to the office")

class Other:
    pass
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return module_here("my_callbacks", OWN, tmp_path, monkeypatch)


def test_a_class_of_ones_own_is_named_on_the_command_line(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path)
    assert not ended(["run", file, "--callback", f"{mine}:Loud", "--out", str(tmp_path / "run"), "--json"], monkeypatch)
    assert capsys.readouterr().out.count("HEARD") == 8


def test_what_is_wrong_is_said_in_a_line_before_anything_is_written(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for given, says in {
        "wandb": r"callbacks: wandb needs the extra fedceo\[wandb\]",
        "mlflow": r"callbacks: mlflow needs the extra fedceo\[mlflow\]",
        "wanda": "callbacks: unknown callback 'wanda', did you mean wandb[?] known are mlflow, tensorboard, wandb, or ",
        f"{mine}:Other": f"callbacks: '{mine}:Other' is Other, expected a class made from fedceo.Callback",
        f"{mine}:Lout": f"callbacks: '{mine}:Lout', but {mine} has no 'Lout', did you mean Loud",
    }.items():
        with pytest.raises(fedceo.UsageError, match=f"^{says}"):
            fedceo.run(SMALL, out=tmp_path / "run", callbacks=[given])
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        fedceo.UsageError, match=r"^callbacks: tensorboard writes into the run's folder, expected out=$"
    ):
        fedceo.run(SMALL, callbacks=["tensorboard"])


def test_a_callback_that_breaks_ends_the_run_in_a_line_and_the_run_can_go_on(mine: str, tmp_path: Path) -> None:
    with pytest.raises(fedceo.UsageError, match=r"^callbacks: '\w+:Breaks' failed with RuntimeError: no line to the "):
        fedceo.run(SMALL, out=tmp_path / "run", callbacks=[f"{mine}:Breaks"])
    assert fedceo.resume(tmp_path / "run").history == fedceo.run(SMALL).history


def test_every_tracker_is_described() -> None:
    assert set(CALLBACKS) == {"mlflow", "tensorboard", "wandb"} and all(CALLBACKS.descriptions.values())
