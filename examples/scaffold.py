"""SCAFFOLD (Karimireddy et al. 2020) as a method of your own, with its epsilon: python examples/scaffold.py

Clients remember a control each, the server one for all: as updates, s_i and s. A round moves a client by s - s_i beside
its gradients; s is made of the privatised mean, at FedAvg's epsilon. Two runs share no noise (the difference of two
models would be free of it), so that the bits are those of the library's method where there is none.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import fedceo
from fedceo.mechanisms.clipping import clip_updates
from fedceo.methods import Mean, OwnMethod, Uploads

Tensors = dict[str, Tensor]
Answer = tuple[Mapping[str, Tensor], dict[str, Any]]


class Scaffold(OwnMethod):
    def shift(self, weights: Tensors, kept: Tensors, memory: Tensors) -> Tensors:
        control = memory or {name: torch.zeros_like(w) for name, w in weights.items()}
        return {name: control[name] - kept[name] if kept else control[name] for name in weights}

    def keep(self, weights: Tensors, trained: Tensors, kept: Tensors, memory: Tensors) -> Tensors:
        shift = self.shift(weights, kept, memory)
        return self.within_clip({name: trained[name] - w - shift[name] for name, w in weights.items()})

    def aggregate(self, weights: Tensors, uploads: Uploads, memory: Tensors, round_: int) -> Answer:
        assert isinstance(uploads, Mean)
        mean, share = uploads.mean(), min(1.0, uploads.divisor / self.clients)
        for name, w in weights.items():
            control = memory.get(name, torch.zeros_like(w))
            memory[name] = control + share * ((mean[name] - w) / self.step - control)
        memory |= self.within_clip(memory)
        return mean, {}

    def within_clip(self, control: Tensors) -> Tensors:
        long = {name: s[None] for name, s in control.items()}
        return control if self.noise is None else {name: s[0] for name, s in clip_updates(long, self.clip).items()}


TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 50, "partition": "dirichlet"},
    "cohort": {"size": 25},
    "train": {"rounds": 20, "local_epochs": 5, "batch_size": 16},
}

if __name__ == "__main__":
    runs = {}
    for noise, name in ((2, "fedavg"), *((z, n) for z in (2, 0) for n in ("scaffold", "__main__:Scaffold"))):
        privacy = {"mechanism": "distributed", "noise_multiplier": noise, "clip": 0.3}
        run = runs[noise, name] = fedceo.run(TABLE | {"method": {"name": name}, "privacy": privacy}, progress=False)
        rows = ", ".join(f"{row['observer']} {row['epsilon'] or 'none':.4}" for row in run.result["privacy"])
        print(f"{name:18} noise {noise}, accuracy {run.result['accuracy']['last']:.4f}; epsilon: {rows}")
    mine, theirs = runs[0, "__main__:Scaffold"].weights, runs[0, "scaffold"].weights
    print("equal to the bit without noise:", all(mine[name].equal(w) for name, w in theirs.items()))
