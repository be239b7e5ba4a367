"""Callbacks: whoever wants to hear of a run while it goes on, such as a tracker of experiments.

    class Printed(fedceo.Callback):
        def on_measurement(self, metrics):
            print(metrics["round"], metrics.get("test_accuracy"), metrics.get("epsilon"))

    fedceo.run(experiment, callbacks=[Printed(), "tensorboard"])

A callback is an object, or a name: one of CALLBACKS, or "module:Class" of a class that is made without arguments. It
changes nothing of a run. What it raises ends the run in one line; the run's folder can be resumed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedceo.errors import UsageError
from fedceo.experiment import plugins
from fedceo.experiment.registry import Registry
from fedceo.simulation.meter import Meter

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

FIELD = "callbacks"
Settings = dict[str, Any]


class Callback:
    """The base class of callbacks, which does nothing; a class of your own answers what it wants to."""

    def on_start(self, settings: Settings, folder: Path | None) -> None:
        """Before the first round, or the first after a resumption.

        Args:
            settings: the experiment file, section -> field -> value, every field written out.
            folder: the run's, None for a run in memory.
        """

    def on_measurement(self, metrics: dict[str, Any]) -> None:
        """After every round, with its line of metrics.jsonl.

        Accuracies are there where evaluation.every asks for them; "epsilon", what `privacy.observer` may have learnt up
        to the round, with them and always in the last; where the accountant is slow, in fewer (5 % of the time).
        """

    def on_end(self, result: dict[str, Any]) -> None:
        """When the run is finished, or stopped; result: as in result.json, with the epsilon of every observer."""


CALLBACKS: Registry[Callable[[], Callback]] = Registry("callback", "fedceo.tracking")
"""The callbacks that can be named, each in a file of its own in `tracking/`."""


class Callbacks:
    """The callbacks of a run, told together; with none of them and no progress nobody computes an epsilon."""

    def __init__(self, given: Sequence[Callback | str]) -> None:
        self._each = [(each if isinstance(each, str) else type(each).__name__, _made(each)) for each in given]
        self._meter = Meter()

    def start(self, simulation: "Simulation", folder: Path | None) -> None:
        self._meter.begin(simulation)
        if not self._each:
            return
        settings = simulation.experiment.model_dump(mode="json", exclude_none=True)
        self._tell("on_start", settings, folder)

    def measure(self, metrics: dict[str, Any]) -> None:
        if self._each:
            self._tell("on_measurement", self.with_epsilon(metrics))

    def with_epsilon(self, metrics: dict[str, Any]) -> dict[str, Any]:
        return self._meter.read(metrics)

    def end(self, result: dict[str, Any]) -> None:
        self._tell("on_end", result)

    def _tell(self, question: str, *told: Any) -> None:
        for name, callback in self._each:
            plugins.call(FIELD, name, getattr(callback, question), *told)


def _made(given: Callback | str) -> Callback:
    if isinstance(given, str):
        if plugins.is_own(given):
            kind = plugins.find(FIELD, given)
        elif given in CALLBACKS:
            kind = CALLBACKS[given]
        else:
            raise UsageError(f"{FIELD}: {CALLBACKS.unknown(given)}, or module:Class")
        made = plugins.call(FIELD, given, kind)
    else:
        made = given
    if not isinstance(made, Callback):
        raise UsageError(f"{FIELD}: {given!r} is {type(made).__name__}, expected a class made from fedceo.Callback")
    return made


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a tracker can draw of a round's metrics."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "round"
    }


def final_numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """A run's accuracies, and the largest epsilon that a row promises each observer; the paper's row is no promise.

    None of their names is a part of a round's, for some trackers make folders of names.
    """
    found = {f"final_accuracy/{name}": value for name, value in numbers_of(result["accuracy"]).items()}
    for row in result["privacy"]:
        if row["epsilon"] is not None and row["observer"] != "paper":
            name = f"final_epsilon/{row['observer']}"
            found[name] = max(row["epsilon"], found.get(name, 0.0))
    return found
