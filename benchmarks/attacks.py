"""Every attack on everything an attacker can hold, over the same images; writes results/attacks-cpu.json.

python benchmarks/attacks.py             # about an hour of one core
python benchmarks/attacks.py ig          # that attack anew, the others stay as they are

Reads CIFAR-10 from FEDCEO_DATA. The table in docs/attacks.md is made from the file by tools/pages/generate.py.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from report import RESULTS, write

from fedceo.attacks import Attack, choose, run_study
from fedceo.experiment.file import load_experiment
from fedceo.simulation.preparing import prepare

FILE = Path(__file__).parents[1] / "experiments" / "attacks" / "cifar10.toml"
OUT = RESULTS / "attacks-cpu.json"
IMAGES = 32
STEPS = {"dlg": 300, "idlg": 300, "ig": 1000}
LONG_STEPS = {"dlg": 60, "idlg": 60, "ig": 1000}
"""Under T3, where a step costs three times as much and L-BFGS has come far enough after 60."""
LONG_STARTS = {"dlg": 4, "idlg": 1, "ig": 1}
"""Under T3, one start of DLG found 14 of 32 images without privacy: it has the label to find too."""
SMOOTH = (0.1, 1.0, 10.0)
"""Weights of the total variation that ig is also given throughout: an attacker who trusts smoothness above all."""
CONTROLLED = {"T0": False, "T1": True, "T2": False, "T3": True}
"""Whether the control is run: that of T2 is T1's, and T0, at weights that nothing has trained, is one itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Every attack on everything an attacker can hold.")
    parser.add_argument("attacks", nargs="*", default=list(STEPS), help=f"of {', '.join(STEPS)}; left out: all")
    found: dict[str, Any] = {"images": IMAGES, "studies": {}, "smooth": {}}
    if OUT.exists():
        before = json.loads(OUT.read_text())
        found |= {name: before[name] for name in ("studies", "smooth")}
    for name in parser.parse_args().attacks:
        found["studies"][name] = {}
        for holds, control in CONTROLLED.items():
            long = holds == "T3"
            starts = LONG_STARTS[name] if long else 1
            attack = Attack(name, (LONG_STEPS if long else STEPS)[name], restarts=starts)
            found["studies"][name][holds] = _study(attack, holds, control)
            write(found, OUT)
        if name == "ig":
            for weight in SMOOTH:
                attack = Attack(name, STEPS[name], restarts=1, smoothness=(weight, weight))
                found["smooth"][f"{weight:g}"] = _study(attack, "T1", control=False)
            write(found, OUT)


def _study(attack: Attack, holds: str, control: bool) -> dict[str, Any]:
    simulation = prepare(load_experiment(FILE))
    study = run_study(simulation, attack, holds, choose(simulation, IMAGES), control=control)
    found: dict[str, Any] = _rounded(study.result)
    return found


def _rounded(value: Any) -> Any:
    """Numbers with five digits: more say nothing here, and fill the file."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
