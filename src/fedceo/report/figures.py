"""Figures fit for a paper: each function returns a `Drawing`, the matplotlib figure and the arrays it shows.

    runs = load_runs(["runs/demo/FedCEO", "runs/demo/UDP-FedAvg"])
    accuracy_curves(group_runs(runs)).figure.savefig("accuracy.pdf")
    recording = read_recording("runs/demo/FedCEO/records/round-00030.safetensors")
    singular_values(recording, "fc1.weight").data["values"]

There are figures of runs (accuracy_curves, trade_off, forest, runtime), of one recorded round (smoothness, class_bars,
singular_values, or of_recording for all three), of many recorded rounds (survivors), of a federation (partition) and of
an attack (attack_grid). The section [record] of an experiment file says which rounds are recorded.
"""

from fedceo.report.curves import accuracy_curves, forest, runtime, trade_off
from fedceo.report.loading import Group, LoadedRun, group_runs, load_runs
from fedceo.report.pictures import attack_grid, partition
from fedceo.report.stacks import class_bars, layers_of, of_recording, singular_values, smoothness, survivors
from fedceo.report.style import Drawing
from fedceo.simulation.folder import read_recording

__all__ = [
    "Drawing",
    "Group",
    "LoadedRun",
    "accuracy_curves",
    "attack_grid",
    "class_bars",
    "forest",
    "group_runs",
    "layers_of",
    "load_runs",
    "of_recording",
    "partition",
    "read_recording",
    "runtime",
    "singular_values",
    "smoothness",
    "survivors",
    "trade_off",
]
