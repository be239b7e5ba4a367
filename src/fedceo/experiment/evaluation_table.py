"""The table [evaluation] of the experiment file."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedceo.experiment.base import Count, Section


class Evaluation(Section):
    every: Count = 5
    """Rounds between evaluations; the last round is always evaluated."""
    also_at: list[Count] | None = None
    """Rounds that are evaluated besides, such as those before a smoothing; left out: none."""
    personal_clients: Annotated[int, Field(ge=0, strict=True)] = 20
    """Clients whose own models, where a method has such, are measured on the whole test set (P-glob,
    P-dist)."""
    choose_by: Literal["global", "personal"] = "global"
    """The models whose accuracy on validation records rounds and settings are chosen by. global: the global model.
    personal: clients' own, each class weighted by its share of the client's records, which is P-dist on these."""

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what came later and nobody asked for: noise and checkpoints follow from this text."""
        later = {"also_at": None, "choose_by": "global"}
        return {name: value for name, value in written(self).items() if name not in later or value != later[name]}

    def check(self, rounds: int) -> None:
        """Raises ValueError, in one line, where a round is asked for that there will not be."""
        if beyond := [each for each in self.also_at or () if each > rounds]:
            raise ValueError(f"evaluation.also_at: {beyond[0]}, expected at most train.rounds, {rounds}")

    def asks_for(self, round_: int) -> bool:
        """Whether the round is evaluated even if it is not the last."""
        return round_ % self.every == 0 or round_ in (self.also_at or ())
