"""Runs: repeatable, honest about what happened, refused before anything is written."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedceo
from fedceo.accounting.plan import Realised
from fedceo.accounting.rows import answer
from fedceo.errors import UsageError
from fedceo.simulation.spending import privacy_plan
from tests.support.small_federation import SmallConv, federation
from tests.support.small_runs import TABLE, changed, same_weights


def test_a_run_in_memory() -> None:
    run = fedceo.run(TABLE)
    assert run.finished and run.folder is None
    assert [record["round"] for record in run.history] == list(range(1, 13))
    assert [r["round"] for r in run.history if "test_accuracy" in r] == [3, 6, 9, 12]
    assert [r["round"] for r in run.history if r["smoothed"]] == [4, 8, 12]
    accuracy = run.result["accuracy"]
    assert accuracy["last"] == run.history[-1]["test_accuracy"]
    assert accuracy["best"] == max(r["test_accuracy"] for r in run.history if "test_accuracy" in r)
    assert (accuracy["last_unsmoothed"], accuracy["last_unsmoothed_round"]) == (run.history[8]["test_accuracy"], 9)
    assert len(run.history[-1]["test_accuracy_per_class"]) == 10
    assert {"outsider", "server"} <= {row["observer"] for row in run.result["privacy"]}
    assert isinstance(run.model, nn.Module) and not run.model.training


def test_a_model_that_was_just_smoothed_is_not_shown_alone() -> None:
    always = fedceo.run(changed(method={"interval": 3})).result["accuracy"]
    assert always["last_unsmoothed"] is None, "measured in rounds that smooth alone"
    assert "last_unsmoothed" not in fedceo.run(changed(method={"interval": 5})).result["accuracy"]
    assert "last_unsmoothed" not in fedceo.run(TABLE | {"method": {"name": "fedavg"}}).result["accuracy"]


def test_a_round_before_a_smoothing_can_be_measured_besides() -> None:
    plain = fedceo.run(changed(method={"interval": 3}))
    also = fedceo.run(changed(method={"interval": 3}, evaluation={"every": 3, "also_at": [11]}))
    assert [r["round"] for r in also.history if "test_accuracy" in r] == [3, 6, 9, 11, 12]
    assert also.result["accuracy"]["last_unsmoothed_round"] == 11
    assert same_weights(plain, also), "a look changes nothing"


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_same_seed_same_result(engine: str) -> None:
    table = changed(train={"engine": engine, "rounds": 4})
    one, two = fedceo.run(table), fedceo.run(table)
    assert same_weights(one, two) and one.history == two.history
    assert not same_weights(one, fedceo.run(table | {"seed": 1}))


@pytest.mark.slow
def test_same_result_in_another_process_and_nearly_with_other_threads(tmp_path: Path) -> None:
    here = fedceo.run(TABLE)
    code = (
        "import json, sys, torch, fedceo\n"
        "torch.set_num_threads(int(sys.argv[3]))\n"
        "fedceo.run(json.loads(sys.argv[1]), out=sys.argv[2])\n"
    )
    for turn, threads in enumerate((torch.get_num_threads(), 1)):
        out = tmp_path / str(turn)
        subprocess.run([sys.executable, "-c", code, json.dumps(TABLE), str(out), str(threads)], check=True)
        there = fedceo.load(out)
        if threads == torch.get_num_threads():
            assert same_weights(here, there)
        assert all(torch.allclose(here.weights[n], there.weights[n], atol=1e-4) for n in here.weights)


@pytest.mark.parametrize("mechanism", ["none", "distributed", "central", "record"])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_every_mechanism_and_sampling_runs(mechanism: str, sampling: str) -> None:
    privacy = {"mechanism": mechanism} | ({} if mechanism == "none" else {"noise_multiplier": 0.3})
    table = TABLE | {
        "privacy": privacy,
        "cohort": {"size": 2, "sampling": sampling},
        "method": {"name": "fedavg"},
        "train": TABLE["train"] | {"rounds": 6},
    }
    run = fedceo.run(table)
    assert run.finished
    assert (run.result["noise_multiplier"] == 0.0) == (mechanism == "none")
    assert run.result["regime"]


@pytest.mark.parametrize("restart", ["own", "slot", "stored", "mean"])
def test_fedceo_in_the_record_regime(restart: str) -> None:
    table = changed(train={"rounds": 5}, method={"interval": 2, "restart": restart})
    run = fedceo.run(table | {"privacy": {"mechanism": "record", "noise_multiplier": 1.0}})
    assert run.finished and run.result["regime"] == "record-level DP-SGD"
    guaranteed = [row for row in run.result["privacy"] if row["epsilon"] is not None]
    assert guaranteed and all(row["unit"] == "record" for row in guaranteed)


def test_rows_count_what_happened() -> None:
    """The server's row is for the client that was in most often, not for the mean."""
    run = fedceo.run(changed(train={"rounds": 6}))
    counts = [sum(client in record["cohort"] for record in run.history) for client in range(30)]
    server = next(row for row in run.result["privacy"] if row["observer"] == "server")
    assert f"{max(counts)} uploads" in server["assumption"]


def test_an_empty_cohort_leaves_the_model_as_it_was() -> None:
    table = changed(cohort={"size": 1, "sampling": "poisson"}, train={"rounds": 8}, method={"interval": 1})
    run = fedceo.run(table | {"seed": 5})
    empty = [record for record in run.history if record["reports"] == 0]
    assert empty, "choose a seed with an empty round"
    assert all("smoothed" not in record and record["train_loss"] is None for record in empty)


def test_a_model_and_data_of_your_own() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    x = (rng.normal(size=(300, 1, 4, 4)) + y[:, None, None, None]).astype(np.float32)
    source = fedceo.from_arrays(x, y, client=rng.integers(12, size=300))
    table = changed(
        data={"name": "mine", "partition": "natural"}, privacy={"noise_multiplier": 0.05}, train={"local_epochs": 10}
    )
    del table["data"]["clients"]
    torch.manual_seed(0)
    run = fedceo.run(table | {"method": {"name": "fedavg"}}, data=source, model=SmallConv())
    assert run.result["model"] == "SmallConv" and run.result["clients"] == 12
    assert run.result["accuracy"]["last"] > 0.6


def test_a_model_of_your_own_is_asked_for_when_loading(tmp_path: Path) -> None:
    table = changed(data={"name": "small", "clients": 4}, cohort={"size": 2})
    fedceo.run(table, out=tmp_path / "run", data=federation(), model=SmallConv())
    with pytest.raises(UsageError, match="with a model of your own, SmallConv; pass it as model="):
        fedceo.load(tmp_path / "run")
    assert isinstance(fedceo.load(tmp_path / "run", model=SmallConv()).model, SmallConv)


class Exploding(nn.Module):
    """Gives NaN for client data with a negative first pixel, as a diverged client would."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.fc(x) / (x[:, :1] > -1.0).to(x.dtype)


def test_a_nan_update_is_counted_and_never_poisons_the_model() -> None:
    table = changed(data={"name": "small", "clients": 4}, cohort={"size": 4}, train={"rounds": 3})
    run = fedceo.run(table, data=federation(), model=Exploding())
    assert run.result["nonfinite_updates"] > 0
    assert all(bool(torch.isfinite(w).all()) for w in run.weights.values())


@pytest.mark.parametrize(
    "change, words",
    [
        ({"data": {"name": "digitz"}}, "digitz"),
        ({"data": {"clients": 5000}}, "client"),
        ({"model": {"name": "lenet"}}, "unknown model 'lenet', did you mean lenet5"),
        ({"model": {"name": "lenet5"}}, "lenet5 takes images of at least 16x16"),
        ({"train": {"device": "tpu"}}, "train.device"),
        ({"method": {"layers": ["outputs"]}}, "method.layers"),
        ({"privacy": {"delta": 0.5}}, "delta"),
        (
            {"privacy": {"observer": "client"}, "method": {"restart": "mean"}},
            '^privacy.observer: "client" needs personal',
        ),
    ],
)
def test_refused_before_anything_is_written(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        fedceo.run(changed(**change), out=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("told", [{"clients": 4}, {"name": "small", "clients": 4}])
def test_data_of_ones_own_need_no_name(told: dict[str, Any]) -> None:
    table = changed(cohort={"size": 2}, train={"rounds": 1}) | {"data": told}
    assert fedceo.run(table, data=federation()).result["data"] == federation().name


def test_a_path_that_is_none_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^path: int, expected a folder's path$"):
        fedceo.load(3)  # type: ignore[arg-type]


def test_your_own_model_is_left_alone() -> None:
    torch.manual_seed(0)
    model = SmallConv()
    before = {name: w.clone() for name, w in model.state_dict().items()}
    table = changed(data={"name": "small", "clients": 4}, cohort={"size": 2}, train={"rounds": 2})
    one = fedceo.run(table, data=federation(), model=model)
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert same_weights(one, fedceo.run(table, data=federation(), model=model))


class Odd(nn.Module):
    """Legal oddities: a scalar parameter, one that is not used, one that is frozen, dropout of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Parameter(torch.zeros(2))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.fc(x.flatten(1)) * self.frozen


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("mechanism", ["distributed", "record", "central"])
def test_odd_models(tmp_path: Path, engine: str, mechanism: str) -> None:
    table = changed(
        data={"name": "small", "clients": 4},
        cohort={"size": 1, "sampling": "poisson"},
        train={"rounds": 4, "engine": engine},
        privacy={"mechanism": mechanism},
    )
    table = table | {"method": {"name": "fedavg"}}
    run = fedceo.run(table, out=tmp_path / "run", data=federation(), model=Odd())
    assert same_weights(run, fedceo.load(tmp_path / "run", model=Odd()))


def test_dropout_of_its_own_in_the_record_regime() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    table = changed(data={"name": "small", "clients": 4}, cohort={"size": 2}, privacy={"mechanism": "record"})
    assert fedceo.run(table, data=federation(), model=model).finished


@pytest.mark.parametrize("mechanism", ["distributed", "central", "record"])
def test_system_randomness_repeats_nothing_and_drops_the_caveat(mechanism: str) -> None:
    table = changed(privacy={"mechanism": mechanism, "randomness": "system"}, train={"rounds": 3})
    table = table | {"method": {"name": "fedavg"}}
    one, two = fedceo.run(table), fedceo.run(table)
    assert not same_weights(one, two)
    assert [r["cohort"] for r in one.history] != [r["cohort"] for r in two.history]
    assert not any("can remove the noise" in row["assumption"] for row in one.result["privacy"])
    assert all("can remove the noise" in row["assumption"] for row in fedceo.run(TABLE).result["privacy"])


@pytest.mark.parametrize(
    "mechanism, observer", [("distributed", "server"), ("record", "server"), ("record", "outsider")]
)
def test_the_target_is_met_by_what_happened(mechanism: str, observer: str) -> None:
    table = changed(data={"clients": 20, "partition": "dirichlet"}, cohort={"size": 4})
    table = table | {
        "privacy": {"mechanism": mechanism, "target_epsilon": 8.0, "observer": observer},
        "method": {"name": "fedavg"},
    }
    rows = [row for row in fedceo.run(table).result["privacy"] if row["observer"] == observer and row["epsilon"]]
    assert 7.8 < rows[0]["epsilon"] <= 8.0001


def test_record_rows_speak_of_the_worst_client() -> None:
    """At little noise a large client, with more steps, is worse off than a small one that samples at a higher rate."""
    data = federation(sizes=(4, 28))
    settings = fedceo.parse_experiment(
        changed(
            data={"name": "small", "clients": 2},
            cohort={"size": 2},
            train={"rounds": 1, "batch_size": 4},
            privacy={"mechanism": "record", "noise_multiplier": 0.3},
        )
    )
    plan, once = privacy_plan(settings, data.sizes.tolist(), 0.3), Realised(participations=1)
    assert "7 Poisson steps at rate 0.1429" in answer(plan, "server", once).assumption
    assert "1 Poisson steps at rate 1 " in answer(replace(plan, noise_multiplier=3.0), "server", once).assumption
