"""The rules of the house that no linter knows: who may name a method or a mechanism, how large a file may be,
where tests lie and what they share."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedceo.experiment.method_table import known_methods
from fedceo.experiment.registry import MECHANISMS, METHODS, TASKS

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "fedceo"
SEAMS = {"fedceo.methods.base", "fedceo.methods.hosted", "fedceo.methods.server", "fedceo.mechanisms.base"} | {
    f"fedceo.mechanisms.{name}" for name in ("uploads", "clipping")
}
"""Modules of methods/ and mechanisms/ that hold no concrete one."""
MOST_LINES = 330


def files_outside(room: str) -> list[Path]:
    return [file for file in sorted(SOURCE.rglob("*.py")) if room not in file.relative_to(SOURCE).parts]


def constants(node: ast.AST) -> set[object]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}


def sites(tree: ast.AST, names: set[str], classes: set[str], room: str, word: str) -> Iterator[str]:
    """Every place that names a concrete class of the room, or compares, matches or sets one's name.

    Args:
        names, classes: those that are registered.
        word: of a comparison that speaks of the room's things, such as "mechanism".
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            concrete = {f"fedceo.{room}.{name.replace('-', '_')}" for name in names}
            if modules & concrete - SEAMS:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Name | ast.Attribute):
            if (node.id if isinstance(node, ast.Name) else node.attr) in classes:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Compare | ast.MatchValue):
            if constants(node) & names and word in ast.unparse(node):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            named = {
                value.value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
                and key.value in ("name", "mechanism")
                and isinstance(value, ast.Constant)
            }
            if len(keys & names) > 1 or named & names:
                yield f"{node.lineno}: {ast.unparse(node)[:80]}"


ROOMS = {"methods": (METHODS, "method"), "mechanisms": (MECHANISMS, "mechanism"), "tasks": (TASKS, "task")}


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_outside_names_one(room: str) -> None:
    registry, word = ROOMS[room]
    names = set(known_methods()) if room == "methods" else set(registry)
    classes = {registry[name].__name__ for name in names}
    found = [
        f"{file.relative_to(SOURCE)}:{site}"
        for file in files_outside(room)
        for site in sites(ast.parse(file.read_text()), names, classes, room, word)
    ]
    assert not found, "\n".join(found)


def test_the_walk_finds_what_it_looks_for() -> None:
    planted = """
from fedceo.methods.fedprox import FedProx
if experiment.privacy.mechanism == "central": ...
if mechanism in ("record", "none"): ...
isinstance(method, FedProx)
REGIMES = {"none": 1, "record": 2}
table = {"name": "fedprox"}
"""
    tree = ast.parse(planted)
    assert len(list(sites(tree, {"fedprox"}, {"FedProx"}, "methods", "method"))) == 3
    assert len(list(sites(tree, set(MECHANISMS), set(), "mechanisms", "mechanism"))) == 3
    innocent = ast.parse('values = {"record": 1}\nif section == "record": ...\nname = "fedceo"')
    assert not list(sites(innocent, set(MECHANISMS), set(), "mechanisms", "mechanism"))


def test_the_package_has_a_door_and_rooms() -> None:
    modules = [file.name for file in SOURCE.glob("*.py")]
    assert len(modules) <= 5, modules


def test_a_file_fits_in_a_head() -> None:
    files = [*SOURCE.rglob("*.py"), *TESTS.rglob("*.py")]
    long = {str(file): lines for file in files if (lines := len(file.read_text().splitlines())) > MOST_LINES}
    assert not long


def test_rooms_of_tests_are_rooms_of_the_package() -> None:
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert {folder.name for folder in TESTS.iterdir() if (folder / "__init__.py").exists()} - rooms == {
        "pages",
        "support",
    }


def test_tests_share_by_support_alone() -> None:
    found = []
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [
                f"{file.relative_to(TESTS)}: {module}"
                for module in modules
                if module.startswith("tests") and not module.startswith("tests.support")
            ]
    assert not found, "\n".join(found)
