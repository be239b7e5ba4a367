"""Federated learning under differential privacy, around FedCEO (ICML 2025)."""

from fedceo import tensors

__version__ = "0.1.0"

__all__ = ["__version__", "tensors"]
