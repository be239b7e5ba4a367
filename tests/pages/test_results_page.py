"""docs/results.md says what the files in results/ say, and each run can be traced to a cell of an experiment file."""

import importlib
import json
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedceo.experiment.file import Experiment
from fedceo.studies.cells import find_experiments

ROOT = Path(__file__).resolve().parents[2]
RUN_OTHERWISE = {
    "note": ..., "seed": ..., "checkpoint": ..., "evaluation": ..., "train": {"learning_rate", "tf32"},
    "data": {"path", "root"},
}  # fmt: skip
"""Fields that may differ from the experiment file: how it was run, and the learning rate, which was tuned."""
TRIALS = {"paper": 4, "beyond": 8, "beyond/features": 25, "silos": 20, "silos/alpha": 4, "silos/alpha-mean": 4}
TRIALS |= {"paper/user/heterogeneity": 8, "paper/user/cifar10-lenet5": 4, "paper/fair": 8}
TRIALS |= {f"beyond/features/{name}/without-privacy": 5 for name in ("cifar10-1000", "femnist-1000")}  # no clip to try
TRIALS["beyond/features/cifar10-10000"] = 9
GROWN = ("beyond/features/", "silos/")
"""Tables whose rows are tried further while their best values are at an end of what was tried."""
TUNED = {
    "beyond": {"privacy": {"clip"}},
    "paper/user": {"train": {"learning_rate", "server_learning_rate"}, "method": {"strength", "ratio", "interval"}},
    "paper/fair": {"train": {"learning_rate"}, "method": {"strength", "ratio", "interval", "restart"}},
    "silos": {"method": {"alpha", "head_learning_rate", "home_rounds", "personal_learning_rate", "strength"}},
}
"""What else was tuned, by the first part of a cell's name, or by two."""


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools" / "pages")
    return importlib.import_module("results")


def test_the_page_is_what_the_script_writes(results: ModuleType) -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results.page(), "run: python tools/pages/results.py"


def test_the_page_on_what_reproduces_is_what_its_script_writes(results: ModuleType) -> None:
    reproduces = importlib.import_module("reproduces")
    assert (ROOT / "docs" / "what-reproduces.md").read_text() == reproduces.page(), (
        "run: python tools/pages/reproduces.py"
    )


LENET5 = "paper/table1/cifar10-lenet5/sigma"


def test_what_the_pages_say_in_words_follows_from_the_numbers(results: ModuleType) -> None:
    cells, paper = results.load(), results.ACCURACY
    thrice = ("paper/heterogeneity/", "paper/table1/cifar10-lenet5/")  # the tables of which the words speak
    both = {name: found for name, found in cells.items() if name in paper and name.startswith(thrice)}
    compare = importlib.import_module("runs_found").compare

    def against_udp(name: str) -> str:
        udp = f"{name.rpartition('/')[0]}/udp-fedavg"
        return str(compare(cells[name].by_seed("last"), cells[udp].by_seed("last")))

    outcomes = {name: against_udp(name) for name in both if name.endswith("/fedceo")}
    assert [outcomes[f"{LENET5}-{sigma}/fedceo"] for sigma in ("1.0", "1.5", "2.0")] == ["open", "above", "below"]
    mlp = [outcome for name, outcome in outcomes.items() if "heterogeneity" in name]
    assert sorted(mlp) == ["below"] * 3 + ["open"] * 3
    assert all(cells[name].unsmoothed() == [] for name, outcome in outcomes.items() if outcome == "below")
    assert [against_udp(f"{LENET5}-{sigma}/fedceo-ratio-1") for sigma in ("1.0", "1.5", "2.0")] == [
        "open", "above", "above"
    ]  # fmt: skip
    above_udp = [("1.5", "fedceo", 1.1, 16), ("1.5", "fedceo-ratio-1", 0.25, 15), ("2.0", "fedceo-ratio-1", 3, 11)]
    for sigma, method, points, of_paper in above_udp:
        ours, other = (f"{LENET5}-{sigma}/{name}" for name in (method, "udp-fedavg"))
        gain = statistics.fmean(cells[ours].percent("last")) - statistics.fmean(cells[other].percent("last"))
        assert gain == pytest.approx(points, rel=0.2)
        assert paper[ours] - paper[other] == pytest.approx(of_paper, abs=0.6)
    better = [statistics.fmean(found.percent("last")) - paper[name] for name, found in both.items() if "/udp-" in name]
    assert sum(gain > 0 for gain in better) == 8 and round(max(better)) == 20
    assert all(len(found.done) == 3 for found in both.values())
    above, open_, below = (
        sum(counts) for counts in zip(*(results.tally(both, m, "udp-fedavg") for m in results.FEDCEO), strict=True)
    )
    assert above < open_ + below and below >= 3, "the README: small or absent in most, behind in several"


def test_what_they_say_of_rates_chosen_by_whole_runs_follows_too(results: ModuleType) -> None:
    found = importlib.import_module("runs_found")
    whole, cells = found.load(found.FINALISTS), results.load()
    udp, *fedceo = (whole[f"{LENET5}-1.0/{method}"] for method in ("udp-fedavg", "fedceo", "fedceo-ratio-1"))
    assert len(whole) == 3 and all(len(each.done) == 3 for each in whole.values())
    assert [found.compare(each.by_seed("last"), udp.by_seed("last")) for each in fedceo] == ["open", "open"]
    assert abs(statistics.fmean(udp.percent("last")) - results.ACCURACY[f"{LENET5}-1.0/fedceo"]) < 1, "comes near"
    assert {run["experiment"]["train"]["learning_rate"] for each in whole.values() for run in each.done} == {0.03}
    lasts = cells[f"{LENET5}-1.0/udp-fedavg"].by_seed("last")
    assert lasts[0] == min(lasts.values()), "the seed of stored is its worst"
    for method in ("udp-fedavg", "fedceo", "fedceo-ratio-1"):
        less, more = whole[f"{LENET5}-1.0/{method}"], cells[f"{LENET5}-1.5/{method}"]
        assert statistics.fmean(less.percent("last")) > statistics.fmean(more.percent("last")), "less noise is ahead"


def test_what_they_say_of_rates_follows_too(results: ModuleType) -> None:
    cells, paper, found = results.load(), results.ACCURACY, importlib.import_module("runs_found")
    for method in ("udp-fedavg", "centaur", "fedceo-ratio-1", "fedceo"):
        cell = cells[f"{LENET5}-1.0/{method}"]
        assert {run["experiment"]["train"]["learning_rate"] for run in cell.done} == {0.1}
        assert statistics.fmean(cell.percent("best")) > statistics.fmean(cell.percent("last")) + 3, "it falls again"
    steady = cells[f"{LENET5}-1.0/ppsgd"]
    assert {run["experiment"]["train"]["learning_rate"] for run in steady.done} == {0.01}
    assert all(run["result"]["accuracy"]["best_round"] > 200 for run in steady.done), "PPSGD does not fall so early"
    assert {
        run["experiment"]["train"]["learning_rate"] for name in ("udp-fedavg", "centaur", "fedceo", "fedceo-ratio-1")
        for run in cells[f"{LENET5}-1.5/{name}"].done
    } == {0.03}  # fmt: skip

    def trial(name: str, rate: float) -> float:
        return 100 * next(t["validation_accuracy"] for t in found.trials_of(name) if t["train.learning_rate"] == rate)

    for name in paper:
        if name.endswith("/fedceo") and name in cells:
            gap = abs(trial(name, 0.1) - trial(name.replace("/fedceo", "/udp-fedavg"), 0.1))
            assert gap < (0.5 if "heterogeneity" in name else 2), "about the same at that rate"
    shards = [f"paper/heterogeneity/non-iid/sigma-{sigma}/udp-fedavg" for sigma in ("1.0", "1.5", "2.0")]
    for rate in (0.003, 0.01, 0.03, 0.1):
        assert max(abs(trial(name, rate) - paper[name]) for name in shards) > 2, "no single rate gives all three"
    outcomes = {
        (sigma, cell): found.compare(
            cells[f"modes/cifar10-mlp/sigma-{sigma}/{mode},train.learning_rate=0.01"].by_seed("last"),
            cells[f"paper/heterogeneity/iid/sigma-{sigma}/{cell}"].by_seed("last"),
        )
        for sigma in ("1.0", "1.5", "2.0")
        for mode, cell in (("udp-fedavg", "udp-fedavg"), ("own", "fedceo"))
    }
    assert [key for key, outcome in outcomes.items() if outcome == "above"] == [("2.0", "udp-fedavg")]


def test_what_they_say_of_restarts_follows_too(results: ModuleType) -> None:
    cells, paper, reproduces = results.load(), results.ACCURACY, importlib.import_module("reproduces")

    def at(sigma: str, mode: str, rate: str) -> float:
        found = cells[f"modes/cifar10-mlp/sigma-{sigma}/{mode},train.learning_rate={rate}"].at(reproduces.BETWEEN)
        assert sorted(found) == [0, 1, 2]
        return statistics.fmean(found.values())

    for sigma in ("1.0", "1.5", "2.0"):
        udp, fedceo = (paper[f"paper/heterogeneity/iid/sigma-{sigma}/{method}"] for method in ("udp-fedavg", "fedceo"))
        assert abs(at(sigma, "udp-fedavg", "0.1") - udp) < 1 and abs(at(sigma, "udp-fedavg", "0.01") - udp) > 3
        assert abs(at(sigma, "stored", "0.1") - fedceo) < 1.2
        mean, width = reproduces.lead(cells, sigma, "stored", "0.1")
        assert mean > width and mean > 0.45 * (fedceo - udp), "a good part of the lead"
        for mode in ("own", "mean", "slot"):
            assert abs(at(sigma, mode, "0.1") - at(sigma, "udp-fedavg", "0.1")) < 0.3, "no lead"
        bare, width = reproduces.lead(cells, sigma, "stored-unsmoothed", "0.1")
        assert bare > width and abs(bare - mean) < 0.1, "the restart's lead, not the smoothing's"
        mean, width = reproduces.lead(cells, sigma, "stored", "0.01")
        assert mean < -width, "gone"
        last_udp = cells[f"modes/cifar10-mlp/sigma-{sigma}/udp-fedavg,train.learning_rate=0.1"].percent("last")
        best_fedceo = cells[f"modes/cifar10-mlp/sigma-{sigma}/stored,train.learning_rate=0.1"].percent("best")
        assert abs(statistics.fmean(last_udp) - udp) < 0.75 and abs(statistics.fmean(best_fedceo) - fedceo) < 0.75
        lenet5 = cells[f"modes/cifar10-lenet5/sigma-{sigma}/stored,train.learning_rate=0.1"]
        of_paper = paper[f"{LENET5}-{sigma}/fedceo"]
        assert max(lenet5.percent("best")) < of_paper - 3, "not out"


@pytest.mark.parametrize("kind", ["", ".finalists", ".whole"])
def test_every_run_is_of_the_cell_of_its_name(results: ModuleType, kind: str) -> None:
    cells = find_experiments(ROOT / "experiments", [])
    for name, found in results.load(kind).items():
        parts = [name.partition("/")[0], "/".join(name.split("/")[:2])]
        otherwise = RUN_OTHERWISE | next((TUNED[part] for part in reversed(parts) if part in TUNED), {})
        exclude: Any = {part: True if fields is ... else fields for part, fields in otherwise.items()}
        cell = cells[name.partition(",")[0]]  # behind a comma stands what --grid has changed
        file = cell.model_dump(exclude=exclude, exclude_none=True)
        for run in found.runs:
            said = Experiment.model_validate(run["experiment"])
            assert said.model_dump(exclude=exclude, exclude_none=True) == file, name
            assert said.seed == run["seed"]
            assert {"machine", "versions", "date"} <= set(run["result"])


@pytest.mark.parametrize("kind", ["", ".finalists"])
def test_what_was_tuned_is_what_the_trials_favour(results: ModuleType, kind: str) -> None:
    for name, found in results.load(kind).items():
        if name.startswith(("modes/", "paper/runtime/", "paper/intervals/")) or "/literal/" in name:
            continue  # nothing is chosen there
        folders = [parent.as_posix() for parent in Path(name).parents]
        folder = next(f for f in folders if (ROOT / "results" / f"{f}{kind}.trials.json").exists())
        trials = json.loads((ROOT / "results" / f"{folder}{kind}.trials.json").read_text())
        trials = trials[name.removeprefix(f"{folder}/")]
        expected = next(TRIALS[each] for each in folders if each in TRIALS)
        grows = name.startswith(GROWN)
        assert len(trials) >= expected if grows else len(trials) == expected, "as many as every other method had"
        best = importlib.import_module("runs_found").chosen(trials)
        for run in found.runs:
            for field in best.keys() - {"validation_accuracy", "at_full_length", "folder"}:
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


def test_a_rival_with_two_rates_counts_with_what_its_trials_favour(results: ModuleType) -> None:
    favoured = importlib.import_module("runs_found").favoured
    assert favoured("paper/table1/cifar10-lenet5/sigma-2.0/ppsgd").endswith("/ppsgd"), "39.0 against 34.7"
    assert favoured("beyond/femnist-1000/epsilon-8/central/ppsgd").endswith("/ppsgd-fixed-rate")
    assert favoured("nowhere/fedavg") == "nowhere/fedavg"


def test_seeds_far_apart_are_given_each(results: ModuleType) -> None:
    assert results.spread([50.0, 51.0]) == "50.50 ± 0.71" and results.spread([50.0]) == "50.00 (one seed)"
    assert results.spread([6.45, 57.19, 6.45]) == "23.36 (seeds: 6.5, 57.2, 6.5)"


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


def test_above_open_and_below_go_by_the_differences_of_seeds(results: ModuleType) -> None:
    compare = importlib.import_module("runs_found").compare

    def seeds(*values: float) -> dict[int, float]:
        return dict(enumerate(values))

    assert compare(seeds(50.0, 50.2, 49.8), seeds(40.0, 40.1, 39.9)) == "above"
    assert compare(seeds(50.0, 55.0, 45.0), seeds(50.5, 53.0, 46.0)) == "open"
    assert compare(seeds(49.5, 54.4, 44.6), seeds(50.0, 55.0, 45.0)) == "below", "by little, but always"
    assert compare(seeds(10.0, 10.0, 10.0), seeds(10.0, 10.0, 10.0)) == "open"
    assert compare({0: 1.0, 1: 1.1, 7: 90.0}, {0: 2.0, 1: 2.1, 2: 3.0}) == "below", "seeds of both alone"


def test_fedceo_is_also_shown_where_it_was_not_just_smoothed(results: ModuleType) -> None:
    found = results.load()["paper/table1/mnist-mlp/sigma-2.0/fedceo"]
    run = found.done[0]
    at = {t: 100 * a for t, a in zip(run["curves"]["round"], run["curves"]["test_accuracy"], strict=True)}
    assert run["experiment"]["method"]["interval"] == 20
    assert found.unsmoothed()[0] == at[290] > 80 and at[300] < 20, "it comes back between smoothings"
    assert results.load()["paper/table1/mnist-mlp/sigma-2.0/udp-fedavg"].unsmoothed() == []
