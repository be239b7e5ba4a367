"""Gradient inversion: reconstructions of a record from the update that a mechanism really releases.

from fedceo.attacks import Attack, choose, run_study
study = run_study(prepare(experiment), Attack("dlg"), "T1", choose(simulation, images=32))
"""

from fedceo.attacks.inversion import Attack, Reconstruction, reconstruct
from fedceo.attacks.lbfgs import minimise
from fedceo.attacks.sender import Sender
from fedceo.attacks.study import PAPER, PAPER_RATE, Study, choose, run_study, whole_figure

__all__ = [
    "PAPER",
    "PAPER_RATE",
    "Attack",
    "Reconstruction",
    "Sender",
    "Study",
    "choose",
    "minimise",
    "reconstruct",
    "run_study",
    "whole_figure",
]
