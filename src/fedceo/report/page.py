"""One page about one run or many, which fetches nothing from the network and escapes every name from a file."""

import platform
import shlex
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

import fedceo
from fedceo.accounting.printed import rounded_up
from fedceo.accounting.reasons import adjacency
from fedceo.data import DATASETS
from fedceo.errors import UsageError
from fedceo.experiment.file import to_toml
from fedceo.models import can_be_built
from fedceo.report import charts
from fedceo.report.attachments import Picture, attacks_of, audits_of, data_uri, number
from fedceo.report.comparable import warnings
from fedceo.report.comparison import Contest, answer, contests, named, shared_settings, spoken
from fedceo.report.curves import BEFORE_NOISE, FIELDS, capital, runtime, seconds_by_part
from fedceo.report.loading import Group, LoadedRun, differences, group_runs, load_runs
from fedceo.report.public import public_runs
from fedceo.report.stacks import layers_of, of_recording, survivors
from fedceo.report.style import Drawing
from fedceo.simulation.clock import PARTS
from fedceo.simulation.durable import write_whole
from fedceo.simulation.folder import RunFolder, read_recording
from fedceo.simulation.summary import global_model_caveat
from fedceo.tasks import Metric

OBSERVERS = {
    "outsider": "anyone who sees the models that are published, but not who took part in which round",
    "participant": "one curious client, who sees the same and also knows its own share of the noise",
    "server": "the server, which sees every single upload and who sent it",
    "client": "a client that is given a personal model, made from everybody's uploads",
    "paper": "the closed form of the paper, to compare with; it is no promise of this run",
    "client if sizes were hidden": "such a client, if nobody could tell how many took part",
}
PUBLIC = (
    "This page shows only what follows from noised updates, settings and public test records. Everything from before "
    "the noise is left out: personal, local and validation accuracies, losses, recorded rounds, attacks and audits, "
    "times, seeds, and the experiment files and folders."
)
PATHS = ("data.path", "data.root")
MOST_PICTURED = 4
"""Runs whose recorded rounds are drawn: the first of each experiment."""


def write_report(
    paths: Sequence[str | Path], out: str | Path, observer: str = "outsider", *, public: bool = False
) -> Path:
    """Write the page about some run folders to a file and return its path.

    public: leave out everything that no epsilon covers, and say so on the page.
    """
    out = Path(out)
    if observer not in OBSERVERS:
        raise UsageError(f"observer: {observer!r}, expected one of {', '.join(OBSERVERS)}")
    if not out.resolve().parent.is_dir():
        raise UsageError(f"{out.parent}: no such folder to save a report in")
    if out.is_dir():
        raise UsageError(f"{out}: is a folder, expected a name for the page, such as report.html")
    runs = load_runs(paths)
    if public:
        kept, left_out = public_runs(runs)
        text = render(kept, observer, (PUBLIC, *left_out))
    else:
        text = render(runs, observer)
    write_whole(out, text.encode(errors="backslashreplace"))  # a folder's name may hold bytes that are no letters
    return out


def render(runs: Sequence[LoadedRun], observer: str = "outsider", left_out: Sequence[str] = ()) -> str:
    """The page as text.

    Args:
        observer: the observer against whose epsilon accuracies are drawn.
        left_out: the sentences of a public page on what it leaves out; none for the ordinary page.
    """
    groups = group_runs(runs)
    folders = [group.name for group in groups]
    groups = named(groups)
    settings = contests([group for group in groups if group.finished])
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "capital": capital, "upwards": _upwards}
    template = environment.from_string(resources.files("fedceo.report").joinpath("page.html").read_text())
    drawn = [charts.accuracy_chart(groups, field) for field in FIELDS]
    drawn.append(charts.trade_off_chart(groups, observer))
    return template.render(
        title=_title(groups),
        metric=groups[0].metric,
        personal=_of_clients(groups[0].metric),
        left_out=left_out,
        before_noise=BEFORE_NOISE,
        groups=groups,
        runs=runs,
        answers=_answers(settings),
        forest=charts.forest_chart(settings, groups),
        experiments=_experiments(groups, folders, bool(left_out)),
        shared={name: value for name, value in shared_settings(groups).items() if name not in PATHS or not left_out},
        rows=[_accuracy_row(group) for group in groups],
        differences={name: values for name, values in differences(groups).items() if name not in PATHS or not left_out},
        warnings=warnings(groups),
        caveats=[(group.name, said) for group in groups if (said := global_model_caveat(group.experiment))],
        charts=[chart for chart in drawn if chart],
        script=charts.script(),
        privacy=_privacy(groups),
        epsilons=charts.epsilon_chart(groups),
        observers=OBSERVERS,
        grounds=_grounds,
        adjacencies=_adjacencies,
        pictures=list(_pictures(groups)),
        audits=[] if left_out else list(audits_of(runs)),
        attacks=[] if left_out else list(attacks_of(runs)),
        runtime=_picture(runtime(groups)) if not left_out and any(group.finished for group in groups) else None,
        parts=(*PARTS, "the rest"),
        spent=[] if left_out else [_spent(run) for run in runs],
        commands=[] if left_out else [(run, _command(run), to_toml(run.experiment)) for run in runs],
        versions={"fedceo": fedceo.__version__, "Python": platform.python_version()},
    )


def _title(groups: Sequence[Group]) -> str:
    data = groups[0].runs[0].data
    return f"{groups[0].name} on {data}" if len(groups) == 1 else f"{len(groups)} experiments on {data}"


def _upwards(epsilon: float | None) -> str:
    """An epsilon in three digits, never less than itself."""
    return "none" if epsilon is None else f"{rounded_up(epsilon):g}"


def _answers(settings: Sequence[Contest]) -> list[tuple[str, str]]:
    """The setting, in words, and the answer of each setting in which there are two to compare on the same records."""
    found = []
    for contest in settings:
        digests = {(each.group.runs[0].result or {}).get("test_digest") for each in contest.contenders} - {None}
        said = answer(contest) if len(digests) < 2 else None
        where = ", ".join(f"{spoken(field)} {value}" for field, value in contest.where.items() if value != "-")
        found += [(where, said)] if said else []
    return found


def _experiments(groups: Sequence[Group], folders: Sequence[str], public: bool) -> dict[str, list[str]]:
    """What the experiments are, by the name of a column; what all of them share has no column but a line of its own."""
    done = [group.runs[0].result or {} for group in groups]
    columns = {
        "regime": [group.runs[0].regime for group in groups],
        "sigma": [number(group.noise_multiplier) for group in groups],
        "model": [str(d.get("model", g.experiment.model.name)) for d, g in zip(done, groups, strict=True)],
        "clients": [number(d.get("clients", g.experiment.data.clients)) for d, g in zip(done, groups, strict=True)],
        "cohort": [number(group.experiment.cohort.size) for group in groups],
        "rounds": [number(group.experiment.train.rounds) for group in groups],
    }
    if public:
        return columns | {"runs": [str(len(group.runs)) for group in groups]}
    seeds = [", ".join(str(run.experiment.seed) for run in group.runs) for group in groups]
    return columns | {"seeds": seeds, "folder": list(folders)}


def _of_clients(metric: Metric) -> dict[str, str]:
    """Columns of what private records say, or models that never leave a client: key of the summary -> heading."""
    weighted = {
        "distribution_accuracy_last": "P-dist, last round",
        "distribution_accuracy_worst_last": "P-dist, worst tenth",
    }
    return {
        "at_best_validation": "G, at best validation",
        f"local_{metric.name}_last": "P-loc, last round",
        f"personal_{metric.name}_last": "P-glob, last round",
    } | (weighted if metric.name == "accuracy" else {f"local_{metric.name}_worst_last": "P-loc, worst tenth"})


def _accuracy_row(group: Group) -> dict[str, Any]:
    keys = ("last", "average", "best", *_of_clients(group.metric))
    return {"group": group, "unsmoothed": _unsmoothed(group)} | {key: _mean(group, key) for key in keys}


def _unsmoothed(group: Group) -> str:
    """The mean accuracy of the last rounds measured without smoothing, and the numbers of these rounds."""
    smoothed_last = [run.accuracy for run in group.runs if "last_unsmoothed" in run.accuracy]
    rounds = sorted({found["last_unsmoothed_round"] for found in smoothed_last} - {None})
    if not rounds:
        return "none measured" if smoothed_last else "-"
    named = f"round{'s' if len(rounds) > 1 else ''} {', '.join(map(str, rounds))}"
    return f"{_mean(group, 'last_unsmoothed')} ({named})"


def _mean(group: Group, key: str) -> str:
    values = group.accuracies(key)
    if not len(values):
        return "-"
    text = group.metric.text
    spread = f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{text(values.std(ddof=1))}" if len(values) > 1 else ""
    return f"{text(values.mean())}{spread}"


def _privacy(groups: Sequence[Group]) -> list[tuple[list[str], list[dict[str, Any]], list[str]]]:
    """For the finished experiments: the names of those with equal privacy rows, these rows, and their assumptions."""
    found: list[tuple[list[str], list[dict[str, Any]]]] = []
    for group in groups:
        result = group.runs[0].result
        if result is None:
            continue
        same = next((names for names, rows in found if rows == result["privacy"]), None)
        if same is None:
            found.append(([group.name], result["privacy"]))
        else:
            same.append(group.name)
    return [(names, rows, list(dict.fromkeys(map(_grounds, rows)))) for names, rows in found]


def _grounds(row: dict[str, Any]) -> str:
    return f"{row['accountant']}: {row['assumption']}"


def _adjacencies(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the epsilons compare, in words, each once and as a sentence."""
    return [capital(words) for words in dict.fromkeys(adjacency(row["adjacency"], row["unit"]) for row in rows)]


def _pictures(groups: Sequence[Group]) -> Iterator[tuple[str, list[Picture]]]:
    """Figures of the recorded rounds of the first run of each experiment."""
    recorded = [group for group in groups if group.runs[0].recordings]
    for group in recorded[:MOST_PICTURED]:
        recordings = [read_recording(path) for path in group.runs[0].recordings]
        smoothed = [recording for recording in recordings if recording.thresholds]
        last = (smoothed or recordings)[-1]
        layers = layers_of(last)
        drawings = [*of_recording(last).values()]
        if len(smoothed) > 1 and layers and layers[0] in last.thresholds:
            drawings.append(survivors(smoothed))
        yield group.name, [_picture(drawing) for drawing in drawings]


def _spent(run: LoadedRun) -> tuple[LoadedRun, list[str]]:
    """A run and, once it is finished, its seconds a round: in all, then part by part with percentages."""
    if run.result is None:
        return run, []
    parts = seconds_by_part(run)
    whole = sum(parts)
    shown = [f"{seconds:.2g} ({100 * seconds / whole:.0f}\N{NO-BREAK SPACE}%)" if seconds else "0" for seconds in parts]
    return run, [f"{whole:.3g}", *shown]


def _picture(drawing: Drawing) -> Picture:
    return Picture(data_uri(drawing.svg().encode(), "image/svg+xml"), drawing.caption)


def _command(run: LoadedRun) -> str:
    if run.result is None:
        return shlex.join(["fedceo", "run", "--resume", str(run.path)])
    if not RunFolder(run.path).exists:
        return "fedceo run FILE, with the experiment file below"
    if run.result["model"] != run.experiment.model.name or not can_be_built(run.result["model"]):
        return f"in Python, with the model of your own, {run.result['model']}: fedceo.run(..., model=...)"
    if run.experiment.data.name not in (*DATASETS, None):
        return f"in Python, with the data of your own, {run.result['data']}: fedceo.run(..., data=...)"
    return shlex.join(["fedceo", "run", str(run.path / "experiment.toml"), "--out", f"{run.path}-again"])
