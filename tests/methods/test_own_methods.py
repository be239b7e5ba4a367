"""Methods of one's own, named in an experiment file as module:Class."""

import importlib
import linecache
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import fedceo
from fedceo.attacks.holdings import check_holds
from fedceo.config import parse_experiment, to_toml
from fedceo.deploy.carried import check_carried
from fedceo.errors import UsageError
from fedceo.simulation.preparing import prepare
from fedceo.studies.cells import Cell
from fedceo.studies.sweep import sweep
from tests.simulation.small_runs import KilledError, changed, kill, same_weights

METHODS = """
from dataclasses import replace
from pathlib import Path

import torch
from fedceo.methods import FedAvg, Mean, Settings, Stack, State

class Same(FedAvg):
    pass

class Momentum(FedAvg):
    class Settings(Settings):
        beta: float = 0.9

    def aggregate(self, state, uploads, round_):
        assert isinstance(uploads, Mean), "single uploads are not for it"
        zeros = {name: torch.zeros_like(w) for name, w in state.weights.items()}
        before = state.server.get("m", zeros)
        m = {name: self.settings.beta * before[name] + w - state.weights[name] for name, w in uploads.mean().items()}
        weights = {name: w + m[name] for name, w in state.weights.items()}
        return State(weights, server={"m": m}), {"beta": self.settings.beta}

class Median(FedAvg):
    needs_stack = True

    def aggregate(self, state, uploads, round_):
        assert isinstance(uploads, Stack)
        return self.server.apply(state, {name: w.median(0).values for name, w in uploads.weights.items()}), {}

class Twice(FedAvg):
    def phases(self, work):
        return work, replace(work, phase=1)

class TwiceAndSaysSo(Twice):
    class Settings(Settings):
        def record_steps(self, batches, epochs):
            return 2 * batches * epochs

class Bare(FedAvg):
    def phases(self, work):
        return (replace(work, record=None),)

class Large(FedAvg):
    def phases(self, work):
        return (replace(work, batch_size=2 * work.batch_size),)

class Later(FedAvg):
    rounds = 0

    def phases(self, work):
        Later.rounds += 1
        return (work,) if Later.rounds < 4 else (work, replace(work, phase=1))

class Looking(FedAvg):
    def statistics(self, round_):
        return lambda state, x, y: {name: torch.zeros_like(w) for name, w in state.weights.items()}

class Forgetful(FedAvg):
    def aggregate(self, state, uploads, round_):
        return State({}), {}

class Transposed(FedAvg):
    def aggregate(self, state, uploads, round_):
        return State({name: w.T for name, w in uploads.mean().items()}), {}

class Wordless(FedAvg):
    def aggregate(self, state, uploads, round_):
        return state

class Chatty(FedAvg):
    def aggregate(self, state, uploads, round_):
        return state, {"norm": torch.ones(2)}

class Failing(FedAvg):
    def starts(self, state, clients, round_):
        return {"w": state.nothing}

class Demanding(FedAvg):
    def __init__(self, server, more):
        super().__init__(server)

class Wrong(FedAvg):
    class Settings:
        pass

class NotAMethod:
    pass

a_number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(METHODS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file of the same second is taken for the one before
    return name


def table_of(name: str, mechanism: str = "distributed", **fields: Any) -> dict[str, Any]:
    table = changed(privacy={"mechanism": mechanism}, train={"rounds": 4}, checkpoint={"every": 1})
    return table | {"method": {"name": name} | fields}


@pytest.mark.parametrize("mechanism", ["distributed", "central", "record"])
def test_fedavg_under_another_name_is_fedavg(mine: str, mechanism: str) -> None:
    ours, theirs = (fedceo.run(table_of(name, mechanism)) for name in ("fedavg", f"{mine}:Same"))
    assert same_weights(ours, theirs) and theirs.result["method"] == f"{mine}:Same"
    epsilons = [[row["epsilon"] for row in run.result["privacy"]] for run in (ours, theirs)]
    assert epsilons[0] == epsilons[1]


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_a_method_written_anew_does_what_the_librarys_does(mine: str, mechanism: str) -> None:
    """Momentum of 0.9 at the server is also an optimiser of the library's."""
    table = table_of("fedavg", mechanism)
    ours = fedceo.run(table | {"train": table["train"] | {"server_optimizer": "momentum"}})
    theirs = fedceo.run(table_of(f"{mine}:Momentum", mechanism))
    assert all(torch.allclose(w, theirs.weights[name], atol=1e-6) for name, w in ours.weights.items())
    assert theirs.history[-1]["beta"] == 0.9
    assert fedceo.run(table_of(f"{mine}:Momentum", beta=0.5)).history[-1]["beta"] == 0.5


def test_only_the_servers_row_stands_for_who_sees_single_uploads(mine: str) -> None:
    def epsilons(name: str) -> dict[str, float | None]:
        return {row["observer"]: row["epsilon"] for row in fedceo.run(table_of(name)).result["privacy"]}

    average, single = epsilons(f"{mine}:Same"), epsilons(f"{mine}:Median")
    assert None not in (average["outsider"], average["participant"])
    assert (single["outsider"], single["participant"]) == (None, None)
    assert single["server"] == average["server"]


def test_a_run_goes_on_where_it_was_killed(mine: str) -> None:
    table = table_of(f"{mine}:Momentum")
    whole = fedceo.run(table)
    with pytest.raises(KilledError):
        fedceo.run(table, out="run", on_round=lambda record: kill(record) if record["round"] == 2 else None)
    assert same_weights(fedceo.resume("run"), whole)
    sys.modules.pop(mine)
    Path(f"{mine}.py").unlink()
    assert same_weights(fedceo.load("run"), whole), "what is done can be read without the module"


@pytest.mark.parametrize("change", [("= 0.9", "= 0.8"), ("+ m[name]", "+ 2 * m[name]")])
def test_other_code_or_defaults_under_the_same_name_are_another_method(mine: str, change: tuple[str, str]) -> None:
    table = table_of(f"{mine}:Momentum")
    fedceo.run(table, out="done")
    with pytest.raises(KilledError):
        fedceo.run(table, out="begun", on_round=kill)
    cells = [Cell("one", parse_experiment(table), Path("done"))]
    rewrite(mine, METHODS.replace("class Momentum(FedAvg):", "class Momentum(FedAvg):  # a remark changes nothing"))
    assert fedceo.resume("begun").finished and sweep(cells)[0] is not None
    with pytest.raises(KilledError):
        fedceo.run(table, out="begun again", on_round=kill)
    rewrite(mine, METHODS.replace(*change))
    for again in (lambda: fedceo.resume("begun again"), lambda: sweep(cells)):
        with pytest.raises(UsageError, match=f"was made with another {mine}:Momentum, whose code or defaults"):
            again()


def rewrite(module: str, text: str) -> None:
    Path(f"{module}.py").write_text(text)
    sys.modules.pop(module)
    linecache.clearcache()
    importlib.invalidate_caches()


def test_reading_an_experiment_runs_nobodys_code() -> None:
    experiment = parse_experiment(table_of("nowhere:Method", trim=0.1, layers=["a"]))
    assert parse_experiment(tomllib.loads(to_toml(experiment))) == experiment
    assert experiment.method.model_dump() == {"name": "nowhere:Method", "trim": 0.1, "layers": ["a"]}


REFUSED = {
    "Momentum": ("method.bta: unknown field, did you mean beta?", {"bta": 0.1}),
    "Momentum ": ("method.beta: Input should be a valid number", {"beta": "much"}),
    "Momentun": ("has no 'Momentun', did you mean Momentum?", {}),
    "NotAMethod": ("is NotAMethod, expected a class made from fedceo.methods.FedAvg", {}),
    "a_number": ("is int, expected a class", {}),
    "Wrong": ("are not made from fedceo.methods.Settings", {}),
    "Demanding": ("failed with TypeError", {}),
    "Failing": ("failed with AttributeError: 'State' object has no attribute 'nothing' (", {}),
    "Forgetful": ("aggregate gives nothing for ", {}),
    "Transposed": ("expected (", {}),
    "Wordless": ("aggregate gives State, expected (State, dict)", {}),
    "Chatty": ("what aggregate says for the round's record: Object of type Tensor", {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said_in_a_line_before_anything_is_written(mine: str, name: str) -> None:
    words, fields = REFUSED[name]
    with pytest.raises(UsageError, match=r"^method\.") as raised:
        fedceo.run(table_of(f"{mine}:{name.strip()}", **fields), out="refused")
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert not Path("refused").exists()


@pytest.mark.parametrize(
    "name, words",
    [
        ("Twice", "takes 2 private steps where an epoch has 1, and its settings count 1"),
        ("Bare", "changes the clip, the noise or the batches of a phase"),
        ("Large", "changes the clip, the noise or the batches of a phase"),
        ("Looking", "sends statistics of records, which record privacy does not noise"),
        ("Later", "takes 2 private steps"),
    ],
)
def test_record_privacy_holds_against_its_author(mine: str, name: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        fedceo.run(table_of(f"{mine}:{name}", "record"))
    assert words in str(raised.value)


def test_more_steps_cost_more_where_its_settings_say_so(mine: str) -> None:
    once, twice = (
        fedceo.run(table_of(f"{mine}:{name}", "record")).result["privacy"][0]["epsilon"]
        for name in ("Same", "TwiceAndSaysSo")
    )
    assert twice > once
    assert fedceo.run(table_of(f"{mine}:Twice")).finished, "an update that is clipped and noised may come from anything"


def test_where_such_a_method_cannot_go(mine: str) -> None:
    with pytest.raises(UsageError, match='needs each client\'s upload, which mechanism "central" does not release'):
        fedceo.run(table_of(f"{mine}:Median", "central"))
    simulation = prepare(parse_experiment(table_of(f"{mine}:Same")))
    with pytest.raises(UsageError, match="T1 knows what the methods of this library send"):
        check_holds("T1", simulation)
    table = table_of(f"{mine}:Same")
    system = parse_experiment(table | {"privacy": table["privacy"] | {"randomness": "system"}})
    with pytest.raises(UsageError, match="is your own, and nodes have the methods of this library alone"):
        check_carried(system)


def test_the_method_of_the_documentation_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    lines = page[page.index("    # mine.py") : page.index("and an experiment file names it")].splitlines()
    (tmp_path / "mine.py").write_text("\n".join(line[4:] for line in lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = fedceo.run(table_of("mine:TrimmedMean", trim=2))
    assert run.finished and run.result["own_method"]["settings"] == {"trim": 2}
    sys.modules.pop("mine")
