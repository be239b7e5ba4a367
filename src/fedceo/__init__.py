"""Federated learning under differential privacy, around FedCEO (ICML 2025)."""

from fedceo import tensors

__all__ = ["tensors"]
