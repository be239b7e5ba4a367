"""Who learns what: one row for each observer of a run, with its epsilon and what that rests on.

    rows = account(Spec(clients=100, cohort=10, rounds=300, noise_multiplier=1.0, delta=1e-5, mechanism="distributed"))

One epsilon for everybody does not exist. An outsider sees averages and not who was in them; a participant also knows
its own share of the noise; the server sees each upload; a FedCEO client receives a personal model made from the
stack of uploads. An epsilon of None means that nothing can be promised, and the row says why.
"""

import math
from typing import NamedTuple

from scipy import stats

from fedceo.accounting.gaussian import drawn_gaussian_epsilon, drawn_gaussians_epsilon, gaussian_epsilon
from fedceo.accounting.plan import Row, Spec
from fedceo.accounting.pld import (
    Averages,
    Round,
    averages_epsilon,
    known_membership_epsilon,
    memberships_show,
    personalised_epsilon,
)
from fedceo.accounting.views import (
    averages_seen,
    cap_binds,
    cap_is_harmless,
    multiplier,
    round_after,
    upload_mu,
    worst_round,
)
from fedceo.errors import UsageError

__all__ = ["OBSERVERS", "Row", "Spec", "account", "answer"]

OBSERVERS = ("outsider", "participant", "server", "client")
LITTLE = 20.0
"""The epsilon above which a row says that it means little."""
QUANTILE = 1 - 1e-5
"""A client is drawn more often than the high-probability count with probability 1e-5."""

POISSON = "PLD, Poisson sampling"
FIXED = "PLD, fixed-size sampling"
CLOSED_FORM = "Gaussian, closed form"
TOLD = f"{CLOSED_FORM}, with all memberships told"
NONE = "none"
SIZE_SHOWS = (
    "the number of reports shows in the variance of an average, so given that number the cohort counts as one of fixed "
    "size with that many shares of noise"
)
ABSENT = (
    "clients were absent for reasons of their own, so that nothing counts as amplified and who was in counts as told"
)
CAPPED = (
    "a cap on participations ties the rounds together, so that nothing counts as amplified and all memberships count "
    "as told"
)
NO_USER_LEVEL = "noise in local training protects single records; for a whole client nothing is promised to anyone"


class Answer(NamedTuple):
    """The epsilon of one question: infinite where more noise would help, None where no noise would."""

    epsilon: float | None
    accountant: str
    assumption: str
    sampling: str = "none"
    unit: str = "user"


def account(spec: Spec) -> list[Row]:
    """One row per observer, and the paper's closed form; the record mechanism has a server row per count."""
    rows = [_row(spec, observer, answer(spec, observer)) for observer in observers(spec)]
    if spec.mechanism == "record" and spec.noise_multiplier > 0:
        rows += [_row(spec, "server", _records(spec, count)) for count in _participation_counts(spec)[1:]]
        rows.append(_row(spec, "outsider", Answer(None, NONE, NO_USER_LEVEL)))
    if spec.mechanism in ("distributed", "central") and spec.noise_multiplier > 0:
        rows.append(_row(spec, "paper", _paper(spec)))
        if (spec.mechanism, spec.release, spec.sampling) == ("distributed", "personalised", "poisson"):
            rows.append(_row(spec, "client if sizes were hidden", _personalised_with_hidden_sizes(spec)))
    return rows


def observers(spec: Spec) -> tuple[str, ...]:
    """Those who see something of their own; only FedCEO's personal models make a client more than a participant."""
    return OBSERVERS[:-1] if spec.release == "average" else OBSERVERS


def answer(spec: Spec, observer: str) -> Answer:
    """What the observer's first row says."""
    if observer not in OBSERVERS:
        raise UsageError(f"observer: {observer!r}, expected one of {', '.join(OBSERVERS)}")
    if observer not in observers(spec):
        raise UsageError('observer: "client" needs personal models; with release "average" a client is a "participant"')
    if spec.mechanism == "none":
        return Answer(None, NONE, "no mechanism: nothing is clipped or noised, so nothing is promised")
    if spec.noise_multiplier == 0:
        return Answer(math.inf, NONE, "noise multiplier 0: without noise nothing is promised")
    if spec.mechanism == "record":
        return _records(spec, _participation_counts(spec)[0])
    if observer == "server":
        return _server(spec)
    if spec.rounds == 0:
        return Answer(0.0, CLOSED_FORM, "nothing was released")
    if spec.release == "average":
        return _averages(spec, observer)
    if spec.mechanism == "central":
        return Answer(
            None, NONE, "central noise covers the average only, and personal models are made from bare uploads"
        )
    if spec.release == "stored":
        return Answer(
            None,
            NONE,
            "single uploads are behind what is released, in any later round too, so no average hides who was in; the "
            "server's row holds here",
        )
    return _personalised(spec)


def _row(spec: Spec, observer: str, found: Answer) -> Row:
    epsilon, assumption = found.epsilon, found.assumption
    if epsilon is not None and not math.isfinite(epsilon):
        epsilon, assumption = None, f"{assumption}; no finite epsilon found at this delta"
    if epsilon is not None and epsilon > LITTLE:
        assumption += f"; an epsilon above {LITTLE:g} means that the guarantee means little"
    return Row(
        observer=observer,
        mechanism=spec.mechanism,
        unit=found.unit,
        adjacency=spec.adjacency,
        sampling=found.sampling,
        epsilon=epsilon,
        delta=spec.delta,
        accountant=found.accountant,
        assumption=assumption,
    )


def _server(spec: Spec) -> Answer:
    if spec.mechanism == "central":
        return Answer(None, NONE, "the server adds the noise itself after seeing every update: it must be trusted")
    if spec.adjacency == "add-remove":
        return Answer(None, NONE, "the server sees who is present; ask for zero-out or replace-one")
    count, meaning, is_known = _participation_counts(spec)[0]
    shares = "K" if spec.min_reports is None else "min_reports"
    sees = f"sees each upload, z = sigma/sqrt({shares}), and who sent it, so nothing is amplified"
    if is_known:
        epsilon = gaussian_epsilon(upload_mu(spec) * math.sqrt(count), spec.delta)
        return Answer(epsilon, CLOSED_FORM, f"{sees}; {count:g} uploads, {meaning}")
    mean = spec.rate * spec.rounds
    of_mean = gaussian_epsilon(upload_mu(spec) * math.sqrt(mean), spec.delta)
    drawn = drawn_gaussian_epsilon(upload_mu(spec), spec.rate, spec.rounds, spec.delta)
    words = f"over the draw of the cohorts; for a client with the mean of {mean:g} uploads it is {of_mean:.4g}"
    return Answer(drawn, f"{CLOSED_FORM}, mixed over cohorts", f"{sees}; {words}")


class Count(NamedTuple):
    """How often a client takes part."""

    value: float
    meaning: str
    is_known: bool = True


def _participation_counts(spec: Spec) -> list[Count]:
    """The counts to account for, the one that is known or enforced first, else one that is hardly ever exceeded."""
    if spec.participations is not None:
        return [Count(spec.participations, "the most of any client")]
    if spec.cohort == spec.clients and spec.participation_cap is None:
        return [Count(spec.rounds, "every client in every round")]
    most = int(stats.binom.ppf(QUANTILE, spec.rounds, spec.rate))
    counts = [
        Count(most, "exceeded by a client with probability below 1e-5", is_known=False),
        Count(spec.rate * spec.rounds, "the mean number per client, which some exceed", is_known=False),
    ]
    if spec.participation_cap is None:
        return counts
    cap = min(spec.participation_cap, spec.rounds)
    return [Count(cap, "the cap on a client's participations"), *(count for count in counts if count.value < cap)]


def _averages(spec: Spec, observer: str) -> Answer:
    """T averages as seen by an outsider or a participant."""
    everyone, shares = spec.cohort == spec.clients, spec.mechanism == "distributed"
    if spec.adjacency == "add-remove" and shares and (everyone or spec.sampling == "poisson"):
        return Answer(None, NONE, "a client that is gone takes its share of the noise along; ask for zero-out")
    curious = observer == "participant"
    who = "sees averages, not who was in"
    if curious:
        who = f"sees averages, not who else was in; knows its own {'share of noise' if shares else 'update'}"
    if shares and spec.fewest_reports < spec.share:
        who += f"; as few as {spec.fewest_reports} reports in a round, which carry less noise"
    if curious and spec.clients == 1:
        return Answer(0.0, CLOSED_FORM, "there is no other client")
    averages = averages_seen(spec, curious)
    if spec.absence_tells:
        return _averages_of_some(spec, averages, who)
    if everyone:
        # where a cap ends a client's part, the rounds with the least noise may be the ones before it
        epsilon = _epsilon_when_in(spec, averages, spec.participation_cap or spec.rounds)
        return Answer(epsilon, CLOSED_FORM, f"{who}; everyone is in every round, so nothing is amplified")
    if cap_binds(spec) and not cap_is_harmless(spec):
        if spec.adjacency == "add-remove":
            return Answer(None, NONE, f"{CAPPED}, which a client that is gone has none of; ask for zero-out")
        epsilon = known_membership_epsilon(averages, spec.delta, spec.participation_cap)
        return Answer(epsilon, TOLD, f"{who}; {CAPPED}", spec.sampling)
    if spec.sampling == "fixed":
        return _fixed_size(spec, averages, who)
    words = SIZE_SHOWS if shares else "cohort sizes stay hidden and the divisor is K whatever they are"
    return Answer(averages_epsilon(averages, spec.delta), _accountant(averages), f"{who}; {words}", spec.sampling)


def _averages_of_some(spec: Spec, averages: Averages, who: str) -> Answer:
    """Clients were absent for reasons of their own, so that the number of reports may tell who sent them."""
    if spec.adjacency == "add-remove":
        return Answer(None, NONE, f"{who}; {ABSENT}, which a client that is gone is not; ask for zero-out")
    epsilon = _epsilon_when_in(spec, averages, _most(spec))
    return Answer(epsilon, TOLD, f"{who}; {ABSENT}: {_most(spec)} rounds at the least noise, the most of any client")


def _most(spec: Spec) -> int:
    return spec.rounds if spec.participations is None else spec.participations


def _epsilon_when_in(spec: Spec, averages: Averages, rounds: int) -> float:
    """The epsilon of a client that is known to be in so many rounds, those with the least noise."""
    mus = [spec.shift / min(s.multiplier for s in average.strata) for average, n in averages for _ in range(n)]
    return gaussian_epsilon(math.hypot(*sorted(mus, reverse=True)[:rounds]), spec.delta)


def _accountant(averages: Averages) -> str:
    if any(memberships_show(average) for average, _ in averages):
        return TOLD
    return POISSON if all(average.hidden_size for average, _ in averages) else FIXED


def _fixed_size(spec: Spec, averages: Averages, who: str) -> Answer:
    """The smaller of two upper bounds: with memberships kept secret, or told, when nobody is kept out by anybody."""
    epsilon = averages_epsilon(averages, spec.delta)
    words = f"{who}; a client that is in keeps another one out, so sums differ by up to 2C"
    if spec.adjacency != "zero-out" or not averages:
        return Answer(epsilon, _accountant(averages), words, spec.sampling)
    told = known_membership_epsilon(averages, spec.delta)
    if told < epsilon:
        words = f"{who}; an upper bound, which costs less than counting on secret memberships ({epsilon:.4g})"
        return Answer(told, TOLD, words, spec.sampling)
    return Answer(epsilon, _accountant(averages), f"{words}; an upper bound", spec.sampling)


def _personalised(spec: Spec) -> Answer:
    """FedCEO's personal models: with them averages re-release single states, so this is everybody's row."""
    if spec.adjacency == "add-remove":
        return Answer(None, NONE, "smoothing shows who is present; ask for zero-out or replace-one")
    assumption = (
        "personal models come from the stack of uploads: nothing is amplified in the smoothing rounds, "
        f"{spec.smoothed_rounds} of {spec.rounds}, nor right after them; averages re-release single states, so "
        "outsiders have this row too"
    )
    if spec.absence_tells:
        epsilon = gaussian_epsilon(upload_mu(spec) * math.sqrt(_most(spec)), spec.delta)
        return Answer(epsilon, CLOSED_FORM, f"{assumption}; {ABSENT}")
    smoothed, others = (upload_mu(spec), spec.smoothed_rounds), spec.rounds - spec.smoothed_rounds
    if spec.cohort == spec.clients:
        average_mu = spec.shift / multiplier(spec, spec.fewest_reports, curious=True)
        told = drawn_gaussians_epsilon(smoothed, (average_mu, others), 1.0, spec.delta, spec.participation_cap)
        return Answer(told, CLOSED_FORM, assumption)
    average, after = worst_round(spec, curious=True), round_after(spec)
    rate = max(spec.cohort, spec.most_reports) / spec.clients
    if spec.sampling == "poisson":
        assumption += f"; {SIZE_SHOWS}"
    average_mu = spec.shift / min(stratum.multiplier for stratum in (*average.strata, *after.strata))
    told = drawn_gaussians_epsilon(smoothed, (average_mu, others), rate, spec.delta, spec.participation_cap)
    if cap_binds(spec):
        return Answer(told, TOLD, f"{assumption}; {CAPPED}", spec.sampling)
    epsilon = personalised_epsilon(average, after, rate, upload_mu(spec), spec.rounds, spec.smoothed_rounds, spec.delta)
    if told < epsilon:
        return Answer(told, TOLD, assumption, spec.sampling)
    accountant = _accountant(((average, spec.rounds),))
    return Answer(epsilon, f"{accountant}, mixed over smoothings", assumption, spec.sampling)


def _personalised_with_hidden_sizes(spec: Spec) -> Answer:
    """What _personalised would say if nobody could read the number of reports from the noise of an average."""
    if spec.cohort == 1 or spec.rounds == 0:
        return Answer(None, NONE, "there is nobody to hide behind")
    z = spec.noise_multiplier * math.sqrt(1 - 1 / spec.cohort)
    average = Round.of(spec.rate, z, spec.adjacency, hidden_size=True)
    after = Round.of(1.0, z, spec.adjacency, hidden_size=True)
    epsilon = personalised_epsilon(
        average, after, spec.rate, upload_mu(spec), spec.rounds, spec.smoothed_rounds, spec.delta
    )
    words = "for comparison, no guarantee of this mechanism: noise shares give the number of reports away"
    return Answer(epsilon, f"{POISSON}, mixed over smoothings", words, "poisson")


def _records(spec: Spec, count: Count) -> Answer:
    """DP-SGD inside local training, composed over a client's participations; holds against the server, so for all."""
    assert spec.record_rate is not None and spec.record_steps is not None
    if spec.adjacency == "add-remove":
        words = "a record that is gone changes how many batches and how much noise there is; ask for zero-out"
        return Answer(None, NONE, words, "poisson", "record")
    participations = math.ceil(count.value - 1e-9)  # a mean of 30 must not become 31 by rounding errors

    def epsilon_of(rate: float, steps: int) -> float:
        step = Round.of(rate, spec.noise_multiplier, spec.adjacency, hidden_size=True)
        return averages_epsilon(((step, participations * steps),), spec.delta)

    # which client is the worst depends on noise and participations: few large batches, or many small ones
    kinds = ((spec.record_rate, spec.record_steps), *spec.other_records)
    epsilon, (rate, steps) = max((epsilon_of(*kind), kind) for kind in kinds)
    assumption = (
        f"one record of a client, not the client, against anyone including the server; {steps} Poisson "
        f"steps at rate {rate:.4g} in each of {participations} participations, {count.meaning}"
    )
    return Answer(epsilon, POISSON, assumption, "poisson", "record")


def _paper(spec: Spec) -> Answer:
    """K sqrt(T ln(1/delta)) / (N sigma): the paper's lemma with its unknown constant c2 set to 1."""
    epsilon = spec.rate * math.sqrt(spec.rounds * math.log(1 / spec.delta)) / spec.noise_multiplier
    assumption = (
        "as the paper states it for everybody: no guarantee; Poisson cohorts, an unproved constant, averages only"
    )
    return Answer(epsilon, "the paper's closed form with c2 = 1", assumption, "poisson")
