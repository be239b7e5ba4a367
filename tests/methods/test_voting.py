"""Votes on alpha: what clients count, how far a record moves it, which value wins, and what it costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as arrays
from torch import Tensor, nn
from torch.func import functional_call

from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.accounting.plan import Plan, Realised, RecordSteps
from fedceo.accounting.rows import answer
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.methods.base import State
from fedceo.methods.fedceo import FedCEOSettings
from fedceo.methods.voting import ALPHAS, MOST, VOTES, counts_for_votes, elected_in, votes_of, with_votes
from fedceo.simulation.counting import Classifier, bounded
from fedceo.simulation.preparing import prepare
from fedceo.simulation.spending import planned_rows
from fedceo.terminal.results import show_run
from tests.support.plain_rounds import EVERYBODY, close, model, run, simulated, table
from tests.support.small_federation import SIZES, federation

VOTED: dict[str, Any] = {"name": "fedceo", "filter": "damp", "alpha": "voted", "interval": 1, "restart": "mean"}
FIXED: dict[str, Any] = VOTED | {"alpha": 0.75}
NONE: dict[str, Any] = {"mechanism": "none", "noise_multiplier": None}
RECORD: dict[str, Any] = {"mechanism": "record", "clip": 1.0, "noise_multiplier": 2.0}


def right_by_hand(state: State, client: int, alpha: float) -> int:
    """How many of its records a client's model with that alpha classifies right; the state has those of 0.75."""
    data, mean = federation(), state.weights
    own = {name: mean[name] + (w - mean[name]) / 0.75 * alpha for name, w in state.personal[client].items()}
    mine = data.train[client]
    logits = functional_call(model().double(), own, (data.inputs(data.x[mine].double(), torch.float64),))
    return int((logits.argmax(1) == data.y[mine]).sum())


@pytest.mark.parametrize("memory", ["cohort", "all", "mean"])
def test_without_noise_the_least_alpha_with_most_records_right_wins_in_the_last_round(memory: str) -> None:
    """Models that have learnt little, of which now this alpha is the best and now that."""
    winners = set()
    for rate, epochs in ((0.02, 1), (0.03, 1), (0.03, 3), (0.05, 1)):

        def taken(method: dict[str, Any], rounds: int, train: dict[str, Any]) -> Any:
            return simulated(method | {"memory": memory}, "batched", rounds, privacy=NONE, train=train)

        train = {"learning_rate": rate, "local_epochs": epochs}
        before, voted = taken(FIXED, 3, train), taken(VOTED, 4, train)
        right = {alpha: sum(right_by_hand(before.state, k, alpha) for k in EVERYBODY) for alpha in ALPHAS}
        best = min(ALPHAS, key=lambda alpha: (-right[alpha], alpha))
        winners.add(best)
        fixed = taken(FIXED | {"alpha": best}, 4, train)
        assert close(voted.state.weights, fixed.state.weights), "alpha is of models that nobody trains from"
        assert all(close(voted.state.personal[k], fixed.state.personal[k]) for k in EVERYBODY)
        assert VOTES not in voted.state.server
    assert len(winners) >= 3, "else any rule would pass"


def test_what_was_elected_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(VOTED, train={"rounds": 3}, privacy=NONE)
    assert ["alpha" in record for record in found.history] == [False, False, True]
    elected = found.history[-1]["alpha"]
    assert elected in ALPHAS and found.result["elected"] == {"method.alpha": elected}
    assert "elected" not in run(FIXED, privacy=NONE).result
    show_run(found, Path("runs"))
    assert f"method.alpha: {elected:g}, elected by the votes of clients' records" in capsys.readouterr().out


def test_a_run_in_which_nobody_votes_says_so_and_pays_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Its budget ends before the last round, which is when clients vote."""
    train = {"rounds": 6, "batch_size": 4}
    rows = []
    for method in (VOTED, FIXED):
        privacy = RECORD | {"noise_multiplier": 1.0, "max_epsilon": 14.0}
        found = run(method, "batched", train=train, privacy=privacy)
        assert 1 < len(found.history) < 6
        rows.append((len(found.history), [row["epsilon"] for row in found.result["privacy"]]))
        show_run(found, Path("runs"))
    assert rows[0] == rows[1]
    assert "method.alpha: nobody has voted on it" in capsys.readouterr().out


class Mixing(nn.Module):
    """A model of which every record's output depends on the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x.flatten(1))
        return y + 100 * y.sum(0)


def test_records_are_classified_by_themselves_whatever_the_model_makes_of_a_batch() -> None:
    data, mixing = federation(), Mixing()
    simulation = prepare(parse_experiment(table(VOTED, train={"rounds": 2}, privacy=NONE)), data, mixing)
    weights, mine = simulation.state.weights, data.train[2]
    found = Classifier(simulation.context).of(mine)(weights)
    inputs = simulation.context.inputs_of(mine)
    alone = torch.cat([functional_call(mixing.double(), dict(weights), (each[None],)).argmax(1) for each in inputs])
    together = functional_call(mixing, dict(weights), (inputs,)).argmax(1)
    assert torch.equal(found, alone) and not torch.equal(alone, together)


def test_nobody_is_asked_twice() -> None:
    simulation = prepare(parse_experiment(table(VOTED, train={"rounds": 3}, privacy=NONE)), federation(), model())
    for _ in range(3):
        simulation.step()
    state = State.unflatten(simulation.state.flatten())
    assert state.counted == {*EVERYBODY}, "the checkpoint remembers who has voted"
    entry = replace(simulation.draw(), round=3)
    assert simulation.local_cohort(3)(state, entry).counts == {}
    assert simulation.local_cohort(3)(replace(state, counted=frozenset([1])), entry).counts.keys() == {0, 2, 3}


@given(arrays.arrays(bool, (5, len(ALPHAS))), arrays.arrays(bool, (5, len(ALPHAS))))
def test_no_record_moves_votes_further_than_is_accounted_for(one: Any, other: Any) -> None:
    counts, (a, b) = counts_for_votes(15.0), (votes_of(torch.from_numpy(each)) for each in (one, other))
    assert float(a.norm(dim=1).max()) <= counts.moved + 1e-12
    assert float((a - b).norm(dim=1).max()) <= counts.replaced + 1e-12
    assert torch.allclose(bounded(a, counts.moved), a, atol=1e-12), "what is within its bounds stays as it is"


def test_the_bounds_are_reached() -> None:
    half = torch.tensor([[True, True, True, False, False, False]])
    assert float(votes_of(half).norm()) == pytest.approx(MOST)
    assert float((votes_of(half) - votes_of(~half)).norm()) == pytest.approx(2 * MOST)


def test_rows_that_are_too_long_are_cut_and_those_not_finite_count_for_nothing() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0], [float("inf"), 0.0], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(bounded(rows, 1.0), expected)


def test_ties_within_the_noise_go_to_the_small_value() -> None:
    votes = torch.tensor([-40.0, -9.0, 12.0, 14.0, 13.0, 10.0])
    state = with_votes(State({}), {0: votes / 2, 1: votes / 2})
    assert elected_in(state, 0.0, 0.75) == 0.5
    assert elected_in(state, 1.0, 0.75) == 0.25, "two clients, a deviation of two in a difference"
    assert elected_in(state, 12.0, 0.75) == 0.1
    assert elected_in(State({}), 0.0, 0.75) == 0.75


@pytest.mark.parametrize(("adjacency", "farthest", "step"), [("zero-out", MOST, 1), ("replace-one", 2 * MOST, 2)])
def test_votes_compose_with_steps_of_all_records_as_gaussians_do(adjacency: str, farthest: float, step: int) -> None:
    plan = Plan(
        10,
        10,
        1,
        3.0,
        1e-5,
        "record",
        adjacency=adjacency,
        record_steps=(RecordSteps(1.0, 20),),
        counts=counts_for_votes(5.0),
    )  # fmt: skip
    mu = ((farthest / 5.0) ** 2 + 20 * (step / 3.0) ** 2) ** 0.5
    found = answer(plan, "server", Realised(participations=1))
    assert found.epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)
    assert "votes on alpha, released once with noise of 5" in found.assumption


def test_a_vote_costs_what_the_rows_say_and_a_target_covers_it() -> None:
    fixed, voted = (
        {
            row.observer: row.epsilon
            for row in planned_rows(parse_experiment(table(method, privacy=RECORD, train={"rounds": 4})), list(SIZES))
        }
        for method in (FIXED, VOTED | {"vote_noise": 2.0})
    )
    assert voted["server"] is not None and fixed["server"] is not None and voted["server"] > fixed["server"]
    target = RECORD | {"noise_multiplier": None, "target_epsilon": 2.0, "observer": "server"}
    less, more = (
        prepare(
            parse_experiment(table(method, privacy=target, train={"rounds": 2})), federation(), model()
        ).noise_multiplier
        for method in (FIXED, VOTED)
    )
    assert more > less


def test_votes_leave_with_noise_under_record_privacy() -> None:
    simulation = prepare(
        parse_experiment(table(VOTED, train={"rounds": 2, "engine": "batched"}, privacy=RECORD)), federation(), model()
    )
    simulation.step()
    before, entry = simulation.state, simulation.draw()
    collected = simulation.local_cohort(2)(before, entry)
    assert sorted(collected.counts) == list(EVERYBODY)
    far = torch.stack([collected.counts[k].double().cpu() for k in EVERYBODY])
    assert (far.std() > 5) and not torch.equal(far, far.round()), "noise of 15 on counts of a few records"
    again = simulation.local_cohort(2)(before, entry)
    assert all(torch.equal(again.counts[k], collected.counts[k]) for k in EVERYBODY), "and never with other noise"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"method": VOTED | {"restart": "own"}}, r'method.restart "own", expected "mean" with method.alpha "voted"'),
        ({"method": VOTED | {"filter": "threshold"}}, r'method: filter "threshold" has no alpha to vote on'),
        ({"train": {"rounds": 1}}, r"train.rounds: 1, expected 2 or more"),
        ({"privacy": RECORD | {"participation_cap": 2}}, r"privacy.participation_cap: leaves the last round"),
        ({"method": VOTED | {"interval": 2}}, r'method.interval: 2, expected 1 with method.alpha "voted"'),
        ({"privacy": {"mechanism": "distributed"}}, "privacy.mechanism: .* hides a whole client, whose votes"),
        ({"privacy": RECORD | {"randomness": "system"}}, 'privacy.randomness: "system" draws the noise of votes anew'),
        ({"task": {"name": "regression"}}, 'task.name: "regression" has no classes'),
        ({"method": VOTED | {"alpha": "elected"}}, r'method.alpha: expected a number from 0 to 1, or "voted", got'),
        ({"method": VOTED | {"alpha": True}}, r'method.alpha: expected a number from 0 to 1, or "voted", got True'),
        ({"method": VOTED | {"vote_noise": 0.0}}, "method.vote_noise"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=f"^{line}"):
        parse_experiment(table(**({"method": VOTED, "privacy": RECORD, "train": {"rounds": 2}} | change)))


def test_noise_of_votes_that_nobody_casts_makes_no_other_experiment() -> None:
    assert FedCEOSettings(filter="damp", vote_noise=3.0) == FedCEOSettings(filter="damp")
    assert FedCEOSettings(filter="damp", alpha="voted", vote_noise=3.0).vote_noise == 3.0
