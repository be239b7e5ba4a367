"""The numbers in docs/scale.md are those that the benchmarks have written."""

from types import ModuleType

import pytest

from tests.support.page_programs import load_program


@pytest.fixture
def scale_page() -> ModuleType:
    return load_program("scale_page")


def test_the_page_says_what_was_measured(scale_page: ModuleType) -> None:
    text = scale_page.PAGE.read_text()
    assert text == scale_page.page(text), "run: python tools/pages/scale_page.py"
    assert all(
        f"<!-- begin {name} -->\n|" not in text and f"<!-- begin {name} -->" in text for name in scale_page.PARTS
    )


def test_the_parameters_of_lenet5_are_those_of_its_records(scale_page: ModuleType) -> None:
    from fedceo.models import build_model, parameters_of

    text = scale_page.PAGE.read_text()
    for shape in ((1, 28, 28), (3, 32, 32)):
        count = sum(w.numel() for w in parameters_of(build_model("lenet5", shape, 10, 0)).values())
        assert f"{count:,}" in text and " x ".join(map(str, shape)) in text


def test_units(scale_page: ModuleType) -> None:
    assert [scale_page.seconds(s) for s in (0.0021, 59.9, 7200, 4e5, 1e10)] == [
        "0.0021 s", "60 s", "2 h", "4.6 days", "317 years",
    ]  # fmt: skip
    assert scale_page.in_units(3.4e9, scale_page.SIZES) == "3.4 GB"
