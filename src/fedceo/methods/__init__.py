"""Federated methods, one file each; `method.py` is the seam they share, `own.py` how to bring one of your own."""

from fedceo.method_settings import Settings
from fedceo.methods.method import Method, State, make_method
from fedceo.methods.own import OwnMethod
from fedceo.privacy.mechanisms import Mean, Stack, Uploads

__all__ = ["Mean", "Method", "OwnMethod", "Settings", "Stack", "State", "Uploads", "make_method"]
