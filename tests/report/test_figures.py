"""Figures, by the arrays they draw."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedceo.errors import UsageError
from fedceo.report import figures
from fedceo.report.loading import differences
from fedceo.simulation.clock import PARTS
from fedceo.simulation.recording import Recording

RNG = torch.Generator().manual_seed(3)


def recording(
    *, clients: int = 5, noise: float = 0.2, threshold: float = 3.0, smooth: float = 0.1, round_: int = 10
) -> Recording:
    """A common matrix in all clients, noise on top of it, and a smoothed stage with little left of the noise."""
    common = {"a.weight": torch.randn(8, 12, generator=RNG), "b.weight": torch.randn(4, 8, generator=RNG)}
    extra = {name: torch.randn(clients, *w.shape, generator=RNG) for name, w in common.items()}
    stages = {"trained": 0.01, "uploaded": noise, "smoothed": smooth * noise}
    return Recording(
        round=round_,
        clients=tuple(range(10, 10 + clients)),
        noise=noise,
        thresholds=dict.fromkeys(common, threshold),
        stacks={s: {name: w + scale * extra[name] for name, w in common.items()} for s, scale in stages.items()},
        accuracy={s: torch.full((clients, 4), a) for s, a in zip(stages, (0.9, 0.5, 0.85), strict=True)},
    )


def test_smoothness_is_the_laplacian_form() -> None:
    found = recording()
    data = figures.smoothness(found).data
    w = found.stacks["uploaded"]["b.weight"].double().numpy()
    m = len(w)
    laplacian = np.eye(m) - (np.ones((m, m)) - np.eye(m)) / (m - 1)
    for c in range(4):
        slow = [sum(np.sum((w[k, c] - w[j, c]) ** 2) for j in range(m)) / (2 * (m - 1)) for k in range(m)]
        np.testing.assert_allclose(data["raw"][1, c], slow)
        np.testing.assert_allclose(data["raw"][1, c].sum(), np.trace(w[:, c].T @ laplacian @ w[:, c]))
    size = (w**2).sum(2).mean(0)
    np.testing.assert_allclose(data["relative"][1], data["raw"][1] / size[:, None])
    before, noised, after = data["relative"].mean((1, 2))
    assert noised > after > before


def test_scaling_all_weights_changes_raw_alone() -> None:
    found = recording()
    half = {stage: {name: w / 2 for name, w in layers.items()} for stage, layers in found.stacks.items()}
    smaller = Recording(found.round, found.clients, found.noise, found.thresholds, half, found.accuracy)
    one, other = figures.smoothness(found).data, figures.smoothness(smaller).data
    np.testing.assert_allclose(other["raw"], one["raw"] / 4, rtol=1e-5)
    np.testing.assert_allclose(other["relative"], one["relative"], rtol=1e-5)


def test_equal_models_have_a_picture_too() -> None:
    drawing = figures.smoothness(recording(smooth=0.0, noise=0.0))
    assert np.isfinite(drawing.data["relative"]).all() and "<svg" in drawing.svg()


def test_class_bars_mark_what_fell() -> None:
    data = figures.class_bars(recording(), clients=[11, 14]).data
    assert data["accuracy"].shape == (3, 2, 4)
    assert not data["marked"][0].any() and data["marked"][1].all() and not data["marked"][2].any()
    with pytest.raises(UsageError, match="clients: 3 was not in round 10"):
        figures.class_bars(recording(), clients=[3])


def test_singular_values_threshold_and_edge() -> None:
    found = recording()
    data = figures.singular_values(found).data
    sum_of_all = found.stacks["uploaded"]["a.weight"].sum(0)
    np.testing.assert_allclose(data["values"][0], torch.linalg.svdvals(sum_of_all).numpy(), rtol=1e-4)
    assert data["values"].shape == (3, 8)
    assert data["threshold"] == [3.0]
    np.testing.assert_allclose(data["edge"], [0.2 * 5**0.5 * (12**0.5 + 8**0.5)])
    assert data["values"][1:].max() < 1.2 * data["edge"][0] < data["values"][0].max()


def test_survivors_count_what_is_above() -> None:
    found = [recording(threshold=t, round_=r) for r, t in ((5, 0.0), (10, 5.0), (15, 1e6))]
    data = figures.survivors(found).data
    assert data["rounds"].tolist() == [5, 10, 15]
    assert data["counts"][:, 0].tolist() == [8, 8, 8] and data["counts"][:, 2].tolist() == [0, 0, 0]
    assert data["counts"][0, 1] > data["counts"][1:, 1].max()


def test_survivors_of_cohorts_of_different_sizes() -> None:
    counts = figures.survivors([recording(clients=5), recording(clients=8)]).data["counts"]
    assert counts.shape == (5, 2) and np.isnan(counts[3:, 0]).all() and not np.isnan(counts[:, 1]).any()


def test_what_was_not_recorded_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'c' was not recorded in round 10; there are: a.weight, b.weight"):
        figures.smoothness(recording(), "c")
    never = Recording(1, (1, 2), 0.0, {}, {"uploaded": {}}, {"uploaded": torch.zeros(2, 3)})
    with pytest.raises(UsageError, match="none of the recorded rounds smooths"):
        figures.survivors([never])
    with pytest.raises(UsageError, match="one client alone"):
        figures.smoothness(recording(clients=1))


def test_a_real_run_has_its_direct_component_far_above(runs: Path) -> None:
    files = sorted((runs / "fedceo" / "seed-0" / "records").iterdir())
    values = figures.singular_values(figures.read_recording(files[-1])).data["values"]
    assert values[0].max() > 2 * values[1:].max()


def test_curves_are_means_over_seeds(runs: Path) -> None:
    paths = [runs / "fedceo" / "seed-0", runs / "fedceo" / "seed-1", runs / "free"]
    groups = figures.group_runs(figures.load_runs(paths))
    assert [(group.name, len(group.runs)) for group in groups] == [("fedceo", 2), ("free", 1)]
    data = figures.accuracy_curves(groups).data
    assert data["fedceo/rounds"].tolist() == [2, 4, 6, 8]
    each = [[100 * r["test_accuracy"] for r in run.history if "test_accuracy" in r] for run in groups[0].runs]
    np.testing.assert_allclose(data["fedceo/mean"], np.mean(each, 0))
    np.testing.assert_allclose(data["fedceo/sd"], np.std(each, 0, ddof=1))
    assert not data["free/sd"].any()


def test_trade_off_and_runtime(runs: Path) -> None:
    groups = figures.group_runs(figures.load_runs([runs / "fedceo" / "seed-0", runs / "free"]))
    run = groups[0].runs[0]
    assert run.result is not None
    (method,) = (name.removesuffix("/x") for name in figures.trade_off(groups).data if name.endswith("/x"))
    assert method == "FedCEO"
    server = figures.trade_off(groups, observer="server").data[f"{method}/x"]
    rows = {row["observer"]: row["epsilon"] for row in run.result["privacy"]}
    assert server.tolist() == [rows["server"]]
    by_noise = figures.trade_off(groups, against="sigma").data
    assert by_noise[f"{method}/x"].tolist() == [0.5] and by_noise["free/level"] == groups[1].accuracies("last")
    runtime = figures.runtime(groups).data
    np.testing.assert_allclose(runtime["seconds"][0], run.result["seconds"] / 8)
    by_part = dict(zip((*PARTS, "the rest"), runtime["parts"][:, 0], strict=True))
    assert by_part["recording"] == run.result["seconds_by_part"]["recording"] / 8 and min(by_part.values()) > 0
    with pytest.raises(UsageError, match="no finished run has a finite epsilon"):
        figures.trade_off(groups[1:])


def test_differences_are_named(runs: Path) -> None:
    groups = figures.group_runs(figures.load_runs([runs / "fedceo" / "seed-0", runs / "free"]))
    found = differences(groups)
    assert found["method.name"] == ["fedceo", "fedavg"] and found["method.interval"] == ["4", "-"]
    assert "data.name" not in found and "record.every" not in found


def test_the_same_data_give_the_same_svg() -> None:
    found = recording()
    assert figures.singular_values(found).svg() == figures.singular_values(found).svg()


def test_the_picture_of_a_partition() -> None:
    from tests.support.small_federation import SIZES, federation

    drawing = figures.partition(federation())
    assert drawing.data["counts"].sum(1).tolist() == list(SIZES) and "4 clients hold 5 to 21 records" in drawing.caption
    assert "<svg" in drawing.svg()


def test_the_grid_of_an_attack() -> None:
    from fedceo.attacks import Attack, run_study
    from fedceo.experiment.file import parse_experiment
    from fedceo.simulation.preparing import prepare
    from tests.support.recorded_runs import TABLE

    simulation = prepare(parse_experiment(TABLE | {"model": {"name": "dlg-lenet"}}))
    study = run_study(simulation, Attack("dlg", iterations=1, restarts=1), "T1", [3, 4], control=False)
    drawing = figures.attack_grid(study)
    assert drawing.data["steps"].tolist() == [0, 1] and drawing.data["found"].shape == (2, 2, 1, 8, 8)
    np.testing.assert_array_equal(drawing.data["truth"], simulation.federation.x[[3, 4]].numpy())
    assert "dlg on digits, attack: T1" in drawing.caption and len(drawing.figure.axes) == 2 * 3
