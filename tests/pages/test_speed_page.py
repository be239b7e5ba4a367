"""The numbers in docs/speed.md are those that the benchmarks have written."""

from tests.support.page_programs import load_program


def test_the_page_says_what_was_measured() -> None:
    speed_page = load_program("speed_page")
    assert speed_page.PAGE.read_text() == speed_page.page(), "run: python tools/pages/speed_page.py"
