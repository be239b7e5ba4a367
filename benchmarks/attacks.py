"""Every attack on everything an attacker can hold, over the same images; writes results/attacks-cpu.json.

python benchmarks/attacks.py             # about half an hour of one core
python benchmarks/attacks.py ig          # that attack anew, the others stay as they are

Reads CIFAR-10 from FEDCEO_DATA. The table in docs/attacks.md is made from the file by docs/generate.py.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from report import RESULTS, write

from fedceo.attacks import Attack, choose, run_study
from fedceo.config import load_experiment
from fedceo.simulation.runs import prepare

FILE = Path(__file__).parents[1] / "experiments" / "attacks" / "cifar10.toml"
OUT = RESULTS / "attacks-cpu.json"
IMAGES, RESTARTS = 32, 1
STEPS = {"dlg": 300, "idlg": 300, "ig": 1000}
CONTROLLED = {"T0": False, "T1": True, "T2": False, "T3": True}
"""Whether the control is run: that of T2 is T1's, and T0, at weights that nothing has trained, is one itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Every attack on everything an attacker can hold.")
    parser.add_argument("attacks", nargs="*", default=list(STEPS), help=f"of {', '.join(STEPS)}; left out: all")
    studies = json.loads(OUT.read_text())["studies"] if OUT.exists() else {}
    for name in parser.parse_args().attacks:
        studies[name] = {}
        for holds, control in CONTROLLED.items():
            simulation = prepare(load_experiment(FILE))
            attack = Attack(name, STEPS[name], restarts=RESTARTS)
            study = run_study(simulation, attack, holds, choose(simulation, IMAGES), control=control)
            studies[name][holds] = _rounded(study.result)
            write({"images": IMAGES, "studies": studies}, OUT)


def _rounded(value: Any) -> Any:
    """Numbers with five digits: more say nothing here, and fill the file."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
