"""The words of rows: what an epsilon rests on, why there is none, and what computed it."""

from collections.abc import Sequence

# Accountants

POISSON = "PLD, Poisson sampling"
FIXED = "PLD, fixed-size sampling"
CLOSED_FORM = "Gaussian, closed form"
MIXED_OVER_COHORTS = f"{CLOSED_FORM}, mixed over cohorts"
KNOWN_MEMBERSHIPS = f"{CLOSED_FORM}, with known memberships"
PAPER = "the paper's closed form with c2 = 1"
NONE = "none"

# Why there is no epsilon

NO_MECHANISM = "no mechanism: nothing is clipped or noised, so nothing is promised"
NO_NOISE = "noise multiplier 0: without noise nothing is promised"
NO_FINITE_EPSILON = "no finite epsilon found at this delta"
TRUSTED_SERVER = "the server adds the noise itself after seeing every update: it must be trusted"
BARE_UPLOADS = "central noise covers the average only, and what is released is made from bare uploads"
STORED_UPLOADS = (
    "single uploads are behind what is released, in any later round too, so no average hides who was in; the server's "
    "row holds here"
)
RECORDS_ONLY = "noise in local training protects single records; for a whole client nothing is promised to anyone"
NOBODY_TO_HIDE_BEHIND = "there is nobody to hide behind"

# Why there is no epsilon for a client, or a record, that is gone

SERVER_SEES_PRESENCE = "the server sees who is present; ask for zero-out or replace-one"
SMOOTHING_SHOWS_PRESENCE = "smoothing shows who is present; ask for zero-out or replace-one"
NOISE_LEAVES_TOO = "a client that is gone takes its share of the noise along; ask for zero-out"
GONE_IS_NEVER_CAPPED = "which a client that is gone has none of; ask for zero-out"
GONE_IS_NEVER_ABSENT = "which a client that is gone is not; ask for zero-out"
BATCHES_CHANGE = "a record that is gone changes how many batches and how much noise there is; ask for zero-out"

# What an observer sees

SEES_AVERAGES = "sees averages, not who was in"
KNOWS_OWN_SHARE = "sees averages, not who else was in; knows its own share of noise"
KNOWS_OWN_UPDATE = "sees averages, not who else was in; knows its own update"
SEES_TURNS = "sees averages, and knows in which rounds each group had its turn"
NOTHING_RELEASED = "nothing was released"
NO_OTHER_CLIENT = "there is no other client"

# What an epsilon rests on

EVERYONE_IS_IN = "everyone is in every round, so nothing is amplified"
SIZES_HIDDEN = "cohort sizes stay hidden and the divisor is K whatever they are"
SIZE_SHOWS = (
    "the number of reports shows in the variance of an average, so given that number the cohort counts as one of fixed "
    "size with that many shares of noise"
)
ABSENT = (
    "clients were absent for reasons of their own, so that nothing counts as amplified and who was in counts as known"
)
CAPPED = (
    "a cap on participations ties the rounds together, so that nothing counts as amplified and all memberships count "
    "as known"
)
KEEPS_ANOTHER_OUT = "a client that is in keeps another one out, so sums differ by up to 2C"
UPPER_BOUND = "an upper bound"
COMPARISON = "for comparison, no guarantee of this mechanism: noise shares give the number of reports away"
AS_THE_PAPER_SAYS = (
    "as the paper states it for everybody: no guarantee; Poisson cohorts, an unproved constant, averages only"
)

# What an observer of a study sees

SEES_CHOSEN = "sees the chosen trial alone; how many trials there were stays secret"
SEES_ALL_TRIALS = "is there while every trial is trained, so that all of them add up, over the draw of their number"
SERVER_NOISES_SCORES = "the server adds the noise of the scores itself after seeing them: it must be trusted"
NO_CURVE = "no Renyi divergence is known of this view, so that nothing is promised for a study"

# How often a client takes part

MOST_OF_ANY = "the most of any client"
EVERY_ROUND = "every client in every round"
THE_CAP = "the cap on a client's participations"
HARDLY_EXCEEDED = "exceeded by a client with probability below 1e-5"
THE_MEAN = "the mean number per client, which some exceed"


ADJACENCIES = {
    "zero-out": "a {unit}'s contribution is as it is, or zero; the {unit} takes part in both cases",
    "replace-one": "a {unit}'s contribution is one or any other, so that a sum moves twice as far",
    "add-remove": "the {unit} is there, or not at all",
}


def adjacency(name: str, unit: str) -> str:
    """What a promise compares, in words."""
    return f"{name}: {ADJACENCIES[name].format(unit={'user': 'client'}.get(unit, unit))}"


def shared(assumptions: Sequence[str]) -> tuple[list[str], list[str]]:
    """The parts that all of several assumptions have, and what is left of each, unless that were nothing."""
    each = [assumption.split("; ") for assumption in assumptions]
    same = [part for part in each[0] if all(part in parts for parts in each)]
    rest = [joined(*(part for part in parts if part not in same)) for parts in each]
    return (same, rest) if all(rest) else ([], list(assumptions))


def joined(*parts: str) -> str:
    """The parts of an assumption that say something, as one text."""
    return "; ".join(part for part in parts if part)


def means_little(limit: float) -> str:
    return f"an epsilon above {limit:g} means that the guarantee means little"


def turns_of_groups(turns: int, groups: int, is_whole: bool) -> str:
    drawn = "whose members are all in, so nothing is amplified" if is_whole else "of whom it stays secret who was drawn"
    return f"{turns} turns of a client's group, one in {groups} rounds, {drawn}"


def fewest_reports(reports: int) -> str:
    return f"as few as {reports} reports in a round, which carry less noise"
