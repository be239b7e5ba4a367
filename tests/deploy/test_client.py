"""A node's messages hold the privatised upload and nothing else, whatever the app inside does."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedceo.deploy.client import NodeError, PrivacyMod, client_app
from fedceo.deploy.messages import RefusedError, Ticket, ask, pack
from fedceo.deploy.records import dealt_records, own_records
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.training.schedule import Schedule
from tests.support.flower_grid import experiment

Weights = dict[str, torch.Tensor]

START = {"a": torch.randn(40, 30, generator=torch.Generator().manual_seed(0)), "b": torch.zeros(7)}
CONTEXT = Context(1, 7, {"partition-id": 2}, RecordDict(), {})


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def message(kind: str = "train", weights: Weights | None = None, client: int = 2, capped: bool = False) -> Message:
    found = ask(kind, 7, Ticket.issue(5, client), 60.0, START if weights is None else weights, capped)
    found.metadata.__dict__["_message_id"] = "a message"
    return found


def app_around(inside: Callable[[Message, Context], Message], mod: PrivacyMod) -> ClientApp:
    app = ClientApp(mods=[mod])
    app.train()(inside)
    app.evaluate()(inside)
    app.query()(inside)
    return app


def trained(change: float) -> Callable[[Message, Context], Message]:
    """Moves every entry, and tells all it can."""

    def inside(message: Message, context: Context) -> Message:
        moved = {name: w + change for name, w in message.content.array_records["arrays"].to_torch_state_dict().items()}
        content = RecordDict({"weights": pack(moved), "m": MetricRecord({"loss": 0.1, "num-examples": 17})})
        content["notes"] = ConfigRecord({"name": "Ada"})
        return Message(content, reply_to=message)

    return inside


def update(reply: Message) -> Weights:
    found = reply.content.array_records["arrays"].to_torch_state_dict()
    return {name: found[name] - w for name, w in START.items()}


def norm(tensors: Weights) -> float:
    return float(sum(t.double().square().sum() for t in tensors.values()) ** 0.5)


def quiet(**fields: Any) -> Experiment:
    return experiment(privacy={"noise_multiplier": 0.0} | fields)


def test_only_the_upload_and_the_ticket_leave() -> None:
    asked = message()
    reply = app_around(trained(0.1), PrivacyMod(experiment()))(asked, CONTEXT)
    assert set(reply.content) == {"arrays", "config"}
    assert set(reply.content.array_records["arrays"]) == {"a", "b"}
    config = dict(reply.content.config_records["config"])
    assert config == {"round": 5, "client": 2, "nonce": asked.content.config_records["config"]["nonce"]}


def test_updates_are_clipped_to_c_times_the_step() -> None:
    given = experiment(privacy={"noise_multiplier": 0.0, "clip": 0.5}, train={"server_learning_rate": 0.25})
    long = app_around(trained(10.0), PrivacyMod(given))(message(), CONTEXT)
    assert math.isclose(norm(update(long)), 0.5 * 0.25, rel_tol=1e-4)
    short = app_around(trained(1e-3), PrivacyMod(given))(message(), CONTEXT)
    assert math.isclose(norm(update(short)), 0.25e-3 * 1207**0.5, rel_tol=1e-3)


def test_noise_has_the_share_of_min_reports_and_is_never_the_same() -> None:
    given = experiment(privacy={"noise_multiplier": 3.0, "clip": 2.0, "min_reports": 2})
    app = app_around(trained(0.0), PrivacyMod(given))
    drawn = [torch.cat([u.flatten() for u in update(app(message(), CONTEXT)).values()]) for _ in range(8)]
    std = 3.0 * 2.0 / 2**0.5
    total = float(torch.cat(drawn).square().sum()) / std**2  # chi square with 8 * 1207 degrees of freedom
    assert abs(total - 8 * 1207) < 6 * (2 * 8 * 1207) ** 0.5
    correlations = torch.corrcoef(torch.stack(drawn)) - torch.eye(8)
    assert float(correlations.abs().max()) < 6 / 1207**0.5


def test_no_message_node_setting_or_environment_fixes_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEED", "PYTHONHASHSEED", "FEDCEO_SEED", "FEDCEO_NOISE"):
        monkeypatch.setenv(name, "0")
    mod = PrivacyMod(experiment())
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        asked = message()
        words: dict[str, int | float | str] = {
            "seed": 0,
            "noise": "seeded",
            "noise-multiplier": 0.0,
            "randomness": "seeded",
            "clip": 1e9,
        }
        asked.content.config_records["config"].update(words)
        context = Context(1, 7, {"partition-id": 2, **words}, RecordDict(), dict(words))
        found.append(update(app_around(trained(0.0), mod)(asked, context))["a"])
    assert float((found[0] - found[1]).abs().min(dim=0).values.max()) > 0
    assert float(found[0].std()) > 0.1


def test_an_injected_source_repeats_the_noise_of_the_simulator() -> None:
    mod = PrivacyMod(experiment(), noise=Schedule(3))
    one, two = (update(app_around(trained(0.0), mod)(message(), CONTEXT)) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_an_update_that_is_no_number_becomes_noise_alone(broken: float) -> None:
    found = update(app_around(trained(broken), PrivacyMod(quiet()))(message(), CONTEXT))
    assert norm(found) == 0.0


def test_a_client_at_its_cap_sends_noise_without_training() -> None:
    def never(message: Message, context: Context) -> Message:
        raise AssertionError

    reply = app_around(never, PrivacyMod(quiet()))(message(capped=True), CONTEXT)
    assert norm(update(reply)) == 0.0


def test_an_exception_says_nothing_of_the_records(caplog: pytest.LogCaptureFixture) -> None:
    def failing(message: Message, context: Context) -> Message:
        raise ValueError("record 17 of Ada Lovelace")

    for kind in ("train", "evaluate"):
        with pytest.raises(NodeError) as told:
            app_around(failing, PrivacyMod(experiment()))(message(kind), CONTEXT)
        assert "Ada" not in str(told.value)
        assert told.value.__suppress_context__
    assert "Ada" in caplog.text


def test_an_evaluation_answers_that_it_was_done_and_no_more() -> None:
    reply = app_around(trained(0.1), PrivacyMod(experiment()))(message("evaluate"), CONTEXT)
    assert set(reply.content) == {"config"} and set(reply.content.config_records["config"]) == {
        "round",
        "client",
        "nonce",
    }


def test_a_message_for_another_client_is_not_answered() -> None:
    with pytest.raises(NodeError, match="asked as client 1"):
        app_around(trained(0.1), PrivacyMod(experiment()))(message(client=1), CONTEXT)


@pytest.mark.parametrize("config", [{}, {"partition-id": "two"}, {"partition-id": -1}, {"partition-id": True}])
def test_a_node_must_know_its_number(config: dict[str, Any]) -> None:
    with pytest.raises(NodeError, match="partition-id"):
        PrivacyMod(experiment())(message(), Context(1, 7, config, RecordDict(), {}), trained(0.0))


def test_what_the_app_returns_must_fit() -> None:
    def nothing(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    def smaller(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": pack({"a": START["a"][:3], "b": START["b"]})}), reply_to=message)

    with pytest.raises(NodeError, match="0 array records"):
        app_around(nothing, PrivacyMod(experiment()))(message(), CONTEXT)
    with pytest.raises(RefusedError, match="expected float32"):
        app_around(smaller, PrivacyMod(experiment()))(message(), CONTEXT)


def test_a_node_holds_its_own_records_alone() -> None:
    given = experiment(data={"local_test": 0.2})
    mine = dealt_records(given, 3)
    assert mine.clients == 5
    assert mine.sizes.tolist() == [0, 0, 0, len(mine.y), 0]
    assert 0 < len(mine.test_y) < len(mine.y)


@pytest.mark.parametrize("client", [-1, 5])
def test_a_number_outside_the_federation_is_refused(client: int) -> None:
    with pytest.raises(UsageError, match="partition-id: "):
        dealt_records(experiment(), client)
    with pytest.raises(UsageError, match="partition-id: "):
        own_records(torch.zeros(3, 4), torch.zeros(3), client=client, clients=5, classes=2)


def test_own_records_are_checked() -> None:
    with pytest.raises(UsageError, match="labels from 0 to 1"):
        own_records(torch.zeros(3, 4), torch.tensor([0, 1, 2]), client=0, clients=5, classes=2)


def test_the_node_says_its_accuracy_to_its_own_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    given = experiment(data={"local_test": 0.2})
    app = client_app(given, lambda client: dealt_records(given, client))
    from fedceo.models import build_model, parameters_of

    weights = parameters_of(build_model("mlp", (1, 8, 8), 10, 0))
    with caplog.at_level("INFO", "flwr"):
        reply = app(message("evaluate", weights), CONTEXT)
    assert set(reply.content) == {"config"}
    assert "own records" in caplog.text
