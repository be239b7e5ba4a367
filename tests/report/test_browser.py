"""The page in a real browser: charts drawn, nothing fetched, nothing complained of, everything within a key's reach."""

import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from fedceo.report.page import render, write_report
from tests.support.edited_runs import edit_experiment
from tests.support.made_runs import close_methods

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def page_file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    paths = [runs / "fedceo" / "seed-0", runs / "fedceo" / "seed-1", runs / "free", runs / "stopped"]
    return write_report(paths, tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens(browser: Any, page_file: Path, size: dict[str, int], scheme: str, tmp_path: Path) -> None:
    page = browser.new_page(viewport=size, color_scheme=scheme)
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_file.as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plotly-graph-div')].map(d => d.querySelectorAll('.trace').length)"
    )
    assert drawn and all(drawn)
    pictures = page.evaluate("[...document.images].map(i => i.naturalWidth)")
    assert pictures and all(pictures)
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == [] and complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    page.close()


def test_methods_within_a_point_are_told_apart(browser: Any, tmp_path: Path) -> None:
    """Dots of the forest and ends of the curves are five pixels apart or more, and full scale is a click away."""
    (tmp_path / "close.html").write_text(render(close_methods()), encoding="utf-8")
    page = browser.new_page(viewport=DESKTOP)
    page.goto((tmp_path / "close.html").as_uri())
    page.wait_for_function("document.querySelectorAll('#chart-forest .point').length == 4")
    ends = """id => [...document.querySelectorAll(`#${id} .scatterlayer .trace`)]
        .map(trace => [...trace.querySelectorAll('.point')].pop()).filter(point => point)
        .map(point => point.getBoundingClientRect()).map(b => [b.x + b.width / 2, b.y + b.height / 2])"""
    across = sorted(x for x, _ in page.evaluate(ends, "chart-forest"))
    down = sorted(y for _, y in page.evaluate(ends, "chart-accuracy-test"))
    assert len(across) == len(down) == 4
    assert min(b - a for places in (across, down) for a, b in pairwise(places)) >= 5
    spans = "document.getElementById('chart-accuracy-test').layout.yaxis.range"
    zoomed = page.evaluate(spans)
    button = page.locator("[data-chart=chart-accuracy-test]")
    button.click()
    page.wait_for_function(f"{spans}[1] == 100")
    assert page.evaluate(spans) == [0, 100] and button.get_attribute("aria-pressed") == "true"
    button.click()
    page.wait_for_function(f"{spans}[1] != 100")
    assert page.evaluate(spans) == zoomed
    page.close()


def test_the_keyboard_reaches_everything(browser: Any, page_file: Path) -> None:
    page = browser.new_page(viewport=DESKTOP)
    page.goto(page_file.as_uri())
    wanted = page.evaluate("document.querySelectorAll('a, summary, [tabindex=\"0\"]').length")
    closed = page.evaluate("document.querySelectorAll('details :is(a, [tabindex=\"0\"])').length")
    seen = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(seen) >= wanted - closed
    page.close()


@pytest.mark.slow
def test_twenty_runs_open_quickly(browser: Any, runs: Path, tmp_path: Path) -> None:
    for number in range(20):
        shutil.copytree(runs / "fedceo" / "seed-0", tmp_path / f"run-{number}")
        edit_experiment(tmp_path / f"run-{number}", "strength = 5.0", f"strength = {number + 1}.0")
    file = write_report([tmp_path / f"run-{number}" for number in range(20)], tmp_path / "report.html")
    page = browser.new_page(viewport=DESKTOP)
    start = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    print(f"20 runs opened in {time.perf_counter() - start:.2f} s")
    page.close()
