"""Attachments to a run's folder: an audit in audit.json, attacks in the folder `attack`."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedceo.attacks.control import CONTROL_FAILS, control_fails
from fedceo.errors import UsageError
from fedceo.report.loading import LoadedRun
from fedceo.report.verdicts import audit_in_words, gaps_in_words, power_in_words, views_tested
from fedceo.simulation.durable import read_json

CHECK_COLUMNS = {"check": "check", "measured": "measured", "expected": "expected", "passed": "passed"}
VIEW_COLUMNS = {
    "view": "view",
    "observer": "observer",
    "verdict": "verdict",
    "scores": "scores",
    "claim": "mu claimed",
    "bound": "mu at least (95 %)",
    "epsilon_claimed": "epsilon of the run claimed",
    "epsilon_run": "at that mu",
    "epsilon_refutable": "epsilon that would have been refuted",
}
ATTACK_COLUMNS = {
    "name": "row",
    "holds": "the attacker holds",
    "psnr": "PSNR, dB",
    "over_constant": "over the best single colour, dB",
    "ssim": "SSIM",
    "mse": "MSE",
    "label_hit": "label hit",
}
FOREIGN = (KeyError, TypeError, ValueError, AttributeError)
"""Errors in the reading of a JSON file that is of another form than was expected."""
LARGEST_PICTURE = 2_000_000
"""Size in bytes up to which a picture file is embedded in the page."""


@dataclass(frozen=True)
class Picture:
    """An image inside the page: its data URI and its caption."""

    source: str
    caption: str


def audits_of(runs: Sequence[LoadedRun]) -> Iterator[dict[str, Any]]:
    """The tables of each run's audit: the output of `fedceo privacy audit --json`, kept as audit.json in its folder."""
    for run in runs:
        path = run.path / "audit.json"
        if not path.exists():
            continue
        audit = read_json(path, expected=None)
        try:
            tables = {
                "name": run.name,
                "warns": audit["refuted"] or views_tested(audit) < len(audit["views"]),
                "verdict": audit_in_words(audit),
                "remarks": [words for words in (power_in_words(audit), gaps_in_words(audit)) if words],
                "checks_head": CHECK_COLUMNS.values(),
                "checks": _cells(audit["findings"], CHECK_COLUMNS),
                "views_head": VIEW_COLUMNS.values(),
                "views": _cells(audit["views"], VIEW_COLUMNS),
            }
        except FOREIGN:
            raise UsageError(f"{path}: not what fedceo privacy audit --json prints") from None
        yield tables


def attacks_of(runs: Sequence[LoadedRun]) -> Iterator[dict[str, Any]]:
    """The tables and pictures of each run's attacks, as `fedceo attack --out RUN/attack` writes them."""
    for run in runs:
        for path in sorted((run.path / "attack").rglob("attack.json")):
            attack = read_json(path, expected=None)
            try:
                rows, fails = _cells(attack["rows"], ATTACK_COLUMNS), control_fails(attack["rows"])
                kind = attack.get("attack", "attack")
            except FOREIGN:
                raise UsageError(f"{path}: not what fedceo attack writes") from None
            within = path.parent.relative_to(run.path / "attack").as_posix()
            name = f"{run.name}, {kind}" + (f", {within}" if within != "." else "")
            yield {
                "name": name,
                "head": ATTACK_COLUMNS.values(),
                "rows": rows,
                "warning": CONTROL_FAILS if fails else "",
                "pictures": [
                    Picture(data_uri(file.read_bytes(), "image/png"), f"Reconstructions, {file.stem}: {name}")
                    for file in sorted(path.parent.glob("*.png"))
                    if file.stat().st_size <= LARGEST_PICTURE
                ],
            }


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def number(value: Any) -> str:
    """A table's value as text; an estimate, {"value", "low", "high"}, is given with its interval."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        between = f" ({number(value['low'])} to {number(value['high'])})" if value.get("low") is not None else ""
        return number(value.get("value")) + between
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cells(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[list[str]]:
    """The named fields of each row as text."""
    return [[number(row.get(name)) for name in columns] for row in rows]
