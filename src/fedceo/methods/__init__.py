"""Federated methods, one file each; `method.py` is the seam they share."""

from fedceo.methods.method import Method, State, make_method

__all__ = ["Method", "State", "make_method"]
