"""`fedceo privacy`: who learns what, how much noise an epsilon needs, and whether the mechanism keeps its word."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedceo.cli.help import Group
from fedceo.cli.options import CellName, Json, Overrides, check_cell
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.accounting.plan import Question
    from fedceo.accounting.rows import Row

app = typer.Typer(cls=Group, help="Account for privacy, calibrate noise, audit a run.", no_args_is_help=True)

Target = Annotated[Path | None, typer.Argument(help="An experiment file, or (account) a run folder; or give options.")]
Clients = Annotated[int | None, typer.Option(help="N, the number of clients.")]
Cohort = Annotated[int | None, typer.Option(help="K, the clients of a round; expected under Poisson sampling.")]
Rounds = Annotated[int | None, typer.Option(help="T, the number of rounds.")]
Noise = Annotated[float | None, typer.Option(help="sigma: the noise in units of the clip.")]
Delta = Annotated[float | None, typer.Option(help="Left out: min(1e-5, N^-1.1).")]
Sampling = Annotated[str | None, typer.Option(help="fixed, poisson or cyclic (central noise); left out: fixed.")]
Groups = Annotated[int | None, typer.Option(help="cyclic: groups that take turns; left out: N/K, rounded down.")]
Adjacency = Annotated[str | None, typer.Option(help="zero-out, replace-one or add-remove; left out: zero-out.")]
Mechanism = Annotated[str | None, typer.Option(help="distributed, central or record; left out: the first two, each.")]
Release = Annotated[
    str | None, typer.Option(help="average, personalised (FedCEO, restart own or slot) or stored; left out: average.")
]
Interval = Annotated[int | None, typer.Option(help="I, rounds between smoothings of a personalised release.")]
MinReports = Annotated[int | None, typer.Option(help="Reports that the noise shares are sized for.")]
Reports = Annotated[int | None, typer.Option(help="Reports of every round, where fewer than K arrive.")]
Participations = Annotated[int | None, typer.Option(help="Rounds that the most active client is in.")]
Cap = Annotated[int | None, typer.Option(help="Rounds after which a client sends nothing of its own.")]
RecordRate = Annotated[float | None, typer.Option(help="record: probability of a record in a local step.")]
RecordSteps = Annotated[int | None, typer.Option(help="record: local steps of one participation.")]


@app.command()
def account(
    target: Target = None,
    cell: CellName = None,
    overrides: Overrides = None,
    clients: Clients = None,
    cohort: Cohort = None,
    rounds: Rounds = None,
    noise_multiplier: Noise = None,
    delta: Delta = None,
    sampling: Sampling = None,
    groups: Groups = None,
    adjacency: Adjacency = None,
    mechanism: Mechanism = None,
    release: Release = None,
    interval: Interval = None,
    min_reports: MinReports = None,
    reports: Reports = None,
    participations: Participations = None,
    participation_cap: Cap = None,
    record_rate: RecordRate = None,
    record_steps: RecordSteps = None,
    as_json: Json = False,
) -> None:
    """Print who learns what: of an experiment as planned, of a run as it went, or of what the options say."""
    given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}
    _check_sources(target, overrides, given)
    check_cell(cell, target)
    noise = None
    if target is not None:
        rows, noise = _rows_of(target, overrides or [], cell)
    else:
        from fedceo.accounting.rows import account as account_for

        rows = [row for asked in _questions(given) for row in account_for(asked.plan, asked.realised)]
    if as_json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
        return
    from fedceo.terminal.results import show_privacy
    from fedceo.terminal.tables import console

    if noise is not None:
        console().print(f"noise multiplier {noise}", highlight=False)
    show_privacy([row.as_dict() for row in rows], console())


@app.command()
def calibrate(
    target: Target = None,
    cell: CellName = None,
    epsilon: Annotated[float | None, typer.Option(help="The epsilon wanted.")] = None,
    observer: Annotated[str, typer.Option(help="Whose: outsider, participant, server or client.")] = "outsider",
    overrides: Overrides = None,
    clients: Clients = None,
    cohort: Cohort = None,
    rounds: Rounds = None,
    delta: Delta = None,
    sampling: Sampling = None,
    groups: Groups = None,
    adjacency: Adjacency = None,
    mechanism: Mechanism = None,
    release: Release = None,
    interval: Interval = None,
    min_reports: MinReports = None,
    reports: Reports = None,
    participations: Participations = None,
    participation_cap: Cap = None,
    record_rate: RecordRate = None,
    record_steps: RecordSteps = None,
    as_json: Json = False,
) -> None:
    """Print the noise multiplier with which an observer's epsilon is at most the one wanted."""
    from fedceo.accounting.calibration import calibrate as calibrate_for
    from fedceo.accounting.plan import NoiseSite
    from fedceo.accounting.rows import answer

    if epsilon is None:
        raise UsageError("--epsilon: the epsilon wanted is missing")
    given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}
    _check_sources(target, overrides, given)
    check_cell(cell, target)
    if target is not None:
        questions = [_to_solve(target, overrides or [], observer, cell)]
    else:
        questions = _questions(given | {"noise_multiplier": 1.0})  # it is what is looked for
    found = []
    for plan, realised in ((asked.plan, asked.realised) for asked in questions):
        if len(questions) > 1 and plan.noise_site is NoiseSite.SUM and observer == "server":
            continue  # whoever adds the noise needs no epsilon
        sigma = calibrate_for(epsilon, observer, plan, realised)
        reached = answer(replace(plan, noise_multiplier=sigma), observer, realised)
        about = {"mechanism": plan.mechanism, "observer": observer, "noise_multiplier": sigma, "delta": plan.delta}
        found.append(about | {"epsilon": reached.epsilon, "unit": reached.unit, "assumption": reached.assumption})
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from fedceo.terminal.studies import show_calibration

    show_calibration(found, epsilon)


@app.command()
def audit(
    file: Annotated[
        Path, typer.Argument(help="An experiment file, or a run folder, which then keeps audit.json for its report.")
    ],
    cell: CellName = None,
    overrides: Overrides = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds with canaries; left out: what a minute or so takes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the auditor's coins, not of the experiment.")] = None,
    as_json: Json = False,
) -> None:
    """Try to refute an experiment's privacy on the code that runs; exit with 1 if it can be."""
    from fedceo.audit.report import audit as audit_simulation
    from fedceo.experiment.file import load_experiment
    from fedceo.report.verdicts import views_tested
    from fedceo.simulation.durable import write_json
    from fedceo.simulation.folder import RunFolder
    from fedceo.simulation.preparing import prepare, prepare_again

    kept = file.is_dir()
    check_cell(cell, file)
    if kept and overrides:
        raise UsageError("--set: a run has been as it was; it takes an experiment file")
    simulation = prepare_again(RunFolder(file)) if kept else prepare(load_experiment(file, overrides or [], cell))
    report = audit_simulation(simulation, rounds=rounds, seed=seed)
    shown = {"refuted": report.refuted, "tested": views_tested(report.as_dict())} | report.as_dict()
    text = json.dumps(shown, indent=2)
    if kept:
        write_json(file / "audit.json", shown)
    if as_json:
        print(text)
    else:
        from fedceo.terminal.studies import show_audit

        show_audit(shown)
    if report.refuted:
        sys.exit(1)


OPTIONS = (
    "clients", "cohort", "rounds", "noise_multiplier", "delta", "sampling", "groups", "adjacency", "mechanism",
    "release", "interval", "min_reports", "reports", "participations", "participation_cap", "record_rate",
    "record_steps",
)  # fmt: skip


def _questions(given: dict[str, Any]) -> list["Question"]:
    """One question for each mechanism that the options may mean."""
    from fedceo.accounting.plan import Plan, Question, Realised, RecordSteps, default_delta

    missing = [name for name in ("clients", "cohort", "rounds", "noise_multiplier") if name not in given]
    if missing:
        raise UsageError(f"{', '.join(map(_option, missing))}: needed, or an experiment file")
    if given["rounds"] < 1:
        raise UsageError(f"--rounds: {given['rounds']}, expected at least 1")
    if given.get("participations", 0) > given["rounds"]:
        raise UsageError(f"--participations: {given['participations']}, expected at most --rounds, {given['rounds']}")
    if "delta" not in given and given["clients"] > 0:
        given = given | {"delta": default_delta(given["clients"])}
    plan = {name: value for name, value in given.items() if name in Plan.__dataclass_fields__}
    if given.get("sampling") == "cyclic" and given["cohort"] > 0:
        plan.setdefault("groups", max(given["clients"] // given["cohort"], 1))
    reports = ((given["reports"], given["rounds"]),) if "reports" in given else None
    realised = Realised(reports=reports, participations=given.get("participations"))
    plan["record_steps"] = ()
    if "record_rate" in given and "record_steps" in given:
        plan["record_steps"] = (RecordSteps(given["record_rate"], given["record_steps"]),)
    return [Question(Plan(**plan | {"mechanism": kind}), realised) for kind in _mechanisms(given)]


def _mechanisms(given: dict[str, Any]) -> list[str]:
    """The mechanisms that the options may mean."""
    if "mechanism" in given:
        return [given["mechanism"]]
    if "record_rate" in given or "record_steps" in given:
        return ["record"]
    if given.get("sampling") == "cyclic":
        return ["central"]
    needs_shares = given.get("release", "average") != "average" or "min_reports" in given or "reports" in given
    return ["distributed"] if needs_shares else ["central", "distributed"]


def _to_solve(file: Path, overrides: list[str], observer: str, cell: str | None) -> "Question":
    from fedceo.experiment.file import load_experiment
    from fedceo.simulation.spending import client_sizes, question_to_solve

    experiment = load_experiment(file, overrides, cell)
    if experiment.may_lose_noise:
        raise UsageError(f"{file}: cohort.dropout lets noise go missing, expected privacy.min_reports too")
    return question_to_solve(experiment, client_sizes(experiment), observer)


def _rows_of(target: Path, overrides: list[str], cell: str | None) -> tuple[list["Row"], str]:
    """The rows, and the noise multiplier in words."""
    from fedceo.experiment.file import load_experiment
    from fedceo.simulation.spending import client_sizes, planned_rows, solve_noise, spent_rows, with_solved_noise

    if not target.is_dir():
        experiment = load_experiment(target, overrides, cell)
        sizes, privacy = client_sizes(experiment), experiment.privacy
        solved = with_solved_noise(experiment, sizes)
        words = f"{solve_noise(solved, sizes):.4g}"
        if privacy.target_epsilon is not None:
            words += f", solved for an epsilon of {privacy.target_epsilon:g} of the {privacy.observer}"
        return planned_rows(solved, sizes), words
    from fedceo.accounting.rows import Row
    from fedceo.simulation.folder import RunFolder

    if overrides:
        raise UsageError("--set: a run has been as it was; it takes an experiment file")
    folder = RunFolder(target)
    experiment = folder.experiment()
    if folder.finished:
        result = folder.result()
        return [Row(**row) for row in result["privacy"]], f"{result['noise_multiplier']:.4g}"
    from fedceo.methods.hosted import check_same_method

    about = folder.load_checkpoint().about  # data may have been given that the experiment does not name
    ledger = folder.ledger(repeatable=experiment.privacy.randomness == "seeded", least=about["ledger"])
    if "sizes" not in about:  # a federation: the server does not know them
        sizes = client_sizes(experiment)
        sigma = solve_noise(experiment, sizes)
        return spent_rows(experiment, sizes, sigma, ledger), f"{sigma:.4g}"
    check_same_method(about, experiment.method, folder.path)
    sizes = [int(size) for size, clients in about["sizes"].items() for _ in range(clients)]
    sigma = about["noise_multiplier"]
    return spent_rows(experiment, sizes, sigma, ledger), f"{sigma:.4g}"


def _check_sources(target: Path | None, overrides: list[str] | None, given: dict[str, Any]) -> None:
    """Refuse options beside a target, since either of them says the whole plan."""
    if target is None and overrides:
        raise UsageError("--set: changes an experiment file, and none is given")
    if target is not None and given:
        from fedceo.experiment.fields import places_of

        name, value = next(iter(given.items()))
        place = next((f"{place}={value}" for place in places_of(name)), "section.field=value")
        other = "" if target.is_dir() else f"; change it with --set {place}"
        raise UsageError(f"{_option(name)}: {target} says all that options would say{other}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
