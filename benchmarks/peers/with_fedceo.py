"""This library, with the engine it chooses itself.

python -m peers.with_fedceo WORK OUT
"""

import sys

import torch

import fedceo
from fedceo.data import Federation
from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.simulation.rounds import Simulation
from peers.work import Clock, Setting, Work


def experiment_of(setting: Setting) -> Experiment:
    privacy = {"mechanism": "none"}
    if setting.clip is not None:
        privacy = {"mechanism": "record", "clip": setting.clip, "noise_multiplier": setting.noise}
    return parse_experiment(
        {
            "data": {"name": setting.name, "clients": setting.clients},
            "cohort": {"size": setting.cohort},
            "train": {
                "rounds": setting.rounds + 1,  # the last round evaluates, which no contender does
                "local_epochs": setting.epochs,
                "batch_size": setting.batch,
                "learning_rate": setting.rate,
                "device": setting.device,
                "tf32": setting.tf32,
            },
            "privacy": privacy,
            "method": {"name": "fedavg"},
            "evaluation": {"every": setting.rounds + 1},
        }
    )


def federation_of(work: Work) -> Federation:
    setting = work.setting
    none = torch.empty(0, dtype=torch.int64)
    x, y = (torch.from_numpy(work.array(name)).flatten(0, 1) for name in ("x", "y"))
    train = list(torch.arange(len(y)).view(setting.clients, setting.records))
    return Federation(setting.name, x, y, train, none, [none] * setting.clients, x[:1], y[:1], 10)


def main(folder: str, out: str) -> None:
    work, clock = Work(folder), Clock(out)
    setting = work.setting
    simulation = Simulation(
        experiment_of(setting), federation_of(work), work.model(), setting.model, noise_multiplier=setting.noise
    )
    for _, clients in work.rounds():
        assert simulation.step()["cohort"] == clients
        clock.tick()
    clock.finish(simulation.state.weights, {"fedceo": fedceo.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main(*sys.argv[1:])
