"""Steps in coordinates of a client's records are those of the loop; their noise has the law of noise on all weights."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedceo.training.batched import rotation
from fedceo.training.batched.rotation import Basis, Kept, Rotation
from fedceo.training.batched.tracing import read_chain
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.noise import RecordNoise
from fedceo.training.work import RecordPrivacy, Work
from tests.support.linear_models import FEATURES, Deep, context, data, linear, watched
from tests.support.small_federation import federation
from tests.support.trainers import difference, starts

SIZES = (9, 4, 12, 1)
QUIET, LOUD = RecordPrivacy(0.5, 0.0), RecordPrivacy(0.5, 2.0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return watch(monkeypatch)


def watch(patch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of clients that are trained in coordinates of their records from now on, call by call."""
    return watched(patch, Rotation, "turn")


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    epochs=st.integers(2, 4),
    batch=st.integers(1, 14),
    model=st.sampled_from([linear(), linear(bias=False), Deep(), Deep(bias=False)]),
    momentum=st.sampled_from([0.0, 0.5]),
    proximal=st.sampled_from([0.0, 0.3]),
    record=st.sampled_from([None, QUIET]),
    is_anchored=st.booleans(),
    beside=st.sampled_from([{}, {"ascent": 0.4}, {"radius": 0.05}, {"outside": 0.7, "outside_radius": 0.02}]),
)
def test_without_noise_it_gives_what_the_loop_gives(
    sizes: list[int],
    epochs: int,
    batch: int,
    model: nn.Module,
    momentum: float,
    proximal: float,
    record: RecordPrivacy | None,
    is_anchored: bool,
    beside: dict[str, float],
) -> None:
    """Clients of any sizes, who begin at different models, are pulled to others, climb or are kept near."""
    here, clients = context(model, data(tuple(sizes))), range(len(sizes))
    begin = starts(here.model, len(sizes))
    anchor = {name: w.flip(0) + 0.1 for name, w in begin.items()} if is_anchored else None
    work = Work(epochs, batch, 0.3, momentum=momentum, proximal=proximal, record=record, anchor=anchor)
    work = work if record or anchor else replace(work, **beside)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch)
        found = BatchedTrainer(here).train(begin, clients, 2, work)
    assert sum(seen) == (0 if work.is_bare else len(sizes))
    wanted = LoopTrainer(here).train(begin, clients, 2, work)
    assert difference(found.weights, wanted.weights) <= 1e-10
    assert torch.allclose(found.losses, wanted.losses, atol=1e-10)


@pytest.mark.parametrize("layers", [("first",), ("first", "last")])
def test_layers_that_stay_are_not_moved(layers: tuple[str, ...], seen: list[int]) -> None:
    here = context(Deep(), data(SIZES))
    names = frozenset(name for name, _ in here.model.named_parameters() if name.split(".")[0] in layers)
    begin, work = starts(here.model, 4), Work(3, 4, 0.3, record=QUIET, only=names)
    found, wanted = (trainer(here).train(begin, range(4), 1, work) for trainer in (BatchedTrainer, LoopTrainer))
    assert seen
    assert difference(found.weights, wanted.weights) <= 1e-10
    assert all(torch.equal(w, begin[name]) for name, w in found.weights.items() if name not in names)


def test_a_client_that_holds_a_record_twice_trains_on_both(seen: list[int]) -> None:
    """Its records span fewer directions than they are many."""
    some = data((6, 9))
    doubled = replace(some, train=[torch.tensor([0, 1, 1, 2, 1]), some.train[1]])
    here = context(linear(), doubled)
    begin, work = starts(here.model, 2), Work(3, 3, 0.3, momentum=0.5, record=QUIET)
    found, wanted = (trainer(here).train(begin, [0, 1], 1, work) for trainer in (BatchedTrainer, LoopTrainer))
    assert seen
    assert difference(found.weights, wanted.weights) <= 1e-10


@pytest.mark.parametrize("model", [linear(), linear(bias=False), Deep()])
@pytest.mark.parametrize("is_anchored", [False, True])
def test_the_noise_of_every_step_is_where_it_says(model: nn.Module, is_anchored: bool) -> None:
    """All steps in coordinates of the data, with the same numbers as noise on the weights.

    What a step draws lies along the client's records; the noise along other directions, on which nothing depends, is
    that of all steps in one: the answer of a momentum buffer and a pull to unit noise in each, by simulation.
    """
    here = context(model, data(SIZES))
    begin, clients = starts(here.model, 4), range(4)
    anchor = {name: w.flip(0) + 0.1 for name, w in begin.items()} if is_anchored else None
    work = Work(3, 4, 0.3, momentum=0.5, proximal=0.4, record=LOUD, anchor=anchor)
    found = BatchedTrainer(here).train(begin, clients, 2, work).weights
    for client in clients:
        naive = NaiveSteps(here, client, work.of(slice(client, client + 1)))
        wanted = naive.trained({name: w[client] for name, w in begin.items()})
        assert difference({name: w[client] for name, w in found.items()}, wanted) <= 1e-10


class NaiveSteps:
    """DP-SGD of one client with autograd, a record at a time, on whole weights."""

    def __init__(self, here: TrainingContext, client: int, work: Work) -> None:
        self.here, self.work, self.client = here, work, client
        self.batches, self.masks = here.plan(client, 2, work)
        self.mine = here.federation.train[client]
        self.names = [name for name, _ in here.model.named_parameters()]
        self.first = [name for name in self.names if name.startswith(self.names[0].rpartition(".")[0] + ".")]
        self.has_bias = len(self.first) == 2
        x = here.inputs_of(self.mine).flatten(1)
        self.x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) if self.has_bias else x

    def trained(self, start: dict[str, Tensor]) -> dict[str, Tensor]:
        work, model = self.work, self.here.model
        noise = RecordNoise([(self.here.schedule, 2, [self.client])], *CPU, "turned noise")
        assert work.record
        anchor = start if work.anchor is None else {name: w[0] for name, w in work.anchor.items()}
        outputs, features = start[self.first[0]].shape[0], self.x.shape[1]
        others = {name: start[name].numel() for name in self.names if name not in self.first}
        across = noise.draw(0, outputs * features).view(outputs, features)
        basis = torch.linalg.qr(self.x.T)[0].T
        across = across - across @ basis.T @ basis
        weights = {name: w.clone() for name, w in start.items()}
        momenta = {name: torch.zeros_like(w) for name, w in start.items()}
        deviation = work.record.noise_multiplier * work.record.clip
        divisor = self.here.expected_batch(self.client, work)
        for step, row in enumerate(self.batches):
            sums = {name: torch.zeros_like(w) for name, w in weights.items()}
            for place, record in enumerate(row[row >= 0]):
                mask = None if self.masks is None else self.masks[step, place][None]
                for name, g in self._clipped(model, weights, int(record), mask).items():
                    sums[name] += g
            most = max(SIZES)
            drawn = noise.draw(step + 1, outputs * most + sum(others.values()))[0]
            along = drawn[: outputs * most].view(outputs, most)[:, : len(self.mine)] @ basis
            of_others = dict(zip(others, drawn[outputs * most :].split(list(others.values())), strict=True))
            for name, w in weights.items():
                z = self._part(name, along) if name in self.first else of_others[name].view_as(w)
                g = (sums[name] + deviation * z) / divisor + work.proximal * (w - anchor[name])
                momenta[name] = work.momentum * momenta[name] + g
                weights[name] = w - work.learning_rate * momenta[name]
        answers = [self._answer(of, len(self.batches)) for of in range(len(self.batches))]
        left = work.learning_rate * deviation / divisor * sum(a * a for a in answers) ** 0.5
        for name in self.first:
            weights[name] = weights[name] + left * self._part(name, across)
        return weights

    def _clipped(
        self, model: nn.Module, weights: dict[str, Tensor], record: int, mask: Tensor | None
    ) -> dict[str, Tensor]:
        assert self.work.record
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        x, y = self.here.records(torch.tensor([record]))
        logits = torch.func.functional_call(model, leaves, (x,) if mask is None else (x, mask))
        gradients = torch.autograd.grad(nn.functional.cross_entropy(logits, y), list(leaves.values()))
        norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
        factor = min(1.0, self.work.record.clip / (norm + 1e-6))
        return {name: factor * g for name, g in zip(leaves, gradients, strict=True)}

    def _part(self, name: str, rows: Tensor) -> Tensor:
        """A layer's weight or its bias in (outputs, features) with one for a bias."""
        if not self.has_bias:
            return rows
        return rows[:, -1] if name.endswith("bias") else rows[:, :-1]

    def _answer(self, of: int, steps: int) -> float:
        """How far unit noise in one step has moved a weight in the end, by rates of 1."""
        w = momentum = 0.0
        for step in range(steps):
            g = float(step == of) + self.work.learning_rate * self.work.proximal * w
            momentum = self.work.momentum * momentum + g
            w -= momentum
        return w


CPU = torch.device("cpu"), torch.float64


def test_clients_rounds_and_phases_have_no_noise_in_common() -> None:
    """With a vanishing clip training is noise alone."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(400, 10)).double()
    here = context(model, federation((10, 12), (20, 20), 10))
    begin, vanishing = {name: w[:2] for name, w in starts(model, 2).items()}, RecordPrivacy(1e-4, 1e4)

    def moved(round_: int, phase: int) -> Tensor:
        work = Work(2, 5, 1.0, record=vanishing, phase=phase)
        after = BatchedTrainer(here).train(begin, [0, 1], round_, work).weights
        return torch.cat([(after[name] - w).flatten(1) for name, w in begin.items()], 1)

    draws = torch.cat([moved(1, 0), moved(2, 0), moved(1, 1)])
    assert (torch.corrcoef(draws).fill_diagonal_(0).abs() < 5 / draws.shape[1] ** 0.5).all()


@pytest.mark.parametrize(
    ("work", "taken"),
    [
        (Work(2, 4, 0.1, record=LOUD), True),
        (Work(2, 4, 0.1, momentum=0.5), True),
        (Work(2, 4, 0.1, proximal=0.5), True),
        (Work(2, 4, 0.1), False),
        (Work(1, 4, 0.1, record=LOUD), False),
        (Work(9, 4, 0.1, record=LOUD, steps=5), False),
        (Work(9, 4, 0.1, record=LOUD, steps=6), True),
        (Work(9, 4, 0.1, ascent=0.1), True),
        (Work(9, 4, 0.1, radius=1.0), True),
        (Work(9, 4, 0.1, radius=1.0, anchor={}), False),
        (Work(9, 4, 0.1, record=LOUD, ascent=0.1), False),
        (Work(9, 4, 0.1, record=LOUD, radius=1.0), False),
        (Work(9, 4, 0.1, record=LOUD, weight_decay=0.1), False),
        (Work(9, 4, 0.1, record=LOUD, optimizer="adam"), False),
        (Work(9, 4, 0.1, record=LOUD, outside=0.1), False),
        (Work(9, 4, 0.1, record=LOUD, only=frozenset({"second.weight", "second.bias"})), False),
    ],
)
def test_only_linear_steps_over_the_records_more_than_once_are_taken_here(
    work: Work, taken: bool, seen: list[int]
) -> None:
    here = context(Deep(), data(SIZES))
    BatchedTrainer(here).train(starts(here.model, 4), range(4), 1, work)
    assert bool(seen) == taken


def test_one_pass_of_a_wide_layer_is_enough_where_there_is_noise(
    monkeypatch: pytest.MonkeyPatch, seen: list[int]
) -> None:
    monkeypatch.setattr(rotation, "WIDE", 5)
    here = context(Deep(), data(SIZES))
    for work, taken in ((Work(1, 4, 0.1, record=LOUD), 1), (Work(1, 4, 0.1, momentum=0.5), 1), (Work(1, 4, 0.1), 1)):
        BatchedTrainer(here).train(starts(here.model, 4), range(4), 1, work)
        assert len(seen) == taken, work


def test_records_of_few_features_and_many_of_them_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(sizes: tuple[int, ...]) -> Rotation | None:
        some = data(sizes)
        return Rotation.of(read_chain(linear(), some.shape), context(linear(), some))

    assert of((FEATURES // 2, 3)) is not None
    assert of((FEATURES // 2 + 1, 3)) is None
    monkeypatch.setattr(rotation, "MOST_BASIS_BYTES", 8 * (12 * (12 + FEATURES) + 3 * (3 + FEATURES)) - 1)
    assert of((12, 3)) is None


def test_nobody_s_noise_depends_on_who_else_is_trained(seen: list[int]) -> None:
    """Alone, with clients of more records and more steps, cut into parts."""
    here, work = context(linear(), data(SIZES)), Work(3, 4, 0.3, record=LOUD)
    begin = starts(here.model, 4)
    together = BatchedTrainer(here).train(begin, range(4), 1, work).weights
    for k in range(4):
        alone = BatchedTrainer(here).train({n: w[k : k + 1] for n, w in begin.items()}, [k], 1, work).weights
        assert difference({n: w[k : k + 1] for n, w in together.items()}, alone) <= 1e-12
    seen.clear()
    cut = BatchedTrainer(here, most_bytes=1).train(begin, range(4), 1, work).weights
    assert seen == [1, 1, 1, 1]
    assert difference(together, cut) <= 1e-12


def test_bases_are_kept_within_their_memory_and_no_longer_than_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "MOST_BASIS_BYTES", 2 * 8 * 3)
    two, one, nothing = torch.ones(1, 2).double(), torch.ones(1, 1).double(), torch.ones(0)
    kept, bases = Kept(), [Basis(two, one, nothing) for _ in range(3)]
    for k in (0, 1):
        kept.put(k, bases[k])
    assert kept.get(0) is bases[0]
    kept.put(2, bases[2])
    assert kept.get(1) is None, "the one that was not asked for lately"
    assert kept.get(0) is bases[0] and kept.get(2) is bases[2]


def test_records_that_were_written_to_have_another_basis() -> None:
    here, work = context(linear(), data((6, 9))), Work(3, 3, 0.3, momentum=0.5)
    begin = starts(here.model, 2)
    BatchedTrainer(here).train(begin, [0, 1], 1, work)
    here.federation.x.mul_(1.5)
    fresh = context(linear(), here.federation)
    found, wanted = (trainer(fresh).train(begin, [0, 1], 1, work) for trainer in (BatchedTrainer, LoopTrainer))
    assert difference(found.weights, wanted.weights) <= 1e-10
