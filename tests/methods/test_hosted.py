"""Methods of one's own, named in an experiment file as module:Class."""

import importlib
import linecache
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fedceo
from fedceo.attacks.threat_models import check_holds
from fedceo.audit.report import audit
from fedceo.cli.app import app
from fedceo.data import build_federation
from fedceo.deploy.supported import check_supported
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment, to_toml
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.preparing import prepare, prepare_again
from fedceo.simulation.spending import privacy_plan
from fedceo.studies.cells import Cell
from fedceo.studies.sweep import sweep
from tests.support.small_runs import KilledError, kill, same_weights
from tests.support.user_methods import METHODS, table_of
from tests.support.user_modules import module_here


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file of the same second is taken for the one before
    return module_here("mine", METHODS, tmp_path, monkeypatch)


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
    assert theirs.history[-1]["own"] == {"beta": 0.9, "rounds": 4}
    assert fedceo.run(table_of(f"{mine}:Momentum", beta=0.5)).history[-1]["own"]["beta"] == 0.5


def test_a_method_that_sees_single_uploads_gets_only_the_servers_row(mine: str) -> None:
    def epsilons(name: str) -> dict[str, float | None]:
        return {row["observer"]: row["epsilon"] for row in fedceo.run(table_of(name)).result["privacy"]}

    average, single = epsilons(f"{mine}:TakesBack"), epsilons(f"{mine}:Median")
    assert None not in (average["outsider"], average["participant"])
    assert (single["outsider"], single["participant"]) == (None, None)
    assert single["server"] == average["server"]
    assert fedceo.run(table_of(f"{mine}:Krum")).finished, "it is tried with as many clients as a cohort has"


def test_what_a_method_says_does_not_hide_what_the_library_says(mine: str) -> None:
    last = fedceo.run(table_of(f"{mine}:TakesBack")).history[-1]
    assert last["round"] == 4 and last["test_accuracy"] < 1 and last["own"] == {"round": -1, "test_accuracy": 1.0}


def test_local_training_with_a_pull_is_fedprox(mine: str) -> None:
    ours, theirs = (fedceo.run(table_of(name, mu=0.5)) for name in ("fedprox", f"{mine}:Proximal"))
    assert same_weights(ours, theirs)


def test_it_knows_clip_and_noise_and_the_servers_optimiser_works_on_its_answer(mine: str) -> None:
    table = table_of(f"{mine}:Looks")
    table |= {"train": table["train"] | {"server_optimizer": "momentum"}}
    ours, theirs = fedceo.run(table | {"method": {"name": "fedavg"}}), fedceo.run(table)
    assert same_weights(ours, theirs)
    privacy = parse_experiment(table).privacy
    assert theirs.history[0]["own"] == {"clip": privacy.clip, "noise": pytest.approx(0.5 * privacy.clip / 6**0.5)}
    assert fedceo.run(table_of(f"{mine}:Looks", "record")).history[0]["own"]["noise"] is None


@pytest.mark.parametrize("clipping", ["flat", "adaptive"])
def test_a_run_goes_on_where_it_was_killed(mine: str, clipping: str) -> None:
    table = table_of(f"{mine}:Momentum")
    table |= {"privacy": table["privacy"] | {"clipping": clipping}}
    whole = fedceo.run(table)
    with pytest.raises(KilledError):
        fedceo.run(table, out="run", on_round=lambda record: kill(record) if record["round"] == 2 else None)
    resumed = fedceo.resume("run")
    assert same_weights(resumed, whole) and resumed.history[-1]["own"]["rounds"] == 4
    sys.modules.pop(mine)
    Path(f"{mine}.py").unlink()
    assert same_weights(fedceo.load("run"), whole), "what is done can be read without the module"


@pytest.mark.parametrize(
    "change", [("= 0.9", "= 0.8"), ("beta * before", "beta + before"), ("FACTOR = 1", "FACTOR = 2")]
)
def test_other_code_under_the_same_name_is_another_method(mine: str, change: tuple[str, str]) -> None:
    table = table_of(f"{mine}:Momentum")
    fedceo.run(table, out="done")
    with pytest.raises(KilledError):
        fedceo.run(table, out="begun", on_round=kill)
    cells = [Cell("one", parse_experiment(table), Path("done"))]
    rewrite(mine, METHODS.replace("class Momentum(OwnMethod):", "class Momentum(OwnMethod):  # changes nothing"))
    assert fedceo.resume("begun").finished and sweep(cells)[0] is not None
    with pytest.raises(KilledError):
        fedceo.run(table, out="begun again", on_round=kill)
    rewrite(mine, METHODS.replace(*change))
    for again in (lambda: fedceo.resume("begun again"), lambda: sweep(cells)):
        with pytest.raises(UsageError, match=f"was made with another {mine}:Momentum, whose module has changed"):
            again()


def rewrite(module: str, text: str) -> None:
    Path(f"{module}.py").write_text(text)
    sys.modules.pop(module)
    linecache.clearcache()
    importlib.invalidate_caches()


def test_reading_an_experiment_runs_nobodys_code() -> None:
    table = table_of("nowhere:Method", trim=0.1, layers=["a"])
    experiment = parse_experiment(table | {"train": table["train"] | {"schedule": "cosine"}})
    assert parse_experiment(tomllib.loads(to_toml(experiment))) == experiment
    assert experiment.method.model_dump() == {"name": "nowhere:Method", "trim": 0.1, "layers": ["a"]}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "Momentum": ("method.bta: unknown field, did you mean beta?", {"bta": 0.1}),
    "Momentum ": ("method.beta: Input should be a valid number", {"beta": "much"}),
    "Momentum  ": ("method: beta is NoneType, expected a value that TOML has", {"beta": None}),
    "Momentum   ": ("method: beta is set, expected a value that TOML has", {"beta": {1}}),
    "Momentun": ("has no 'Momentun', did you mean Momentum?", {}),
    "NotAMethod": ("is NotAMethod, expected a class made from fedceo.methods.OwnMethod", {}),
    "Half": ("is Half, expected a class made from fedceo.methods.OwnMethod", {}),
    "a_number": ("is int, expected a class", {}),
    "Wrong": ("are no class made from fedceo.methods.MethodSettings", {}),
    "Named": ("or have a field called name", {}),
    "Valid": ("method.size: too, got 6", {"size": 6}),
    "Valid ": ("failed with KeyError: 'odd' (", {"size": 2}),
    "Demanding": ("failed with TypeError", {}),
    "Dated": ("failed with TypeError", {}),
    "Failing": ("failed with AttributeError: 'dict' object has no attribute 'nothing' (mine_", {}),
    "Forgetful": ("aggregate gives NoneType for ", {}),
    "Transposed": ("expected shape (", {}),
    "Unasked": ("single uploads are for who says needs_stack = True", {}),
    "Wordless": ("aggregate gives (dict), expected (weights, what the record says)", {}),
    "Big": ("aggregate gives NaN or Inf for ", {}),
    "Complex": ("torch.complex64 for ", {}),
    "Sparse": ("method.name: ", {}),
    "Infinite": ("what aggregate says for the round's record: Out of range float values", {}),
    "Exotic": ("memory['z'] is torch.complex128, torch.strided, expected a tensor of real numbers", {}),
    "Keyed": ("memory has the key 3, expected a name", {}),
    "Old": ("failed with TypeError: Old.aggregate() takes 3 positional arguments but 5 were given", {}),
    "Other": ("whose needs_stack is True or False", {}),
    "Huge": ("for momentum, expected a number that is not negative", {}),
    "A.B": ("method: name is 'mine_", {}),
    "Chatty": ("what aggregate says for the round's record: Object of type Tensor", {}),
    "NotANumber": ("aggregate gives NaN or Inf for ", {}),
    "Counting": ("memory['count'] is int, expected a tensor of real numbers", {}),
    "Backwards": ("local gives -1.0 for learning_rate, expected a number that is not negative", {}),
    "Nowhere": ("for only, expected a frozenset of parameters' names, or None", {}),
    "NoWork": ("local gives list, expected a Work", {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said_in_a_line_before_anything_is_written(mine: str, name: str) -> None:
    words, fields = REFUSED[name]
    with pytest.raises(UsageError, match=r"^method") as raised:
        fedceo.run(table_of(f"{mine}:{name.strip()}", **fields), out="refused")
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert not Path("refused").exists()


@pytest.mark.parametrize("mechanism", ["record", "distributed"])
@pytest.mark.parametrize(
    "name", ["Twice: epochs", "Bare: record", "Large: batch_size", "Capped: steps", "Numbered: phase"]
)
def test_what_epsilon_counts_on_stays_the_experiments(mine: str, name: str, mechanism: str) -> None:
    kind, field = name.split(": ")
    table = table_of(f"{mine}:{kind}", mechanism)
    if (kind, mechanism) == ("Bare", "distributed"):
        assert fedceo.run(table).finished, "there is nothing to take away"
        return
    with pytest.raises(UsageError, match=f"local changes {field}, expected no other fields than learning_rate"):
        fedceo.run(table)


def test_what_fails_in_a_later_round_is_a_line_too(mine: str) -> None:
    with pytest.raises(UsageError, match=r"Later' failed with ZeroDivisionError: .* \(mine_.*\.py, line") as raised:
        fedceo.run(table_of(f"{mine}:Later"), out="run")
    assert "\n" not in str(raised.value) and (Path("run") / "experiment.toml").exists()


def test_it_learns_nothing_of_clients_whose_updates_overflow(mine: str) -> None:
    """Their number is exact: with it a method would show whether one client's records are finite."""
    federation = build_federation(parse_experiment(table_of("fedavg")).data, 0)
    x = federation.x.float().clone()  # others may hold the same federation
    x[federation.train[0]] = float("inf")
    broken = replace(federation, x=x)
    table = table_of(f"{mine}:Skips")
    table |= {"cohort": {"size": 30}}
    start, run = (fedceo.run(table | {"train": table["train"] | {"rounds": t}}, data=broken) for t in (1, 2))
    assert run.history[0]["nonfinite_updates"] == 1
    assert not same_weights(start, run), "no round was skipped"


def test_memory_is_kept_in_its_order_and_an_object_keeps_nothing(mine: str) -> None:
    """Memory comes in one order, resumed or not; an object keeps nothing; a trial has updates to divide by."""
    names = [record["own"]["names"] for record in fedceo.run(table_of(f"{mine}:Fifo")).history]
    with pytest.raises(KilledError):
        fedceo.run(table_of(f"{mine}:Fifo"), out="run", on_round=lambda r: kill(r) if r["round"] == 2 else None)
    assert [record["own"]["names"] for record in fedceo.resume("run").history] == names
    assert {record["own"]["seen"] for record in fedceo.run(table_of(f"{mine}:Selfish")).history} == {1}
    for size in (4, 6, 8):
        assert fedceo.run(table_of(f"{mine}:Normed") | {"cohort": {"size": size}}).finished


def test_code_is_told_apart_as_it_was_imported(mine: str) -> None:
    """An edit while a run goes on is not taken for the code that runs, and costs no error."""
    edited = METHODS.replace("class Same(OwnMethod):", "class Same(OwnMethod):\n    needs_stack = True\n")

    def edit(record: dict[str, Any]) -> None:
        Path(f"{mine}.py").write_text(edited if record["round"] == 1 else "def broken(:")
        linecache.clearcache()
        if record["round"] == 3:
            raise KilledError

    with pytest.raises(KilledError):
        fedceo.run(table_of(f"{mine}:Same"), out="run", on_round=edit)
    rewrite(mine, edited)
    for again in (
        lambda: fedceo.resume("run"),
        lambda: prepare_again(RunFolder(Path("run"))),
        lambda: app(["privacy", "account", "run"], standalone_mode=False),
    ):
        with pytest.raises(UsageError, match="whose module has changed since"):
            again()


def test_bases_count_as_code_and_what_has_no_source_is_not_continued(mine: str) -> None:
    Path(f"base_{mine}.py").write_text(METHODS)
    Path(f"{mine}.py").write_text(f"from base_{mine} import Momentum as Base\n\nclass Mine(Base):\n    pass\n")
    with pytest.raises(KilledError):
        fedceo.run(table_of(f"{mine}:Mine"), out="run", on_round=kill)
    sys.modules.pop(mine)
    rewrite(f"base_{mine}", METHODS.replace("FACTOR = 1", "FACTOR = 2"))
    with pytest.raises(UsageError, match="whose module has changed since"):
        fedceo.resume("run")
    made = ModuleType("nowhere_to_be_read")
    sys.modules["nowhere_to_be_read"] = made
    exec(METHODS, vars(made))
    with pytest.raises(KilledError):
        fedceo.run(table_of("nowhere_to_be_read:Same"), out="without", on_round=kill)
    with pytest.raises(UsageError, match="still the same cannot be told without its source"):
        fedceo.resume("without")
    sys.modules.pop("nowhere_to_be_read")


def test_where_such_a_method_goes(mine: str) -> None:
    with pytest.raises(UsageError, match='needs each client\'s upload, which mechanism "central" does not release'):
        fedceo.run(table_of(f"{mine}:Median", "central"))
    with pytest.raises(UsageError, match=r"method\.bta: unknown field"):
        privacy_plan(parse_experiment(table_of(f"{mine}:Same", bta=1)), [1] * 30, 0.5)
    check_holds("T1", prepare(parse_experiment(table_of(f"{mine}:Same"))))
    table = table_of(f"{mine}:Same")
    system = parse_experiment(table | {"privacy": table["privacy"] | {"randomness": "system"}})
    with pytest.raises(UsageError, match="is your own, and nodes have the methods of this library alone"):
        check_supported(system)
    report = audit(prepare(parse_experiment(table_of(f"{mine}:Momentum"))), rounds=6)
    assert not report.refuted


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("mechanism", ["distributed", "central", "record"])
def test_scaffold_of_the_examples_is_the_librarys_to_the_bit(
    mechanism: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).parents[2].joinpath("examples", "scaffold.py").read_text()
    assert len(source.splitlines()) <= 60
    name = module_here("example_scaffold", source, tmp_path, monkeypatch)
    table = table_of("fedavg", mechanism)
    train = table["train"] | {"engine": engine, "server_learning_rate": 0.7, "server_optimizer": "momentum"}
    table |= {"train": train, "data": {"name": "digits", "clients": 12, "partition": "dirichlet"}}
    ours, theirs = (fedceo.run(table | {"method": {"name": method}}) for method in ("scaffold", f"{name}:Scaffold"))
    assert same_weights(ours, theirs)
    epsilons = [[row["epsilon"] for row in run.result["privacy"]] for run in (ours, theirs)]
    assert epsilons[0] == epsilons[1]


def test_what_clients_remember_is_resumed(mine: str) -> None:
    whole = fedceo.run(table_of(f"{mine}:Remembers"))
    with pytest.raises(KilledError):
        fedceo.run(table_of(f"{mine}:Remembers"), out="part", on_round=lambda r: kill(r) if r["round"] == 3 else None)
    ended = fedceo.resume("part")
    assert same_weights(whole, ended)
    assert not same_weights(whole, fedceo.run(table_of("fedavg"))), "what is remembered moves clients"


@pytest.mark.parametrize(
    "name, says",
    [
        ("ShiftsAway", "shift gives NaN or Inf for "),
        ("ShiftsNothing", "shift gives NoneType, expected a dict of tensors"),
        ("KeepsWords", r"keep\['word'\] is str, expected a tensor of real numbers"),
        ("KeepsUnlike", "keep gives tensors of other names or shapes to some clients than to others"),
    ],
)
def test_what_is_wrong_with_a_memory_is_said_in_a_line(mine: str, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"^method.name: '{mine}:{name}': {says}"):
        fedceo.run(table_of(f"{mine}:{name}"), out="never")
    assert not Path("never").exists()
