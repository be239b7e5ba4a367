"""Measures what silos vote on: for every alpha P-dist, and how many of silos' own records their models get right.

    python tools/silo_votes.py

One run of every cell of experiments/silos whose alpha is voted and that results/silos has, with its tuned rate; models
are those of the round before the last, on which silos vote. Writes results/silos/alpha.votes.json, for
tools/pages/silos_page.py; about a minute a cell.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.methods.fedceo import DEFAULT_ALPHA
from fedceo.methods.filters import mixed
from fedceo.methods.voting import ALPHAS
from fedceo.simulation.counting import Classifier
from fedceo.simulation.durable import write_whole
from fedceo.simulation.evaluation import Evaluator
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from fedceo.studies.filling import read_entries
from fedceo.tensors.weights import Weights

RESULTS = Path(__file__).resolve().parents[1] / "results" / "silos"
METHOD, SEED = "fedceo-damp-voted", 1


def voted_cells() -> Iterator[tuple[str, Experiment]]:
    """TABLE/EPSILON/METHOD/PARTITION and the experiment as it was tuned."""
    for file in sorted(RESULTS.glob("*.json")):
        if file.name.count(".") == 1:
            for entry in read_entries(file):
                if METHOD in entry["name"].split("/") and entry["seed"] == SEED:
                    yield f"{file.stem}/{entry['name']}", parse_experiment(entry["experiment"])


def measured(experiment: Experiment) -> dict[str, object]:
    """P-dist and the share of records that are right, for every alpha, and the alpha that was elected."""
    simulation = prepare(experiment)
    while simulation.round < experiment.train.rounds - 1:
        simulation.step()
    evaluator = simulation.evaluator
    assert isinstance(evaluator, Evaluator)
    p_dist, right = [], []
    for alpha in ALPHAS:
        models = dict(_models(simulation, alpha))
        p_dist.append(evaluator.measure_personal(models.items(), len(models))["distribution_accuracy"])
        right.append(_right(simulation, models))
    return {"alphas": ALPHAS, "p_dist": p_dist, "right": right, "elected": simulation.step()["alpha"]}


def _models(simulation: Simulation, alpha: float) -> Iterator[tuple[int, Weights]]:
    state, layers = simulation.state, simulation.method.settings.layers
    for client, own in sorted(state.personal.items()):
        yield client, mixed(state.weights, own, alpha / DEFAULT_ALPHA, layers)


def _right(simulation: Simulation, models: dict[int, Weights]) -> float:
    """The share of all silos' training records that their silo's model gets right."""
    context, hits, records = simulation.context, 0, 0
    classifier = Classifier(context)
    for client, model in models.items():
        indices = context.federation.train[client].to(context.device)
        hits += int((classifier.of(indices)(model) == context.labels[indices]).sum())
        records += len(indices)
    return hits / records


def main() -> None:
    found = {name: measured(experiment) for name, experiment in voted_cells()}
    write_whole(RESULTS / "alpha.votes.json", (json.dumps(found, indent=1) + "\n").encode())
    for name, each in found.items():
        print(name, each)


if __name__ == "__main__":
    main()
