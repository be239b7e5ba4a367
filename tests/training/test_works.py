"""Every kind of work that methods ask of local training beside plain SGD: the loop and the batch agree on it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedceo.models import build_model, parameters_of
from fedceo.tensors.weights import as_row
from fedceo.training.batched import step
from fedceo.training.batched.cohort import Cohort, Share
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.draws import HAS_TRITON
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.terms import ascent
from fedceo.training.work import ALL_RECORDS, RecordPrivacy, Work
from tests.support.small_federation import SIZES, SmallConv, federation


class Normed(nn.Module):
    """No chain of known layers, so that it goes through torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.norm(self.conv(x))).flatten(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": SmallConv,
    "torch.func": Normed,
    "masked": lambda: build_model("mlp", (1, 4, 4), 3, 0),
}
PLAIN = Work(2, 4, 0.1, 0.5)


def works(head: frozenset[str], body: frozenset[str]) -> dict[str, Work]:
    return {
        "proximal": replace(PLAIN, proximal=0.5),
        "anchored": replace(PLAIN, proximal=0.5),
        "shifted": replace(PLAIN, worth=7.0),
        "outside": replace(PLAIN, outside=0.5, outside_radius=0.05),
        "radius": replace(PLAIN, radius=0.05),
        "ascent": replace(PLAIN, ascent=0.1),
        "ascent of some": replace(PLAIN, ascent=0.1, only=body),
        "head": replace(PLAIN, only=head, phase=1),
        "body": replace(PLAIN, only=body),
        "adam": replace(PLAIN, momentum=0.0, optimizer="adam", learning_rate=0.01),
        "adam of some": replace(PLAIN, momentum=0.0, optimizer="adam", only=body, weight_decay=0.1),
        "adamw": replace(PLAIN, momentum=0.0, optimizer="adamw", weight_decay=0.1, proximal=0.1),
        "adamw of some": replace(PLAIN, momentum=0.0, optimizer="adamw", weight_decay=0.1, only=head),
        "decay": replace(PLAIN, weight_decay=0.1),
        "decay of some": replace(PLAIN, weight_decay=0.1, only=body),
        "one step": replace(PLAIN, steps=1, learning_rate=1.0, momentum=0.0),
        "all records": replace(PLAIN, batch_size=ALL_RECORDS),
    }


NAMES = tuple(works(frozenset(), frozenset()))
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a GPU")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("record", [None, RecordPrivacy(0.5, 0.3)], ids=["plain", "record"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_engines_agree(model: str, name: str, record: RecordPrivacy | None, device: str) -> None:
    torch.manual_seed(0)
    exact = device == "cpu"
    kind, module = torch.float64 if exact else torch.float32, MODELS[model]()
    context = TrainingContext(module.to(device, kind), federation(), Schedule(3), torch.device(device), kind)
    weights = parameters_of(context.model)
    last = list(weights)[-1].split(".")[0]
    head = frozenset(each for each in weights if each.split(".")[0] == last)
    work = replace(works(head, frozenset(weights) - head)[name], record=record)
    if name == "anchored":
        work = replace(work, anchor={each: 0.5 * w.expand(len(SIZES), *w.shape) for each, w in weights.items()})
    starts = {each: w.expand(len(SIZES), *w.shape).clone() for each, w in weights.items()}
    if name == "shifted":
        work = replace(
            work, shift={each: torch.linspace(-1, 1, w.numel()).view_as(w).to(w) for each, w in starts.items()}
        )
    one, other = (
        kind_of(context).train(starts, range(len(SIZES)), 2, work).weights for kind_of in (LoopTrainer, BatchedTrainer)
    )
    for each, w in one.items():
        assert torch.allclose(w, other[each], atol=1e-9 if exact else 1e-4), each
        if work.only is not None and each not in work.only:
            assert torch.equal(w, starts[each]) and torch.equal(other[each], starts[each])
    assert any(not torch.equal(w, starts[each]) for each, w in one.items())


def test_phases_of_a_round_have_batches_of_their_own() -> None:
    context = TrainingContext(SmallConv(), federation(), Schedule(3), torch.device("cpu"), torch.float32)
    first, second = (context.plan(0, 1, replace(PLAIN, phase=phase))[0] for phase in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first, context.plan(0, 1, PLAIN)[0])


def test_a_gradient_of_zero_has_no_direction_to_ascend() -> None:
    weights = as_row({name: w.detach() for name, w in parameters_of(SmallConv()).items()})[None]
    assert torch.equal(weights + ascent(replace(PLAIN, ascent=0.3), torch.zeros_like(weights)), weights)


@pytest.mark.parametrize("record", [None, RecordPrivacy(0.5, 0.3)], ids=["plain", "record"])
def test_only_clients_with_a_gradient_ascend(record: RecordPrivacy | None) -> None:
    context = TrainingContext(SmallConv(), federation(), Schedule(3), torch.device("cpu"), torch.float32)
    work = replace(PLAIN, ascent=0.3, record=record)
    starts = {name: w.expand(2, *w.shape) for name, w in parameters_of(context.model).items()}
    batches = context.batches((0, 1), 1, work)
    cohort = Cohort.of([Share(work, starts, batches, [1.0, 1.0])], context)
    uphill = cohort.gradients if record is None else cohort.noised
    assert uphill is not None
    uphill[0], uphill[1, : cohort.size] = 0.0, 2.0
    before = step.ascend(cohort, work)
    moved = (cohort.weights - before).norm(dim=1)
    assert moved[0] == 0 and float(moved[1]) == pytest.approx(0.3, rel=1e-4)


@pytest.mark.parametrize("record", [None, RecordPrivacy(1.0, 0.5)])
def test_a_batch_is_as_large_as_the_largest_client_at_most(record: RecordPrivacy | None) -> None:
    """A batch size of 10^15 would take petabytes if batches were filled up to it."""
    context = TrainingContext(SmallConv(), federation(), Schedule(0), torch.device("cpu"), torch.float32)
    begin = {name: w.unsqueeze(0) for name, w in parameters_of(context.model).items()}
    huge, enough = (
        LoopTrainer(context).train(begin, [2], 1, replace(PLAIN, batch_size=size, record=record))
        for size in (10**15, max(SIZES))
    )
    assert all(torch.equal(w, enough.weights[name]) for name, w in huge.weights.items())
