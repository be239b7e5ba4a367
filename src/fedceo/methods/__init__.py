"""Federated methods, one file each; `base.py` is the seam they share, `own.py` how to bring one of your own."""

from fedceo.mechanisms.uploads import Mean, Stack, Uploads
from fedceo.methods.base import Method, MethodSettings, Setup, State, make_method, register
from fedceo.methods.own import OwnMethod

__all__ = [
    "Mean",
    "Method",
    "MethodSettings",
    "OwnMethod",
    "Setup",
    "Stack",
    "State",
    "Uploads",
    "make_method",
    "register",
]
