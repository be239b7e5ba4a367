"""Warnings of experiments that cannot be compared: other test records, training data, partitions, models."""

from collections.abc import Sequence
from typing import Any

from fedceo.accounting.printed import rounded_up
from fedceo.report.comparison import contests
from fedceo.report.loading import Group, differences

NOT_THE_METHOD = "a difference in accuracy is not the method's alone"


def warnings(groups: Sequence[Group]) -> list[str]:
    """One sentence for each thing that must be equal in a comparison of methods and differs between groups.

    Records are compared by the digests in the runs' results, the partition also by its settings. Other seeds draw other
    partitions of the same data, which is no difference. Runs without digests (unfinished ones, or those of an earlier
    version) are compared by their settings.
    """
    changed = differences(groups)
    aspects = (
        ("test records", "", [_noted(g, "test_digest") for g in groups], "their accuracies say nothing of each other"),
        ("training data", "data.", _training(groups), NOT_THE_METHOD),
        ("models", "model.", [_noted(g, "model") or g.experiment.model.name for g in groups], NOT_THE_METHOD),
    )
    found = []
    for aspect, section, kinds, why in aspects:
        sides: dict[str, list[str]] = {}
        for group, kind in zip(groups, kinds, strict=True):
            if kind is not None:
                sides.setdefault(kind, []).append(group.name)
        if len(sides) > 1:
            fields = [field for field in changed if section and field.startswith(section)]
            settings = f" ({', '.join(fields)})" if fields else ""
            apart = " against ".join(", ".join(names) for names in sides.values())
            found.append(f"Cannot be compared: {apart}. They have different {aspect}{settings}, so {why}.")
    return found + _at_other_prices(groups)


def _at_other_prices(groups: Sequence[Group]) -> list[str]:
    """One sentence where an outsider's epsilon differs between groups; groups without privacy do not count.

    Where every setting has methods to compare, only those are compared: other settings are there for other epsilons.
    """
    private = [group for group in groups if group.epsilon("outsider") is not None]
    settings = [[contender.group for contender in contest.contenders] for contest in contests(private)]
    compared = settings if all(len(each) > 1 for each in settings) else [private]
    return [told for each in compared if (told := _prices(each))]


def _prices(groups: Sequence[Group]) -> str:
    prices = {group.name: group.epsilon("outsider") or 0.0 for group in groups}
    if max(prices.values()) <= 1.05 * min(prices.values()):
        return ""
    listed = ", ".join(f"{rounded_up(epsilon):g} ({name})" for name, epsilon in prices.items())
    return f"Not at the same privacy: an outsider's epsilon is {listed}. Accuracy may be bought with it."


def _training(groups: Sequence[Group]) -> list[str]:
    """The settings of each group's data and, where the same settings and seed gave other records, their digest."""
    kinds: list[str] = []
    expected: dict[tuple[str, int], str] = {}
    for group in groups:
        settings = str(group.experiment.data.model_dump(exclude={"root", "path"}))
        digest = _noted(group, "data_digest")
        if digest and expected.setdefault((settings, group.experiment.seed), digest) != digest:
            settings += digest
        kinds.append(settings)
    return kinds


def _noted(group: Group, name: str) -> Any:
    """A field of the first run's result, or None."""
    return (group.runs[0].result or {}).get(name)
