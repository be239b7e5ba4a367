"""Methods of a user's own, good and bad, as the text of a module that tests write into the working directory."""

from typing import Any

from tests.support.small_runs import changed

METHODS = """
from dataclasses import dataclass, replace

import torch
from pydantic import field_validator
from fedceo.methods import Mean, MethodSettings, OwnMethod, Stack

FACTOR = 1.0

class Same(OwnMethod):
    pass

class Momentum(OwnMethod):
    class Settings(MethodSettings):
        beta: float = 0.9

    def aggregate(self, weights, uploads, memory, round_):
        assert isinstance(uploads, Mean), "single uploads are not for it"
        for name, mean in uploads.mean().items():
            before = memory.get("m/" + name, torch.zeros_like(mean))
            memory["m/" + name] = self.settings.beta * before + mean - weights[name]
        memory["rounds"] = memory.get("rounds", torch.zeros(1)) + 1
        weights = {name: w + FACTOR * memory["m/" + name] for name, w in weights.items()}
        return weights, {"beta": self.settings.beta, "rounds": float(memory["rounds"])}

class Median(OwnMethod):
    needs_stack = True

    def aggregate(self, weights, uploads, memory, round_):
        assert isinstance(uploads, Stack)
        return {name: w.median(0).values for name, w in uploads.weights.items()}, {}

class Krum(Median):
    def aggregate(self, weights, uploads, memory, round_):
        if len(uploads.clients) < 5:
            raise ValueError("too few for it")
        return super().aggregate(weights, uploads, memory, round_)

class TakesBack(OwnMethod):
    def __init__(self, **given):
        super().__init__(**given)
        self.needs_stack = True

    def aggregate(self, weights, uploads, memory, round_):
        assert isinstance(uploads, Mean)
        return uploads.mean(), {"round": -1, "test_accuracy": 1.0}

class Remembers(OwnMethod):
    def keep(self, weights, trained, kept, memory):
        return {"times": kept.get("times", torch.zeros(2)) + 1}

    def shift(self, weights, kept, memory):
        times = float(kept["times"][0]) if kept else 0.0
        return {name: torch.full_like(w, 0.01 * times) for name, w in weights.items()}

class ShiftsAway(OwnMethod):
    def shift(self, weights, kept, memory):
        return {name: w / 0 for name, w in weights.items()}

class ShiftsNothing(OwnMethod):
    def shift(self, weights, kept, memory):
        return None

class KeepsWords(OwnMethod):
    def keep(self, weights, trained, kept, memory):
        return {"word": "word"}

class KeepsUnlike(OwnMethod):
    def keep(self, weights, trained, kept, memory):
        largest = max(float(w.max()) for w in trained.values())
        return {"some": torch.zeros(int(largest * 1e6) % 100)}

class Proximal(OwnMethod):
    class Settings(MethodSettings):
        mu: float = 0.5
        layers: int = 3

    def local(self, work):
        return replace(work, proximal=self.settings.mu)

class Looks(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return uploads.mean(), {"clip": self.clip, "noise": self.noise}

class Twice(OwnMethod):
    def local(self, work):
        return replace(work, epochs=2 * work.epochs)

class Bare(OwnMethod):
    def local(self, work):
        return replace(work, record=None)

class Capped(OwnMethod):
    def local(self, work):
        return replace(work, steps=-1)

class Numbered(OwnMethod):
    def local(self, work):
        return replace(work, phase=1)

class Large(OwnMethod):
    def local(self, work):
        return replace(work, batch_size=2 * work.batch_size)

class Backwards(OwnMethod):
    def local(self, work):
        return replace(work, learning_rate=-1.0)

class Nowhere(OwnMethod):
    def local(self, work):
        return replace(work, only=frozenset({"nothing"}))

class NoWork(OwnMethod):
    def local(self, work):
        return [work]

class Forgetful(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {}, {}

class Transposed(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {name: w.T for name, w in uploads.mean().items()}, {}

class Unasked(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {name: w[0] for name, w in uploads.weights.items()}, {}

class Wordless(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return weights

class Chatty(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return weights, {"norm": torch.ones(2)}

class NotANumber(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {name: w / 0 * 0 for name, w in weights.items()}, {}

class Counting(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        memory["count"] = 1
        return weights, {}

class Failing(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {"w": weights.nothing}, {}

class Later(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {name: w / (3 - round_) for name, w in weights.items()}, {"third": 1 / (3 - round_)}

class Demanding(OwnMethod):
    def __init__(self, more, **given):
        super().__init__(**given)

@dataclass
class Dated(OwnMethod):
    alpha: float = 1.0

class Wrong(OwnMethod):
    class Settings:
        pass

class Named(OwnMethod):
    class Settings(MethodSettings):
        name: str

class Valid(OwnMethod):
    class Settings(MethodSettings):
        size: int = 1

        @field_validator("size")
        @classmethod
        def check(cls, value):
            raise ValueError("too\\nlarge") if value > 5 else KeyError("odd")

class Skips(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return (weights if uploads.nonfinite else uploads.mean()), {}

class Normed(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        updates = {name: mean - weights[name] for name, mean in uploads.mean().items()}
        norm = sum(float(u.square().sum()) for u in updates.values()) ** 0.5
        return {name: w + updates[name] / norm for name, w in weights.items()}, {}

class Fifo(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        memory[f"{100 - round_}"] = torch.ones(1)
        memory["0.bias"] = torch.ones(1)
        return weights, {"names": list(memory)}

class Selfish(OwnMethod):
    seen = 0

    def aggregate(self, weights, uploads, memory, round_):
        self.seen += 1
        return weights, {"seen": self.seen}

class Big(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {name: w.double() + 1e300 for name, w in weights.items()}, {}

class Complex(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {name: w + 0j for name, w in weights.items()}, {}

class Sparse(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return {name: w.to_sparse() for name, w in weights.items()}, {}

class Infinite(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        return weights, {"ratio": float("inf")}

class Exotic(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        memory["z"] = torch.ones(2, dtype=torch.complex128)
        return weights, {}

class Keyed(OwnMethod):
    def aggregate(self, weights, uploads, memory, round_):
        memory[3] = torch.ones(2)
        return weights, {}

class Old(OwnMethod):
    def aggregate(self, state, uploads):
        return {}, {}

class Other(OwnMethod):
    needs_stack = 1

class Huge(OwnMethod):
    def local(self, work):
        return replace(work, momentum=10**400)

class NotAMethod:
    pass

class Half:
    needs_stack = False

a_number = 3
"""


def table_of(name: str, mechanism: str = "distributed", **fields: Any) -> dict[str, Any]:
    """A small experiment with a method of that name; fields: the method's settings."""
    table = changed(privacy={"mechanism": mechanism}, train={"rounds": 4}, checkpoint={"every": 1})
    return table | {"method": {"name": name} | fields}
