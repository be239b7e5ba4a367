"""The section of docs/results.md on fixed features: what accuracy a small epsilon allows, and what brings it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runs_found import ROOT, Found, cells_in, chosen, difference, markdown, shown, spread, trials_of

from fedceo.accounting.printed import rounded_up
from fedceo.simulation.spending import client_sizes, planned_rows
from fedceo.studies.cells import find_experiments

FOLDERS = {
    "beyond/features/cifar10-1000": "CIFAR-10, N = 1,000 clients by Dirichlet(0.5) over labels, K = 100",
    "beyond/features/cifar10-10000": "CIFAR-10, N = 10,000 clients of 45 records, K = 1,000",
    "beyond/features/femnist-1000": "FEMNIST, N = 1,000 clients of 60 records, K = 100",
}


@dataclass(frozen=True)
class Published:
    """A setting that others publish: what they say of it, and the epsilon that they give it; None: they give none."""

    words: str
    epsilon: float | None = None


FEDSAM_EPSILON = 9.94
"""What the program of DP-FedSAM's authors gives for its setting, at delta = 5e-3; a test computes it again."""
PUBLISHED = {
    "beyond/features/cifar10-500": Published(
        "CIFAR-10, N = 500 by Dirichlet(0.6), q = 0.1, T = 300, sigma = 0.95: DP-FedSAM (Shi et al. 2023), whose "
        "program takes delta = 5e-3, more than 1/N, at which publishing one client in N outright would pass",
        FEDSAM_EPSILON,
    ),
    "beyond/features/cifar10-pfl/as-simulated": Published(
        "CIFAR-10, iid, 50 records a user, T = 1,500: pfl-research's benchmark as it is run, 50 of 1,000 users a "
        "round, with the noise that cohorts of 1,000 out of a million users would need",
        2.0,
    ),
    "beyond/features/cifar10-pfl/as-claimed": Published(
        "the same with the users that its epsilon speaks of: a million, of whom 1,000 are drawn a round", 2.0
    ),
    "beyond/features/femnist-writers": Published(
        "FEMNIST by natural writers: the 498 of the subset at hand with 20 or more images, K = 100, T = 100"
    ),
}
NAMES = {
    "fedavg": "FedAvg: features, momentum",
    "fedavg-standardised": "FedAvg: standardised features, momentum",
    "fedavg-standardised-banded": "FedAvg: standardised features, momentum, banded noise",
    "fedavg-banded": "FedAvg: features, momentum, banded noise",
    "fedavg-cyclic": "FedAvg: features, momentum, cyclic cohorts",
    "fedavg-without-momentum": "FedAvg: features, no momentum",
    "fedavg-small-cnn": "FedAvg: small CNN, momentum",
    "fedavg-tanh-cnn": "FedAvg: small CNN with tanh and group norm, momentum",
    "dp-fedavg": "DP-FedAvg: features, momentum",
    "dp-fedsam": "DP-FedSAM: features, momentum",
    "dp-fed-ls": "DP-Fed-LS: features, momentum",
    "fedceo-without-momentum": "FedCEO, one model: features, no momentum",
    "fedceo-standardised": "FedCEO, one model: standardised features, no momentum",
    "fedceo-small-cnn": "FedCEO, one model: small CNN, no momentum",
}
HEADINGS = ("epsilon", "noise", "method", "last", "average", "average less FedAvg's", "rate", "clip", "trials", "seeds")

HEAD = """# Accuracy at a small epsilon

What someone with a thousand users may expect. The model is linear, on scattering features that are fixed and no secret
(`model.name = "scattering"`); the server steps with momentum 0.9 and a rate of 0.1; *last* is the last released model,
*average* the mean of the last 25 of 100, a length that was fixed beforehand.

- **Regime.** User level, noise sized for the epsilon of an outsider, who sees every global model; delta = 1e-5
  (1e-6 for N = 10,000), zero-out: a client's contribution as it is, or zero.
  *central*: a trusted server adds the noise, Poisson cohorts; *banded* noise and its control have cyclic cohorts, which
  need no secret sampling. *distributed*: each client adds its share, cohorts are of fixed size.
- **Tuning.** Every row began with the same 25 trials, five learning rates with five clips (nine with N = 10,000, three
  with three), and got a value more at an end where its best one lay: whole runs with seed 0, which none of the runs
  shown has, chosen by the average on validation records, which no epsilon here accounts for. *edge* marks what is still
  at an end of what was tried. FedCEO's kappa = 0.5 and I = 20, E = 5 and B = 32 were not tuned. Differences are of runs
  with the same seed, with a 95 % interval. Runs on a GPU had TF32 products, others float32.
- **Standardised features** (`model.standardised`) have mean 0 and equal standard deviations on random images, discs
  that lie on each other, which follow from no data and cost no privacy: what all records share no longer takes up the
  clip. Rows that do not say so have features as they are.
- FedCEO has no momentum, since its thresholds are of means: compare it with FedAvg without momentum.
"""

NOT_DEALT = """These clients each draw 45 of the same records anew, so that they are alike and have ten times the
records in all: not to be compared with the 1,000, to whom the records are dealt.
"""
PUBLISHED_HEAD = """## Settings that others publish

Each with the epsilon that is published for it beside the one that the accountant here gives the same noise, for an
outsider, at the delta of the experiment file (1e-5; for pfl 1e-6). Everything else is as above, E = 5 (pfl: 1).
"""
PUBLISHED_HEADINGS = ("setting", "method", "published", "epsilon", "last", "average", "rate", "clip", "trials", "seeds")


def section(cells: Mapping[str, Found]) -> str:
    """The section in Markdown, from the runs of each cell."""
    parts = [HEAD, "![Accuracy over epsilon](accuracy-over-epsilon.png)\n"]
    for folder, title in FOLDERS.items():
        names = [name for name in cells_in(folder) if "without-privacy" not in name]
        done = sorted((name for name in names if name in cells), key=lambda name: (_place(name), -_best(cells[name])))
        without = cells.get(f"{folder}/without-privacy/fedavg")
        parts.append(f"## {title}\n\nExperiments in `experiments/{folder}.toml`.\n")
        if without:
            parts.append(f"FedAvg with features and momentum, without privacy: {spread(without.percent('average'))}.\n")
        if done:
            parts.append(markdown(HEADINGS, (_row(name, cells) for name in done)))
        if len(done) < len(names):
            others = (
                f"the other {len(names) - len(done)} of the file's {len(names)} cells" if done else "any of its cells"
            )
            parts.append(f"Not run yet: {others}.\n")
        parts += [NOT_DEALT] if folder.endswith("-10000") else []
    return "\n".join([*parts, published(cells)])


def published(cells: Mapping[str, Found]) -> str:
    """The part on settings that others publish."""
    rows, idle = [], []
    for place, setting in PUBLISHED.items():
        names = cells_in(place)
        done = sorted((name for name in names if name in cells), key=lambda name: -_best(cells[name]))
        rows += [_published_row(name, setting, cells[name]) for name in done]
        left = len(names) - len(done)
        idle += [f"{left} of {len(names)} cells of `{place.removeprefix('beyond/features/')}`"] if left else []
    told = [
        f"- `{place.removeprefix('beyond/features/')}`: {each.words}{_epsilons(place, each)}."
        for place, each in PUBLISHED.items()
    ]
    parts = [PUBLISHED_HEAD, "\n".join(told) + "\n"]
    parts += [markdown(PUBLISHED_HEADINGS, rows)] if rows else []
    return "\n".join(parts + ([f"Not run yet: {', '.join(idle)}.\n"] if idle else []))


def _epsilons(place: str, setting: Published) -> str:
    """The published epsilon of a setting and that of its noise by the accountant, whether it was run or not."""
    if setting.epsilon is None:
        return ""
    *folder, table, cell = cells_in(place)[0].split("/", 3)
    experiment = find_experiments(ROOT.joinpath("experiments", *folder, f"{table}.toml"), [], [cell])[cell]
    ours = experiment.privacy.target_epsilon or planned_rows(experiment, client_sizes(experiment))[0].epsilon
    assert ours is not None
    return f"; **published {setting.epsilon:g}, here {rounded_up(ours):,.10g}**"


def _published_row(name: str, setting: Published, found: Found) -> Sequence[str]:
    place, _, method = name.removeprefix("beyond/features/").rpartition("/")
    theirs = "-" if setting.epsilon is None else f"{setting.epsilon:g}"
    ours = "none" if found.epsilon is None else f"{rounded_up(found.epsilon):g}"
    return (
        f"`{place}`", NAMES[method], theirs, ours, spread(found.percent("last")),
        spread(found.percent("average")), _tuned(name, "train.learning_rate"), _tuned(name, "privacy.clip"),
        str(len(trials_of(name))), str(len(found.done)),
    )  # fmt: skip


def _row(name: str, cells: Mapping[str, Found]) -> Sequence[str]:
    found, (epsilon, noise) = cells[name], _place(name)
    folder, _, method = name.rpartition("/")
    rival = cells.get(f"{folder}/fedavg")
    ahead = "" if method == "fedavg" or rival is None else shown(_gain(found, rival))
    return (
        f"{epsilon:g}", noise, NAMES[method], spread(found.percent("last")), spread(found.percent("average")), ahead,
        _tuned(name, "train.learning_rate"), _tuned(name, "privacy.clip"), str(len(trials_of(name))),
        str(len(found.done)),
    )  # fmt: skip


def _gain(found: Found, rival: Found) -> tuple[float, float]:
    return difference(found.by_seed("average"), rival.by_seed("average"))


def _tuned(name: str, field: str) -> str:
    trials = trials_of(name)
    values, best = [trial[field] for trial in trials], chosen(trials)[field]
    return f"{best:g}{', edge' if best in (min(values), max(values)) else ''}"


def _place(name: str) -> tuple[float, str]:
    epsilon, noise = name.split("/")[-3:-1]
    return float(epsilon.removeprefix("epsilon-")), noise


def _best(found: Found) -> float:
    return statistics.fmean(found.percent("average"))
