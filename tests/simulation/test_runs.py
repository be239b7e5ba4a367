"""Runs: repeatable, resumable, refused before anything is written."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.spending import privacy_spec
from tests.small import SmallConv, federation

TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 30},
    "cohort": {"size": 6},
    "train": {"rounds": 12, "local_epochs": 1, "batch_size": 16},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
    "method": {"name": "fedceo", "interval": 4, "strength": 5.0},
    "evaluation": {"every": 3},
    "checkpoint": {"every": 5},
}


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    return TABLE | {name: TABLE.get(name, {}) | fields for name, fields in sections.items()}


class KilledError(Exception):
    pass


def kill(record: dict[str, Any]) -> None:
    raise KilledError


def same_weights(a: fedceo.Run, b: fedceo.Run) -> bool:
    return all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)


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


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_same_seed_same_result(engine: str) -> None:
    table = changed(train={"engine": engine, "rounds": 4})
    one, two = fedceo.run(table), fedceo.run(table)
    assert same_weights(one, two) and one.history == two.history
    assert not same_weights(one, fedceo.run(table | {"seed": 1}))


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


def test_folder_and_load(tmp_path: Path) -> None:
    run = fedceo.run(TABLE, out=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "experiment.toml",
        "metrics.jsonl",
        "ledger.jsonl",
        "checkpoint.safetensors",
        "model.safetensors",
        "result.json",
    }
    back = fedceo.load(tmp_path / "run")
    assert same_weights(run, back) and back.history == run.history
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(back.model(x), run.model(x))
    assert set(back.model.state_dict()) == {"input.weight", "hidden.weight"}
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.history


@pytest.mark.parametrize("stop_after", [1, 4, 5, 11])
def test_stopped_and_resumed_is_the_same_as_never_stopped(tmp_path: Path, stop_after: int) -> None:
    whole = fedceo.run(TABLE, out=tmp_path / "whole")
    seen: list[int] = []
    part = fedceo.run(
        TABLE,
        out=tmp_path / "part",
        on_round=lambda record: seen.append(record["round"]),
        should_stop=lambda: len(seen) + 1 >= stop_after,
    )
    assert not part.finished and len(part.history) == stop_after
    with pytest.raises(UsageError, match=r"unfinished; go on with: fedceo run --resume"):
        fedceo.load(tmp_path / "part")
    ended = fedceo.resume(tmp_path / "part")
    assert ended.finished and same_weights(whole, ended) and ended.history == whole.history
    assert (tmp_path / "part" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert fedceo.resume(tmp_path / "part").finished, "resuming a finished run gives it back"


def kill_and_resume(tmp_path: Path, kills: int) -> None:
    """Kill the program at random moments until it ends; compare with a run that was left alone."""
    table = changed(train={"rounds": 30 * kills}, checkpoint={"every": 2})  # long enough to outlive every kill
    whole = fedceo.run(table, out=tmp_path / "whole")
    start = "import json, sys, fedceo; fedceo.run(json.loads(sys.argv[1]), out=sys.argv[2])"
    go_on = "import sys, fedceo; fedceo.resume(sys.argv[2])"
    rng = np.random.default_rng(0)
    out = tmp_path / "killed"
    killed = 0
    for attempt in range(3 * kills):
        code = go_on if (out / "experiment.toml").exists() else start
        process = subprocess.Popen([sys.executable, "-c", code, json.dumps(table), str(out)], stderr=subprocess.PIPE)
        if killed < kills:
            # Wait until it is at work, then a random while: most moments of a round are hit sooner or later.
            before = len((out / "metrics.jsonl").read_text().splitlines()) if (out / "metrics.jsonl").exists() else 0
            while process.poll() is None:
                lines = (out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else []
                if len(lines) != before or attempt == 0:
                    break
                time.sleep(0.005)
            time.sleep(float(rng.uniform(0, 0.1)))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
        _, error = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), error.decode()
        if (out / "result.json").exists():
            break
    ended = fedceo.resume(out)
    assert killed == kills and ended.finished
    assert same_weights(whole, ended) and ended.history == whole.history


def test_killed_three_times(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 3)


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 20)


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
    ],
)
def test_refused_before_anything_is_written(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        fedceo.run(changed(**change), out=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


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
    assert not any("void" in row["assumption"] for row in one.result["privacy"])
    assert all("void" in row["assumption"] for row in fedceo.run(TABLE).result["privacy"])


def test_rounds_lost_to_kills_silence_nobody_where_there_is_no_cap(tmp_path: Path) -> None:
    """System randomness keeps what lost rounds spent, so that a client may have taken part more often than t."""
    table = changed(privacy={"randomness": "system"}, cohort={"size": 30}, checkpoint={"every": 100})
    with pytest.raises(KilledError):
        fedceo.run(table, out=tmp_path / "run", on_round=kill)
    for _ in range(2):
        with pytest.raises(KilledError):
            fedceo.resume(tmp_path / "run", on_round=kill)
    ended = fedceo.resume(tmp_path / "run")
    assert len(ended.ledger.entries) == 3 + 12 and max(ended.ledger.participations.values()) == 3 + 12
    assert all(entry.silent == () for entry in ended.ledger.entries)


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
    assert privacy_spec(settings, data.sizes.tolist(), 0.3, 1).record_steps == 7


def test_a_run_killed_before_its_first_round_knows_what_it_was(tmp_path: Path) -> None:
    table = changed(data={"name": "digits", "clients": 4}, cohort={"size": 2})
    with pytest.raises(KilledError):
        fedceo.run(table, out=tmp_path / "run", data=federation(), model=SmallConv(), on_round=kill)
    with pytest.raises(UsageError, match="belongs to another experiment, data or model"):
        fedceo.resume(tmp_path / "run")
    other = federation()
    other.x[0] += 1
    with pytest.raises(UsageError, match="belongs to another experiment, data or model"):
        fedceo.resume(tmp_path / "run", data=other, model=SmallConv())
    assert fedceo.resume(tmp_path / "run", data=federation(), model=SmallConv()).finished


def test_a_folder_whose_run_was_killed_while_it_began_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml.part").write_text("half")
    assert fedceo.run(changed(train={"rounds": 1}), out=tmp_path / "run").finished
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        fedceo.run(changed(train={"rounds": 1}), out=tmp_path / "file" / "below")


def test_a_file_of_your_own_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "my.npz", x=rng.normal(size=(200, 6)).astype(np.float32), y=rng.integers(3, size=200))
    monkeypatch.chdir(tmp_path)
    table = TABLE | {"data": {"path": "my.npz", "clients": 10}}
    rounds = iter(range(100))
    fedceo.run(table, out="run", should_stop=lambda: next(rounds) == 2)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert fedceo.resume(tmp_path / "run").finished


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    short = changed(train={"rounds": 2})
    fedceo.run(short, out=tmp_path / "run")
    before = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(UsageError, match="holds a run already"):
        fedceo.run(short, out=tmp_path / "run")
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        fedceo.run(short, out=tmp_path)
    with pytest.raises(UsageError, match="not a run folder"):
        fedceo.resume(tmp_path / "nowhere")


def unfinished(path: Path, **sections: dict[str, Any]) -> None:
    rounds = iter(range(100))
    fedceo.run(changed(**sections), out=path, should_stop=lambda: next(rounds) == 5)


def test_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    unfinished(tmp_path / "one")
    unfinished(tmp_path / "two", method={"strength": 6.0})
    checkpoint = tmp_path / "one" / "checkpoint.safetensors"
    good = checkpoint.read_bytes()
    checkpoint.write_bytes((tmp_path / "two" / "checkpoint.safetensors").read_bytes())
    with pytest.raises(UsageError, match="the checkpoint belongs to another experiment"):
        fedceo.resume(tmp_path / "one")
    for cut in (0, 5, 100, len(good) - 3):
        checkpoint.write_bytes(good[:cut])
        with pytest.raises(UsageError, match="cut short or not a safetensors file"):
            fedceo.resume(tmp_path / "one")
    checkpoint.write_bytes(good)
    assert fedceo.resume(tmp_path / "one").finished
