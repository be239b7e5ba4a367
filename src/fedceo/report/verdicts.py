"""The verdict of an audit in words, the same on the terminal and on a page."""

from collections.abc import Mapping
from typing import Any


def views_tested(audit: Mapping[str, Any]) -> int:
    """The number of views that had enough scores to be passed or refuted."""
    return sum(view["verdict"] != "not testable" for view in audit["views"])


def power_in_words(audit: Mapping[str, Any]) -> str | None:
    """What the checks of an audit could have refuted, as one sentence; None for audits of versions that do not say."""
    power = audit.get("power")
    if power is None or power["noise_deficit"] >= 1:
        return None
    told = [f"{epsilon:.3g} for the {name}" for name, epsilon in power["epsilons"].items() if epsilon is not None]
    words = f"noise that is {100 * power['noise_deficit']:.2g} % too small everywhere would have been found"
    return words + (f", an epsilon of {', '.join(told)}" if told else "")


def gaps_in_words(audit: Mapping[str, Any]) -> str | None:
    """What an audit did not look at, as one sentence; None for audits of versions that do not say."""
    gaps = audit.get("not_covered")
    return f"not covered: {'; '.join(gaps)}" if gaps else None


def audit_in_words(audit: Mapping[str, Any]) -> str:
    """The verdict as one sentence without capital and full stop; an untested view does not count as passed."""
    if audit["refuted"]:
        return "the claim is refuted"
    tested, views = views_tested(audit), len(audit["views"])
    counted = f"{tested} of {views} views tested"
    if tested == views:
        return f"nothing refuted, {counted}; an audit can refute a claim, never prove it"
    remedy = "too few rounds{}; give more with --rounds"
    if tested == 0:
        return f"{counted}: {remedy.format('')}. The checks of the run passed, its views are unknown"
    return f"nothing refuted, but only {counted}: {remedy.format(' for the others')}"
