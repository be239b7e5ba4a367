"""The label prior: Bayes' rule on counts that leave a client once, noised and accounted for."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.accounting.observers.local_steps import LocalSteps
from fedceo.accounting.plan import Plan, Question, Realised, RecordSteps
from fedceo.accounting.renyi import ORDERS
from fedceo.accounting.rows import answer
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms.base import make_mechanism
from fedceo.methods.label_prior import LABEL_COUNTS, LabelPriorSettings
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from fedceo.training.schedule import Schedule
from tests.support.plain_rounds import EVERYBODY, close, model, simulated, table
from tests.support.small_federation import federation

NONE: dict[str, Any] = {"privacy": {"mechanism": "none", "noise_multiplier": None}}
RECORD: dict[str, Any] = {"mechanism": "record", "clip": 1.0, "noise_multiplier": 2.0}
DELTA = 1e-5


def counts_of(client: int) -> torch.Tensor:
    return torch.bincount(federation().y[federation().train[client]], minlength=3).double()


def test_the_global_model_is_fedavgs_and_a_clients_own_has_bayes_rule_on_top() -> None:
    fedavg = simulated({"name": "fedavg"}, "batched", **NONE)
    found = simulated({"name": "label-prior", "strength": 0.7}, "batched", **NONE)
    assert close(found.state.weights, fedavg.state.weights)
    own = found.method.personalise(found.state, list(EVERYBODY), 3)
    for client in EVERYBODY:
        logits = torch.randn(50, 3, dtype=torch.float64)
        posterior = logits.softmax(1) * (counts_of(client) + 1) ** 0.7
        shifted = logits + own["fc.bias"][client] - found.state.weights["fc.bias"]
        assert torch.allclose(shifted.softmax(1), posterior / posterior.sum(1, keepdim=True))
        assert all(torch.equal(own[name][client], w) for name, w in found.state.weights.items() if name != "fc.bias")


def recorded(rounds: int = 3, label_noise: float = 2.0) -> Simulation:
    return simulated({"name": "label-prior", "label_noise": label_noise}, "batched", rounds, privacy=RECORD)


def test_counts_leave_a_client_once_and_with_the_noise_that_is_accounted_for() -> None:
    one, three = recorded(1), recorded(3)
    for client in EVERYBODY:
        released = one.state.personal[client][LABEL_COUNTS]
        assert not torch.equal(released, counts_of(client))
        assert torch.equal(three.state.personal[client][LABEL_COUNTS], released), "never again with other noise"
    experiment = parse_experiment(table({"name": "label-prior"}, privacy=RECORD))
    mechanism = make_mechanism(experiment, 2.0, Schedule(7, noise_key="ab"))
    drawn = np.array([mechanism.noised_counts(counts_of(0), client, 2.0) - counts_of(0) for client in range(2000)])
    assert stats.kstest(drawn.ravel() / 2.0, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.1
    other = make_mechanism(experiment, 2.0, Schedule(7, noise_key="cd"))
    assert not torch.equal(other.noised_counts(counts_of(0), 0, 2.0), mechanism.noised_counts(counts_of(0), 0, 2.0))


def question(adjacency: str, noise: float | None, sigma: float, rate: float, steps: int) -> Question:
    plan = Plan(
        10, 10, 1, sigma, DELTA, "record",
        adjacency=adjacency, record_steps=(RecordSteps(rate, steps),),
        counts=None if noise is None else LabelPriorSettings(label_noise=noise).counts,
    )  # fmt: skip
    return Question(plan, Realised(participations=1))


@pytest.mark.parametrize(("adjacency", "moved"), [("zero-out", 1.0), ("replace-one", 2**0.5)])
def test_steps_of_all_records_and_counts_compose_as_gaussians_do(adjacency: str, moved: float) -> None:
    """With a rate of 1 everything is Gaussian: squares of shifts over deviations add up."""
    asked = question(adjacency, 1.5, 3.0, 1.0, 20)
    shift = 2 if adjacency == "replace-one" else 1
    mu = ((moved / 1.5) ** 2 + 20 * (shift / 3.0) ** 2) ** 0.5
    found = answer(asked.plan, "server", asked.realised).epsilon or 0.0
    assert found == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-3) and found >= gaussian_epsilon(mu, DELTA) - 1e-9
    both, steps = (LocalSteps().divergence(question(adjacency, noise, 3.0, 1.0, 20), "server") for noise in (1.5, None))
    assert both is not None and steps is not None
    known = np.isfinite(both)
    assert known.sum() > 50
    assert both[known] - steps[known] == pytest.approx(ORDERS[known] * (moved / 1.5) ** 2 / 2, rel=1e-3)


def test_sampled_steps_and_counts_compose_as_in_dp_accounting() -> None:
    import dp_accounting as dp

    asked = question("zero-out", 2.0, 1.2, 0.1, 50)
    steps = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.2)), 50)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    theirs = accountant.compose(steps).compose(dp.GaussianDpEvent(2.0)).get_epsilon(DELTA)
    found = answer(asked.plan, "server", asked.realised)
    assert found.epsilon == pytest.approx(theirs, rel=0.01)
    assert "label counts, released once with noise of 2" in found.assumption
    without = answer(question("zero-out", None, 1.2, 0.1, 50).plan, "server", asked.realised)
    assert without.epsilon is not None and found.epsilon is not None and without.epsilon < found.epsilon
    assert answer(asked.plan, "server", Realised(participations=0)).epsilon == 0.0, (
        "nobody was in, nothing was released"
    )


def test_a_target_that_the_counts_alone_exceed_is_refused() -> None:
    impossible = table(
        {"name": "label-prior", "label_noise": 0.5},
        privacy={"mechanism": "record", "noise_multiplier": None, "target_epsilon": 1.0},
    )
    with pytest.raises(UsageError, match=r"^privacy.target_epsilon: 1 .* beside label counts with noise 0.5 reaches$"):
        prepare(parse_experiment(impossible), federation(), model())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"privacy": {"mechanism": "central", "noise_multiplier": 1.0}}, "privacy.mechanism: .* hides a whole client"),
        ({"privacy": RECORD | {"randomness": "system"}}, 'privacy.randomness: "system" draws'),
        ({"privacy": RECORD, "task": {"name": "regression"}}, 'task.name: "regression" has no classes'),
        ({"privacy": RECORD, "method": {"name": "label-prior", "label_noise": 0.0}}, "method.label_noise"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=f"^{line}"):
        parse_experiment(table(**({"method": {"name": "label-prior"}} | change)))


def test_a_layer_without_bias_is_refused() -> None:
    bare = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3, bias=False))
    experiment = parse_experiment(table({"name": "label-prior"}, privacy=RECORD))
    with pytest.raises(UsageError, match=r"^method.name: label-prior moves the bias of the last layer"):
        prepare(experiment, federation(), bare)
