"""The whole cohort at once is the same as one tensor after another."""

import pytest
import torch

from fedceo.tensors import fold, smooth, truncated_tsvd, unfold
from tests.tensors.strategies import make

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
SHAPES = {"fc1.weight": (200, 64, 10), "fc1.bias": (1, 64, 10), "fc2.weight": (64, 10, 10), "fc2.bias": (1, 10, 10)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threshold", [2.0, {"fc1.weight": 9.0, "fc1.bias": 1.0, "fc2.weight": 3.0, "fc2.bias": 0.0}])
def test_same_as_one_by_one(device: str, threshold: float | dict[str, float]) -> None:
    tensors = {name: make("signal and noise", shape, torch.float32, 1).to(device) for name, shape in SHAPES.items()}
    smoothed = smooth(tensors, threshold)
    assert list(smoothed) == list(tensors)
    for name, w in tensors.items():
        tau = threshold[name] if isinstance(threshold, dict) else threshold
        assert torch.equal(smoothed[name], truncated_tsvd(w, tau))


def test_equal_clients_above_every_other_frequency_stay_equal() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3).state_dict()
    models = [dict(model) for _ in range(4)]
    smoothed = unfold(smooth(fold(models), 1e-3), models)
    for other in smoothed[1:]:
        assert all(torch.allclose(other[name], smoothed[0][name]) for name in model)
    assert torch.allclose(smoothed[0]["weight"], model["weight"], atol=1e-3)
