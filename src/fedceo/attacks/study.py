"""A study of an attack on a simulation, with a control, whether the attack works at all, and a baseline without any.

study = run_study(simulation, Attack("dlg"), "T1", choose(simulation, images=32))
study.result["rows"], study.draw(folder)
"""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedceo import __version__
from fedceo.attacks import metrics
from fedceo.attacks.control import control_fails
from fedceo.attacks.inversion import Attack, reconstruct
from fedceo.attacks.pictures import grid_figure
from fedceo.attacks.sender import Sender
from fedceo.attacks.threat_models import DESCRIPTIONS, check_holds, held_updates, make_sender
from fedceo.errors import UsageError
from fedceo.simulation.rounds import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = ((25, 1.0), (50, 1.5), (100, 2.0))
"""The paper's figure: index of the record and noise multiplier, each attacked for 300 steps at a rate of 0.01."""
PAPER_RATE = 0.01
WHO = {"T1": "UDP-FedAvg", "T2": "FedCEO"}
"""The methods by which the paper's figure names what is held."""


@dataclass(frozen=True)
class Study:
    """The results of a study.

    Attributes:
        result: settings and a row for each of baseline, control and attack: the content of attack.json.
        truth: (n, channels, height, width) from 0 to 1.
        paths: row -> step -> pictures like truth; step 0 is the start.
    """

    result: dict[str, Any]
    truth: Tensor
    paths: dict[str, dict[int, Tensor]]

    def grid(self, name: str) -> "Figure":
        """The pictures of one row, control or attack, on their way from the start to the end."""
        row = next(each for each in self.result["rows"] if each["name"] == name)
        names = [f"record {index}" for index in self.result["records"]]
        title = f"{self.result['attack']} on {self.result['data']}, {name}: {row['holds']}"
        return grid_figure(self.truth, self.paths[name], names, title)

    def draw(self, folder: Path) -> list[Path]:
        """Write control.png and attack.png."""
        files = []
        for name in self.paths:
            files.append(folder / f"{name}.png")
            unfinished = folder / f"{name}.png.part"  # a picture file appears complete or not at all
            self.grid(name).savefig(unfinished, format="png")
            unfinished.replace(files[-1])
        return files


def whole_figure(studies: Sequence[Study]) -> "Figure":
    """The paper's figure: of every study a row for each of control and attack, from the truth to the end.

    The control is FedAvg's, who adds no noise; T1 is what UDP-FedAvg's server holds, T2 a model that FedCEO smoothed.
    """
    rows = [(study, name) for study in studies for name in study.paths]
    truth = torch.cat([study.truth for study, _ in rows])
    steps = rows[0][0].paths[rows[0][1]]
    path = {step: torch.cat([study.paths[name][step] for study, name in rows]) for step in steps}
    names = []
    for study, name in rows:
        who = "FedAvg" if name == "control" else WHO.get(study.result["holds"], study.result["holds"])
        noise = "" if name == "control" else f", sigma {study.result['noise_multiplier']:g}"
        names += [f"{who}{noise}\nrecord {index}" for index in study.result["records"]]
    about = studies[0].result
    return grid_figure(truth, path, names, f"{about['attack']} on {about['data']}, {about['model']}", most=len(names))


def choose(simulation: Simulation, images: int = 32, index: list[int] | None = None) -> list[int]:
    """Indices of training records: those of `index`, or as many as `images`, drawn with the experiment's seed."""
    total = len(simulation.federation.y)
    for given in index or []:
        if not 0 <= given < total:
            raise UsageError(f"--index: {given}, expected 0 to {total - 1}")
    if index:
        return index
    if not 1 <= images <= total:
        raise UsageError(f"--images: {images}, expected 1 to {total}")
    return _generator(simulation).permutation(total)[:images].tolist()


def run_study(simulation: Simulation, attack: Attack, holds: str, indices: list[int], *, control: bool = True) -> Study:
    """Attack the training records with these indices.

    The control attacks the same records without privacy: the client's update without clipping and noise or, under T0,
    the gradient at weights drawn anew, each tensor as large as the attacked one. T1 and T2 have the same control, so
    that a caller who asks for both can leave one out.
    """
    federation = simulation.federation.origin
    if simulation.experiment.train.optimizer != "sgd" or simulation.experiment.train.weight_decay:
        raise UsageError(
            "fedceo attack: inverts steps of SGD, and train.optimizer or train.weight_decay asks for others"
        )
    if not simulation.task.is_cross_entropy:
        raise UsageError("fedceo attack: inverts gradients of the loss of one label a record, and [task] has another")
    if len(federation.shape) != 3 or federation.x.dtype == torch.int32:
        raise UsageError(f"data: {federation.name} has records of shape {federation.shape}; attacks are on pictures")
    check_holds(holds, simulation)
    sender = make_sender(simulation, holds)
    dtype = next(iter(sender.weights.values())).dtype
    box = _box(simulation, dtype, raw=holds == "T0")
    x = _inputs(simulation, indices, box)
    labels = federation.y[torch.tensor(indices)].to(simulation.device)
    truth = _pictures(x, box)
    rng = _generator(simulation)

    def one_hot(labels: Tensor) -> Tensor:
        return F.one_hot(labels, federation.classes).to(x)

    def others(count: int) -> tuple[Tensor, Tensor]:
        drawn = rng.integers(len(federation.y), size=count).tolist()
        return _inputs(simulation, drawn, box), one_hot(federation.y[torch.tensor(drawn)].to(simulation.device))

    attacked = held_updates(holds, simulation, sender, x, one_hot(labels), others)
    scenes = {"attack": (sender, attacked, f"{holds}, {DESCRIPTIONS[holds]}")}
    if control:
        free = replace(sender, weights=_redrawn(sender, attack.seed)) if holds == "T0" else sender
        scenes = {"control": (free, free.updates(x, one_hot(labels)), "the same without privacy")} | scenes
    constant = metrics.constant_colour(truth)
    rows = [_row("constant", "nothing; best single colour", constant, truth, constant)]
    paths = {}
    for name, (client, held, words) in scenes.items():
        start = time.perf_counter()
        found = reconstruct(attack, client, held, federation.classes, box)
        paths[name] = {step: _pictures(each, box) for step, each in found.path.items()}
        row = _row(name, words, _pictures(found.x, box), truth, constant, found.labels == labels)
        rows.append(row | {"seconds": time.perf_counter() - start})
    found_out = {"rows": rows, "control_fails": control_fails(rows)}
    return Study(_result(simulation, attack, holds, sender, indices) | found_out, truth, paths)


def _row(
    name: str, holds: str, found: Tensor, truth: Tensor, constant: Tensor, hits: Tensor | None = None
) -> dict[str, Any]:
    decibels, baseline = metrics.psnr(found, truth), metrics.psnr(constant, truth)
    return {
        "name": name,
        "holds": holds,
        "psnr": metrics.median(decibels).as_dict(),
        "over_constant": metrics.median(decibels - baseline).as_dict(),
        "ssim": metrics.median(metrics.ssim(found, truth)).as_dict(),
        "mse": metrics.median(metrics.mse(found, truth)).as_dict(),
        "label_hit": None if hits is None else metrics.proportion(hits).as_dict(),
        "psnr_of_each": decibels.tolist(),
    }


def _result(simulation: Simulation, attack: Attack, holds: str, sender: Sender, indices: list[int]) -> dict[str, Any]:
    experiment = simulation.experiment
    return {
        "attack": attack.name,
        "holds": holds,
        "data": simulation.federation.name,
        "model": simulation.model_name,
        "method": experiment.method.name,
        "rounds_trained": simulation.round,
        "regime": experiment.mechanism.regime,
        "noise_multiplier": simulation.noise_multiplier,
        "clip": simulation.clip,
        "cohort": experiment.cohort.size,
        "local_steps": sender.steps,
        "client_learning_rate": sender.learning_rate,
        "seed": experiment.seed,
        "iterations": attack.steps,
        "learning_rate": attack.rate,
        "restarts": attack.restarts,
        "records": indices,
        "versions": {"fedceo": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _box(simulation: Simulation, dtype: torch.dtype, raw: bool) -> tuple[Tensor, Tensor]:
    """The darkest and the brightest record as inputs of the model, each (*shape); raw: unnormalised, from 0 to 1."""
    federation = simulation.federation.origin
    x = federation.x
    if raw:
        lowest = torch.zeros(x.shape[1:], dtype=dtype, device=simulation.device)
        return lowest, lowest + 1
    ends = (0, 255) if x.dtype == torch.uint8 else (float(x.min()), float(x.max()))
    records = torch.stack([torch.full_like(x[0], end) for end in ends])
    lowest, highest = federation.inputs(records, dtype).to(simulation.device)
    return lowest, highest


def _inputs(simulation: Simulation, indices: list[int], box: tuple[Tensor, Tensor]) -> Tensor:
    """The inputs of the attacked model for some records, (n, *shape), normalised or raw as the box is."""
    x = simulation.federation.origin.x
    records = x[torch.tensor(indices, dtype=torch.int64)].to(simulation.device, box[0].dtype)
    low, high = (0.0, 255.0) if x.dtype == torch.uint8 else (float(x.min()), float(x.max()))
    return box[0] + (records - low) / (high - low) * (box[1] - box[0])


def _pictures(inputs: Tensor, box: tuple[Tensor, Tensor]) -> Tensor:
    """The inputs as pictures from 0 to 1."""
    return (inputs - box[0]) / (box[1] - box[0])


def _redrawn(sender: Sender, seed: int) -> dict[str, Tensor]:
    """Uniform weights, each tensor with the root mean square of the sender's."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: ((2 * torch.rand(w.shape, generator=rng) - 1) * 3**0.5).to(w) * w.square().mean().sqrt()
        for name, w in sender.weights.items()
    }


def _generator(simulation: Simulation) -> np.random.Generator:
    return np.random.default_rng([simulation.experiment.seed, 0xA77AC])
