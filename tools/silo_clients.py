"""Measures what every single silo has of training alone, of the global model and of collaborating.

    python tools/silo_clients.py

One run of each of three methods in one setting of experiments/silos/cifar10-100.toml, tuned as in results/silos/ where
that setting has been run there, else as the file says. Writes results/silos/cifar10-100.clients.json, from which
tools/pages/silos_picture.py draws; about four minutes on one core.
"""

import json
from pathlib import Path

from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.simulation.durable import write_whole
from fedceo.simulation.evaluation import Evaluator
from fedceo.simulation.preparing import prepare
from fedceo.studies.cells import find_experiments
from fedceo.studies.filling import read_entries

ROOT = Path(__file__).resolve().parents[1]
TABLE = "cifar10-100"
EPSILON, PARTITION, SEED = "epsilon-5", "dirichlet-0.3", 1
METHODS = ("local", "fedavg", "fedceo-damp-mean")


def experiment_of(name: str) -> Experiment:
    """The cell as it was tuned, or as the file has it."""
    for entry in read_entries(ROOT / "results" / "silos" / f"{TABLE}.json"):
        if (entry["name"], entry["seed"]) == (name, SEED):
            return parse_experiment(entry["experiment"])
    found = find_experiments(ROOT / "experiments" / "silos" / f"{TABLE}.toml", [], [name])[name]
    return found.model_copy(update={"seed": SEED})


def p_dist_of_each(experiment: Experiment) -> list[float | None]:
    """P-dist of every silo's model after the last round."""
    simulation = prepare(experiment)
    while simulation.round < experiment.train.rounds:
        simulation.step()
    method, state, evaluator = simulation.method, simulation.state, simulation.evaluator
    assert isinstance(evaluator, Evaluator)
    clients = range(simulation.federation.clients)
    if method.personal_clients(state) is None:
        shared = evaluator.per_class(method.global_model(state))
        return [evaluator.on_own_labels(client, shared) for client in clients]
    found = []
    for client in clients:
        own = {name: w[0] for name, w in method.personalise(state, [client], simulation.round).items()}
        found.append(evaluator.on_own_labels(client, evaluator.per_class(own)))
    return found


def main() -> None:
    experiments = {method: experiment_of(f"{EPSILON}/{method}/{PARTITION}") for method in METHODS}
    measured = {
        "setting": f"{EPSILON}/{PARTITION}",
        "seed": SEED,
        "learning_rate": {method: each.train.learning_rate for method, each in experiments.items()},
        "p_dist": {method: p_dist_of_each(each) for method, each in experiments.items()},
    }
    out = ROOT / "results" / "silos" / f"{TABLE}.clients.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, (json.dumps(measured) + "\n").encode())


if __name__ == "__main__":
    main()
