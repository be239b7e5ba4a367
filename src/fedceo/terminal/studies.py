"""Tables of the results of sweeps, tuning, calibration, audits and attacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from fedceo.accounting.printed import in_hundredths
from fedceo.report.verdicts import audit_in_words, gaps_in_words, power_in_words
from fedceo.tasks import metric_of
from fedceo.terminal.tables import VIEW_COLUMNS, Column, console, or_none, show_table


def show_sweep(rows: list[dict[str, Any]], folder: Path) -> None:
    """Print one row for each experiment, with mean and standard deviation over its seeds."""
    from fedceo.studies.table import show

    names = ("regime", "sigma", "seeds", "last", "average", "best", "unsmoothed", "at best validation", "P-loc",
             "P-loc, worst tenth", "P-glob", "P-dist", "P-dist, worst tenth", "epsilon outsider", "epsilon server",
             "epsilon of", "tuned")  # fmt: skip
    shown = [name for name in names if any(row[name] is not None for row in rows)]
    same = [
        name for name in ("regime", "sigma", "seeds", "epsilon of", "tuned") if len({row[name] for row in rows}) == 1
    ]
    out = console()
    out.print("; ".join(f"{name}: {show(rows[0], name)}" for name in same if name in shown))
    left = [name for name in shown if name not in same]
    metrics = sorted({row["metric"] or "accuracy, %" for row in rows})
    title = f"global model on the test set: {' or '.join(metrics)} (mean ± sd over seeds)"
    cells = [[row["experiment"], *(show(row, name) for name in left)] for row in rows]
    show_table(out, [Column("experiment", "name"), *left], cells, title)
    for row in rows:
        if row.get("caveat"):
            out.print(f"{row['experiment']}: its global model is {row['caveat']}")
    if "unsmoothed" in shown:
        out.print("unsmoothed: the last round measured without a smoothing, where the last round had one")
    out.print(f"best is chosen on the test set; tables: {folder}/table.csv, .md, .tex")


def show_lacking(rows: list[dict[str, Any]], file: Path) -> None:
    """Print the runs that a results file lacks, and the seconds that each is expected to take, where that is known."""
    out = console()
    if rows:
        shown = [
            [row["name"], str(row["seed"]), "" if row["seconds"] is None else f"{row['seconds']:.0f}"] for row in rows
        ]
        show_table(out, [Column("experiment", "name"), "seed", "seconds"], shown, f"what {file} lacks")
    known = [row["seconds"] for row in rows if row["seconds"] is not None]
    words = [f"{len(rows)} {'run is' if len(rows) == 1 else 'runs are'} lacking"]
    if known:
        words.append(f"{len(known)} would take about {sum(known):.0f} s, as the runs like them in the file did")
    if len(known) < len(rows):
        words.append(f"of {len(rows) - len(known)} the file has no like, so that nobody knows how long they take")
    out.print("; ".join(words))


def show_space(spaces: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Print the values that would be tried for each field of each experiment."""
    out = console()
    for name, space in spaces.items():
        out.print(Text(name, "bold"))
        for field, values in space.items():
            out.print(f"  {field}: {', '.join(map(str, values))}", highlight=False)


def show_tuned(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the best settings of each experiment."""
    columns = (
        Column("experiment", "name"), f"best validation {_named(found)}", Column("settings", "name"),
        Column("how", "words"),
    )  # fmt: skip
    rows = [
        (name, (metric := metric_of(each)).number(each[f"validation_{metric.name}"]), each["file"], each["note"])
        for name, each in found.items()
    ]
    out = console()
    show_table(out, columns, rows)
    out.print("The epsilon of tuning is not counted: no row covers what was learnt by looking at all these trials.")
    out.print("fedceo tune --private counts it.")


def _named(found: Mapping[str, Mapping[str, Any]]) -> str:
    return " or ".join(sorted({metric_of(each).label for each in found.values()}))


def show_study(found: Mapping[str, Any]) -> None:
    """Print what a private study chose, and what one run and the whole study cost."""
    out = console()
    if found["folder"] is None:
        out.print("no trial was drawn, so that nothing is chosen")
    else:
        out.print(f"chosen settings: {found['file']}; score {metric_of(found).show(found['score'])}")
    out.print(f"validation records: {found['validation']}")
    columns = (
        Column("observer", "name"), "epsilon of one run", "epsilon of the whole study", Column("delta", "name"),
        Column("unit", "name"), Column("accountant", "words"), Column("under which assumption", "words"),
    )  # fmt: skip
    rows = [
        (row["observer"], or_none(row["epsilon_run"]), or_none(row["epsilon"]), f"{row['delta']:.1e}", row["unit"],
         row["accountant"], row["assumption"])
        for row in found["rows"]
    ]  # fmt: skip
    show_table(out, columns, rows)
    out.print("How many trials there were is a secret, and so are all but the chosen one: pass nothing else on.")
    if found["folder"] is not None:
        out.print(f"to pass it on: fedceo release {found['folder']} -o DIR")


def show_calibration(found: list[dict[str, Any]], epsilon: float) -> None:
    """Print the noise multiplier of each mechanism in question."""
    columns = (
        Column("mechanism", "name"), "noise multiplier", "epsilon", "delta", Column("under which assumption", "words"),
    )  # fmt: skip
    rows = [
        (each["mechanism"], f"{each['noise_multiplier']:.4g}", in_hundredths(each["epsilon"]), f"{each['delta']:.1e}",
         each["assumption"])
        for each in found
    ]  # fmt: skip
    out = console()
    out.print(f"noise for an epsilon of {epsilon:g} against the {found[0]['observer']}, per {found[0]['unit']}:")
    show_table(out, columns, rows)


def show_audit(report: dict[str, Any]) -> None:
    """Print an audit: the checks of the run, the canaries' bound in each view, then what was not looked at."""
    out = console()
    out.print(
        f"audit of mechanism {report['mechanism']}, noise multiplier {report['noise_multiplier']:.4g}, "
        f"{report['rounds']} rounds with canaries, delta {report['delta']:.1e}"
    )
    columns = (Column("check of the run", "name"), "measured", Column("expected", "words"))
    checks = [
        (each["check"], f"{each['measured']:.4g}", each["expected"], "passed" if each["passed"] else alarm("FAILED"))
        for each in report["findings"]
    ]
    show_table(out, (*columns, Column("verdict", "name")), checks)
    views = [
        (view["view"], view["observer"], str(view["scores"]), f"{view['claim']:.3f}", f"{view['bound']:.3f}",
         or_none(view["epsilon_claimed"]), or_none(view["epsilon_run"]),
         alarm("REFUTED") if view["verdict"] == "refuted" else view["verdict"])
        for view in report["views"]
    ]  # fmt: skip
    show_table(out, VIEW_COLUMNS, views, title="what canaries showed")
    for words in (power_in_words(report), gaps_in_words(report)):
        if words is not None:
            out.print(words, highlight=False)
    out.print(alarm(audit_in_words(report)) if report["refuted"] else audit_in_words(report), highlight=False)


def show_attack(result: dict[str, Any]) -> None:
    """Print the table of one attack and, where the control fails, that the attack shows nothing."""
    from fedceo.attacks.control import CONTROL_FAILS, control_fails

    out = console()
    out.print(
        f"{result['attack']} on {len(result['records'])} records of {result['data']}, {result['model']} after "
        f"{result['rounds_trained']} rounds: {result['iterations']} steps, {result['restarts']} restarts"
    )
    out.print(
        f"regime: {result['regime']}, noise multiplier {result['noise_multiplier']:g}, clip {result['clip']:g}, "
        f"cohort {result['cohort']}, {result['local_steps']} local steps, seed {result['seed']}"
    )
    digits = {"psnr": 1, "over_constant": 1, "ssim": 2, "mse": 4, "label_hit": 2}
    rows = [
        [row["name"], row["holds"], *(_estimate(row[key], precision) for key, precision in digits.items()),
         f"{row['seconds']:.0f}" if "seconds" in row else ""]
        for row in result["rows"]
    ]  # fmt: skip
    columns = (Column("", "name"), Column("the attacker holds", "words"), "PSNR, dB", "over the colour, dB", "SSIM",
               "MSE", "label hit", "seconds")  # fmt: skip
    show_table(out, columns, rows, title="medians over records with 95 % intervals")
    if control_fails(result["rows"]):
        out.print(CONTROL_FAILS)


def _estimate(found: dict[str, float | None] | None, digits: int) -> str:
    if found is None:
        return "-"
    if found["low"] is None:
        return f"{found['value']:.{digits}f}"
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def alarm(words: str) -> Text:
    return Text(words, "bold red")
