"""Draws docs/demo.png: the runs of `fedceo demo`, test accuracy over rounds.

python tools/pages/demo_picture.py
"""

from pathlib import Path

from matplotlib.figure import Figure

import fedceo
from fedceo.experiment.catalogue import demo_experiments

STYLES = {
    "FedAvg": ("#000000", ":"),
    "UDP-FedAvg": ("#0072B2", "--"),
    "FedCEO": ("#D55E00", "-"),
    "Recipe": ("#009E73", "-"),
}


def main() -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, experiment in demo_experiments().items():
        run = fedceo.run(experiment)
        rounds = [record["round"] for record in run.history]
        accuracy = [100 * record["test_accuracy"] for record in run.history]
        outsider = next((row for row in run.result["privacy"] if row["observer"] == "outsider"), None)
        privacy = (
            f", outsider's epsilon {outsider['epsilon']:.3g}" if outsider and outsider["epsilon"] else ", no privacy"
        )
        colour, line = STYLES[name]
        axes.plot(rounds, accuracy, line, color=colour, label=name + privacy)
    axes.set(
        xlabel="round", ylabel="test accuracy, %", ylim=(0, 100), title="fedceo demo: handwritten digits, one seed"
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(Path(__file__).parents[2] / "docs" / "demo.png", dpi=120)


if __name__ == "__main__":
    main()
