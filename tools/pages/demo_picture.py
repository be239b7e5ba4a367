"""Draws docs/demo.png: the runs of `fedceo demo`, test accuracy over rounds, in the colours of all figures.

python tools/pages/demo_picture.py
"""

import tempfile
from pathlib import Path

import fedceo
from fedceo.experiment.catalogue import demo_experiments
from fedceo.report.figures import Group, accuracy_curves, load_runs

OUT = Path(__file__).parents[2] / "docs" / "demo.png"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        groups = []
        for name, experiment in demo_experiments().items():
            fedceo.run(experiment, out=Path(folder) / name)
            (run,) = load_runs([Path(folder) / name])
            epsilon = run.epsilon("outsider")
            privacy = "no privacy" if epsilon is None else f"outsider's epsilon {epsilon:.3g}"
            groups.append(Group(f"{name}, {privacy}", (run,)))
        drawing = accuracy_curves(groups)
    drawing.figure.savefig(OUT, dpi=150)


if __name__ == "__main__":
    main()
