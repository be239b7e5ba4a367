"""The page of derivations is numbered, cited by the code, and cites tests that exist."""

from pathlib import Path


def test_derivations_are_cited_by_code_and_tests_that_exist() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "derivations.md").read_text()
    numbers = [line.split(".")[0].removeprefix("## ") for line in page.splitlines() if line.startswith("## D")]
    assert numbers == [f"D{k}" for k in range(1, len(numbers) + 1)]
    source = "".join(file.read_text() for file in (root / "src").rglob("*.py"))
    tests = "".join(file.read_text() for file in (root / "tests").rglob("*.py") if file != Path(__file__))
    for number in numbers:
        assert f"{number})" in source or f"{number}," in source, number
    for name in page.replace("`", " ").replace(",", " ").split():
        if name.startswith("test_"):
            assert f"def {name}(" in tests, name
