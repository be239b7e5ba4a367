"""Recordings of rounds, for figures: the models of a cohort as they were trained, uploaded and smoothed.

A recording costs one more evaluation of each model on the test set and, where the round smooths, one more smoothing;
rounds that are not recorded cost nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedceo.mechanisms.uploads import Stack
from fedceo.simulation.evaluation import Evaluator
from fedceo.tensors import select_layers

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

STAGES = ("trained", "uploaded", "smoothed")


@dataclass(frozen=True)
class Recording:
    """The models of one cohort of m clients at up to three stages.

    trained: before clipping and noise, where uploads are noised. uploaded: what the server was sent. smoothed: after
    the truncated t-SVD, in rounds that smooth.

    Attributes:
        round: counted from 1.
        clients: the m client numbers, ascending.
        noise: standard deviation of the noise in an entry of an upload; 0 where uploads are not noised.
        thresholds: layer -> what singular values were thresholded at; empty in rounds that do not smooth.
        stacks: stage -> layer -> (m, ...), the recorded layers.
        accuracy: stage -> (m, classes), of the whole models on the test records of each class, in 0..1; NaN for a
            class without test records. Parts that a method never sends are taken from the global model.
        names: what the data call these clients; empty where they are only numbered.
    """

    round: int
    clients: tuple[int, ...]
    noise: float
    thresholds: dict[str, float]
    stacks: dict[str, dict[str, Tensor]]
    accuracy: dict[str, Tensor]
    names: tuple[str, ...] = ()

    def flatten(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors under the names "STAGE/LAYER" and "accuracy/STAGE", and the other attributes."""
        tensors = {f"{stage}/{name}": w for stage, layers in self.stacks.items() for name, w in layers.items()}
        tensors |= {f"accuracy/{stage}": w for stage, w in self.accuracy.items()}
        about = {
            "round": self.round,
            "clients": self.clients,
            "noise": self.noise,
            "thresholds": self.thresholds,
            "layers": list(self.stacks["uploaded"]),  # a file keeps no order
        } | ({"names": self.names} if self.names else {})
        return {name: w.detach().cpu().contiguous() for name, w in tensors.items()}, about

    @classmethod
    def unflatten(cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> "Recording":
        """Undo flatten."""
        accuracy = {stage: tensors[f"accuracy/{stage}"] for stage in STAGES if f"accuracy/{stage}" in tensors}
        stacks = {stage: {name: tensors[f"{stage}/{name}"] for name in about["layers"]} for stage in accuracy}
        clients, names = tuple(about["clients"]), tuple(about.get("names", ()))
        return cls(about["round"], clients, about["noise"], about["thresholds"], stacks, accuracy, names)


def record_round(simulation: "Simulation", trained: Mapping[str, Tensor], uploads: Stack, round_: int) -> Recording:
    """A recording of round `round_`, before the server's step changes the state.

    Args:
        trained: name -> (m, ...), the clients' models before the mechanism.
        uploads: the privatised uploads.
    """
    method, mechanism, clients = simulation.method, simulation.mechanism, uploads.clients
    noise, data = mechanism.upload_noise, simulation.federation
    stages: dict[str, Mapping[str, Tensor]] = {"trained": trained} if noise is not None else {}
    stages["uploaded"] = uploads.weights
    thresholds: dict[str, float] = {}
    smoothed = method.smoothed(uploads.weights, round_)
    if smoothed is not None:
        stages["smoothed"], thresholds = smoothed
    chosen = select_layers(simulation.state.weights, simulation.experiment.record.layers)
    return Recording(
        round=round_,
        clients=clients,
        noise=noise or 0.0,
        thresholds=thresholds,
        stacks={stage: {name: w[name] for name in chosen if name in w} for stage, w in stages.items()},
        accuracy={stage: _accuracy(simulation, w, len(clients)) for stage, w in stages.items()},
        names=tuple(map(data.name_of, clients)) if data.client_names else (),
    )


def _accuracy(simulation: "Simulation", stack: Mapping[str, Tensor], clients: int) -> Tensor:
    """The accuracy of each client's model on each class, (clients, classes)."""
    evaluator, rows = simulation.evaluator, []
    assert isinstance(evaluator, Evaluator), "an experiment that is measured otherwise records nothing"
    for k in range(clients):
        model = {**simulation.state.weights, **{name: w[k] for name, w in stack.items()}}
        rows.append([float("nan") if a is None else a for a in evaluator.per_class(model)])
    return torch.tensor(rows)
