"""Digests of short runs: does a change of the code change a number?

    python tools/same_bits.py before.json                     # with the code as it was
    python tools/same_bits.py after.json --against before.json

Each experiment is a few rounds on the embedded digits: every mechanism, every family of methods, adaptive clipping, a
cap on participations, dropout, Poisson cohorts, record-level training with both engines, two Ray workers, and a run
that is killed and resumed. Kept of each: SHA-256 of the final weights and of the metrics of every round, and the
privacy rows without their prose. Digests hold for one machine and one version of torch: sums of floating-point numbers
depend on both.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedceo

BASE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 30, "local_test": 0.1},
    "cohort": {"size": 6},
    "train": {"rounds": 8, "local_epochs": 1, "batch_size": 16, "device": "cpu"},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
    "method": {"name": "fedceo", "interval": 4, "strength": 5.0},
    "evaluation": {"every": 3},
    "checkpoint": {"every": 5},
}
RECORD = {"mechanism": "record", "noise_multiplier": 0.8}
CENTRAL = {"mechanism": "central", "noise_multiplier": 0.8}


def experiments() -> dict[str, dict[str, Any]]:
    """The experiments by name, as nested mappings."""

    def changed(**sections: dict[str, Any]) -> dict[str, Any]:
        replaced = {name: fields for name, fields in sections.items() if name in ("privacy", "method")}
        merged = {name: BASE.get(name, {}) | fields for name, fields in sections.items() if name not in replaced}
        return BASE | merged | replaced

    small_cnn = {"name": "small-cnn"}
    return {
        "fedceo, distributed": BASE,
        "fedceo, stored and resubmitted": changed(
            method={"name": "fedceo", "interval": 2, "strength": 5.0, "restart": "stored", "unseen": "resubmit"}
        ),
        "fedceo, noise threshold, slot": changed(
            method={"name": "fedceo", "interval": 2, "threshold": "noise", "kappa": 0.3, "restart": "slot"}
        ),
        "fedceo, mean, central, Poisson": changed(
            cohort={"sampling": "poisson"},
            privacy=CENTRAL,
            method={"name": "fedceo", "interval": 2, "strength": 5.0, "restart": "mean"},
        ),
        "fedavg, banded noise": changed(
            cohort={"sampling": "cyclic", "groups": 3}, privacy=CENTRAL | {"noise": "banded"}, method={"name": "fedavg"}
        ),
        "fedavg, none, by records": changed(
            train={"weighting": "records", "server_optimizer": "adam"},
            privacy={"mechanism": "none"},
            method={"name": "fedavg"},
        ),
        "fedavg, adaptive clip, central": changed(
            privacy=CENTRAL | {"clipping": "adaptive"},
            train={"server_optimizer": "momentum"},
            method={"name": "fedavg"},
        ),
        "blur-lus, adaptive clip, distributed": changed(
            privacy={"mechanism": "distributed", "noise_multiplier": 0.5, "clipping": "adaptive"},
            method={"name": "blur-lus", "score": "first-order"},
        ),
        "dp-fedavg, cap, per layer": changed(
            privacy={
                "mechanism": "distributed",
                "noise_multiplier": 0.5,
                "clipping": "per_layer",
                "participation_cap": 2,
            },
            method={"name": "dp-fedavg"},
        ),
        "fedprox, dropout, min_reports, Poisson": changed(
            cohort={"dropout": 0.3, "sampling": "poisson"},
            privacy={"mechanism": "distributed", "noise_multiplier": 0.5, "min_reports": 3},
            method={"name": "fedprox"},
        ),
        "dp-fedsgd, target epsilon": changed(
            privacy={"mechanism": "distributed", "target_epsilon": 20.0, "observer": "server"},
            method={"name": "dp-fedsgd"},
        ),
        "dp-fedsam, record, loop": changed(train={"engine": "loop"}, privacy=RECORD, method={"name": "dp-fedsam"}),
        "fedavg, record, batched, small-cnn": changed(
            model=small_cnn, train={"engine": "batched"}, privacy=RECORD, method={"name": "fedavg"}
        ),
        "dp-fed-ls, budget": changed(
            privacy={"mechanism": "central", "noise_multiplier": 2.0, "max_epsilon": 3.0}, method={"name": "dp-fed-ls"}
        ),
        "ppsgd, record, cap": changed(
            privacy=RECORD | {"participation_cap": 2}, method={"name": "ppsgd", "personal_learning_rate": 0.05}
        ),
        "ppsgd, gradient": changed(method={"name": "ppsgd", "form": "gradient", "alpha": 0.5}),
        "centaur, power": changed(method={"name": "centaur", "initialisation": "power", "power_rounds": 2}),
        "fedceo, damp, all, record": changed(
            privacy=RECORD, method={"name": "fedceo", "filter": "damp", "memory": "all", "interval": 2}
        ),
        "fedceo, spare-mean": changed(
            method={"name": "fedceo", "filter": "spare-mean", "interval": 2, "strength": 5.0, "restart": "mean"}
        ),
        "local, record": changed(privacy=RECORD, method={"name": "local"}),
        "fedavg-finetune": changed(method={"name": "fedavg-finetune"}),
        "mr-mtl": changed(method={"name": "mr-mtl"}),
        "ditto, record": changed(privacy=RECORD, method={"name": "ditto"}),
        "jain-anil": changed(method={"name": "jain-anil", "rank": 4}),
    }


def digest_of(run: fedceo.Run) -> dict[str, Any]:
    """Digests of the parts of a run that must stay the same."""
    weights = hashlib.sha256()
    for name, w in sorted(run.weights.items()):
        weights.update(name.encode() + w.contiguous().numpy().tobytes())
    words = ("assumption", "accountant")
    rows = [{key: value for key, value in row.items() if key not in words} for row in run.result["privacy"]]
    metrics = hashlib.sha256(json.dumps(run.history, sort_keys=True).encode())
    return {"weights": weights.hexdigest(), "metrics": metrics.hexdigest(), "rows": rows}


class KilledError(Exception):
    """Raised to leave a run as a killed process would."""


def resumed() -> fedceo.Run:
    """A run that is killed in its sixth round, one after its checkpoint, and resumed."""

    def kill(record: Mapping[str, Any]) -> None:
        if record["round"] == 6:
            raise KilledError

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            fedceo.run(BASE, out=out, on_round=kill)
        except KilledError:
            return fedceo.resume(out)
    raise AssertionError("the run was not killed")


def on_ray() -> fedceo.Run:
    """The base experiment trained and smoothed by two Ray workers."""
    from fedceo.scale.cluster import Workers

    return fedceo.run(BASE, workers=Workers(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path, help="digests to compare with; exits with 1 where any differs")
    parser.add_argument("--without-ray", action="store_true")
    options = parser.parse_args()
    found = {name: digest_of(fedceo.run(table)) for name, table in experiments().items()}
    found["resume"] = digest_of(resumed())
    if not options.without_ray:
        found["ray"] = digest_of(on_ray())
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.against is None:
        print(f"{len(found)} digests in {options.out}")
        return
    before = json.loads(options.against.read_text())
    differing = [
        f"{name}: {part}"
        for name, digest in found.items()
        for part in digest
        if name in before and before[name][part] != digest[part]
    ]
    missing = sorted(before.keys() - found.keys())
    print(*(differing or ["all digests are equal"]), *(f"{name}: not run" for name in missing), sep="\n")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
