"""The tables of the experiment file, but for [method], [task] and [evaluation], which have files of their own."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_serializer, model_validator
from pydantic import SerializerFunctionWrapHandler as Written

from fedceo.experiment.base import Count, Fraction, NotNegative, Positive, Section
from fedceo.experiment.registry import MECHANISMS


class Data(Section):
    name: str | None = None
    """A registered data set (`fedceo data list`) or "hf:owner/name" of the Hugging Face hub; none where `path` is."""
    path: str | None = None
    """A .npz file with x (records, ...), y (records,) and, for partition = "natural", client (records,); its test_x and
    test_y are the public test set or, without them, a fixed fifth of the records. Or a table, .csv, .csv.gz or
    .parquet, whose columns are named below."""
    root: str | None = None
    """The folder that holds downloaded data sets; left out: the environment variable FEDCEO_DATA."""
    clients: Count | None = None
    """N, the number of clients; left out: 100, or what the data says with partition = "natural"."""
    partition: Literal["iid", "shards", "dirichlet", "dirichlet-equal", "natural", "pooled", "resampled"] = "iid"
    """Who has which records; left out: natural with client_column, otherwise iid. iid: evenly at random. shards: two
    label shards each. dirichlet: each label's records in Dirichlet proportions over the clients, who then differ in
    size. dirichlet-equal: each client's labels in Dirichlet proportions, all of one size. natural: as the data say.
    pooled: every natural client goes to one of N. resampled: each draws `records`, which several may hold."""
    min_records: Count | None = None
    """Natural clients with fewer records are left out, before anything else."""
    records: Count | None = None
    """Training records of each client, for partition = "resampled" alone."""
    alpha: Positive = 0.5
    """Concentration of the Dirichlet proportions: the smaller, the more unequal."""
    validation: Fraction = 0.1
    """Share of each client's records kept out of training to choose rounds and settings by."""
    local_test: Fraction = 0.0
    """Share of each client's records on which its own model is measured (P-loc)."""
    local_test_from: Literal["own", "test"] = "own"
    """The source of these records. own: kept out of the client's training. test: as many of the public test set, with
    labels in the client's proportions."""
    image_column: str | None = None
    """The column of images in a data set of the Hugging Face hub (name = "hf:owner/name"); left out: guessed."""
    label_column: str | None = None
    """The column of its labels, left out: guessed; or that of a table at `path`, words or whole numbers."""
    client_column: str | None = None
    """The column of a table that names the client of each record, for partition = "natural"."""
    feature_columns: list[str] | None = None
    """The columns of a table that hold the numbers of a record; left out: all but those named here."""
    target_columns: list[str] | None = None
    """In the place of label_column: the columns of a table with the numbers to predict (regression), or with a 0 or 1
    for each label (multi-label)."""
    text_column: str | None = None
    """The column of a table with texts, for task "next-token": pieces of text_length characters are the records."""
    text_length: Count | None = None
    """Characters of a record, with text_column; left out: 64."""

    @field_validator("path", "root")
    @classmethod
    def _names_a_place(cls, place: str | None) -> str | None:
        if place is not None and "\0" in place:
            raise ValueError("a path has no zero byte")
        try:
            Path(place or "").expanduser()
        except RuntimeError:
            raise ValueError("there is no such user, whose home folder it would be") from None
        return place

    @model_validator(mode="before")
    @classmethod
    def _default_partition(cls, table: Any) -> Any:
        if isinstance(table, dict):
            table = ({"partition": "natural"} if table.get("client_column") else {}) | table
            table = ({"clients": 100} if table.get("partition") != "natural" else {}) | table
        return table

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.path is None):
            both = "" if self.name is None else f', got name "{self.name}" and path "{self.path}"'
            raise ValueError(f"exactly one of name and path is needed{both}")
        of_tables = (self.client_column, self.feature_columns, self.target_columns, self.text_column, self.text_length)
        if self.path is None and any(of_tables):
            raise ValueError("client_column, feature_columns, target_columns and text_column are of a table at path")
        if sum(map(bool, (self.label_column, self.target_columns, self.text_column))) > 1:
            raise ValueError("only one of label_column, target_columns and text_column says what is learnt")
        if self.text_column is None and self.text_length is not None:
            raise ValueError("text_length belongs to text_column")
        if self.validation + self.local_test >= 1:
            raise ValueError("validation and local_test together must leave records to train on")
        if (self.partition == "resampled") != (self.records is not None):
            raise ValueError('records and partition "resampled" belong together')
        if self.partition == "resampled" and self.local_test:
            raise ValueError('partition "resampled" keeps no local_test records: clients share theirs with others')
        return self


class Model(Section):
    name: str = "mlp"
    """A registered architecture (`fedceo list`), or "module:callable", your own: what the callable makes of (shape of a
    record, classes); the module lies in the working directory or is installed."""
    hidden: Count | None = None
    """scattering: units of a hidden layer between features and logits; left out: none, a linear model."""
    standardised: bool | None = None
    """scattering: true: features have mean 0 and equal deviations on random images, which follow from no data."""
    activation: Literal["relu", "tanh"] | None = None
    """small-cnn: the function after each convolution; left out: relu."""
    norm: Literal["none", "group"] | None = None
    """small-cnn: group: every four channels of a record are normalised after each convolution. Left out: none."""

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that are given to the architecture."""
        return self.model_dump(exclude={"name"})

    @model_serializer(mode="wrap")
    def _as_before(self, written: Written) -> dict[str, Any]:
        """Without what is left out: noise and checkpoints follow from this text, and older runs must stay."""
        return {name: value for name, value in written(self).items() if value is not None}


class Cohort(Section):
    size: Count = 10
    """K, the clients of a round; the expected number under Poisson sampling."""
    sampling: Literal["fixed", "poisson", "cyclic"] = "fixed"
    """fixed: K of N without replacement. poisson: each client with probability K/N, on its own. cyclic: the seed splits
    the clients into `groups`, and group t mod g is in round t, each of its clients with probability K g/N; all of them
    where K is a group's size. For mechanism central, and for none."""
    groups: Count | None = None
    """cyclic: g, the least distance of a client's rounds; left out: privacy.bands if noise is banded, or floor(N/K)."""
    dropout: Fraction = 0.0
    """Probability that a client of the cohort does not report, each on its own."""

    @model_validator(mode="after")
    def _groups_take_turns(self) -> Self:
        if self.groups is not None and self.sampling != "cyclic":
            raise ValueError('groups belong to sampling "cyclic"')
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, written: Written) -> dict[str, Any]:
        """Without groups where there are none, as in `Train`."""
        return _without(written(self), "groups", self.groups is None)


MOMENTUM = 0.9
"""The server's momentum, and the first of the betas of its Adam."""


class Train(Section):
    rounds: Count = 300
    """T, communication rounds, counted from 1."""
    local_epochs: Count = 30
    """E, passes over a client's records in one round."""
    batch_size: Count = 64
    """B, records of a local step."""
    learning_rate: Positive = 0.1
    """eta, the learning rate of the client's optimiser."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The course of eta over the rounds; linear and cosine fall to a hundredth of it in the last one."""
    momentum: Fraction = 0.0
    """Momentum of the client's SGD; the buffer starts at zero in every round."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The client's optimiser; moments start at zero in every round, with betas 0.9 and 0.999. Under mechanism record it
    is given the noised gradients, which costs no privacy. Rates are then some hundredth of those of sgd."""
    weight_decay: NotNegative = 0.0
    """lambda; lambda w is added to every gradient or, with adamw, eta lambda w is taken off the weights beside it."""
    proximal: NotNegative = 0.0
    """mu of a term mu (w - w_start) in every gradient of any method, as in FedProx."""
    server_learning_rate: Positive = 1.0
    """The step that multiplies the clipped and noised update."""
    server_optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    """The optimiser that the server applies to the mean update; FedCEO needs sgd."""
    weighting: Literal["equal", "records"] = "equal"
    """Weights of the clients in the mean; by records only without user-level privacy."""
    aggregation: Literal["mean", "median", "trimmed_mean"] = "mean"
    """The server's step from a round's uploads to one model. All but the mean bound what few clients can do; they need
    each upload, so that only the server's epsilon holds (privacy.observer = "server"). median: of every entry.
    trimmed_mean: of every entry without a fifth of its values at either end."""
    engine: Literal["auto", "loop", "batched"] = "auto"
    """loop: one client after another. batched: the cohort as one program. auto: a fixed rule on model and device."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU where there is one."""
    precision: Literal["float32", "float64"] = "float32"
    """The precision of weights and of training."""
    tf32: bool = False
    """On a GPU: products with 10 bits of fraction, of numbers that convolutions keep in float16; 2.5 times as fast for
    LeNet-5. Sums, norms and noise stay in float32."""

    @property
    def server_memory(self) -> float:
        """The part of the server's step that comes again in the next round."""
        return 0.0 if self.server_optimizer == "sgd" else MOMENTUM

    @property
    def is_robust(self) -> bool:
        """Whether the server makes of the uploads something that is no mean."""
        return self.aggregation != "mean"

    @model_serializer(mode="wrap")
    def _as_before(self, written: Written) -> dict[str, Any]:
        """Without what is as it always was: noise and checkpoints follow from this text, and older runs must stay."""
        standard = {"aggregation": "mean", "optimizer": "sgd", "weight_decay": 0.0}
        return {name: value for name, value in written(self).items() if name not in standard or value != standard[name]}


def _without(table: dict[str, Any], field: str, is_left_out: bool) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != field or not is_left_out}


def known_mechanism(name: str) -> str:
    """A mechanism's name, refused where nobody has registered it."""
    if name not in MECHANISMS:
        *most, last = (repr(known) for known in MECHANISMS)
        raise ValueError(f"Input should be {', '.join(most)} or {last}")
    return name


class Privacy(Section):
    mechanism: Annotated[str, AfterValidator(known_mechanism)] = "distributed"
    """none; distributed: each client clips and noises its update (UDP); central: the server adds the noise to the
    clipped sum; record: DP-SGD inside local training, which protects records, not users."""
    clip: Positive = 1.0
    """C, the largest L2 norm of an update (of a per-record gradient under record)."""
    clipping: Literal["flat", "per_layer", "adaptive"] = "flat"
    """flat: the whole update to norm C. per_layer: each of m tensors to C / sqrt(m). adaptive: C, at first the given
    one, follows a quantile of the updates' norms (Andrew et al. 2021); the counts it needs are noised, and updates get
    so much more noise that sigma stands for both."""
    clip_quantile: Annotated[float, Field(gt=0.0, lt=1.0, strict=True)] = 0.5
    """adaptive: share of updates that C should leave as they are."""
    clip_learning_rate: Positive = 0.2
    """adaptive: how fast log C follows."""
    count_noise: Positive | None = None
    """adaptive: sigma_b, standard deviation of the noise on the count; must exceed sigma / 2. Left out: the larger of
    K / 20 and 2 sigma."""
    noise_multiplier: NotNegative | None = None
    """sigma: the noise's standard deviation in units of the clip; or give target_epsilon."""
    target_epsilon: Positive | None = None
    """The epsilon that the noise multiplier is solved for."""
    observer: Literal["outsider", "participant", "server", "client"] = "outsider"
    """The observer whose epsilon target_epsilon and max_epsilon speak of."""
    max_epsilon: Positive | None = None
    """The run ends before the round that would raise the observer's epsilon above this."""
    adjacency: Literal["zero-out", "replace-one", "add-remove"] = "zero-out"
    """The pairs of federations that must look alike: one client's contribution is zero (zero-out) or another one
    (replace-one), or the client is not there (add-remove)."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0, strict=True)] | None = None
    """delta of all epsilons; left out: min(1e-5, n^-1.1) for n clients, or n records under mechanism "record"."""
    min_reports: Count | None = None
    """R, the reports that noise shares are sized for: each client adds N(0, sigma^2 C^2 / R), and a round with fewer
    reports is discarded. Left out: shares for K, and fewer reports mean less noise, which the rows show."""
    participation_cap: Count | None = None
    """Rounds that a client may be in with its data. From then on it sends a zero update, noised like any other; under
    record it is left out."""
    noise: Literal["gaussian", "lattice", "banded"] = "gaussian"
    """lattice: Gaussian noise and clipped updates in whole steps of a lattice, against attacks on the lowest bits of
    floating-point noise; the same epsilons. For mechanisms distributed and central. banded: Gaussian noise correlated
    over rounds, much of which cancels in the model. For mechanism central with cohort.sampling cyclic and clipping
    flat."""
    bands: int | Literal["auto"] | None = None
    """banded: b, a round's noise depends on that of the b - 1 rounds before it; at most cohort.groups. auto, or left
    out: the number that promises the least noise in the models at the wanted epsilon or noise multiplier."""
    randomness: Literal["seeded", "system"] = "seeded"
    """seeded: noise from the seed and all else that identifies the run; whoever has the run's folder can remove it.
    system: from the operating system, for every epsilon that is to be relied on."""

    @field_validator("bands", mode="before")
    @classmethod
    def _counts_bands(cls, bands: Any) -> Any:
        is_count = isinstance(bands, int) and not isinstance(bands, bool) and bands >= 1
        if bands not in (None, "auto") and not is_count:
            raise ValueError('expected a whole number, 1 or more, or "auto"')
        return bands

    @model_serializer(mode="wrap")
    def _as_before(self, written: Written) -> dict[str, Any]:
        """Without bands where there are none, as in `Train`."""
        return _without(written(self), "bands", self.bands is None)

    @model_validator(mode="after")
    def _fits_its_mechanism(self) -> Self:
        if self.bands is not None and self.noise != "banded":
            raise ValueError('bands belong to noise "banded"')
        MECHANISMS[self.mechanism].check_settings(self)
        return self


class Release(Section):
    average: Literal["none", "ema", "tail"] = "none"
    """An average of the global models of all rounds, measured and saved beside the last model: it is made from what is
    released anyway and costs no privacy. ema: exponential. tail: the mean of the last ones."""
    decay: Annotated[float, Field(gt=0.0, lt=1.0, strict=True)] = 0.9
    """ema: the weight of a model over that of the model after it."""
    length: Count = 25
    """tail: the last rounds whose models are averaged."""


class Checkpoint(Section):
    every: Count = 10
    """Rounds between checkpoints."""


class Record(Section):
    every: Count | None = None
    """Rounds between recordings of the cohort's models, for `fedceo report`; a multiple of method.interval shows the
    smoothings. Left out: none; rounds in which no models are sent have none either. Recordings hold models before
    noise: guard them as you guard the data."""
    layers: str | list[str] = "all"
    """The layers that are recorded: "all", "last N", or a list of names."""
