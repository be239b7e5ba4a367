"""A model of one's own that cannot be trained is refused in one line, before anything is written."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedceo
from fedceo.errors import UsageError
from fedceo.methods.fedavg import FedAvg
from fedceo.models.plugins import fingerprint
from fedceo.studies.cells import Cell
from fedceo.studies.sweep import sweep
from tests.support.small_runs import KilledError, changed, kill
from tests.support.user_modules import module_here


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(8, 5, batch_first=True), nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x.flatten(1).view(len(x), 8, 8))[0][:, -1])


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.flatten(1)), x


class Counting(nn.Linear):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return super().forward(x.flatten(1))


class MixesRecords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x.flatten(1)))


@pytest.mark.parametrize(
    "model, mechanism, words",
    [
        (Recurrent(), "record", "Recurrent cannot be trained by the"),
        (Pair(64, 10), "distributed", "gives a tuple, expected a tensor of 10 logits"),
        (Counting(), "distributed", "its forward pass changes seen"),
        (MixesRecords(), "record", "model: "),
    ],
)
def test_refused_before_anything_is_written(model: nn.Module, mechanism: str, words: str, tmp_path: Path) -> None:
    table = changed(privacy={"mechanism": mechanism}, train={"rounds": 1}) | {"method": {"name": "fedavg"}}
    with pytest.raises(UsageError, match=words) as refusal:
        fedceo.run(table, model=model, out=tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_what_can_be_trained_is_trained_as_if_nothing_had_been_tried() -> None:
    table = changed(train={"rounds": 1}) | {"method": {"name": "fedavg"}}
    torch.manual_seed(0)
    model = Recurrent()
    one, other = (fedceo.run(table, model=model).weights for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


NETS = """
import math
from torch import nn

def small(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 12), nn.Tanh(), nn.Linear(12, classes))

def fixed(shape, classes):
    return nn.Flatten()

def broken(shape, classes):
    raise KeyError("no such thing")

def leaving(shape, classes):
    raise SystemExit(0)

def swapped(classes, shape):
    return nn.Linear(*shape, classes)

ready = nn.Linear(64, 10)
a_number = 3
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return module_here("nets", NETS, tmp_path, monkeypatch)


def test_an_experiment_file_names_a_model_of_ones_own(nets: str) -> None:
    table = changed(model={"name": f"{nets}:small"}, train={"rounds": 2})
    run = fedceo.run(table, out="run")
    shapes = [tuple(w.shape) for w in run.weights.values()]
    assert shapes == [(12, 64), (12,), (10, 12), (10,)] and run.result["model"] == f"{nets}:small"
    again = fedceo.run(table)
    assert all(torch.equal(w, again.weights[name]) for name, w in run.weights.items()), "the seed makes its weights"
    assert torch.equal(fedceo.load("run").weights["1.weight"], run.weights["1.weight"])
    other = fedceo.run(table | {"seed": 5})
    assert not torch.equal(run.weights["1.weight"], other.weights["1.weight"])


@pytest.mark.parametrize(
    "name, words",
    [
        ("{nets}:fixed", "gives Flatten, expected a torch module with parameters"),
        ("{nets}:broken", "failed with KeyError: 'no such thing'"),
        ("{nets}:leaving", "failed with SystemExit: 0"),
        ("{nets}:swapped", "failed with TypeError: "),
        ("{nets}:swapped", ".py, line "),
        ("{nets}:ready", "is a Linear, expected a callable that takes (shape, classes)"),
        ("{nets}:a_number", "is a int, expected a callable"),
        ("{nets}:smal", "has no 'smal', did you mean small?"),
        ("nowhere.at_all:small", "there is no module 'nowhere.at_all'"),
        (":small", "there is no module ''"),
    ],
)
def test_what_is_wrong_with_such_a_name_is_said_in_a_line(nets: str, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"^model\.name: ") as raised:
        fedceo.run(changed(model={"name": name.format(nets=nets)}), out="refused")
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert not Path("refused").exists()


def test_other_code_under_the_same_name_is_another_model(nets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = changed(model={"name": f"{nets}:small"}, train={"rounds": 3}, checkpoint={"every": 1})
    fedceo.run(table, out="done")
    with pytest.raises(KilledError):
        fedceo.run(table, out="begun", on_round=kill)
    cells = [Cell("one", fedceo.parse_experiment(table), Path("done"))]
    assert sweep(cells)[0] is not None, "the same code, so it is not run again"

    def other(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))

    monkeypatch.setattr(sys.modules[nets], "small", other)
    fingerprint.cache_clear()
    for again in (lambda: fedceo.resume("begun"), lambda: fedceo.load("done"), lambda: sweep(cells)):
        with pytest.raises(UsageError, match=f"was made with another {nets}:small, whose code has changed since"):
            again()
    fingerprint.cache_clear()


@pytest.mark.parametrize("method", ["ppsgd", "centaur", "jain-anil"])
def test_what_stays_at_home_is_the_layer_that_gives_the_logits(method: str) -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(12, 10), nn.Linear(64, 12)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x.flatten(1)).tanh())
            return out

    with pytest.raises(UsageError, match=r"body.weight, does not give the 10 logits; define that layer last"):
        fedceo.run(changed() | {"method": {"name": method}}, model=HeadFirst())


def test_a_method_that_sees_single_uploads_must_say_what_it_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "needs_stack", True)
    with pytest.raises(ValueError, match="sees single uploads, so its settings must name a release"):
        fedceo.run(changed() | {"method": {"name": "fedavg"}})


PRECISE = """
from torch import nn

def double(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).double()

def half(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).half()
"""


@pytest.mark.parametrize("made", ["double", "half"])
def test_a_model_may_come_in_any_precision(made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{module_here('precise', PRECISE, tmp_path, monkeypatch)}:{made}"
    run = fedceo.run(changed(model={"name": name}, train={"rounds": 1}), out="run")
    assert {w.dtype for w in run.weights.values()} == {torch.float32}, "train.precision decides"
    assert fedceo.load("run").result["model"] == name


def test_the_folder_names_the_model_that_was_given(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(KilledError):
        fedceo.run(changed(train={"rounds": 6}), out=tmp_path / "run", model=model, on_round=kill)
    assert fedceo.load_experiment(tmp_path / "run" / "experiment.toml").model.name == "Sequential"
    with pytest.raises(UsageError, match="a model of your own, which only Python can give"):
        fedceo.resume(tmp_path / "run")
    assert fedceo.resume(tmp_path / "run", model=model).finished
    with pytest.raises(UsageError, match="was trained with a model of your own, Sequential; pass it as model="):
        fedceo.load(tmp_path / "run")
    assert fedceo.load(tmp_path / "run", model=model).experiment.model.name == "Sequential"
