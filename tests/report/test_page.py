"""The page, parsed: the elements that must and must not be in it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import fedceo
from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder
from tests.support.edited_runs import edit_experiment, edit_result
from tests.support.made_runs import close_methods, made_group
from tests.support.parsed_page import Page
from tests.support.recorded_runs import TABLE

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from fedceo.report.page import render, write_report

NASTY = "<img src=x onerror=alert(1)> & </script><script>alert(2)</script>"


def page_of(paths: list[Path], tmp_path: Path) -> tuple[Page, str]:
    text = write_report(paths, tmp_path / "report.html").read_text(encoding="utf-8")
    return Page(text), text


def test_everything_is_there(runs: Path, tmp_path: Path) -> None:
    paths = [runs / "fedceo" / "seed-0", runs / "fedceo" / "seed-1", runs / "free"]
    page, _ = page_of(paths, tmp_path)
    for words in ("What was run", "G, last round", "G, unsmoothed", "P-loc", "P-glob", "anyone who sees the models",
                  "What each epsilon rests on", "Inside the rounds", "seconds a round", "Where the time went",
                  "privatising", "server step", "fedceo run", "Ran with fedceo"):  # fmt: skip
        assert words in page.words, words
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {"chart-accuracy-test", "chart-accuracy-personal"} <= ids
    assert len(ids) == len([1 for _, attributes in page.elements if "id" in attributes])
    assert len(page.all("img")) == 4 + 3 + 1  # without noise nothing survives a threshold; and the runtime
    assert all(picture["alt"] and str(picture["src"]).startswith("data:image/") for picture in page.all("img"))


def test_the_page_leads_with_the_answer() -> None:
    page = Page(render(close_methods()))
    first = page.words.split("What was run", 2)[1]
    assert "UDP-FedAvg is ahead of FedCEO, the next, by 0.35 points" in first and "chart-forest" in page.ids
    assert "All of them: regime user-level, distributed noise" in page.words
    one = Page(render(close_methods()[::3]))
    assert "Nobody can be called ahead" in one.words and "one seed has no interval" in one.words
    assert "The answer" not in Page(render(close_methods()[:3])).words, "of one experiment there is nothing to say"


def test_nothing_is_drawn_twice() -> None:
    ids = Page(render(close_methods())).ids
    assert {"chart-accuracy-test", "chart-forest", "chart-epsilon"} <= ids
    assert not {"chart-trade-off-epsilon", "chart-trade-off-sigma", "chart-accuracy-personal"} & ids


def test_no_epsilon_on_the_page_is_too_small() -> None:
    runs = [*made_group({0: 70.0}, epsilon=2.00101).runs, *made_group({0: 71.0}, method="fedceo", epsilon=1240.4).runs]
    words = Page(render(runs)).words
    assert " 2.01 " in words and " 1250 " in words and " 2 " not in words.split("epsilon is")[1][:40]


def test_a_results_file_has_a_page_but_no_public_one(runs: Path, tmp_path: Path) -> None:
    from fedceo.studies.cells import Cell
    from fedceo.studies.results import results_of

    folder = RunFolder(runs / "fedceo" / "seed-0")
    entries = results_of([Cell("mine", folder.experiment(), folder.path)], [folder.result()], {})
    (tmp_path / "results.json").write_text(json.dumps(entries))
    page, _ = page_of([tmp_path / "results.json"], tmp_path)
    assert "with the experiment file below" in page.words
    with pytest.raises(UsageError, match=r"--public: .* has no folder"):
        write_report([tmp_path / "results.json"], tmp_path / "public.html", public=True)


def test_rounds_and_spreads_are_named_where_there_are_any(runs: Path, tmp_path: Path) -> None:
    page, text = page_of([runs / "fedceo" / "seed-0", runs / "fedceo" / "seed-1"], tmp_path)
    assert "(round 6)" in page.words and "sd over seeds" in page.words
    assert '"dtick":1' in text, "rounds are whole numbers"
    page, text = page_of([runs / "fedceo" / "seed-0"], tmp_path)
    assert "(round 6)" in page.words and "sd over seeds" not in page.words and "± %{customdata" not in text


def test_where_nothing_was_smoothed_nothing_is_said_of_it(runs: Path, tmp_path: Path) -> None:
    page, _ = page_of([runs / "free"], tmp_path)
    assert "unsmoothed" not in page.words


@pytest.mark.parametrize("public", [False, True])
def test_an_average_stands_beside_the_last_model(tmp_path: Path, public: bool) -> None:
    table = {name: part for name, part in TABLE.items() if name != "record"} | {"release": {"average": "ema"}}
    run = fedceo.run(table, out=tmp_path / "run")
    text = write_report([tmp_path / "run"], tmp_path / "report.html", public=public).read_text(encoding="utf-8")
    words = Page(text).words
    assert "G, average" in words and f"{100 * run.result['accuracy']['average']:.2f}" in words


def test_it_needs_no_network(runs: Path, tmp_path: Path) -> None:
    page, text = page_of([runs / "fedceo" / "seed-0"], tmp_path)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "srcset"):
            assert not str(attributes.get(name) or "").startswith(("http", "//")), (tag, attributes)
    assert not page.all("link") and all("src" not in script for script in page.all("script"))
    assert "url(http" not in text and "@import" not in text
    policy = next(m for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none'")


def test_it_can_be_read_without_seeing(runs: Path, tmp_path: Path) -> None:
    page, _ = page_of([runs / "fedceo" / "seed-0", runs / "free"], tmp_path)
    assert page.all("html")[0]["lang"] == "en" and len(page.all("h1")) == 1 and len(page.all("main")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in cell for cell in page.all("th"))
    regions = [a for a in page.all("div") if a.get("role") == "region"]
    assert regions and all(a["tabindex"] == "0" and a["aria-label"] for a in regions)
    assert all(a["aria-label"] for a in page.all("div") if a.get("role") == "img")


def test_names_are_only_text(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / NASTY.replace("/", "%")
    shutil.copytree(runs / "fedceo" / "seed-0", folder)
    edit_experiment(folder, "seed = 0", f"seed = 0\nnote = {json.dumps(NASTY)}")
    page, text = page_of([folder, runs / "free"], tmp_path)
    assert "<img src=x" not in text and "<script>alert" not in text
    assert "<img src=x onerror=alert(1)>" in page.words
    plain, _ = page_of([runs / "fedceo" / "seed-0", runs / "free"], tmp_path)
    assert len(page.all("script")) == len(plain.all("script")) and len(page.all("img")) == len(plain.all("img"))


def test_an_unfinished_run_is_reported_as_such(runs: Path, tmp_path: Path) -> None:
    page, _ = page_of([runs / "stopped"], tmp_path)
    assert "unfinished, 4 of 8 rounds" in page.words and "fedceo run --resume" in page.words
    assert "No run is finished" in page.words
    both, _ = page_of([runs / "stopped", runs / "fedceo" / "seed-0"], tmp_path)
    assert "2 runs of 2 experiments" in both.words


def test_audit_and_attack_are_shown_where_they_are(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "free", folder)
    finding = {"check": "noise <b>", "measured": 1.01, "expected": "1", "passed": True}
    view = {"view": "average", "observer": "outsider", "verdict": "passed", "scores": 99, "claim": 0.5, "bound": 0.3}
    (folder / "audit.json").write_text(json.dumps({"refuted": False, "findings": [finding], "views": [view]}))
    estimate = {"value": 5.25, "low": 4.75, "high": 6.0}
    rows: list[dict[str, object]] = [{"name": "attack", "holds": "T1 <i>", "psnr": estimate, "label_hit": None}]
    (folder / "attack" / "one").mkdir(parents=True)
    (folder / "attack" / "one" / "attack.json").write_text(json.dumps({"attack": "dlg", "rows": rows}))
    (folder / "attack" / "one" / "control.png").write_bytes(b"png")
    page, _ = page_of([folder], tmp_path)
    assert "Nothing refuted, 1 of 1 views tested" in page.words and "noise <b> 1.01 1 yes" in page.words
    assert "5.25 (4.75 to 6)" in page.words and "T1 <i>" in page.words
    assert "Reconstructions, control: run, dlg, one" in [picture["alt"] for picture in page.all("img")]
    assert "control fails" not in page.words
    rows.append({"name": "control", "holds": "the same", "over_constant": {"value": 1.0, "low": -0.5, "high": 2.0}})
    (folder / "attack" / "one" / "attack.json").write_text(json.dumps({"attack": "dlg", "rows": rows}))
    few = {"refuted": False, "findings": [finding], "views": [view | {"verdict": "not testable"}]}
    (folder / "audit.json").write_text(json.dumps(few))
    page, _ = page_of([folder], tmp_path)
    assert "The control fails: without privacy the attack finds nothing here" in page.words
    assert "0 of 1 views tested: too few rounds; give more with --rounds" in page.words
    assert "othing refuted" not in page.words
    (folder / "attack" / "one" / "attack.json").write_text("{")
    with pytest.raises(UsageError, match=r"attack.json: not a JSON file"):
        page_of([folder], tmp_path)
    shutil.rmtree(folder / "attack")
    (folder / "audit.json").write_text("[]")
    with pytest.raises(UsageError, match=r"audit.json: not what fedceo privacy audit --json prints"):
        page_of([folder], tmp_path)


def test_what_cannot_be_reported_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run folder"):
        page_of([tmp_path], tmp_path)
    other = tmp_path / "other"
    shutil.copytree(runs / "free", other)
    edit_result(other, data="mnist")
    with pytest.raises(UsageError, match=r"its data is mnist, that of .* is digits; accuracies on different test sets"):
        page_of([runs / "free", other], tmp_path)
    edit_result(other, data="digits", test_digest="other")
    edit_experiment(other, "learning_rate = 0.1", "learning_rate = 0.2")
    assert "They have different test records" in page_of([runs / "free", other], tmp_path)[0].words
    (tmp_path / "report.html").unlink()
    RunFolder(other).save_result({"method": "fedavg"})
    with pytest.raises(UsageError, match=r"result.json: has no data, it is of another version"):
        page_of([other], tmp_path)
    with pytest.raises(UsageError, match="no such folder to save a report in"):
        write_report([runs / "free"], tmp_path / "nowhere" / "report.html")
    with pytest.raises(UsageError, match="is a folder"):
        write_report([runs / "free"], tmp_path)
    with pytest.raises(UsageError, match="observer: 'nobody', expected one of"):
        write_report([runs / "free"], tmp_path / "a.html", "nobody")
    assert not (tmp_path / "report.html").exists()


def test_the_command(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedceo", "report", str(runs / "free"), "-o", str(tmp_path / "one.html")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code and "one.html, " in capsys.readouterr().out and (tmp_path / "one.html").exists()


@pytest.mark.slow
def test_twenty_runs_fit_on_a_page(runs: Path, tmp_path: Path) -> None:
    first = runs / "fedceo" / "seed-0"
    for number in range(20):
        folder = tmp_path / f"run-{number}"
        shutil.copytree(first, folder)
        edit_experiment(folder, "strength = 5.0", f"strength = {number + 1}.0")
    page, text = page_of([tmp_path / f"run-{number}" for number in range(20)], tmp_path)
    assert "20 runs of 20 experiments" in page.words and len(text.encode()) < 12e6


def test_records_of_a_method_that_sends_a_part(tmp_path: Path) -> None:
    fedceo.run(TABLE | {"method": {"name": "centaur", "head_epochs": 1}}, out=tmp_path / "run")
    page, _ = page_of([tmp_path / "run"], tmp_path)
    assert "Inside the rounds" in page.words
