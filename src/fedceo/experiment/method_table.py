"""The [method] table: what all methods' settings have in common, and how the table of any method is read.

The settings of a method live beside its behaviour in `methods/`. They also answer what other rooms must know of the
method before it runs: what leaves the server, how many private steps a participation takes under record-level privacy,
what the method cannot be combined with, what `fedceo tune` searches.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError
from pydantic_core import PydanticCustomError

from fedceo.experiment.base import Section, first_mistake, one_line
from fedceo.experiment.plugins import is_own
from fedceo.experiment.registry import METHODS

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment

OWN = "module:Class"
"""The name under which methods of users are registered, all together."""
RATES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
ADAM_RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03]
SERVER_RATES = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
CLIPS = [0.03, 0.1, 0.3, 1.0, 3.0]
SERVER_OPTIMIZERS = ["sgd", "momentum"]
SERVER_STEPS = [0.1, 0.3, 1.0]
"""The server's rates beside the clients' own: momentum 0.9 adds up ten updates, and takes a tenth of the step."""
METHOD_MISTAKE = "method_mistake"
"""The type of the error that a mistake in the [method] table raises; its message is the whole line."""


CountNoise = Annotated[float, Field(ge=1e-4, le=1e12, strict=True)]
"""Standard deviation of the noise on counts, within what is accounted for."""


class Counts(NamedTuple):
    """Numbers that each client counts of its records and releases once, with Gaussian noise, beside its private steps.

    Attributes:
        of: what they are, as a privacy row says it: "label counts".
        noise: standard deviation of the noise on each of them.
        moved: how far one record moves them, in Euclidean length, if it becomes zero; no record is let add more.
        replaced: how far if another takes its place.
        in_last_round: whether clients release them in the run's last round, and not in the first that they are in.
    """

    of: str
    noise: float
    moved: float
    replaced: float
    in_last_round: bool = False


class MethodSettings(Section):
    """Settings of a method; those of a method of your own are a class made from this one."""

    if TYPE_CHECKING:
        name: str  # a field of every method's settings, but not of a user's own, which the file names

    later_fields: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str] = ""
    """The name by which tables and figures call the method; left empty: the name in experiment files."""
    colour: ClassVar[int | None] = None
    """The number of its colour in all figures, for methods that are often compared; the others take what is left."""

    def titled(self, experiment: Experiment) -> str:
        """The method's name in tables and figures about an experiment, whose noise may give it another one."""
        return self.title or self.name

    def check(self, experiment: Experiment) -> None:
        """Raises ValueError, in one line, where the method does not fit the rest of the experiment."""

    def prepare(self) -> None:
        """Check code of the user's own before any data are read; the library's methods need no check."""

    def identity(self) -> dict[str, Any]:
        """Tells a run's method from a later one of the same name; empty for the library's own."""
        return {}

    def unused_later_fields(self) -> set[str]:
        """Fields that came in a later version and have their defaults: without them runs keep the noise they had."""
        return {name for name in self.later_fields if getattr(self, name) == type(self).model_fields[name].default}

    def record_steps(self, batches: int, epochs: int) -> int:
        """Private steps of one participation under record-level privacy; batches: of one epoch.

        Every phase of local training is private there, the personal ones too: an update computed with a part that was
        fitted to the records without noise would leak them, however much noise the update itself carries.
        """
        return batches * epochs

    def record_batches(self, batches: int) -> int:
        """One over the rate at which a record is drawn in such a step."""
        return batches

    @property
    def counts(self) -> Counts | None:
        """What every client counts of its records and releases once, None where it keeps all counts to itself."""
        return None

    @property
    def elects(self) -> str | None:
        """The field whose value clients elect in the last round, which that round's metrics have under its name."""
        return None

    def server_step(self, rate: float) -> float:
        """The factor of updates and noise alike; rate: train.server_learning_rate."""
        return rate

    @property
    def steps_at_server(self) -> bool:
        """Whether clients send one gradient of the shared part, so that train.server_learning_rate is its step."""
        return False

    @property
    def release(self) -> str:
        """The kind of release, as the accountant knows it: any but "average" is made from single uploads."""
        return "average"

    @property
    def release_interval(self) -> int | None:
        """Rounds between releases of personal models, where some are released and not in every round."""
        return None

    @property
    def keeps_heads(self) -> bool:
        """Whether the last layer is each client's own, so that nobody has a whole global model."""
        return False

    @property
    def keeps_parts(self) -> bool:
        """Whether something stays with each client on which its next update depends: a part of the model, a memory."""
        return False

    @property
    def looks_ahead(self) -> bool:
        """Whether what a round does depends on how many are left, so that a finished run cannot be given more."""
        return self.elects is not None

    @property
    def refused_on_nodes(self) -> str | None:
        """Why a federation of machines cannot host the method, or None."""
        if not self.keeps_parts:
            return None
        return (
            "keeps something on each client, and a node that restarts forgets what it kept; expected a method "
            "that needs nothing but uploads"
        )

    @property
    def refused_by_audit(self) -> str | None:
        """Why an audit cannot look at the method with these settings, or None."""
        return None

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        """The space of `fedceo tune`, "section.field" -> values: the same of all methods, and what a method adds to it.

        The best rates, clip and momentum depend on each other: noise grows with the clip and with the server's step.
        """
        space: dict[str, list[Any]] = {"train.server_optimizer": SERVER_OPTIMIZERS}
        if self.steps_at_server:
            space |= {"train.server_learning_rate": SERVER_RATES}
        else:
            rates = RATES if experiment.train.optimizer == "sgd" else ADAM_RATES
            space |= {"train.server_learning_rate": SERVER_STEPS, "train.learning_rate": rates}
        return space | ({"privacy.clip": CLIPS} if experiment.mechanism.adds_noise else {})


def known_methods() -> list[str]:
    """The names of all registered methods, those of users' own aside."""
    return [name for name in METHODS if name != OWN]


def settings_of(name: str) -> type[MethodSettings]:
    """The class of a method's settings; KeyError for a name that is not registered."""
    kind: type[MethodSettings] = METHODS[OWN if is_own(name) else name].Settings
    return kind


def _read(table: Any) -> Any:
    """The settings that a [method] table means; a mistake in it is raised as one whole line."""
    if isinstance(table, MethodSettings):
        return table
    if not isinstance(table, Mapping):
        raise PydanticCustomError(METHOD_MISTAKE, "method: expected a table, got {given}", {"given": repr(table)})
    name = table.get("name")
    if name is None:
        raise PydanticCustomError(METHOD_MISTAKE, "method.name: missing")
    try:
        kind = settings_of(name)
    except (KeyError, TypeError):
        close = get_close_matches(str(name).lower(), known_methods(), n=1)
        hint = f"did you mean {close[0]}? Expected" if close else "expected"
        line = f"method.name: unknown method {name!r}, {hint} one of {', '.join(known_methods())}, or {OWN}"
        raise PydanticCustomError(METHOD_MISTAKE, "{line}", {"line": line}) from None
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first = first_mistake(error)
        line = one_line(first, lambda _: kind.model_fields, within=("method",))
        if first["type"] == "extra_forbidden":
            field = first["loc"][-1]
            others = [other for other in known_methods() if field in settings_of(other).model_fields]
            if others:
                line = f"method.{field}: a field of {', '.join(others)}, and the method is {name}"
        raise PydanticCustomError(METHOD_MISTAKE, "{line}", {"line": line}) from None


AnyMethodSettings = Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_read)]
