"""The views behind the rows: which exist, in which order they answer, and what one more of them takes."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedceo.accounting
from fedceo.accounting import reasons
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.plan import NoiseSite, Plan, Question, RecordSteps, noise_site_of
from fedceo.accounting.rows import account, answer
from fedceo.errors import UsageError
from tests.support.privacy_questions import question

ROOM = Path(fedceo.accounting.__file__).parent
STEPS = (RecordSteps(0.2, 5),)
FOUR = ["outsider", "participant", "server", "client"]


def observers(plan: Plan) -> list[str]:
    return [row.observer for row in account(plan)]


def test_rows_keep_their_order() -> None:
    assert observers(question().plan) == [*FOUR[:3], "paper"]
    personal = question(release="personalised", interval=10, rounds=20, sampling="poisson").plan
    assert observers(personal) == [*FOUR, "paper", "client if sizes were hidden"]
    assert observers(question(mechanism="none", release="stored").plan) == FOUR
    records = question(mechanism="record", record_steps=STEPS, participation_cap=60).plan
    assert observers(records) == [*FOUR[:3], "server", "server", "outsider"]


@pytest.mark.parametrize("mechanism", ["none", "distributed", "central", "record"])
@pytest.mark.parametrize("release", ["average", "personalised", "stored"])
@pytest.mark.parametrize("sigma", [0.0, 2.0])
def test_each_observer_has_exactly_one_view_that_answers(mechanism: str, release: str, sigma: float) -> None:
    asked = question(sigma, mechanism, release=release, interval=5, record_steps=STEPS)
    for observer in FOUR:
        views = [view() for view in VIEWS.values() if observer in view.observers and view.position == 0]
        found = [view for view in views if view.supports(asked, observer)]
        assert len(found) == (0 if observer == "client" and release == "average" else 1)


@pytest.fixture
def last_model() -> Iterator[str]:
    """An observer's row that is added in one place."""

    @VIEWS.register("last model", "the last average and nothing before it")
    class LastModel(View):
        observers = ("reader of the last model",)

        def supports(self, question: Question, observer: str) -> bool:
            return question.plan.protects_clients and question.plan.release == "average"

        def answer(self, question: Question, observer: str) -> Answer:
            return Answer(1.0, reasons.CLOSED_FORM, "sees one average")

    yield "reader of the last model"
    del VIEWS._things["last model"], VIEWS._descriptions["last model"]


def test_an_observer_is_added_by_registering_its_view(last_model: str) -> None:
    assert observers(question().plan) == [*FOUR[:3], last_model, "paper"]
    assert answer(question().plan, last_model).epsilon == 1.0
    with pytest.raises(UsageError, match="has no row for such a run"):
        answer(question(release="stored").plan, last_model)
    with pytest.raises(UsageError, match=f"expected one of outsider, participant, server, client, {last_model}"):
        answer(question().plan, "paper")


def test_noise_sites() -> None:
    names = {"none": "NOWHERE", "distributed": "UPLOADS", "central": "SUM", "record": "STEPS"}
    assert {name: noise_site_of(name) for name in names} == {name: NoiseSite[site] for name, site in names.items()}
    with pytest.raises(UsageError, match="mechanism: 'local', expected one of central, distributed, none, record"):
        noise_site_of("local")


@pytest.mark.parametrize("module", ["accounting.rows", "accounting.budget", "simulation.spending"])
def test_accounting_does_without_torch_and_methods(module: str) -> None:
    ask = (
        "from fedceo.accounting import Plan, account;"
        "account(Plan(20, 4, 5, 2.0, 1e-5, 'distributed', release='personalised', interval=2))"
    )
    code = f"import sys, fedceo.{module}; {ask}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" not in loaded
    assert module == "simulation.spending" or not any(name.startswith("fedceo.methods") for name in loaded)


def test_no_file_of_the_room_compares_the_name_of_a_mechanism() -> None:
    names = {"none", "distributed", "central", "record"}
    found = []
    for file in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Compare):
                sides = [side for part in (node.left, *node.comparators) for side in ast.walk(part)]
                found += [file.name for side in sides if isinstance(side, ast.Constant) and side.value in names]
    assert found == []
