"""The ledger of a run's spending: one entry a round, written down before anything of the round is released.

    ledger = Ledger(repeatable=False)
    ledger.add(entry)
    rows = account(plan, ledger.realised(plan))

The rows of a run come from here, not from its plan: rounds that were released, reports that went missing, how often the
most active client took part. A choice that was drawn by chance as planned enters as its probability all the same: a
cohort that stays secret protects its members, one that is written down here is known to whoever keeps the ledger.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fedceo.accounting.plan import NoiseSite, Plan, Realised


@dataclass(frozen=True)
class Entry:
    """One round.

    Attributes:
        round: counted from 1; a round that was lost and taken anew has an entry for each time.
        cohort: the clients drawn.
        reported: the clients whose upload arrived.
        capped: the clients among them that were at their cap and sent noise alone.
        noise: standard deviation of the noise in units of the clip C, of one upload or (central) of their sum.
        smoothed: whether FedCEO's smoothing was due.
        released: whether anything left the server; rounds with fewer than min_reports reports are discarded.
        unused: in a deployment, the clients that were asked and whose upload was refused, late or never came; the
            server may have seen it, so it counts as one.
    """

    round: int
    cohort: tuple[int, ...]
    reported: tuple[int, ...]
    capped: tuple[int, ...]
    noise: float
    smoothed: bool
    released: bool
    unused: tuple[int, ...] = ()

    @property
    def own(self) -> tuple[int, ...]:
        """The clients that sent something of their own."""
        return self.reported if not self.capped else tuple(k for k in self.reported if k not in self.capped)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(table: dict[str, Any]) -> "Entry":
        table = dict(table)
        if "silent" in table:  # the name of the field up to version 0.1.0
            table["capped"] = table.pop("silent")
        members = {name: tuple(table[name]) for name in ("cohort", "reported", "capped")}
        return Entry(**(table | members | {"unused": tuple(table.get("unused", ()))}))


class Ledger:
    """All entries of a run."""

    def __init__(self, entries: Iterable[Entry] = (), *, repeatable: bool) -> None:
        """repeatable: randomness is seeded, so a round that is taken anew is the same release and costs nothing."""
        self.repeatable = repeatable
        self.entries: list[Entry] = []
        self.participations: Counter[int] = Counter()
        """In how many rounds the server saw something of a client's own."""
        self._rounds: set[int] = set()
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> bool:
        """Write an entry down; says whether it was a new one."""
        if self.repeatable and entry.round in self._rounds:
            return False
        self.entries.append(entry)
        self._rounds.add(entry.round)
        self.participations.update((*entry.own, *entry.unused))
        return True

    def up_to(self, round_: int) -> "Ledger":
        """The ledger as it stood when a checkpoint of that round was written; what cannot be repeated stays spent."""
        if not self.repeatable:
            return self
        return Ledger((entry for entry in self.entries if entry.round <= round_), repeatable=True)

    @staticmethod
    def _smoothings(released: list[Entry]) -> int:
        """Smoothings, each with the round after it; what is taken again counts again, whichever of the two it is."""
        smoothed = Counter(entry.round for entry in released if entry.smoothed)
        after = sum(entry.round - 1 in smoothed for entry in released)
        return max(smoothed.total(), after)

    def realised(self, plan: Plan, ahead: Entry | None = None) -> Realised:
        """How the run went, `ahead` included as if it had happened."""
        entries = self.entries if ahead is None else [*self.entries, ahead]
        released = [entry for entry in entries if entry.released]
        most = max(self.participations.values(), default=0)
        if ahead is not None:
            most = max(most, *(self.participations[client] + 1 for client in ahead.own), 0)
        smoothings = self._smoothings(released) if plan.release == "personalised" else None
        as_planned = all(entry.reported == entry.cohort for entry in entries)
        # a Poisson cohort's size is as planned whatever it is: the plan has each one's probability, zero included, and
        # that of what `cohort.dropout` leaves of it
        sizes_are_planned = plan.sampling == "poisson" and (as_planned or plan.dropout > 0)
        if plan.noise_site is not NoiseSite.UPLOADS or sizes_are_planned:
            turns = None if plan.groups is None else _most_turns(entries, plan.groups)
            return Realised(rounds=len(entries), smoothings=smoothings, participations=most, turns=turns)
        reports = Counter(len(entry.reported) for entry in released)
        full = as_planned and plan.min_reports is None
        return Realised(
            rounds=len(released),
            smoothings=smoothings,
            reports=None if full else tuple(sorted(reports.items())),
            random_absence=plan.dropout > 0 or as_planned,
            participations=most,
        )


def _most_turns(entries: Iterable[Entry], groups: int) -> int:
    """The rounds of the group that had most of them; a round that was taken again is a turn more."""
    return max(Counter(entry.round % groups for entry in entries).values(), default=0)
