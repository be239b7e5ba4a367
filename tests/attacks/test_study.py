"""The updates that an attacker holds, and a whole study: control, baseline, attack."""

import json
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedceo.attacks import Attack, choose, metrics, reconstruct, run_study
from fedceo.attacks.control import control_fails
from fedceo.attacks.threat_models import check_holds, held_updates, make_sender
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms.clipping import norms_of
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation

QUICK = Attack("dlg", iterations=8, restarts=1)


def simulation(**sections: Any) -> Simulation:
    table = {
        "data": {"name": "digits", "clients": 20},
        "model": {"name": "dlg-lenet"},
        "cohort": {"size": 4},
        "train": {"rounds": 10, "local_epochs": 3, "learning_rate": 0.5},
        "privacy": {"mechanism": "distributed", "noise_multiplier": 1.0},
        "method": {"name": "fedceo", "interval": 2},
    }
    return prepare(parse_experiment({name: sections.get(name, section) for name, section in table.items()}))


def held(sim: Simulation, holds: str, count: int = 3) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The updates of the first records as the attacker holds them, and without privacy."""
    x, labels = sim.federation.x[:count], F.one_hot(sim.federation.y[:count], 10).float()
    sender = make_sender(sim, holds)

    def others(number: int) -> tuple[Tensor, Tensor]:
        return sim.federation.x[10 : 10 + number], F.one_hot(sim.federation.y[10 : 10 + number], 10).float()

    return held_updates(holds, sim, sender, x, labels, others), sender.updates(x, labels)


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> Tensor:
    return norms_of({name: w - other[name] for name, w in one.items()})


@pytest.mark.parametrize("holds", ["T0", "T1", "T3"])
def test_without_privacy_the_update_itself_is_held(holds: str) -> None:
    found, plain = held(simulation(privacy={"mechanism": "none"}), holds)
    assert (apart(found, plain) < 1e-4 * norms_of(plain)).all()


@pytest.mark.parametrize("holds", ["T0", "T1", "T3"])
def test_a_model_on_fixed_features_is_attacked_through_its_transform(holds: str) -> None:
    """The attacker looks for a picture, and a linear layer's update shows the features that the picture must have."""
    sim = simulation(model={"name": "scattering"}, privacy={"mechanism": "none"}, train={"learning_rate": 0.05})
    pictures = sim.federation.origin.inputs(sim.federation.origin.x[:3])
    labels = F.one_hot(sim.federation.y[:3], 10).float()
    sender = make_sender(sim, holds)
    found = held_updates(holds, sim, sender, pictures, labels, lambda _: (pictures, labels))
    plain = sender.updates(pictures, labels)
    assert (apart(found, plain) < 1e-3 * norms_of(plain)).all()
    if holds == "T1":
        study = run_study(sim, QUICK, holds, [0, 1])
        assert study.truth.shape == (2, 1, 8, 8)
        assert all(np.isfinite(row["psnr_of_each"]).all() for row in study.result["rows"])


def test_uploads_are_clipped_and_noised_by_the_mechanism() -> None:
    clipped, plain = held(simulation(privacy={"mechanism": "distributed", "noise_multiplier": 0.0, "clip": 0.1}), "T1")
    assert norms_of(plain).min() * 0.5 > 0.1
    torch.testing.assert_close(norms_of(clipped), torch.full((3,), 0.1 / 0.5, dtype=torch.float64), rtol=1e-3, atol=0)
    privacy = {"mechanism": "distributed", "noise_multiplier": 3.0, "clip": 0.1}
    noised, _ = held(simulation(privacy=privacy, train={"learning_rate": 0.5, "server_learning_rate": 0.2}), "T1")
    entries = sum(w[0].numel() for w in plain.values())
    expected = 3.0 * 0.1 / 4**0.5 / 0.5  # sigma C / sqrt(K), in units of a gradient
    torch.testing.assert_close(
        apart(noised, clipped) / entries**0.5, torch.full((3,), expected, dtype=torch.float64), rtol=0.05, atol=0
    )
    assert apart({n: w[:1] for n, w in noised.items()}, {n: w[1:2] for n, w in noised.items()}) > 1, "noise of its own"


def test_gradients_are_clipped_and_noised_under_record_privacy() -> None:
    record = {"mechanism": "record", "noise_multiplier": 0.0, "clip": 0.2}
    clipped, _ = held(simulation(privacy=record), "T1")
    torch.testing.assert_close(norms_of(clipped), torch.full((3,), 0.2, dtype=torch.float64), rtol=1e-3, atol=0)
    noised, plain = held(simulation(privacy=record | {"noise_multiplier": 2.0}), "T1")
    entries = sum(w[0].numel() for w in plain.values())
    torch.testing.assert_close(
        apart(noised, clipped) / entries**0.5, torch.full((3,), 0.4, dtype=torch.float64), rtol=0.05, atol=0
    )


def test_smoothing_is_the_methods_own() -> None:
    """With next to no threshold the upload is held as it is; with a large one the weights are gone."""
    privacy = {"mechanism": "none"}
    faint, plain = held(simulation(privacy=privacy, method={"name": "fedceo", "strength": 1e9}), "T2")
    assert (apart(faint, plain) < 1e-2 * norms_of(plain)).all()
    for restart in ("own", "slot", "stored"):
        method = {"name": "fedceo", "strength": 1e-6, "restart": restart}
        sim = simulation(privacy=privacy, method=method)
        strong, _ = held(sim, "T2")
        for name, w in sim.state.weights.items():
            torch.testing.assert_close(strong[name][0], w / 0.5, atol=1e-4, rtol=1e-4)


def test_what_cannot_be_held() -> None:
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("T4", {}, "'T4', expected one of T0, T1, T2, T3"),
        ("T1", {"privacy": {"mechanism": "central", "noise_multiplier": 1.0}, "method": {"name": "fedavg"}}, "central"),
        ("T1", {"method": {"name": "centaur"}}, "sends the whole model and remembers nothing, not centaur"),
        ("T2", {"method": {"name": "fedavg"}}, 'T2 needs method "fedceo"'),
        ("T2", {"method": {"name": "fedceo", "restart": "mean"}}, 'T2 needs method "fedceo"'),
    ]
    for holds, sections, words in refused:
        with pytest.raises(UsageError, match=words):
            check_holds(holds, simulation(**sections))


def test_records_are_chosen() -> None:
    sim = simulation()
    assert choose(sim, index=[25, 3]) == [25, 3]
    drawn = choose(sim, images=5)
    assert len(set(drawn)) == 5 and drawn == choose(sim, images=5)
    with pytest.raises(UsageError, match="--index: 1438, expected 0 to 1437"):
        choose(sim, index=[1438])
    with pytest.raises(UsageError, match="--images: 0"):
        choose(sim, images=0)


@pytest.mark.parametrize("holds", ["T0", "T1", "T2"])
def test_a_study(holds: str) -> None:
    study = run_study(simulation(), QUICK, holds, [5, 6, 7])
    constant, control, attack = study.result["rows"]
    assert [row["name"] for row in study.result["rows"]] == ["constant", "control", "attack"]
    assert constant["over_constant"]["value"] == 0 and constant["label_hit"] is None
    assert control["psnr"]["value"] > constant["psnr"]["value"] + 5, "without privacy the attack works"
    assert study.result["control_fails"] is False
    if holds == "T0":
        assert attack["psnr"]["value"] > constant["psnr"]["value"] + 5
    else:
        assert attack["psnr"]["low"] < constant["psnr"]["high"] and control["label_hit"]["value"] == 1
    assert {"regime", "noise_multiplier", "clip", "seed", "versions"} <= study.result.keys()
    json.dumps(study.result, allow_nan=False)


def test_a_control_that_is_known_is_left_out() -> None:
    short = Attack("dlg", iterations=1)
    whole, part = (run_study(simulation(), short, "T1", [5, 6], control=control) for control in (True, False))
    assert [row["name"] for row in part.result["rows"]] == ["constant", "attack"] and list(part.paths) == ["attack"]
    assert part.result["rows"][1]["psnr_of_each"] == whole.result["rows"][2]["psnr_of_each"]


@pytest.mark.slow
def test_smoothness_must_fall_for_inverting_gradients() -> None:
    """A weight that stays as large as at first outweighs the cosine, and the attack ends in a colour."""
    sim = simulation()
    _, plain = held(sim, "T1", count=2)
    truth, box = sim.federation.x[:2], (torch.zeros(1, 8, 8), torch.ones(1, 8, 8))

    def over_colour(attack: Attack) -> Tensor:
        found = reconstruct(attack, make_sender(sim, "T1"), plain, 10, box)
        return metrics.psnr(found.x, truth) - metrics.psnr(metrics.constant_colour(truth), truth)

    falling = Attack("ig", 400, restarts=1)
    assert (over_colour(falling) > 3).all() and (over_colour(replace(falling, smoothness=(0.1, 0.1))) < 1).all()


def test_a_study_repeats() -> None:
    short = Attack("idlg", iterations=1)
    one, other = (run_study(simulation(), short, "T1", [3, 4]).result["rows"] for _ in range(2))
    assert [row["psnr_of_each"] for row in one] == [row["psnr_of_each"] for row in other]


def test_only_pictures_are_attacked() -> None:
    from tests.support.small_federation import federation

    sim = simulation()
    sim.federation = federation(shape=(6,))
    with pytest.raises(UsageError, match="attacks are on pictures"):
        run_study(sim, QUICK, "T1", [0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlg", "idlg", "ig"])
def test_privacy_leaves_no_more_than_a_colour(name: str) -> None:
    """On thirty digits at sigma = 1 no attack beats the best constant colour; without privacy each does."""
    settings = Attack(name, iterations=60 if name != "ig" else 600)
    for holds in ("T1", "T2"):
        sim = simulation()
        _, control, attack = run_study(sim, settings, holds, choose(sim, images=30)).result["rows"]
        assert control["over_constant"]["low"] > 0
        assert attack["over_constant"]["low"] <= 0


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FEDCEO_DATA"), reason="FEDCEO_DATA is not set")
@pytest.mark.parametrize("name, steps", [("dlg", 60), ("idlg", 60), ("ig", 1000)])
def test_without_privacy_each_attack_finds_photographs(name: str, steps: int) -> None:
    sim = simulation(data={"name": "cifar10", "clients": 100}, train={"learning_rate": 0.1})
    control = run_study(sim, Attack(name, steps), "T1", choose(sim, images=4)).result["rows"][1]
    assert control["over_constant"]["low"] > 0 and control["over_constant"]["value"] > 3


@pytest.mark.parametrize(
    "low, value, fails", [(0.5, 3.0, False), (-0.1, 3.0, True), (None, 3.0, False), (None, 0, True)]
)
def test_a_control_fails_where_it_may_gain_nothing(low: float | None, value: float, fails: bool) -> None:
    gain = {"value": value, "low": low, "high": None}
    assert control_fails([{"name": "attack"}, {"name": "control", "over_constant": gain}]) is fails
    assert control_fails([{"name": "attack", "over_constant": gain}]) is None
