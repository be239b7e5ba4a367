"""Draws docs/gallery/: the figures of real runs and attacks on handwritten digits, three seeds of each run.

python tools/pages/gallery.py
"""

import tempfile
from pathlib import Path
from typing import Any

import fedceo
from fedceo.attacks import Attack, choose, run_study
from fedceo.data import build_federation
from fedceo.experiment.file import parse_experiment
from fedceo.report import figures
from fedceo.report.figures import Drawing
from fedceo.simulation.preparing import prepare

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
BASE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 20, "partition": "iid"},
    "model": {"name": "mlp"},
    "cohort": {"size": 10},
    "train": {"rounds": 60, "local_epochs": 5, "batch_size": 8, "learning_rate": 0.1},
    "evaluation": {"every": 5},
    "record": {"every": 10},
}
PRIVATE = {"privacy": {"mechanism": "distributed", "noise_multiplier": 1.0}, "method": {"name": "fedavg"}}
CEO = {"name": "fedceo", "strength": 0.1, "ratio": 1.04, "interval": 10}
SEEDS, SIGMAS = (0, 1, 2), (0.5, 1.0, 2.0)


def experiments() -> dict[str, dict[str, Any]]:
    """FedAvg without noise, and UDP-FedAvg beside FedCEO at three noise multipliers."""
    found = {"FedAvg": BASE | {"privacy": {"mechanism": "none"}, "method": {"name": "fedavg"}}}
    for sigma in SIGMAS:
        privacy = {"mechanism": "distributed", "noise_multiplier": sigma}
        found[f"UDP-FedAvg, sigma {sigma:g}"] = BASE | {"privacy": privacy, "method": {"name": "fedavg"}}
        found[f"FedCEO, sigma {sigma:g}"] = BASE | {"privacy": privacy, "method": CEO}
    return found


def main() -> None:
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, table in experiments().items():
            for seed in SEEDS:
                paths.append(Path(folder) / name / f"seed-{seed}")
                fedceo.run(table | {"seed": seed}, out=paths[-1])
        groups = figures.group_runs(figures.load_runs(paths))
        recorded = next(group for group in groups if group.name == "FedCEO, sigma 1").runs[0].recordings
        recordings = [figures.read_recording(path) for path in recorded]
        dealt = parse_experiment(BASE | PRIVATE | {"data": BASE["data"] | {"partition": "dirichlet"}})
        victim = prepare(parse_experiment(BASE | PRIVATE | {"model": {"name": "dlg-lenet"}}))
        study = run_study(victim, Attack("dlg", iterations=20), "T1", choose(victim, images=4))
        drawings: dict[str, Drawing] = {
            "partition": figures.partition(build_federation(dealt.data, dealt.seed)),
            "accuracy": figures.accuracy_curves([g for g in groups if g.name.endswith(("FedAvg", "sigma 1"))]),
            "trade-off-epsilon": figures.trade_off(groups),
            "trade-off-sigma": figures.trade_off(groups, against="sigma"),
            "runtime": figures.runtime(groups),
            "smoothness": figures.smoothness(recordings[-1]),
            "class-bars": figures.class_bars(recordings[-1]),
            "singular-values": figures.singular_values(recordings[-1]),
            "survivors": figures.survivors(recordings),
            "attack-control": figures.attack_grid(study, "control"),
            "attack": figures.attack_grid(study, "attack"),
        }
    lines = ["# Gallery", "", "Real runs on handwritten digits, drawn by `python tools/pages/gallery.py`.", ""]
    for name, drawing in drawings.items():
        drawing.figure.savefig(GALLERY / f"{name}.png", dpi=110)
        lines += [f"![{name}]({name}.png)", "", drawing.caption, ""]
    (GALLERY / "README.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
