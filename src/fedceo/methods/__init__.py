"""Federated methods, one file each; `method.py` is the seam they share, `own.py` how to bring one of your own."""

from fedceo.method_settings import Settings
from fedceo.methods.fedavg import FedAvg
from fedceo.methods.method import Contribution, Method, State, make_method
from fedceo.privacy.mechanisms import Mean, Stack, Uploads

__all__ = ["Contribution", "FedAvg", "Mean", "Method", "Settings", "Stack", "State", "Uploads", "make_method"]
