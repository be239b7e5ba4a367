"""Runs that cannot be compared, by the records that they saw and not by their names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedceo.errors import UsageError
from fedceo.report.comparable import warnings
from fedceo.report.loading import Group, group_runs, load_runs
from tests.support.edited_runs import edit_experiment, edit_result
from tests.support.made_runs import FREE, made_group


def page_warnings(runs: Path, tmp_path: Path, toml: tuple[str, str] = ("", ""), **result: Any) -> list[str]:
    """The warnings for the run `free` and a copy of `fedceo/seed-0` with another line in its experiment or results."""
    other = tmp_path / "other"
    shutil.copytree(runs / "fedceo" / "seed-0", other)
    edit_experiment(other, *toml)
    edit_result(other, **result)
    return warnings(group_runs(load_runs([runs / "free", other])))


def test_methods_on_the_same_data_can_be_compared(runs: Path, tmp_path: Path) -> None:
    assert page_warnings(runs, tmp_path) == []


def test_seeds_draw_other_partitions_of_the_same_data(runs: Path) -> None:
    paths = [runs / "fedceo" / "seed-0", runs / "fedceo" / "seed-1", runs / "free", runs / "stopped"]
    loaded = load_runs(paths)
    digests = [run.result["data_digest"] for run in loaded if run.result]
    assert digests[0] != digests[1] and digests[0] == digests[2]
    assert len({run.result["test_digest"] for run in loaded if run.result}) == 1
    assert warnings(group_runs(loaded)) == []


@pytest.mark.parametrize(
    ("toml", "result", "words"),
    [
        (("", ""), {"test_digest": "0" * 64}, "free against other. They have different test records, so their accur"),
        (("", ""), {"data_digest": "0" * 64}, "They have different training data, so a difference in accuracy is not"),
        (('partition = "iid"', 'partition = "shards"'), {}, "different training data (data.partition)"),
        (('name = "mlp"', 'name = "logistic"'), {"model": "logistic"}, "different models (model.name)"),
        (("", ""), {"model": "MyOwn"}, "different models, so"),
    ],
)
def test_what_differs_is_named(
    runs: Path, tmp_path: Path, toml: tuple[str, str], result: dict[str, Any], words: str
) -> None:
    (sentence,) = page_warnings(runs, tmp_path, toml, **result)
    assert sentence.startswith("Cannot be compared: ") and words in sentence


def test_a_run_that_notes_no_digest_is_judged_by_its_settings(runs: Path, tmp_path: Path) -> None:
    assert page_warnings(runs, tmp_path, test_digest=None, data_digest=None) == []


def test_runs_of_another_model_or_test_set_are_no_seeds_of_one_experiment(runs: Path, tmp_path: Path) -> None:
    first, second = runs / "fedceo" / "seed-0", tmp_path / "other"
    for changed in ({"model": "MyOwn"}, {"test_digest": "0" * 64}, {"own_model": [0.1, 0.2]}):
        shutil.copytree(runs / "fedceo" / "seed-1", second)
        edit_result(second, **changed)
        assert [len(group.runs) for group in group_runs(load_runs([first, second]))] == [1, 1], changed
        shutil.rmtree(second)


def test_a_seed_counts_once(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedceo" / "seed-0", tmp_path / "again")
    (group,) = group_runs(load_runs([runs / "fedceo" / "seed-0", tmp_path / "again", runs / "fedceo" / "seed-1"]))
    assert [run.path.name for run in group.runs] == ["seed-0", "seed-1"]


def test_a_folder_of_runs_stands_for_all_of_them(runs: Path) -> None:
    assert [run.path for run in load_runs([runs / "fedceo"])] == [runs / "fedceo" / f"seed-{n}" for n in (0, 1)]
    assert len(load_runs([runs, runs / "free"])) == 4, "each once"
    with pytest.raises(UsageError, match="nothing-here: not a run folder"):
        load_runs([runs / "nothing-here"])


def test_a_loaded_run_shows_itself(runs: Path) -> None:
    (run,) = load_runs([runs / "free"])
    assert repr(run).startswith("<LoadedRun free: fedavg, finished, test accuracy ")
    assert run._repr_html_().startswith(f"<div>{repr(run)[1:-1]}</div><svg ")


def test_accuracies_at_other_epsilons_are_not_at_the_same_privacy(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs / "fedceo" / "seed-0", other)
    edit_experiment(other, "strength = 5.0", "strength = 6.0")
    noted = json.loads((other / "result.json").read_text())
    for factor, words in ((1.0, []), (2.0, ["Not at the same privacy: an outsider's epsilon is "])):
        rows = [row | {"epsilon": row["epsilon"] and factor * row["epsilon"]} for row in noted["privacy"]]
        edit_result(other, privacy=rows)
        found = warnings(group_runs(load_runs([runs / "fedceo" / "seed-0", other, runs / "free"])))
        assert [sentence[: len(words[0])] for sentence in found] == words


def test_methods_compared_at_each_of_several_epsilons_are_at_the_same_privacy() -> None:
    def at(epsilon: float, method: str, spent: float) -> Group:
        privacy = {"noise_multiplier": None, "target_epsilon": epsilon}
        return made_group({0: 70.0}, method=method, name=f"{method} {epsilon}", epsilon=spent, privacy=privacy)

    groups = [at(epsilon, method, epsilon) for epsilon in (2.0, 8.0) for method in ("fedavg", "fedceo")]
    assert warnings([*groups, made_group({0: 90.0}, privacy=FREE, epsilon=None)]) == []
    (sentence,) = warnings([*groups[:3], at(8.0, "fedceo", 9.0)])
    assert "8 (fedavg 8.0), 9 (fedceo 8.0)." in sentence and "2.0" not in sentence
    assert len(warnings(groups[:3])) == 1, "one of them has no rival at its epsilon but those at others"
