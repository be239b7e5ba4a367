"""Draws docs/paper-figures/: the paper's figures on its data, CIFAR-10 with LeNet-5, each by one command.

    fedceo sweep experiments/paper/figures.toml --stack 2 --out runs/figures       # about a minute on a GPU
    fedceo attack experiments/attacks/cifar10.toml --preset paper --out runs/dlg   # about four on a CPU
    python tools/pages/paper_figures.py --runs runs/figures --attack runs/dlg

Trade-off curves come from results/. What is not given is not drawn anew: a picture that is there stays, with the words
and the command in captions.json, and the page says what is lacking.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from paper_tables import SIGMAS
from runs_found import NAMES, Found, load

from fedceo.report.style import Array, Drawing, light_grid, line_style, panels, styled

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "paper-figures"
LEVELS = {"record": "record level, sigma 2", "user": "user level, Algorithms 1 and 2 as written, sigma 2"}
RECORDED = {
    "smoothness": "Smoothness of the stacked last layer",
    "class-bars": "Accuracy by class and client",
    "singular-values": "Singular values by frequency",
    "survivors": "Singular values above the threshold, over rounds",
}
TRADE_OFFS = {
    "trade-off-record": ("paper/table1/cifar10-lenet5", "record level, rates tuned alike"),
    "trade-off-user": ("paper/user/cifar10-lenet5/literal", "user level, Algorithms 1 and 2 as written"),
    "trade-off-user-tuned": ("paper/user/cifar10-lenet5/own-step", "user level, a server step of its own, tuned"),
}
"""Where a curve's cells are in results/, and in which regime; tuned cells have a rate for each sigma."""
ATTACK = "fedceo attack experiments/attacks/cifar10.toml --preset paper --out runs/dlg"
HEAD = """# The paper's figures

On the paper's data, CIFAR-10 with LeNet-5 (the attack with the sigmoid LeNet of DLG, since [on LeNet-5 it fails without
any privacy too](../attacks.md#which-model)), each drawn by the command below it. FedCEO has the paper's lambda,
vartheta and I. Written by `tools/pages/paper_figures.py`, which says which runs they need.
"""


def figures(runs: Path) -> dict[str, tuple[str, list[str]]]:
    """The title of each picture, and the arguments of `fedceo figure` that draw it."""
    found = {
        f"{figure}-{level}": (f"{title}, {words}", [figure, str(runs / level / "seed-0")])
        for figure, title in RECORDED.items()
        for level, words in LEVELS.items()
    }
    return found


@styled
def trade_off(setting: str, cells: dict[str, Found]) -> Drawing:
    """Last accuracy over sigma, a line for each method that was run, means with standard deviations.

    Returns:
        data["METHOD"], (sigmas, 2): mean and standard deviation in percent.
    """
    figure, axes = panels(1, 1, 5.6, 3.8)
    data: dict[str, Array] = {}
    for number, (method, name) in enumerate(each for each in NAMES.items() if "fixed-rate" not in each[0]):
        found = {sigma: cells.get(f"{setting}/sigma-{sigma}/{method}") for sigma in SIGMAS}
        values = {float(sigma): each.percent("last") for sigma, each in found.items() if each and each.done}
        if not values:
            continue
        data[method] = np.array([(np.mean(v), np.std(v, ddof=1) if len(v) > 1 else 0.0) for v in values.values()])
        mean, spread = data[method].T
        axes[0, 0].errorbar(list(values), mean, yerr=spread, capsize=2, label=name, **line_style(number))
    axes[0, 0].set(xlabel="sigma_g", ylabel="last test accuracy, %", xticks=[float(sigma) for sigma in SIGMAS])
    light_grid(axes[0, 0])
    figure.legend(loc="outside lower center", ncols=2)
    return Drawing(
        figure, data, "Accuracy after the last round over sigma_g; bars are one standard deviation over seeds."
    )


def draw(arguments: list[str], file: Path) -> str | None:
    """The caption of a figure that `fedceo figure` has drawn; None where its runs are not there."""
    if not (ROOT / arguments[1]).exists():
        return None
    command = [sys.executable, "-m", "fedceo", "figure", *arguments, "--out", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{file.name}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return done.stdout.partition(": ")[2].strip()


def page(said: dict[str, dict[str, str]], runs: Path) -> str:
    parts = [HEAD]
    lacking = []
    wanted = {name: (title, str(arguments[1])) for name, (title, arguments) in figures(runs).items()}
    wanted |= {
        name: (f"Accuracy over noise, {words}", f"results/{where}") for name, (where, words) in TRADE_OFFS.items()
    }
    for name, (title, needs) in wanted.items():
        if name in said:
            parts.append(
                f"## {title}\n\n![{title}]({name}.png)\n\n{said[name]['caption']}\n\n    {said[name]['command']}\n"
            )
        else:
            lacking.append(f"- {title}: needs `{needs}`")
    if "attack" in said:
        about = said["attack"]
        parts.append(
            f"## Reconstructions by DLG\n\n![DLG](attack.png)\n\n{about['caption']}\n\n    {about['command']}\n"
        )
    if lacking:
        parts.append("## Not drawn yet\n\n" + "\n".join(lacking) + "\n")
    return "\n".join(parts)


def attack_caption(folder: Path) -> str:
    """What the attacks reached, from their files."""
    numbers = []
    for file in sorted(folder.rglob("attack.json")):
        result = json.loads(file.read_text())
        for row in result["rows"]:
            who = {"control": "FedAvg", "attack": "UDP-FedAvg" if result["holds"] == "T1" else "FedCEO"}.get(
                row["name"]
            )
            if who:
                noise = "" if row["name"] == "control" else f" at sigma {result['noise_multiplier']:g}"
                numbers.append((result["records"][0], f"{who}{noise} {row['psnr']['value']:.1f} dB"))
    by_record = {record: [text for of, text in numbers if of == record] for record, _ in sorted(numbers)}
    return "; ".join(f"record {record}: {', '.join(texts)}" for record, texts in by_record.items()) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/figures"), help="of the sweep of figures.toml")
    parser.add_argument("--attack", type=Path, default=Path("runs/dlg"), help="of fedceo attack --preset paper")
    given = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    captions = FOLDER / "captions.json"
    said = json.loads(captions.read_text()) if captions.exists() else {}
    for name, (_, arguments) in figures(given.runs).items():
        if caption := draw(arguments, FOLDER / f"{name}.png"):
            shown = " ".join(figures(Path("runs/figures"))[name][1])
            said[name] = {"caption": caption, "command": f"fedceo figure {shown} --out {name}.png"}
    cells = load()
    for name, (setting, _) in TRADE_OFFS.items():
        if any(cell.startswith(f"{setting}/") for cell in cells):
            drawing = trade_off(setting, cells)
            drawing.save(FOLDER / f"{name}.png")
            said[name] = {"caption": drawing.caption, "command": "python tools/pages/paper_figures.py"}
    if (given.attack / "figure.png").exists():
        shutil.copy(given.attack / "figure.png", FOLDER / "attack.png")
        said["attack"] = {"caption": attack_caption(given.attack), "command": ATTACK}
    captions.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    (FOLDER / "README.md").write_text(page(said, Path("runs/figures")))


if __name__ == "__main__":
    main()
