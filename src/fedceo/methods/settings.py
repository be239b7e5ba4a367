"""The [method] table: one class per method, with its paper's defaults.

A method's settings also say what privacy must know of it: the step that multiplies updates and noise, and how many
private steps a participation takes under record privacy. There every phase of local training is private, the personal
ones too: an update computed with a part that was fitted to the records without noise would leak them, however much
noise the update itself carries.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedceo.errors import UsageError
from fedceo.experiment.plugins import BASE, call, find, is_own
from fedceo.experiment.sections import Count, Fraction, NotNegative, Positive, Section, first_mistake, one_line


class Settings(Section):
    """What is common to all methods; a method of your own has its fields in a class made from this one."""

    def record_steps(self, batches: int, epochs: int) -> int:
        """Private steps of one participation under record privacy; batches: of one epoch."""
        return batches * epochs

    def record_batches(self, batches: int) -> int:
        """One over the rate at which a record is drawn in such a step."""
        return batches

    def server_step(self, rate: float) -> float:
        """What multiplies updates and noise alike; rate: train.server_learning_rate."""
        return rate

    @property
    def steps_at_server(self) -> bool:
        """Whether clients send one gradient of what is shared, so that train.server_learning_rate is its step."""
        return False

    @property
    def release(self) -> str:
        """What leaves the server, as the accountant knows it: anything but "average" comes from single uploads."""
        return "average"

    @property
    def release_interval(self) -> int | None:
        """Rounds between releases of personal models, where some are released and not in every round."""
        return None

    @property
    def keeps_heads(self) -> bool:
        """Whether the last layer is each client's own, so that nobody has a whole global model."""
        return False


class FedAvg(Settings):
    name: Literal["fedavg"] = "fedavg"
    """The mean of the clients' models; with privacy.mechanism = "distributed" this is UDP-FedAvg."""


class DPFedAvg(Settings):
    name: Literal["dp-fedavg"] = "dp-fedavg"
    """McMahan et al. 2018: after every local step the model is projected back to within the clip of its start."""


class DPFedSGD(Settings):
    name: Literal["dp-fedsgd"] = "dp-fedsgd"
    """McMahan et al. 2018: each client sends one clipped gradient; train.server_learning_rate is the step."""
    batch: Literal["minibatch", "full"] = "minibatch"
    """What the gradient is taken over: train.batch_size records, or all of the client's."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return 1

    def record_batches(self, batches: int) -> int:
        return 1 if self.batch == "full" else batches

    @property
    def steps_at_server(self) -> bool:
        return True


class FedProx(Settings):
    name: Literal["fedprox"] = "fedprox"
    """Li et al. 2020: (mu/2) |w - w_start|^2 is added to the local loss."""
    mu: NotNegative = 0.01
    """Weight of the proximal term; train.proximal gives any other method one."""


class BlurLus(Settings):
    name: Literal["blur-lus"] = "blur-lus"
    """Cheng et al. 2022: local updates are kept inside the clip while training (BLUR) and made sparse (LUS)."""
    strength: NotNegative = 0.1
    """lambda of BLUR: (lambda/2) max(0, |w - w_start|^2 - C^2) is added to the local loss."""
    sparsity: Fraction = 0.5
    """c of LUS: share of the update's entries that are set to zero; the noise is on all entries all the same."""
    score: Literal["magnitude", "first-order"] = "magnitude"
    """Which entries stay: those with the largest |update|, or |gradient * update|."""


class PPSGD(Settings):
    name: Literal["ppsgd"] = "ppsgd"
    """Bietti et al. 2022: every client adds an offset of its own to the last layer, which is never sent."""
    form: Literal["gradient", "averaging"] = "averaging"
    """gradient: one clipped gradient a round, as in the paper. averaging: E epochs a round, as FedAvg does."""
    alpha: Annotated[float, Field(ge=0.0, strict=True)] = 1.0
    """gradient: shared against personal step. Up to 1 the pair is (alpha eta, eta), above 1 (eta, eta / alpha), with
    eta = train.server_learning_rate; infinity is the global model alone, 0 local models alone."""
    personal_epochs: Annotated[int, Field(ge=0, strict=True)] = 1
    """averaging: epochs on the offset, before the shared part."""
    personal_learning_rate: Positive | None = None
    """averaging: of these epochs; left out: train.learning_rate."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return 1 if self.form == "gradient" else batches * (self.personal_epochs + epochs)

    def server_step(self, rate: float) -> float:
        return rate * min(self.alpha, 1.0) if self.form == "gradient" else rate

    @property
    def steps_at_server(self) -> bool:
        return self.form == "gradient"


class Centaur(Settings):
    name: Literal["centaur"] = "centaur"
    """Shen et al. 2023: the last layer is each client's own; the layers before it are shared."""
    head_epochs: Annotated[int, Field(ge=0, strict=True)] = 15
    """Epochs on the client's last layer, before the shared layers."""
    head_learning_rate: Positive | None = None
    """Of these epochs; left out: train.learning_rate."""
    persist_heads: bool = True
    """Whether a client goes on with its last layer from round to round, or begins anew."""
    personal: Literal["head", "none"] = "head"
    """none: nothing is personal, which is FedAvg if head_epochs is 0."""
    initialisation: Literal["random", "power"] = "random"
    """power: the first `power_rounds` rounds train nothing; they are steps of a private power method for the directions
    in which class means differ, clipped, noised and counted like any round, and the first layer begins with these."""
    power_rounds: Count = 5
    """Of initialisation "power"."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return batches * (epochs + (self.head_epochs if self.personal == "head" else 0))

    @property
    def keeps_heads(self) -> bool:
        return self.personal == "head"


class JainAnil(Settings):
    name: Literal["jain-anil"] = "jain-anil"
    """Our extension of Jain et al. 2021 to deep models: the client's last layer is fitted anew in every round, one
    clipped gradient of the layers before it is sent, and the last shared matrix is cut to its largest singular values.
    The linear method of the paper is `fedceo.methods.jain`."""
    rank: Count = 8
    """Singular values kept."""
    head_epochs: Count = 5
    """Epochs on the client's last layer."""
    head_learning_rate: Positive | None = None
    """Of these epochs; left out: train.learning_rate."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return batches * self.head_epochs + 1

    @property
    def keeps_heads(self) -> bool:
        return True

    @property
    def steps_at_server(self) -> bool:
        return True


class FedCEO(Settings):
    name: Literal["fedceo"] = "fedceo"
    """The truncated t-SVD over the stacked models every `interval` rounds."""
    strength: Positive = 0.6
    """lambda: the threshold is ratio^(t/I) / (2 strength), so a larger strength smooths less."""
    ratio: Annotated[float, Field(ge=1.0, le=2.0, strict=True)] = 1.04
    """vartheta, the growth of the threshold from one smoothing to the next."""
    threshold: Literal["scheduled", "noise"] = "scheduled"
    """scheduled: as above, the paper's. noise: kappa s sqrt(K) (sqrt(d) + sqrt(h)) for a layer of d x h entries, where
    s is the known standard deviation of the noise in an upload: what noise alone would reach."""
    kappa: Positive = 1.0
    """Factor of the threshold "noise"."""
    interval: Count = 10
    """I, rounds between smoothings."""
    restart: Literal["own", "mean", "slot", "stored"] = "own"
    """What a client starts from after a smoothing. own: its smoothed model if it was in that cohort, else the mean.
    mean: the mean of the smoothed models, always; this is FedAvg with a soft-thresholded mean. slot: the smoothed model
    of its place in the cohort. stored: at every restart the client's last stored model, however old, as in the authors'
    program."""
    unseen: Literal["train", "resubmit"] = "train"
    """What a client does at a restart from stored models if none was stored for it. train: from the global model.
    resubmit: it does not train and sends what the client before it sent, as in the authors' program."""
    layers: str | list[str] = "all"
    """Which layers are smoothed: "all", "last N", or a list of names."""

    @property
    def release(self) -> str:
        return {"mean": "average", "stored": "stored"}.get(self.restart, "personalised")

    @property
    def release_interval(self) -> int | None:
        return None if self.restart == "mean" else self.interval


class DPFedSAM(Settings):
    name: Literal["dp-fedsam"] = "dp-fedsam"
    """Shi et al. 2023: clients follow the gradient at the worst point nearby (sharpness-aware minimisation). Under
    record privacy the way there is that of the step before, which is noised already."""
    radius: NotNegative = 0.05
    """rho: how far away the worst point is looked for."""


class DPFedLS(Settings):
    name: Literal["dp-fed-ls"] = "dp-fed-ls"
    """Liang et al. 2020: the mean update is smoothed along its entries, (I + c L)^-1 with the Laplacian of a ring."""
    coefficient: NotNegative = 1.0
    """c; 0 leaves the update as it is."""


class Own(Settings, extra="allow"):
    name: str
    """Your own, as module:Class, made from `fedceo.methods.OwnMethod`; the module lies in the working directory or is
    installed. Its fields are those of its inner class Settings."""

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        if not re.fullmatch(r"[\w.]+:\w+", self.name):
            raise ValueError(f"name is {self.name!r}, expected module:Class")
        for field, value in (self.model_extra or {}).items():
            try:
                tomli_w.dumps({field: value})
            except (TypeError, ValueError, AttributeError):
                raise ValueError(f"{field} is {type(value).__name__}, expected a value that TOML has") from None
        return self

    @property
    def kind(self) -> Any:
        """The class that is meant; its module is imported here, not when an experiment file is read."""
        return self._understood()[0]

    @property
    def given(self) -> Settings:
        """The fields as the class knows them."""
        return self._understood()[1]

    def _understood(self) -> tuple[Any, Settings]:
        found = find("method.name", self.name)
        if not isinstance(found, type) or not isinstance(getattr(found, "needs_stack", None), bool):
            said = found.__name__ if isinstance(found, type) else type(found).__name__
            raise UsageError(
                f"method.name: {self.name!r} is {said}, expected a class made from {BASE}, whose "
                "needs_stack is True or False"
            )
        settings = getattr(found, "Settings", Settings)
        if not isinstance(settings, type) or not issubclass(settings, Settings) or "name" in settings.model_fields:
            raise UsageError(
                f"method.name: the Settings of {self.name!r} are no class made from fedceo.methods.Settings, or have a "
                "field called name"
            )
        read = call("method.name", self.name, _read, settings, self.model_extra or {})
        if isinstance(read, Settings):
            return found, read
        raise UsageError(one_line(read, lambda _: settings.model_fields, within=("method",)))

    @property
    def release(self) -> str:
        """Nobody has to say: what needs single uploads has no proof but the server's row."""
        return "stored" if self.kind.needs_stack else "average"


def _read(settings: type[Settings], fields: Mapping[str, Any]) -> Settings | ErrorDetails:
    """The settings, or what is wrong with the fields."""
    try:
        return settings.model_validate(fields)
    except ValidationError as error:
        return first_mistake(error)


METHODS = (FedAvg, DPFedAvg, DPFedSGD, FedProx, BlurLus, PPSGD, Centaur, JainAnil, FedCEO, DPFedSAM, DPFedLS)

Known = Annotated[
    FedAvg | DPFedAvg | DPFedSGD | FedProx | BlurLus | PPSGD | Centaur | JainAnil | FedCEO | DPFedSAM | DPFedLS,
    Field(discriminator="name"),
]


def _kind(method: Any) -> str:
    name = method.get("name") if isinstance(method, Mapping) else getattr(method, "name", None)
    return "own" if isinstance(name, str) and is_own(name) else "known"


Method = Annotated[Annotated[Known, Tag("known")] | Annotated[Own, Tag("own")], Discriminator(_kind)]
