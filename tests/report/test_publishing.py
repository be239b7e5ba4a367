"""Figures for papers: what is drawn, once, where it was measured; their names, limits, sizes and styles."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imsave

from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.experiment.method_table import known_methods, settings_of
from fedceo.report import by_name, figures
from fedceo.report.comparison import looks_of, named
from fedceo.report.loading import Group, load_runs
from fedceo.report.table import _sampling, paper_table
from fedceo.report.writers import to_markdown
from tests.support.made_runs import FREE, RISE, made_group

A = {0: 70.0, 1: 72.0, 2: 71.0}
B = {0: 70.5, 1: 72.6, 2: 71.4}


def lines(figure: Figure) -> dict[str, Any]:
    """The lines of the figure's only panel that are named in its legend."""
    return {str(line.get_label()): line for line in figure.axes[0].lines if not str(line.get_label()).startswith("_")}


def at(epsilon: float, accuracies: dict[int, float], method: str) -> Group:
    privacy = {"noise_multiplier": None, "target_epsilon": epsilon}
    return made_group(accuracies, method=method, epsilon=epsilon, privacy=privacy, name=f"{method}-{epsilon:g}")


def test_curves_are_marked_where_they_were_measured_and_zoom_to_the_data() -> None:
    figure = figures.accuracy_curves(named([made_group(A), made_group(B, method="fedceo")])).figure
    drawn = lines(figure)
    assert list(drawn) == ["UDP-FedAvg", "FedCEO"]
    assert drawn["FedCEO"].get_xdata().tolist() == [3, 6, 9, 12] and drawn["FedCEO"].get_marker() not in ("", "None")
    low, high = figure.axes[0].get_ylim()
    assert 50 < low < 56 and 72.6 < high < 80, "not 0 to 100"
    assert len(figure.axes[0].lines) == 2 and len(figure.axes[0].collections) == 2, "a line and a band each"


def test_one_seed_has_no_band() -> None:
    assert not figures.accuracy_curves([made_group({0: 70.0})]).figure.axes[0].collections


def test_a_single_measurement_is_a_dot() -> None:
    figure = figures.trade_off([at(2.0, A, "fedavg")]).figure
    container: Any = figure.axes[0].containers[0]
    assert container.lines[0].get_linestyle() == "None" and container.lines[0].get_xdata().tolist() == [2.0]
    assert not [line for line in figure.axes[0].lines if line.get_linestyle() != "None"], "nothing else is drawn"


def test_a_trade_off_has_a_line_for_each_method() -> None:
    groups = [
        at(e, {s: v + e for s, v in each.items()}, m)
        for e in (4.0, 1.0, 2.0)
        for m, each in (("fedavg", A), ("fedceo", B))
    ]
    drawing = figures.trade_off([*groups, made_group(A, privacy=FREE, epsilon=None)])
    assert drawing.data["UDP-FedAvg/x"].tolist() == [1.0, 2.0, 4.0]
    np.testing.assert_allclose(drawing.data["UDP-FedAvg/mean"], [72.0, 73.0, 75.0])
    np.testing.assert_allclose(drawing.data["FedCEO/sd"], np.std(list(B.values()), ddof=1))
    assert list(lines(drawing.figure)) == ["UDP-FedAvg", "FedCEO", "FedAvg, no privacy"]
    assert len(drawing.figure.axes[0].collections) == 2, "bands, and no bars beside them"


def test_a_method_has_its_colour_whoever_stands_beside_it() -> None:
    def colours(*methods: str) -> dict[str, int]:
        looks = looks_of([made_group(A, method=method) for method in methods])
        return {method: look[0] for method, look in zip(methods, looks, strict=True)}

    some = colours("centaur", "fedceo", "ditto", "fedavg")
    others = colours("fedavg", "dp-fed-ls", "ppsgd", "fedceo", "blur-lus", "centaur", "ditto")
    assert all(some[method] == others[method] for method in ("centaur", "fedceo", "fedavg"))
    assert len(set(others.values())) == len(others)
    free, private = looks_of([made_group(A, privacy=FREE, epsilon=None), made_group(A)])
    assert private[0] == some["fedavg"] != free[0]


def test_variants_of_a_method_share_its_colour_in_every_figure() -> None:
    groups = [made_group(A, method="fedceo", train={"learning_rate": 0.1}), made_group(A)]
    groups += [made_group(B, method="fedceo", train={"learning_rate": 0.01})]
    assert looks_of(groups) == [(0, 0), (1, 0), (0, 1)]
    colours = [line.get_color() for line in lines(figures.accuracy_curves(named(groups)).figure).values()]
    assert colours[0] == colours[2] != colours[1]
    dots = [
        line.get_color() for line in figures.forest(groups).figure.axes[0].lines if str(line.get_marker()) in ("o", "s")
    ]
    assert sorted(dots) == sorted(colours)


def test_the_forest_has_an_interval_for_each_but_the_best() -> None:
    drawing = figures.forest([made_group(A), made_group(B, method="fedceo"), made_group({0: 60.0}, method="fedprox")])
    assert drawing.data["FedCEO"].tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(drawing.data["UDP-FedAvg"], [-0.5, -0.7484, -0.2516], atol=1e-4)
    assert drawing.data["FedProx"][0] == -10.5 and np.isnan(drawing.data["FedProx"][1:]).all()
    with pytest.raises(UsageError, match="no setting has two experiments"):
        figures.forest([made_group(A)])


def test_limits_size_and_style(tmp_path: Path) -> None:
    from fedceo.report.style import restyled

    groups = [made_group(A)]
    drawing = figures.accuracy_curves(groups)
    for kind in ("pdf", "png", "svg"):
        drawing.save(tmp_path / f"f.{kind}", size=(3.3, 2.4), xlim=(0, 20), ylim=(50, 80))
    assert drawing.figure.axes[0].get_ylim() == (50, 80) and drawing.figure.get_size_inches().tolist() == [3.3, 2.4]
    first = (tmp_path / "f.pdf").read_bytes()
    drawing.save(tmp_path / "f.pdf")
    assert first == (tmp_path / "f.pdf").read_bytes(), "the same data give the same file"
    with restyled("grayscale"):
        assert figures.accuracy_curves(groups).figure.axes[0].get_facecolor() == (1, 1, 1, 1)
    (tmp_path / "mine.mplstyle").write_text("axes.facecolor: 000000\n")
    with restyled(str(tmp_path / "mine.mplstyle")):
        assert figures.accuracy_curves(groups).figure.axes[0].get_facecolor() == (0, 0, 0, 1)
    assert figures.accuracy_curves(groups).figure.axes[0].get_facecolor() == (1, 1, 1, 1)
    with pytest.raises(UsageError, match="expected a style sheet"), restyled("nowhere"):
        pass
    with pytest.raises(UsageError, match=r"expected a name that ends in \.pdf"):
        drawing.save(tmp_path / "f.gif")
    assert not (tmp_path / "f.gif").exists()


def test_every_name_of_the_paper_is_drawn(runs: Path, tmp_path: Path) -> None:
    one = load_runs([runs / "fedceo" / "seed-0"])
    for name in by_name.FIGURES:
        if name not in ("attack", "forest"):
            by_name.draw(name, by_name.Wanted(one)).save(tmp_path / f"{name}.svg")
    assert by_name.draw("smoothness", by_name.Wanted(one, round=4)).caption.startswith("Round 4,")
    with pytest.raises(UsageError, match="--round: 5 is not recorded, expected one of 4, 8"):
        by_name.draw("smoothness", by_name.Wanted(one, round=5))
    with pytest.raises(UsageError, match="RUN: 2 runs have recorded rounds, expected one"):
        by_name.draw("survivors", by_name.Wanted(load_runs([runs / "fedceo"])))
    with pytest.raises(UsageError, match="RUN: no round is recorded"):
        by_name.draw("class-bars", by_name.Wanted(load_runs([runs / "stopped"])))
    with pytest.raises(UsageError, match="attack: no run has one"):
        by_name.draw("attack", by_name.Wanted(one))
    with pytest.raises(UsageError, match="--measure: 'P', expected one of G, P-loc"):
        by_name.draw("accuracy", by_name.Wanted(one, measure="P"))
    tenth = by_name.draw("accuracy", by_name.Wanted(one, measure="worst")).data
    (mean,) = (values for name, values in tenth.items() if name.endswith("/mean"))
    measured = [100 * record[key] for record in one[0].history if (key := "distribution_accuracy_worst") in record]
    assert mean.tolist() == pytest.approx(measured) and len(measured), "the worst tenth of clients, by P-dist"


def test_attacks_are_drawn_from_their_files(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "free", tmp_path / "free")
    (tmp_path / "free" / "attack").mkdir()
    imsave(tmp_path / "free" / "attack" / "attack.png", np.zeros((4, 8, 3)))
    found = {"rows": [{"name": "attack", "holds": "T1", "psnr": {"value": 7.25}}]}
    (tmp_path / "free" / "attack" / "attack.json").write_text(json.dumps(found))
    drawing = by_name.draw("attack", by_name.Wanted(load_runs([tmp_path / "free"])))
    assert drawing.data["FedAvg, T1"].tolist() == [7.25]
    assert drawing.figure.axes[0].get_title(loc="left") == "FedAvg: T1, median PSNR 7.2 dB"
    (tmp_path / "free" / "attack" / "attack.json").write_text("{}")
    with pytest.raises(UsageError, match="not what fedceo attack --out writes"):
        by_name.draw("attack", by_name.Wanted(load_runs([tmp_path / "free"])))


def test_the_commands(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["fedceo", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0

    out = str(tmp_path / "f.pdf")
    where = [str(runs / "fedceo"), str(runs / "free")]
    assert (
        ends("figure", "accuracy", *where, "-o", out, "--name", "FedCEO=Ours", "--size", "3x2", "--ylim", "0,90") == 0
    )
    assert Path(out).read_bytes().startswith(b"%PDF")
    assert ends("figure", "accuracy", *where, "-o", str(tmp_path / "g.pdf"), "--ylim", "0") == 2
    assert ends("figure", "accuracy", *where, "-o", str(tmp_path / "g.pdf"), "--cell", "nothing") == 2
    assert ends("figure", "nothing", *where, "-o", str(tmp_path / "g.pdf")) == 2
    assert not (tmp_path / "g.pdf").exists()
    assert ends("table", *where, "-o", str(tmp_path / "t.tex"), "--cell", "fedceo") == 0
    assert "FedCEO &" in (tmp_path / "t.tex").read_text() and "FedAvg" not in (tmp_path / "t.tex").read_text()
    assert ends("table", *where, "-o", str(tmp_path / "t.doc")) == 2 and not (tmp_path / "t.doc").exists()


@pytest.mark.parametrize("width", [6.2, 3.3, 2.4])
def test_a_legend_is_no_wider_than_its_figure(width: float, tmp_path: Path) -> None:
    groups = named([made_group(A), made_group(B, method="fedceo")], ["FedCEO=A method with a long name"])
    drawing = figures.accuracy_curves(groups)
    drawing.save(tmp_path / "f.png", size=(width, 2.4))
    (legend,) = drawing.figure.legends
    assert len(legend.get_texts()) == 2
    assert legend.get_window_extent().width <= drawing.figure.bbox.width


def test_every_method_has_the_name_that_its_paper_gave_it() -> None:
    names = {name: settings_of(name).title for name in known_methods()}
    assert [name for name, title in names.items() if title == name] == []
    assert {"SCAFFOLD", "FedNova", "pFedMe", "FedRep"} <= set(names.values())


def test_a_caption_says_whose_epsilon_sampling_lowers() -> None:
    assert _sampling({("outsider", "fixed"), ("server", "none")}) == (
        "fixed sampling for the outsider, no amplification by sampling for the server"
    )
    assert _sampling({("outsider", "poisson"), ("server", "poisson")}) == "poisson sampling"


def of_rmse(errors: dict[int, float], method: str, name: str) -> Group:
    """An experiment whose runs, by seed, are measured by their RMSE."""
    group = made_group(dict.fromkeys(errors, 0.0), method=method, name=name)
    runs = []
    for run, error in zip(group.runs, errors.values(), strict=True):
        about = {"metric": "rmse", "lower_is_better": True}
        history = [about | {"round": t, "test_rmse": error * (2 - RISE[t])} for t in RISE]
        result = {key: value for key, value in (run.result or {}).items() if key != "accuracy"}
        runs.append(replace(run, history=history, result=result | about | {"rmse": {"last": error, "best": error}}))
    return Group(name, tuple(runs))


def test_the_lowest_error_is_the_best_in_tables_and_figures() -> None:
    groups = [of_rmse({0: 2.0, 1: 3.0}, "fedavg", "a"), of_rmse({0: 1.5, 1: 2.25}, "fedceo", "b")]
    text = to_markdown(paper_table(groups))
    assert "| method | last RMSE | difference |" in text and "| FedCEO | **1.875** ± 0.530 | - |" in text
    assert "| UDP-FedAvg | 2.500 ± 0.707 | +0.625 " in text
    assert "Last: test RMSE of the global model" in text and "Bold: the lowest mean." in text
    assert "%" not in text.replace("95 %", "") and "points" not in text and "accuracy" not in text
    curves = figures.accuracy_curves(groups)
    np.testing.assert_allclose(curves.data["b/mean"][-1], 1.875)
    assert curves.figure.axes[0].get_ylabel() == "test RMSE" and curves.caption.startswith("Test RMSE of the global")
    np.testing.assert_allclose(figures.forest(groups).data["UDP-FedAvg"][0], 0.625)
    assert figures.trade_off(groups).figure.axes[0].get_ylabel() == "last test RMSE"
