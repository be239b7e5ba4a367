"""A release holds the model, its card, and nothing that no epsilon covers."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import fedceo
from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.release import release
from tests.support.small_runs import TABLE

SEED = 874_512_903  # a number that nothing else could be
RECORD = {"mechanism": "record", "noise_multiplier": 0.8}
RUNS: dict[str, dict[str, Any]] = {
    "fedceo": {},
    "system": {"privacy": TABLE["privacy"] | {"randomness": "system"}},
    "central": {"privacy": {"mechanism": "central", "noise_multiplier": 2.0}, "method": {"name": "fedavg"}},
    "banded": {
        "cohort": {"size": 6, "sampling": "cyclic"},
        "privacy": {"mechanism": "central", "noise": "banded", "noise_multiplier": 2.0},
        "method": {"name": "fedavg"},
    },
    "record": {"privacy": RECORD, "method": {"name": "fedavg"}},
    "centaur": {"method": {"name": "centaur", "head_epochs": 1}},
    "adaptive": {"privacy": TABLE["privacy"] | {"clipping": "adaptive"}, "method": {"name": "fedavg"}},
}


def table(name: str) -> dict[str, Any]:
    uneven = {"name": "digits", "clients": 30, "partition": "dirichlet", "local_test": 0.1}
    return TABLE | {"seed": SEED, "note": "a private remark", "data": uneven} | RUNS[name]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Name -> folder of the run, folder of its release."""
    root = tmp_path_factory.mktemp("release")
    for name in RUNS:
        fedceo.run(table(name), out=root / "runs" / name)
        release(root / "runs" / name, root / "models" / name)
    return {name: (root / "runs" / name, root / "models" / name) for name in RUNS}


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested JSON that is neither a list nor a table, with the name of its field."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


def secrets_of(folder: Path) -> dict[str, set[str]]:
    """What a run folder holds and a release must not, as text, by kind."""
    history, result = RunFolder(folder).history(), json.loads((folder / "result.json").read_text())
    about = RunFolder(folder).load_checkpoint().about
    numbers = {
        f"{value:.6f}"
        for record in history
        for name, value in leaves(record)
        if isinstance(value, float) and name != "clip" and value != record.get("test_accuracy")
    }
    validation = {repr(record["validation_accuracy"]) for record in history if record.get("validation_accuracy")}
    return {
        "seeds": {str(SEED), about["noise_key"]},
        "losses and the like": numbers,
        "validation": validation,
        "cohorts": {str(record["cohort"])[1:-1] for record in history if len(record["cohort"]) > 1},
        "digests": {result["data_digest"], about["identity"]},
        "times": {repr(result["seconds"])},
        "remarks": {"a private remark"},
        "paths": {str(folder), str(folder.parent), str(Path.home()), "/tmp"},
    }


UNNOISED = (
    "seed", "cohort_", "sizes", "loss", "validation_accuracy", "local_accuracy", "personal_accuracy", "nonfinite",
    "seconds", "digest", "identity", "noise_key", "machine", "device", "reports", "ledger", "participations",
    "per_class", "unclipped",
)  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_nothing_unnoised_is_in_a_release(name: str, released: dict[str, tuple[Path, Path]]) -> None:
    run, model = released[name]
    assert {path.name for path in model.iterdir()} == {"model.safetensors", "card.json", "README.md"}
    texts = {path.name: path.read_bytes().decode("latin-1") for path in model.iterdir()}
    words = texts["card.json"] + texts["README.md"]
    for kind, secrets in secrets_of(run).items():
        for secret in secrets:
            assert secret not in words, f"{kind}: {secret}"
    card = json.loads(texts["card.json"])
    fields = {key for key, _ in leaves(card)}
    allowed = {"min_reports"}  # a setting
    assert not [key for key in fields - allowed for word in UNNOISED if word in key]
    with safe_open(model / "model.safetensors", framework="pt") as file:
        assert not file.metadata()
    saved, whole = load_file(model / "model.safetensors"), load_file(run / "model.safetensors")
    assert all(torch.equal(w, whole[key]) for key, w in saved.items())
    assert set(saved) | set(card["left_out"]) == set(whole)


@pytest.mark.parametrize("name", RUNS)
def test_no_client_can_be_counted(name: str, released: dict[str, tuple[Path, Path]]) -> None:
    """Sizes of clients and lists of clients: no list of whole numbers is in a card but the shape of a record."""
    run, model = released[name]
    card = json.loads((model / "card.json").read_text())
    sizes = [int(size) for size in RunFolder(run).load_checkpoint().about["sizes"]]
    assert len(sizes) > 5, "clients of many sizes"
    numbers = [int(n) for n in re.findall(r"(?<![\d.])\d+(?![\d.])", (model / "README.md").read_text())]
    in_settings = {value for _, value in leaves(card) if isinstance(value, int) and not isinstance(value, bool)}
    assert len(set(sizes) - in_settings - set(numbers)) >= len(set(sizes)) - 3, "no more of them than by chance"
    lists = [v for v in card.values() if isinstance(v, list) and v and all(isinstance(each, int) for each in v)]
    assert lists == [card["record_shape"]]


def test_the_card_says_what_must_be_known(released: dict[str, tuple[Path, Path]]) -> None:
    run, model = released["fedceo"]
    card, text = json.loads((model / "card.json").read_text()), (model / "README.md").read_text()
    assert (card["data"], card["method"], card["model"]) == ("digits", "fedceo", "mlp")
    assert {row["observer"] for row in card["privacy"]} == {"outsider", "participant", "server", "client"}
    assert card["test_accuracy"] == json.loads((run / "result.json").read_text())["accuracy"]["last"]
    assert "public test set" in text and "can remove the noise" in text and "do not cover" in text
    assert card["settings"]["method"]["strength"] == 5.0 and card["settings"]["data"]["name"] == "digits"
    card, text = (json.loads((released["system"][1] / "card.json").read_text()), "")
    assert not card["removable_noise"]


def test_a_cards_epsilon_is_never_smaller_than_the_runs(released: dict[str, tuple[Path, Path]]) -> None:
    """An outsider's row does not go by participations, so that only rounding parts the two."""
    for name in ("fedceo", "central", "banded", "adaptive"):
        run, model = released[name]
        result = json.loads((run / "result.json").read_text())
        card = json.loads((model / "card.json").read_text())
        spent, said = (next(r["epsilon"] for r in t["privacy"] if r["observer"] == "outsider") for t in (result, card))
        assert spent is None if said is None else spent <= said < 1.011 * spent


def test_a_head_that_stays_at_home_is_not_released(released: dict[str, tuple[Path, Path]]) -> None:
    _, model = released["centaur"]
    card = json.loads((model / "card.json").read_text())
    assert card["left_out"] == ["hidden.weight"] and set(load_file(model / "model.safetensors")) == {"input.weight"}
    assert card["test_accuracy"] is None and "clients keep these tensors" in (model / "README.md").read_text()


def test_accuracy_on_records_of_your_own_is_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(300, 6)).astype(np.float32), y=rng.integers(3, size=300))
    fedceo.run(TABLE | {"data": {"path": str(tmp_path / "mine.npz"), "clients": 10}}, out=tmp_path / "run")
    card = release(tmp_path / "run", tmp_path / "model")
    assert card["test_accuracy"] is None and "path" not in card["settings"]["data"]
    assert str(tmp_path) not in (tmp_path / "model" / "README.md").read_text()


def test_what_is_not_covered_is_refused(tmp_path: Path) -> None:
    free = TABLE | {"privacy": {"mechanism": "none"}, "method": {"name": "fedavg"}}
    fedceo.run(free, out=tmp_path / "free")
    with pytest.raises(UsageError, match=r"no epsilon covers its model \(no mechanism"):
        release(tmp_path / "free", tmp_path / "model")
    bare = TABLE | {"privacy": {"mechanism": "distributed", "noise_multiplier": 0.0}}
    fedceo.run(bare, out=tmp_path / "bare")
    with pytest.raises(UsageError, match="no epsilon covers its model"):
        release(tmp_path / "bare", tmp_path / "model")
    rounds = iter(range(100))
    fedceo.run(TABLE, out=tmp_path / "stopped", should_stop=lambda: next(rounds) == 2)
    with pytest.raises(UsageError, match="unfinished"):
        release(tmp_path / "stopped", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_command(
    released: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, warns in (("fedceo", True), ("system", False)):
        arguments = ["fedceo", "release", str(released[name][0]), "-o", str(tmp_path / name)]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 0 and "model.safetensors" in said.out
        assert ("can remove the noise" in said.err) == warns and said.err.count("\n") == int(warns)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "not an empty folder" in capsys.readouterr().err
