"""A model that may be passed on: its weights and a card, and nothing that no epsilon covers.

    release("runs/mine", "model")

A run folder is no such thing: it holds the seed, cohorts, losses and accuracies on private records, a digest of all
records. A release holds what follows from the noised updates, from settings and from public test records.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from fedceo.accounting.ledger import Ledger
from fedceo.accounting.printed import rounded_up
from fedceo.accounting.rows import OBSERVERS, Row, account
from fedceo.data import DATASETS
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.models import parameters_of
from fedceo.simulation.chosen import check_may_leave, rows_of_study, study_of
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.runs import load
from fedceo.simulation.spending import spent_plan
from fedceo.tasks import summary_of
from fedceo.tensors.weights import last_layer

PUBLIC_SETTINGS: dict[str, Any] = {
    "data": {"name", "partition", "alpha", "min_records", "records", "validation"},
    "task": True,
    "model": True,
    "cohort": True,
    "train": True,
    "privacy": True,
    "method": True,
    "release": True,
}
"""The parts of an experiment that a card shows: settings that somebody chose, and no seed, remark or path."""
REMOVABLE = (
    "This was a repeatable run: whoever has its folder, or knows its seed and everything else that it was made from, "
    "can remove the noise."
)
NOT_COVERED = (
    "The choice of these settings by looking at results of other runs on the same records is a further release.",
    "Several releases from the same records add up; each epsilon is that of this one alone.",
    "Several colluding participants: the participant's row is for one.",
)

FLOATING_POINT = "Gaussian noise in floating point can leak through its lowest bits (Mironov 2012)."


def release(run: str | Path, out: str | Path, *, model: nn.Module | None = None) -> dict[str, Any]:
    """Write model.safetensors, card.json and README.md of a finished run into a new or empty folder.

    Where the run has an average of its global models, average.safetensors is beside them.

    Args:
        model: the module that the run was given in Python, where it was.

    Returns:
        The content of card.json.
    """
    folder, out = RunFolder(Path(run)), Path(out)
    experiment = folder.experiment()
    if not folder.finished:
        raise UsageError(f"{folder.path}: the run is unfinished; go on with: fedceo run --resume {folder.path}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: not an empty folder")
    result = folder.result()
    rows = public_rows(folder, experiment, result)
    if not is_covered(rows):
        raise UsageError(f"{folder.path}: no epsilon covers its model ({rows[0]['assumption']})")
    models = {name: folder.load_model(name) for name in ("model", *(["average"] if folder.has_average else []))}
    if not all(bool(w.isfinite().all()) for weights in models.values() for w in weights.values()):
        raise UsageError(f"{folder.path}: its model is not finite")
    models["model"], left_out = _released_weights(folder.path, experiment, models["model"], model)
    chosen_by = study_of(folder.path)
    card = card_of(experiment, result, rows, left_out, chosen_by["validation"] if chosen_by else None)
    files = {f"{name}.safetensors": save({n: w.contiguous() for n, w in each.items()}) for name, each in models.items()}
    files["card.json"] = (json.dumps(card, indent=2) + "\n").encode()
    files["README.md"] = card_as_markdown(card).encode()
    _write(out, files)
    return card


def card_of(
    experiment: Experiment,
    result: Mapping[str, Any],
    rows: list[dict[str, Any]],
    left_out: list[str],
    study: str | None = None,
) -> dict[str, Any]:
    """The content of a card.

    Args:
        rows: those of `public_rows`.
        left_out: names of tensors that clients keep for themselves.
        study: where a private study chose the run, how its validation records are protected.
    """
    accuracy, averaged = (public_accuracy(experiment, result, of) for of in ("last", "average"))
    not_covered = NOT_COVERED if study is None else NOT_COVERED[1:]
    return {
        "data": result["data"],
        "record_shape": result["record_shape"],
        "classes": result["classes"],
        "clients": result["clients"],
        "model": result["model"],
        "left_out": left_out,
        "method": result["method"],
        "regime": result["regime"],
        "rounds": result["rounds"],
        "noise_multiplier": result["noise_multiplier"],
        "test_accuracy": accuracy,
        **({"average_test_accuracy": averaged} if "average" in summary_of(result) else {}),
        "privacy": rows,
        "removable_noise": experiment.privacy.randomness == "seeded",
        "study": study,
        "not_covered": [*not_covered, *([FLOATING_POINT] if experiment.privacy.noise != "lattice" else [])],
        "settings": public_settings(experiment),
        "versions": {name: result["versions"][name] for name in ("fedceo", "torch")},
    }


def public_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings of an experiment that a card may show."""
    return experiment.model_dump(include=PUBLIC_SETTINGS, exclude={"train": {"engine", "device"}}, exclude_none=True)


def public_accuracy(experiment: Experiment, result: Mapping[str, Any], of: str = "last") -> float | None:
    """The accuracy of the last model, or of the average, where whoever has the model could measure it."""
    found: float | None = result.get("accuracy", {}).get(of) if is_measured_in_public(experiment, result) else None
    return found


def is_measured_in_public(experiment: Experiment, result: Mapping[str, Any]) -> bool:
    """Whether the global model is released and was measured on records that are public beyond doubt.

    Test records of the user's own may be a part of the private ones, and where clients keep their last layers the
    accuracy is that of a model that nobody has.
    """
    data = experiment.data.name
    return data in DATASETS and result["data"] == data and not experiment.method.keeps_heads


def public_rows(folder: RunFolder, experiment: Experiment, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first row of each observer, over the draw of cohorts: how often anybody was in stays in the folder.

    A run that a private study chose has the epsilons of the study.
    """
    seeded = experiment.privacy.randomness == "seeded"
    ledger = folder.ledger(repeatable=seeded, least=result.get("ledger", 0))
    check_may_leave(folder.path)
    study = study_of(folder.path)
    rows = [row.as_dict() for row in _rows(folder, experiment, result, ledger)]
    if study is None:
        return rows
    return [row | {"epsilon": rounded_up(row["epsilon"])} for row in rows_of_study(rows, study)]


def is_covered(rows: list[dict[str, Any]]) -> bool:
    """Whether any observer has an epsilon."""
    return any(row["epsilon"] is not None for row in rows)


def _rows(folder: RunFolder, experiment: Experiment, result: Mapping[str, Any], ledger: Ledger) -> list[Row]:
    sizes = [1] * result["clients"]
    if experiment.mechanism.trains_privately:
        about = folder.load_checkpoint().about
        sizes = [int(size) for size, clients in about["sizes"].items() for _ in range(clients)]
    plan = spent_plan(experiment, sizes, result["noise_multiplier"], ledger)
    found = account(plan, replace(ledger.realised(plan), participations=None))
    firsts = {(row.observer, row.unit): row for row in reversed(found) if row.observer in OBSERVERS}
    return [replace(row, epsilon=rounded_up(row.epsilon)) for row in found if row in firsts.values()]


def _released_weights(
    path: Path, experiment: Experiment, weights: dict[str, Tensor], model: nn.Module | None
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights that uploads went into, and the names of those that clients keep for themselves."""
    if not experiment.method.keeps_heads:
        return weights, []
    head = last_layer(parameters_of(load(path, model=model).model))  # a file does not keep the order of layers
    return {name: w for name, w in weights.items() if name not in head}, list(head)


def _write(out: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a new folder, all of them or none."""
    unfinished = out.with_name(out.name + ".part")
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (unfinished / name).write_bytes(content)
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written to ({error.strerror})") from None


def card_as_markdown(card: Mapping[str, Any]) -> str:
    """The card for people."""
    rows = [
        f"| {row['observer']} | {_number(row['epsilon'])} | {row['delta']:.2g} | {row['unit']} | {row['adjacency']} | "
        f"{row['accountant']}: {row['assumption']} |"
        for row in card["privacy"]
    ]
    accuracy = card["test_accuracy"]
    settings = [
        f"- {section}.{name} = {json.dumps(value)}"
        for section, table in card["settings"].items()
        for name, value in table.items()
    ]
    kept = ", ".join(card["left_out"])
    lines = [
        f"# {card['method']} on {card['data']}",
        "",
        f"The model {card['model']} for records of shape {card['record_shape']} and {card['classes']} outputs, trained "
        f"with {card['clients']} clients in {card['rounds']} rounds. Its weights are in model.safetensors.",
        *([f"Left out, because clients keep these tensors for themselves: {kept}."] if kept else []),
        "",
        "## Accuracy",
        "",
        f"{100 * accuracy:.2f} % on the public test set, whose records are nobody's training records."
        if accuracy is not None
        else "None is given: it would have been measured on records, or on a model, that this release does not cover.",
        *_about_average(card),
        "",
        "## Privacy",
        "",
        f"Regime: {card['regime']}, noise multiplier {card['noise_multiplier']:.4g}. Epsilon says how well each "
        "observer could tell what one client (or one record, where the unit says so) contributed from nothing "
        "(zero-out), from anything else (replace-one), or whether it was there at all (add-remove).",
        "",
        "| observer | epsilon | delta | unit | adjacency | rests on |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *([f"**{REMOVABLE}**", ""] if card["removable_noise"] else []),
        *(_of_study(card["study"]) if card["study"] else []),
        "These do not cover:",
        "",
        *(f"- {each}" for each in card["not_covered"]),
        "",
        "## Settings",
        "",
        *settings,
        "",
        f"Made by fedceo {card['versions']['fedceo']} with torch {card['versions']['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def _about_average(card: Mapping[str, Any]) -> list[str]:
    if "average_test_accuracy" not in card:
        return []
    accuracy = card["average_test_accuracy"]
    shown = "" if accuracy is None else f", with {100 * accuracy:.2f} % on the same records"
    return [
        "",
        f"The average of its rounds' models is in average.safetensors{shown}; the same epsilons cover it.",
    ]


def _of_study(validation: str) -> list[str]:
    words = "A private study chose this run among others: the epsilons are those of the whole study."
    return [f"{words} Validation records: {validation}.", ""]


def _number(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{rounded_up(epsilon):g}"
