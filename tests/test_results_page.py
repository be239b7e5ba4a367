"""docs/results.md says what the files in results/ say, and each of these can be traced to an experiment file."""

import importlib
import json
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedceo.config import Experiment, load_experiment

ROOT = Path(__file__).resolve().parent.parent
RUN_OTHERWISE = {
    "note": ..., "seed": ..., "checkpoint": ..., "evaluation": ..., "train": {"learning_rate", "tf32"},
    "data": {"path", "root"},
}  # fmt: skip
"""What may differ from the experiment file: how it was run, and the learning rate, which was tuned."""
TRIALS = {"paper": 4, "beyond": 8}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("results")


def test_the_page_is_what_the_script_writes(results: ModuleType) -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results.page(), "run: python docs/results.py"


def test_the_page_on_what_reproduces_too(results: ModuleType) -> None:
    reproduces = importlib.import_module("reproduces")
    assert (ROOT / "docs" / "what-reproduces.md").read_text() == reproduces.page(), "run: python docs/reproduces.py"


def test_what_that_page_says_in_words_follows_from_the_numbers(results: ModuleType) -> None:
    cells, paper = results.load(), results.ACCURACY
    both = {name: found for name, found in cells.items() if name in paper}
    above, level, below = results.tally(both, "fedceo", "udp-fedavg")
    assert (above, level + below) == (1, 8), "the order of the methods comes out in one cell of nine"
    best_is_near, last_is_near = 0, 0
    for cell in importlib.import_module("reproduces").sigma_2(cells):
        last, best = (statistics.fmean(cells[cell].percent(which)) - paper[cell] for which in ("last", "best"))
        best_is_near += abs(best) < 2 and last < -5
        last_is_near += abs(last) < 1 and best > 2
    assert (best_is_near, last_is_near) == (2, 1)
    for name in both:
        if name.endswith("/fedceo"):
            udp = name.replace("/fedceo", "/udp-fedavg")
            gains = [statistics.fmean(cells[each].percent("last")) - paper[each] for each in (name, udp)]
            assert gains[0] < gains[1], name
    lenet5 = "paper/table1/cifar10-lenet5/sigma"
    at_1 = {method: cells[f"{lenet5}-1.0/{method}"] for method in ("udp-fedavg", "centaur", "fedceo-ratio-1", "fedceo")}
    for name in both:
        fewer = name == f"{lenet5}-2.0/ppsgd"
        assert len(cells[name].done) == (1 if fewer else 3), f"{name}: the pages say which have fewer seeds"
    for found in at_1.values():
        assert {run["experiment"]["train"]["learning_rate"] for run in found.done} == {0.1}
        assert statistics.fmean(found.percent("best")) > statistics.fmean(found.percent("last")) + 3, "it falls again"
    steady = cells[f"{lenet5}-1.0/ppsgd"]
    assert {run["experiment"]["train"]["learning_rate"] for run in steady.done} == {0.01}
    assert all(run["result"]["accuracy"]["best_round"] > 200 for run in steady.done), "PPSGD does not fall so early"
    compare = importlib.import_module("runs_found").compare
    udp = at_1["udp-fedavg"].by_seed("last")
    assert {compare(at_1[method].by_seed("last"), udp) for method in ("fedceo", "fedceo-ratio-1")} == {"level"}
    assert paper[f"{lenet5}-1.0/fedceo"] - paper[f"{lenet5}-1.0/udp-fedavg"] == pytest.approx(10, abs=0.5)
    above_udp = [("1.5", "fedceo", 1, 16), ("1.5", "fedceo-ratio-1", 0, 15), ("2.0", "fedceo-ratio-1", 3, 11)]
    for sigma, method, points, of_paper in above_udp:
        ours, other = (f"{lenet5}-{sigma}/{name}" for name in (method, "udp-fedavg"))
        assert compare(cells[ours].by_seed("last"), cells[other].by_seed("last")) == "above"
        gain = statistics.fmean(cells[ours].percent("last")) - statistics.fmean(cells[other].percent("last"))
        assert (round(gain), round(paper[ours] - paper[other])) == (points, of_paper), "as the pages say"
    trials = json.loads((ROOT / "results" / "paper" / "table1" / "cifar10-lenet5.trials.json").read_text())
    for method in ("udp-fedavg", "fedceo", "fedceo-ratio-1"):
        less, more = (
            next(
                t["validation_accuracy"] for t in trials[f"sigma-{sigma}/{method}"] if t["train.learning_rate"] == 0.03
            )
            for sigma in ("1.0", "1.5")
        )
        assert less > more, "at one rate less noise is ahead"
    trials = json.loads((ROOT / "results" / "paper" / "heterogeneity.trials.json").read_text())
    at = {name: next(t for t in found if t["train.learning_rate"] == 0.1) for name, found in trials.items()}
    for name, trial in at.items():
        if name.endswith("/fedceo"):
            other = at[name.replace("/fedceo", "/udp-fedavg")]
            assert abs(trial["validation_accuracy"] - other["validation_accuracy"]) < 0.005, "the same at that rate"


def test_what_that_page_says_of_restarts_follows_too(results: ModuleType) -> None:
    cells, paper = results.load(), results.ACCURACY

    def percent(sigma: str, mode: str, rate: str, which: str = "last") -> float:
        found = cells[f"modes/cifar10-mlp/sigma-{sigma}/{mode},train.learning_rate={rate}"]
        assert len(found.done) == 3
        return statistics.fmean(found.percent(which))

    modes = ("udp-fedavg", "own", "stored", "stored-resubmit", "mean")
    for sigma in ("1.0", "1.5", "2.0"):
        udp, fedceo = (paper[f"paper/heterogeneity/iid/sigma-{sigma}/{method}"] for method in ("udp-fedavg", "fedceo"))
        assert abs(percent(sigma, "udp-fedavg", "0.1") - udp) < 1
        assert abs(percent(sigma, "stored", "0.1", "best") - fedceo) < 1
        lead = percent(sigma, "stored", "0.1", "best") - percent(sigma, "udp-fedavg", "0.1")
        assert lead > (fedceo - udp) / 2, "most of the lead"
        assert percent(sigma, "own", "0.1") < percent(sigma, "udp-fedavg", "0.1") + 0.1, "where it ends, or below"
        assert all(percent(sigma, mode, "0.01") > percent(sigma, mode, "0.1") for mode in modes)
        assert max(modes, key=lambda mode: percent(sigma, mode, "0.01")) == "udp-fedavg"


def test_every_run_is_of_the_experiment_file_of_its_name(results: ModuleType) -> None:
    for name, found in results.load().items():
        tuned = {"privacy": {"clip"}} if name.startswith("beyond/") else {}
        exclude: Any = {part: True if fields is ... else fields for part, fields in (RUN_OTHERWISE | tuned).items()}
        path = ROOT / "experiments" / f"{name.partition(',')[0]}.toml"  # behind a comma is what a grid has changed
        file = load_experiment(path).model_dump(exclude=exclude, exclude_none=True)
        for run in found.runs:
            said = Experiment.model_validate(run["experiment"])
            assert said.model_dump(exclude=exclude, exclude_none=True) == file, name
            assert said.seed == run["seed"]
            assert {"machine", "versions", "date"} <= set(run["result"])


def test_what_was_tuned_is_what_the_trials_favour(results: ModuleType) -> None:
    for name, found in results.load().items():
        if name.startswith("modes/"):
            continue  # both rates are shown there, none is chosen
        folders = [parent.as_posix() for parent in Path(name).parents]
        folder = next(f for f in folders if (ROOT / "results" / f"{f}.trials.json").exists())
        trials = json.loads((ROOT / "results" / f"{folder}.trials.json").read_text())[name.removeprefix(f"{folder}/")]
        assert len(trials) == TRIALS[name.partition("/")[0]], "as many as every other method had"
        best = importlib.import_module("runs_found").chosen(trials)
        for run in found.runs:
            for field in best.keys() - {"validation_accuracy", "at_full_length"}:
                section, _, key = field.partition(".")
                assert run["experiment"][section][key] == best[field], f"{name}: {field}"


def test_a_finalist_is_chosen_by_its_whole_run(results: ModuleType) -> None:
    short: dict[str, float] = {"train.learning_rate": 0.1, "validation_accuracy": 0.5}
    slow: dict[str, float] = {"train.learning_rate": 0.01, "validation_accuracy": 0.4}
    chosen = importlib.import_module("runs_found").chosen
    assert chosen([slow, short]) == short
    assert chosen([short | {"at_full_length": 0.3}, slow | {"at_full_length": 0.6}])["train.learning_rate"] == 0.01
    assert chosen([slow, short | {"at_full_length": 0.3}])["train.learning_rate"] == 0.1


def test_settings_are_counted_once_and_only_with_several_seeds(results: ModuleType) -> None:
    def runs(*last: float) -> object:
        return results.Found([{"seed": n, "result": {"accuracy": {"last": value}}} for n, value in enumerate(last)])

    cells = {
        "a/fedceo": runs(0.5, 0.511), "a/fedavg": runs(0.4, 0.41), "b/fedceo": runs(0.3), "b/fedavg": runs(0.4, 0.41),
        "c/fedceo": runs(0.3, 0.311), "c/fedavg": runs(0.4, 0.41), "c/ppsgd": runs(0.1, 0.11),
    }  # fmt: skip
    assert results.tally(cells, "fedceo", "fedavg") == (1, 0, 1)
    assert results.tally(cells, "fedceo", "ppsgd") == (1, 0, 0)


def test_pictures_show_what_the_files_say(results: ModuleType) -> None:
    pictures = importlib.import_module("result_pictures")
    cells = results.load()
    drawn = pictures.trade_offs("beyond/femnist-1000", cells).data
    assert drawn["central/fedavg"][1] == pytest.approx(
        sum(cells["beyond/femnist-1000/epsilon-8/central/fedavg"].percent("last")) / 3
    )
    curves = pictures.over_rounds("paper/table1/cifar10-lenet5/sigma-2.0", cells).data
    last = cells["paper/table1/cifar10-lenet5/sigma-2.0/udp-fedavg"].percent("last")
    assert curves["UDP-FedAvg/rounds"][-1] == 300 and curves["UDP-FedAvg/mean"][-1] == pytest.approx(sum(last) / 3)


def test_above_level_and_below_go_by_the_differences_of_seeds(results: ModuleType) -> None:
    compare = importlib.import_module("runs_found").compare

    def seeds(*values: float) -> dict[int, float]:
        return dict(enumerate(values))

    assert compare(seeds(50.0, 50.2, 49.8), seeds(40.0, 40.1, 39.9)) == "above"
    assert compare(seeds(50.0, 55.0, 45.0), seeds(50.5, 53.0, 46.0)) == "level"
    assert compare(seeds(49.5, 54.4, 44.6), seeds(50.0, 55.0, 45.0)) == "below", "by little, but always"
    assert compare(seeds(10.0, 10.0, 10.0), seeds(10.0, 10.0, 10.0)) == "level"
    assert compare({0: 1.0, 1: 1.1, 7: 90.0}, {0: 2.0, 1: 2.1, 2: 3.0}) == "below", "seeds of both alone"


def test_fedceo_is_also_shown_where_it_was_not_just_smoothed(results: ModuleType) -> None:
    found = results.load()["paper/table1/mnist-mlp/sigma-2.0/fedceo"]
    run = found.done[0]
    at = {t: 100 * a for t, a in zip(run["curves"]["round"], run["curves"]["test_accuracy"], strict=True)}
    assert run["experiment"]["method"]["interval"] == 20
    assert found.unsmoothed()[0] == at[290] > 80 and at[300] < 20, "it comes back between smoothings"
    assert results.load()["paper/table1/mnist-mlp/sigma-2.0/udp-fedavg"].unsmoothed() == []
