"""Which experiments may be compared, by which names, and how far apart they are over the seeds that they share."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count

from scipy import stats

from fedceo.accounting.printed import rounded_up
from fedceo.errors import UsageError
from fedceo.report.loading import NOT_COMPARED, Group, flat, show_value

MOST_FIELDS = 4
"""Fields that a name may tell of; an experiment that differs in more is named by its folder."""
PLACES = ("data.root", "data.path")
"""Fields that say where data lie, and nothing of what they are."""
OF_THE_METHOD = ("privacy.clip", "privacy.clipping", "privacy.clip_quantile", "privacy.clip_learning_rate")
"""Fields of the sections below that may differ in a fair comparison."""
OF_THE_SETTING = ("data.", "model.", "cohort.", "privacy.")
LEVEL = 0.95


@dataclass(frozen=True)
class Contender:
    """An experiment under the name that it has in tables and figures."""

    name: str
    group: Group


@dataclass(frozen=True)
class Contest:
    """Experiments in one setting: the same data, model, cohorts and privacy, so that methods can be compared.

    Attributes:
        where: the fields in which this setting differs from the others, with its values.
        contenders: the experiments, in the order in which they were given.
    """

    where: Mapping[str, str]
    contenders: tuple[Contender, ...]

    def ranked(self, key: str) -> list[Contender]:
        """The contenders that have this number of the summary, the best mean first."""
        means = {c.name: values.mean() for c in self.contenders if len(values := c.group.accuracies(key))}
        upwards = -1 if self.contenders[0].group.metric.higher_is_better else 1
        return sorted((c for c in self.contenders if c.name in means), key=lambda c: upwards * means[c.name])


@dataclass(frozen=True)
class Difference:
    """The mean difference of runs with the same seeds, in points, or in the metric's unit.

    Attributes:
        low, high: ends of its 95 % interval (Student's t); None for a single seed, of which there is none.
        seeds: the number of seeds that both have.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """How far ours are above theirs, seed by seed; None where they share no seed."""
    found = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not found:
        return None
    mean = statistics.fmean(found)
    if len(found) == 1:
        return Difference(mean, None, None, 1)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(found) - 1)) * statistics.stdev(found) / math.sqrt(len(found))
    return Difference(mean, mean - reach, mean + reach, len(found))


def contests(groups: Sequence[Group], renamed: Sequence[str] = ()) -> list[Contest]:
    """The experiments by setting, in the order in which settings first appear.

    Args:
        renamed: "NAME=other name", for names that are to be shown otherwise.
    """
    settings: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in groups:
        settings.setdefault(tuple(_setting(group).items()), []).append(group)
    tables = [dict(key) for key in settings]
    fields = dict.fromkeys(field for table in tables for field in table)
    varied = [field for field in fields if len({table.get(field, "-") for table in tables}) > 1]
    named = [names_of(found) for found in settings.values()]
    others = _renamed(renamed, {name for names in named for name in names})
    return [
        Contest(
            {field: table.get(field, "-") for field in varied},
            tuple(Contender(others.get(name, name), group) for name, group in zip(names, found, strict=True)),
        )
        for table, names, found in zip(tables, named, settings.values(), strict=True)
    ]


def names_of(groups: Sequence[Group]) -> list[str]:
    """The method of each group by name, with the settings that tell it from the others of the same method."""
    alike: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        alike.setdefault(group.experiment.method.titled(group.experiment), []).append(number)
    names = [""] * len(groups)
    for title, numbers in alike.items():
        told = _told_apart([groups[number] for number in numbers]) if len(numbers) > 1 else [""]
        for number, more in zip(numbers, told, strict=True):
            names[number] = f"{title} ({more})" if more else title
    return names


def looks_of(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """For each group the number of its method's colour and, among the groups of that method, its own.

    A method has the same colour whoever stands beside it, so that the figures of one paper agree; where it is there
    with and without noise, under two names, the private one has it.
    """
    titles = [group.experiment.method.titled(group.experiment) for group in groups]
    colours: dict[str, int] = {}
    private_first = sorted(
        zip(titles, groups, strict=True), key=lambda each: not each[1].experiment.mechanism.adds_noise
    )
    for title, group in private_first:
        wanted = group.experiment.method.colour
        if wanted is not None and wanted not in colours.values():
            colours.setdefault(title, wanted)
    for title in titles:
        if title not in colours:
            colours[title] = next(number for number in count() if number not in colours.values())
    return [(colours[title], titles[:number].count(title)) for number, title in enumerate(titles)]


def named(groups: Sequence[Group], renamed: Sequence[str] = ()) -> list[Group]:
    """The groups under the names of their methods, with the setting where there are several."""
    found: dict[int, Group] = {}
    for contest in contests(groups, renamed):
        where = ", ".join(f"{spoken(field)} {value}" for field, value in contest.where.items() if value != "-")
        for contender in contest.contenders:
            full = f"{contender.name}, {where}" if where else contender.name
            found[id(contender.group)] = replace(contender.group, name=full)
    return [found[id(group)] for group in groups]


def _told_apart(groups: Sequence[Group]) -> list[str]:
    """The values of the fewest fields in which all groups differ, those of the method and words before any other."""
    tables = [flat(group.experiment.model_dump(exclude=set(NOT_COMPARED))) for group in groups]
    fields = dict.fromkeys(field for table in tables for field in table if field not in PLACES)
    varied = [field for field in fields if len({show_value(table.get(field)) for table in tables}) > 1]
    varied.sort(key=lambda field: (not field.startswith("method."), not isinstance(tables[0].get(field), str)))
    for size in range(1, MOST_FIELDS + 1):
        for chosen in combinations(varied, size):
            told = [
                ", ".join(f"{spoken(f)} {show_value(table[f])}" for f in chosen if table.get(f) is not None)
                for table in tables
            ]
            if len(set(told)) == len(told):
                return told
    return [group.name for group in groups]


def spoken(field: str) -> str:
    """A field's name in words: sigma for privacy.noise_multiplier, learning rate for train.learning_rate."""
    symbols = {"privacy.noise_multiplier": "σ", "privacy.target_epsilon": "target ε", "privacy.delta": "δ"}
    sections = {"data.name": "data", "model.name": "model", "cohort.size": "cohort"}
    return symbols.get(field) or sections.get(field) or field.rpartition(".")[2].replace("_", " ")


def _setting(group: Group) -> dict[str, str]:
    """The fields that a fair comparison leaves as they are; rounds count where they change the epsilon."""
    table = flat(group.experiment.model_dump(exclude_none=True))
    left_out = (*OF_THE_METHOD, *PLACES)
    kept = {f: show_value(v) for f, v in table.items() if f.startswith(OF_THE_SETTING) and f not in left_out}
    kept["data.name"] = group.runs[0].data
    if group.experiment.mechanism.adds_noise and "privacy.target_epsilon" not in kept:
        kept["train.rounds"] = show_value(table["train.rounds"])
    return kept


def _renamed(given: Sequence[str], known: set[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, other = each.partition("=")
        if not equals or not other.strip() or name not in known:
            raise UsageError(f"--name {each}: expected NAME=other name, with one of: {'; '.join(sorted(known))}")
        found[name] = other
    return found


def shared_settings(groups: Sequence[Group]) -> dict[str, str]:
    """Field -> value, for the fields of the experiment that all groups have alike."""
    tables = [flat(group.experiment.model_dump(exclude=set(NOT_COMPARED))) for group in groups]
    return {
        field: show_value(value)
        for field, value in tables[0].items()
        if value is not None and all(table.get(field) == value for table in tables)
    }


def answer(contest: Contest, key: str = "last") -> str | None:
    """Who is ahead of the next by how much, or that nobody is, and at which price; None where there are not two."""
    ranked = contest.ranked(key)
    if len(ranked) < 2:
        return None
    first, second = ranked[:2]
    return _verdict(first, second, paired(first.group.by_seed(key), second.group.by_seed(key))) + _price(first, second)


def _verdict(first: Contender, second: Contender, found: Difference | None) -> str:
    metric = first.group.metric
    side, extreme = ("above", "highest") if metric.higher_is_better else ("below", "lowest")
    if found is None:
        return f"Nobody can be called ahead: {first.name} and {second.name} have no seed in common."
    if found.low is None or found.high is None:
        return (
            f"Nobody can be called ahead: {first.name} is {metric.apart(found.mean)} {side} {second.name} in one run "
            "of each, and one seed has no interval."
        )
    low, high = (metric.signed(end) for end in (found.low, found.high))
    interval = f"95 % interval {low} to {high}, {found.seeds} seeds in pairs"
    if not found.is_clear:
        return (
            f"Nobody is ahead: {first.name} and {second.name}, the two {extreme}, differ by "
            f"{metric.apart(found.mean)}, and the interval of the difference holds 0 ({interval})."
        )
    return f"{first.name} is ahead of {second.name}, the next, by {metric.apart(found.mean)} ({interval})."


def _price(first: Contender, second: Contender) -> str:
    """A sentence where an outsider's epsilons differ by more than a twentieth: accuracy may be bought with them."""
    prices = [contender.group.epsilon("outsider") for contender in (first, second)]
    known = [price for price in prices if price is not None]
    if (len(known) == len(prices) and max(known) <= 1.05 * min(known)) or not known:
        return ""
    told = " and ".join("none" if price is None else f"{rounded_up(price):g}" for price in prices)
    return f" Their privacy is not the same: an outsider's epsilons are {told}."
