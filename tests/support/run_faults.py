"""Faults of a whole run, each planted in the code path that runs: what an audit must find in ten of ten.

A fault changes one function of the library while it is planted, or one object of the simulation. `ASKED` are those that
the audit was asked to find, `FURTHER` those that an audit of the mechanism alone does not see.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fedceo.audit.report import Report
from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms import base, central
from fedceo.mechanisms.base import Mechanism
from fedceo.mechanisms.central import Central
from fedceo.mechanisms.distributed import Distributed
from fedceo.methods.base import Method
from fedceo.methods.centaur import Centaur
from fedceo.methods.scaffold import Scaffold
from fedceo.simulation import rounds
from fedceo.simulation.preparing import prepare
from fedceo.simulation.round import LocalCohort
from fedceo.simulation.rounds import Simulation
from fedceo.training import per_example
from fedceo.training.noise import RecordNoise
from fedceo.training.schedule import Schedule
from fedceo.training.work import Work
from tests.support.fault_plants import (
    Plant,
    Settings,
    always_client_0,
    bare_aggregation,
    bare_controls,
    bare_head,
    bare_in_the_last,
    bare_mean,
    bare_training,
    cohort_changed,
    cohort_of,
    every_other_round,
    first_steps_only,
    follows_the_bare_count,
    halved_noise,
    keyed,
    last_unclipped,
    longer_columns,
    momentum_after_clip,
    neighbours_update,
    noise_before,
    noise_kept_from,
    of,
    of_every_run,
    of_few_bits,
    one_band_more,
    one_noise_for_all,
    over_reports,
    split_anew,
    twice,
    uncapped_phase,
    without_noise,
)


@dataclass(frozen=True)
class RunFault:
    """A fault: how it is planted, and the experiment that it shows in, as far as it differs from TABLE."""

    plant: Plant
    settings: Settings = field(default_factory=dict)

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.plant(stack)
            yield


TABLE: Settings = {
    "data": {"name": "digits", "clients": 100},
    "model": {"name": "logistic"},
    "cohort": {"size": 10},
    "train": {"rounds": 60, "local_epochs": 2, "batch_size": 4, "server_learning_rate": 0.5},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 1.0, "clip": 0.5},
    "method": {"name": "fedavg"},
}
RECORD: Settings = {"privacy": {"mechanism": "record", "noise_multiplier": 0.8}}
FEDCEO: Settings = {"method": {"name": "fedceo", "interval": 5, "strength": 20.0, "restart": "own"}}


def simulation_of(settings: Settings, seed: int = 0) -> Simulation:
    """The small federation that faults are planted in."""
    table: dict[str, Any] = {name: TABLE.get(name, {}) | settings.get(name, {}) for name in {**TABLE, **settings}}
    return prepare(parse_experiment(table | {"seed": seed}))


CAP: Settings = {"privacy": {"participation_cap": 3}}
POISSON: Settings = {"cohort": {"sampling": "poisson"}}
MLP: Settings = {"model": {"name": "mlp"}, "data": {"clients": 50}}

BANDED: Settings = {
    "cohort": {"sampling": "cyclic", "groups": 5},
    "privacy": {"mechanism": "central", "noise": "banded"},
}

ASKED: dict[str, RunFault] = {
    "no noise in the run": RunFault(cohort_changed(without_noise)),
    "no noise in Stack's mean": RunFault(bare_mean),
    "no noise in aggregation": RunFault(bare_aggregation),
    "noise keyed by client mod 50": RunFault(keyed(lambda t, k: (t, k % 50))),
    "one pair of 50 clients shares noise": RunFault(
        keyed(lambda t, k: (t, 3 if k == 41 else k)), {"data": {"clients": 50}}
    ),
    "one client bare": RunFault(noise_kept_from(lambda k, name: k == 71 and ...)),
    "noise repeats at lag 10": RunFault(keyed(lambda t, k: (t % 10, k))),
    "noise repeats at period 50": RunFault(keyed(lambda t, k: (t % 50, k))),
    "one noise for every tensor": RunFault(of(per_example, "draw_noise", lambda right: one_noise_for_all)),
    "the last bias not clipped": RunFault(of(Mechanism, "clipped", last_unclipped)),
    "momentum added after the clip": RunFault(of(Distributed, "privatise", momentum_after_clip)),
    "weights by records": RunFault(
        cohort_changed(lambda made, simulation, t: replace(made, sizes=simulation.sizes)),
        {"data": {"partition": "dirichlet", "clients": 50}},
    ),
    "a neighbour's bare update in a returned model": RunFault(neighbours_update, FEDCEO),
    "Poisson mean over those who reported": RunFault(
        of(Central, "privatise", over_reports), POISSON | {"privacy": {"mechanism": "central"}}
    ),
    "the adaptive count un-noised": RunFault(
        of(Mechanism, "drawn_count_noise", lambda right: lambda self, *asked: 0.0),
        {"privacy": {"clipping": "adaptive"}},
    ),
    "16-bit seeds": RunFault(of(Schedule, "generator", of_few_bits)),
    "the same cohort every round": RunFault(cohort_of(lambda right, self, t, *asked: right(self, 1, *asked))),
    "shuffled instead of Poisson batches": RunFault(
        of(Schedule, "poisson_batches", lambda right: Schedule.batches), RECORD
    ),
    "noise in the first two steps only": RunFault(of(RecordNoise, "draw", first_steps_only), RECORD),
    "a head phase without noise": RunFault(
        of(Centaur, "phases", bare_head), RECORD | MLP | {"method": {"name": "centaur", "head_epochs": 2}}
    ),
    "3 % too little noise": RunFault(
        of(Distributed, "noise", lambda right: property(lambda self: 0.97 * right.fget(self)))
    ),
}

FURTHER: dict[str, RunFault] = {
    "a cap that is never applied": RunFault(
        of(rounds, "plan_round", lambda right: lambda *asked: right(*asked[:-1], None)), CAP
    ),
    "clients at their cap train on": RunFault(of(LocalCohort, "_phase", uncapped_phase), CAP),
    "the same noise under every seed": RunFault(of(Schedule, "generator", of_every_run)),
    "noise keyed by round plus client": RunFault(keyed(lambda t, k: (0, t + k))),
    "one entry bare": RunFault(noise_kept_from(lambda k, name: name.endswith("bias") and 0)),
    "half the noise of clients from 50 on": RunFault(of(Distributed, "noised", halved_noise)),
    "no noise in the last round": RunFault(cohort_changed(bare_in_the_last)),
    "one client counts twice": RunFault(of(Central, "privatise", twice), {"privacy": {"mechanism": "central"}}),
    "a clip that follows the bare count": RunFault(follows_the_bare_count, {"privacy": {"clipping": "adaptive"}}),
    "one client in every cohort": RunFault(cohort_of(always_client_0)),
    "Poisson cohorts of exactly K": RunFault(
        cohort_of(lambda right, self, t, clients, size, *asked: right(self, t, clients, size, "fixed")), POISSON
    ),
    "the same clients drop out every time": RunFault(
        keyed(lambda t, k: (0, k), ("absence",)), {"cohort": {"dropout": 0.2}, "privacy": {"min_reports": 4}}
    ),
    "system randomness of 16 bits": RunFault(
        of(Schedule, "generator", of_few_bits), {"privacy": {"randomness": "system"}}
    ),
    "one client trains without noise": RunFault(bare_training, RECORD),
    "two phases share noise": RunFault(
        of(Work, "moment", lambda right: lambda self, round_: round_),
        RECORD | MLP | {"method": {"name": "ppsgd"}, "train": {"engine": "loop"}},
    ),
    "two phases share noise in coordinates of records": RunFault(
        of(Work, "moment", lambda right: lambda self, round_: round_), RECORD | MLP | {"method": {"name": "ditto"}}
    ),
    "a control of all that is made of bare controls": RunFault(
        of(Scaffold, "aggregate", bare_controls), {"method": {"name": "scaffold"}}
    ),
    "an epoch more than is accounted for": RunFault(
        of(Method, "phases", lambda right: lambda self, work: (replace(work, epochs=work.epochs + 1),)), RECORD
    ),
}

CORRELATED: dict[str, RunFault] = {
    "one band too many": RunFault(cohort_changed(one_band_more), BANDED),
    "one band too many for the groups": RunFault(
        of(base, "factorise", lambda right: lambda response, bands: right(response, bands + 1)), BANDED
    ),
    "columns longer than 1": RunFault(
        of(base, "factorise", lambda right: lambda *asked: tuple(1.02 * c for c in right(*asked))), BANDED
    ),
    "longer columns than the audit knows of": RunFault(cohort_changed(longer_columns), BANDED),
    "noise of the round before again": RunFault(of(central, "correlated", noise_before), BANDED),
    "earlier noise forgotten": RunFault(cohort_changed(lambda made, simulation, t: replace(made, noise={})), BANDED),
    "independent noise repeats at lag 10": RunFault(keyed(lambda t, k: (t % 10, k)), BANDED),
    "groups split anew in every cycle": RunFault(cohort_of(split_anew), BANDED),
    "one client in every other round": RunFault(cohort_of(every_other_round), BANDED),
    "the same clients of a group on every turn": RunFault(
        cohort_of(lambda right, self, t, *asked: right(self, t % 5 + 5, *asked)), BANDED
    ),
}
"""Faults of noise that is correlated over rounds, and of groups that take turns."""

RUN_FAULTS = ASKED | FURTHER | CORRELATED

RIGHT: dict[str, Settings] = {
    "distributed": {},
    "distributed, Poisson": POISSON,
    "distributed, controls of clients": {"method": {"name": "scaffold"}},
    "distributed, dropout": {"cohort": {"dropout": 0.2}},
    "distributed, adaptive clipping": {"privacy": {"clipping": "adaptive"}},
    "distributed, system randomness": {"privacy": {"randomness": "system"}},
    "central": {"privacy": {"mechanism": "central"}},
    "central, Poisson": POISSON | {"privacy": {"mechanism": "central"}},
    "central, clipping per layer": {"privacy": {"mechanism": "central", "clipping": "per_layer"}},
    "central, banded": BANDED,
    "central, banded over whole groups": {
        "cohort": {"sampling": "cyclic", "dropout": 0.1},
        "train": {"server_optimizer": "momentum"},
        "privacy": {"mechanism": "central", "noise": "banded", "randomness": "system"},
    },
    "central, cyclic": {"cohort": {"sampling": "cyclic"}, "privacy": {"mechanism": "central"}},
    "distributed, median": {"train": {"aggregation": "median"}},
    "FedCEO": FEDCEO,
    "record": RECORD,
}
"""Experiments with nothing planted, over all mechanisms."""
ROUNDS = 40
"""Rounds with canaries: few, for the checks of the run find most at once."""


def found_by(report: Report) -> list[str]:
    """The checks that failed and the views that were refuted."""
    checks = [finding.check for finding in report.findings if not finding.passed]
    return checks + [view.view for view in report.views if view.verdict == "refuted"]
