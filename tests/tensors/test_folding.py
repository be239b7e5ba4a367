"""Models into tensors and back: the layout, the choice of layers, and nothing lost."""

import pytest
import torch
from torch import Tensor, nn

from fedceo.tensors import fold, select_layers, unfold


class Small(nn.Module):
    """One of every kind of parameter the layout speaks of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, (2, 5))
        self.norm = nn.BatchNorm2d(6)
        self.lstm = nn.LSTM(7, 4)
        self.fc = nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))


def cohort(k: int = 4) -> list[dict[str, Tensor]]:
    torch.manual_seed(0)
    return [dict(Small().state_dict()) for _ in range(k)]


def test_layout() -> None:
    models = cohort()
    folded = fold(models)
    shapes = {name: tuple(tensor.shape) for name, tensor in folded.items()}
    assert shapes["fc.weight"] == (8, 2, 4)
    assert shapes["fc.bias"] == (1, 2, 4)
    assert shapes["conv.weight"] == (3 * 2 * 5, 6, 4)
    assert shapes["lstm.weight_ih_l0"] == (7, 16, 4)
    assert shapes["lstm.weight_hh_l0"] == (4, 16, 4)
    assert shapes["scale"] == (1, 1, 4)
    assert "norm.num_batches_tracked" not in folded, "counters are not smoothed"
    for k, model in enumerate(models):
        assert torch.equal(folded["fc.weight"][:, :, k], model["fc.weight"].T)
        kernel = model["conv.weight"]
        for out, row, column, channel in ((0, 0, 0, 0), (5, 1, 4, 2), (3, 1, 0, 1)):
            row_of_slice = (column * 2 + row) * 3 + channel
            assert folded["conv.weight"][row_of_slice, out, k] == kernel[out, channel, row, column]


@pytest.mark.parametrize("layers", ["all", "last 1", ["fc.weight", "conv"]])
def test_round_trip_of_a_list(layers: str | list[str]) -> None:
    models = cohort()
    back = unfold(fold(models, layers), models)
    assert len(back) == len(models)
    for old, new in zip(models, back, strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) for name in old)
        Small().load_state_dict(new)


def test_round_trip_of_a_stack() -> None:
    models = cohort()
    stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    folded = fold(stacked)
    assert all(torch.equal(folded[name], tensor) for name, tensor in fold(models).items())
    back = unfold(folded, stacked)
    assert back.keys() == stacked.keys()
    assert all(torch.equal(back[name], stacked[name]) for name in stacked)


def test_what_was_not_chosen_is_left_alone() -> None:
    models = cohort()
    doubled = {name: 2 * tensor for name, tensor in fold(models, ["fc"]).items()}
    assert set(doubled) == {"fc.weight", "fc.bias"}
    for old, new in zip(models, unfold(doubled, models), strict=True):
        assert torch.equal(new["fc.bias"], 2 * old["fc.bias"])
        assert torch.equal(new["conv.weight"], old["conv.weight"])


def test_choice_of_layers() -> None:
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "scale"]
    assert select_layers(names) == names
    assert select_layers(names, "last 2") == ["fc3.weight", "scale"]
    assert select_layers(names, ["fc3", "fc1.bias"]) == ["fc1.bias", "fc3.weight"]


@pytest.mark.parametrize("layers", ["last 0", "last 9", "last", "first 2", "last x", ""])
def test_a_choice_that_means_nothing_is_refused(layers: str) -> None:
    with pytest.raises(ValueError, match='layers must be "all", "last 1" to "last 2", or a list'):
        select_layers(["a.weight", "b.weight"], layers)


def test_a_misspelt_layer_is_named() -> None:
    with pytest.raises(ValueError, match=r"'fc_3'.*did you mean 'fc3'"):
        select_layers(["fc3.weight", "fc3.bias"], ["fc_3"])


def test_models_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        fold([])
    with pytest.raises(ValueError, match=r"models\[1\] has other parameters"):
        fold([{"a": torch.ones(2)}, {"b": torch.ones(2)}])
    with pytest.raises(ValueError, match=r"models\[1\]\['a'\] has shape \(3,\), expected \(2,\)"):
        fold([{"a": torch.ones(2)}, {"a": torch.ones(3)}])
    with pytest.raises(ValueError, match="does not unfold"):
        unfold({"a": torch.ones(1, 3, 2)}, [{"a": torch.ones(2)}] * 2)
