"""The architectures: their parameters, shapes, learning, and refusals."""

from typing import Any

import pytest
import torch
from torch import nn

import fedceo
from fedceo.data import Source
from fedceo.data.sets import sent140
from fedceo.errors import UsageError
from fedceo.models import MODELS, build_model, check_model, parameters_of
from fedceo.models.lstm import LSTM, Layer
from fedceo.models.mlp import MLP
from fedceo.models.small_cnn import SmallCNN
from fedceo.training.schedule import Schedule


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts() -> None:
    assert size(build_model("lenet5", (3, 32, 32), 10, 0)) == 1_141_194
    assert size(build_model("mlp", (1, 28, 28), 37, 0)) == 784 * 64 + 64 * 37
    assert size(build_model("alexnet", (3, 32, 32), 10, 0)) == 2_472_266
    assert size(build_model("alexnet-a", (3, 32, 32), 10, 0)) == 23_272_266
    assert size(build_model("lstm", (25,), 2, 0)) == 164_692
    assert size(build_model("logistic", (1, 8, 8), 10, 0)) == 650
    assert size(build_model("small-cnn", (1, 8, 8), 10, 0)) == 6_090
    assert size(build_model("dlg-lenet", (3, 32, 32), 10, 0)) == 15_826
    assert all("bias" not in name for name, _ in build_model("mlp", (64,), 10, 0).named_parameters())


@pytest.mark.parametrize(
    "name, shape", [("mlp", (64,)), ("mlp", (1, 8, 8)), ("lenet5", (3, 32, 32)), ("lenet5", (1, 28, 28))]
)
def test_models_take_their_data_and_repeat(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape, 10, seed=4)
    check_model(model, shape, 10)
    again = build_model(name, shape, 10, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_dropout_comes_before_the_relu() -> None:
    model = build_model("mlp", (6,), 3, 0)
    assert isinstance(model, MLP)
    x, mask = torch.randn(5, 6), 2.0 * (torch.rand(5, 64) < 0.5)
    expected = model.hidden((model.input(x) * mask).relu())
    assert torch.equal(model(x, mask), expected)
    assert torch.equal(model(x), model.hidden(model.input(x).relu()))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not take records of shape \(7,\)"):
        check_model(nn.Linear(6, 3), (7,), 3)
    with pytest.raises(UsageError, match="expected 4 logits"):
        check_model(nn.Linear(6, 3), (6,), 4)
    with pytest.raises(UsageError, match="keeps running statistics"):
        check_model(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), (6,), 3)


def test_a_module_under_two_names_is_refused() -> None:
    """torch.func would exchange its weights twice and lose them; one without weights may be anywhere."""
    shared, relu = nn.Linear(6, 6), nn.ReLU()
    with pytest.raises(UsageError, match="0 and 2 are one module, expected one name"):
        check_model(nn.Sequential(shared, relu, shared, nn.Linear(6, 3)), (6,), 3)
    check_model(nn.Sequential(shared, relu, nn.Linear(6, 6), relu, nn.Linear(6, 3)), (6,), 3)


RECORDS = {
    "mlp": (1, 8, 8),
    "lenet5": (1, 16, 16),
    "alexnet": (3, 32, 32),
    "alexnet-a": (3, 32, 32),
    "lstm": (6,),
    "logistic": (1, 8, 8),
    "small-cnn": (1, 8, 8),
    "scattering": (1, 8, 8),
    "dlg-lenet": (1, 8, 8),
}


def learnable(name: str, records: int) -> Source:
    """Two classes that differ in brightness, or in which words are used."""
    rng = torch.Generator().manual_seed(0)
    shape, y = RECORDS[name], torch.arange(records) % 2
    if name == "lstm":
        x = torch.randint(1, 50, (records, *shape), generator=rng) + 50 * y[:, None]
        x = x.int() * (torch.arange(shape[0]) < torch.randint(2, 7, (records, 1), generator=rng))
    else:
        brightness = (2.0 * y - 1).view(-1, *(1,) * len(shape))
        x = brightness + torch.randn(records, *shape, generator=rng)
    return Source(name, x, y, x[: records // 2], y[: records // 2], classes=2)


def settings(name: str, clients: int, **sections: Any) -> dict[str, Any]:
    table: dict[str, dict[str, Any]] = {
        "data": {"name": "digits", "clients": clients, "validation": 0.0},
        "model": {"name": name},
        "cohort": {"size": clients},
        "train": {"rounds": 1, "local_epochs": 1, "batch_size": 4},
        "privacy": {"mechanism": "none"},
        "method": {"name": "fedavg"},
    }
    return {key: {**value, **sections.get(key, {})} for key, value in table.items()}


OF_OTHER_TASKS = {"char-lstm"}
"""Models that do not give logits of one label; tests/tasks tries them."""


def test_every_model_is_described_and_tried() -> None:
    assert MODELS.keys() == MODELS.descriptions.keys() == RECORDS.keys() | OF_OTHER_TASKS
    assert all(MODELS.descriptions.values())


@pytest.mark.parametrize("name", RECORDS)
def test_gradients_of_single_records_can_be_clipped(name: str) -> None:
    """Without noise and with a small clip the update is known: one step of lr along a sum of clipped gradients."""
    source = learnable(name, 4)
    privacy = {"mechanism": "record", "noise_multiplier": 0.0, "clip": 0.01}
    table = settings(name, 2, privacy=privacy, train={"learning_rate": 1.0, "batch_size": 2})
    run = fedceo.run(table, data=source)
    start = build_model(name, RECORDS[name], 2, Schedule(0).number("model"))
    moved = {key: run.weights[key] - p for key, p in parameters_of(start).items()}
    norm = sum(float(change.double().square().sum()) for change in moved.values()) ** 0.5
    assert 0 < norm <= 0.01 * (1 + 1e-3) and run.weights.keys() == parameters_of(start).keys()


@pytest.mark.parametrize(
    "name, rounds, rate", [("lstm", 6, 2.0), ("logistic", 2, 0.1), ("small-cnn", 3, 0.1), ("scattering", 3, 0.03)]
)
def test_models_learn(name: str, rounds: int, rate: float) -> None:
    table = settings(name, 2, train={"rounds": rounds, "local_epochs": 4, "batch_size": 8, "learning_rate": rate})
    result = fedceo.run(table, data=learnable(name, 40)).result
    assert result["accuracy"]["last"] >= 0.9


@pytest.mark.parametrize("name", ["alexnet", "alexnet-a"])
def test_the_large_ones_learn(name: str) -> None:
    """By themselves, because a step takes long."""
    source, model = learnable(name, 8), build_model(name, (3, 32, 32), 2, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(source.x), source.y).backward()
        optimizer.step()
    assert float((model(source.x).argmax(1) == source.y).float().mean()) >= 0.9


@pytest.mark.parametrize("activation, norm", [("tanh", None), ("relu", "group"), ("tanh", "group"), ("tanh", "none")])
def test_the_small_cnn_learns_with_other_activations_and_norms(activation: str, norm: str | None) -> None:
    chosen = {"name": "small-cnn", "activation": activation} | ({} if norm is None else {"norm": norm})
    table = settings("small-cnn", 2, model=chosen, train={"rounds": 3, "local_epochs": 4, "batch_size": 8})
    assert fedceo.run(table, data=learnable("small-cnn", 40)).result["accuracy"]["last"] >= 0.9


def test_settings_of_the_small_cnn_are_what_they_say() -> None:
    shape, x = (1, 8, 8), torch.randn(3, 1, 8, 8)
    plain = build_model("small-cnn", shape, 10, 0)
    assert plain.state_dict().keys() == build_model("small-cnn", shape, 10, 0, {"norm": "none"}).state_dict().keys()
    model = build_model("small-cnn", shape, 10, 0, {"activation": "tanh", "norm": "group"})
    assert isinstance(model, SmallCNN) and model.norms is not None
    pool = torch.nn.MaxPool2d(2)
    hidden = pool(torch.tanh(nn.functional.group_norm(model.conv1(x), 4)))
    hidden = pool(torch.tanh(nn.functional.group_norm(model.conv2(hidden), 8)))
    assert torch.allclose(model(x), model.fc(hidden.flatten(1)), atol=1e-6)


def test_an_lstm_layer_is_torchs() -> None:
    torch.manual_seed(0)
    oracle, layer = nn.LSTM(7, 5, batch_first=True), Layer(7, 5)
    assert all(p.abs().max() <= 5**-0.5 for p in layer.parameters()) and layer.weight_ih.abs().max() > 0.4
    layer.load_state_dict({name.removesuffix("_l0"): value for name, value in oracle.state_dict().items()})
    x = torch.randn(3, 9, 7)
    torch.testing.assert_close(layer(x), oracle(x)[0])


def test_the_lstm_reads_the_last_real_token() -> None:
    model = build_model("lstm", (6,), 2, 0)
    short, long = torch.tensor([[5, 9, 3, 0, 0, 0]]), torch.tensor([[5, 9, 3]])
    torch.testing.assert_close(model(short), build_model("lstm", (3,), 2, 0)(long))
    assert not torch.equal(model(short), model(torch.tensor([[5, 9, 0, 0, 0, 0]])))
    assert model(torch.zeros(1, 6, dtype=torch.int64)).isfinite().all(), "a text without a token"


def test_the_table_of_the_lstm_is_no_parameter_and_always_the_same() -> None:
    first, second = (build_model("lstm", (25,), 2, seed) for seed in (0, 1))
    assert isinstance(first, LSTM) and isinstance(second, LSTM)
    table = first.embedding.table
    assert torch.equal(table, second.embedding.table) and not table[0].any()
    assert not any("embedding" in name for name in [*parameters_of(first), *first.state_dict()])
    assert table.shape == (sent140.BUCKETS + 1, 100) and sent140.PADDING == 0


def test_tokens_are_for_the_lstm_alone() -> None:
    check_model(build_model("lstm", (25,), 2, 0), (25,), 2, torch.int64)
    with pytest.raises(UsageError, match="does not take records"):
        check_model(build_model("logistic", (25,), 2, 0), (25,), 2, torch.int64)
    for name, shape, words in [
        ("lstm", (1, 8, 8), "rows of tokens"),
        ("alexnet", (1, 28, 28), "images of 32x32"),
        ("alexnet-a", (3, 64, 64), "images of 32x32"),
        ("small-cnn", (1, 3, 3), "at least 4x4"),
    ]:
        with pytest.raises(UsageError, match=words):
            build_model(name, shape, 10, 0)
